"""Sorted, stable top-k along an axis.

Rows of which few elements are wanted are *searched* (`scan`; `short_rows` where they stay in the first-level
cache): a bound on the k-th key from the minima of groups of elements, then a list of the elements within it.
Others are sorted. The list is ranked or sorted by digits (`records`). Memory is read once; of what was read,
only the tiles that hold candidates are read again.
"""

from kernels_cpu.top_k.planning import Plan, plan

__all__ = ["Plan", "plan"]
