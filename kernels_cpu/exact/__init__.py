"""Integer arithmetic that kernels of both devices compile from one source, and Python runs as it stands."""
