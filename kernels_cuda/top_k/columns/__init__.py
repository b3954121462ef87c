"""Rows that lie side by side in memory: columns."""
