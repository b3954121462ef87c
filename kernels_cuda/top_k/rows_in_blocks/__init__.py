"""Rows that a block holds in registers or in shared memory: partition and tile."""
