"""Rows of any length with any k, sorted by digits or selected by counts of digits: sort."""
