"""The operators as Numba kernels for host memory; they know plain arrays and integers only."""
