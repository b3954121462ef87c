"""Sorted, stable top-k along an axis.

Rows of which few elements are wanted are *searched* (`scan`): a bound on the k-th key from the minima of
groups of elements, then a list of the elements within it. Others are sorted. The list is ranked or sorted by
digits (`records`). Memory is read once; what is read again comes from a cache.
"""

from kernels_cpu.top_k.planning import Plan, plan

__all__ = ["Plan", "plan"]
