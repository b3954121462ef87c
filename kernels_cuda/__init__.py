"""The operators as Numba kernels for CUDA devices; they know plain addresses and integers only."""
