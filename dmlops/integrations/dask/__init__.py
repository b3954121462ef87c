"""The operators on chunked Dask arrays: lazy, with the results that `dmlops` gives for the whole array.

Chunks may be arrays of NumPy or CuPy, and a scheduler may run them in threads or in processes. NumPy arrays
and lists are converted with `dask.array.asarray`. Unsupported types, sizes and arguments are refused when the
graph is built.
"""

from dmlops.integrations.dask.diagonal_matrix import diagonal_matrix
from dmlops.integrations.dask.gather_nd import gather_nd
from dmlops.integrations.dask.nonzero_coordinates import nonzero_coordinates
from dmlops.integrations.dask.sample import sample
from dmlops.integrations.dask.top_k import top_k

__all__ = ["diagonal_matrix", "gather_nd", "nonzero_coordinates", "sample", "top_k"]
