"""The operators on chunked dask arrays: lazy, and equal to what `dmlops` gives for the whole array.

Chunks may be NumPy's or CuPy's; a scheduler may run them in threads or in processes. NumPy arrays and lists
are taken too, as `dask.array.asarray` takes them. What `dmlops` refuses of an array's type, its sizes or the
other arguments is refused when the graph is built.
"""

from dmlops.integrations.dask.diagonal_matrix import diagonal_matrix
from dmlops.integrations.dask.gather_nd import gather_nd
from dmlops.integrations.dask.nonzero_coordinates import nonzero_coordinates
from dmlops.integrations.dask.top_k import top_k

__all__ = ["diagonal_matrix", "gather_nd", "nonzero_coordinates", "top_k"]
