"""The Numba kernels of dmlops for host memory; they know plain arrays and integers only.

This package is part of dmlops and has no interface of its own: import `dmlops`.
"""
