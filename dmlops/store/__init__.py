"""Compiled kernels: where they are found, kept and made."""
