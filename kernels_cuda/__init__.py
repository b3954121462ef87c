"""The Numba kernels of dmlops for CUDA devices; they know plain addresses and integers only.

This package is part of dmlops and has no interface of its own: import `dmlops`.
"""
