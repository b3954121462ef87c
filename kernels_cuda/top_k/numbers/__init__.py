"""Rows whose elements the caller has numbered: numbered."""
