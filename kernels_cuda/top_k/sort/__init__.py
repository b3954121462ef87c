"""Rows that are sorted whole: sort."""
