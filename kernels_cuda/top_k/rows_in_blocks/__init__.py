"""Rows that a block holds: partition."""
