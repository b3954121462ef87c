"""Rows that a block reads once, or little more: one_pass, sampled and block."""
