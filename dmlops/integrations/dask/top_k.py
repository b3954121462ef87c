"""Top-k of chunked arrays: the candidates of the chunks are merged in a tree."""

from operator import itemgetter
from typing import Any

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array

import dmlops
from dmlops import TopKResult
from dmlops.functions.top_k import TOP_K
from dmlops.integrations.dask import chunks
from dmlops.operators.top_k import broadcast_rows, infer_top_k
from dmlops.types.arguments import boolean, integer
from dmlops.types.data_types import index_data_type, numpy_dtype

# The candidates of so many chunks are merged at a time.
_MERGED_AT_ONCE = 8


def top_k(
    x: Any, k: int, *, axis: int = -1, largest: bool = True, sorted: bool = True, index_dtype: Any = None
) -> TopKResult[da.Array, da.Array]:
    """Return the `k` largest or smallest elements along an axis, as `dmlops.top_k` does.

    If the axis is chunked, the candidates of the chunks are merged in a tree. The result has one chunk along
    the axis, and the chunks of `x` along the other dimensions. There are no `lengths`.

    Examples
    --------
    >>> import dask.array as da
    >>> values, indices = top_k(da.asarray([3, 7, 7, 1], chunks=2), 2)
    >>> values.compute(), indices.compute()
    (array([7, 7]), array([1, 2]))
    """
    where = "top_k.x"
    x = chunks.as_dask_array(x, where)
    x = x.reshape(1) if x.ndim == 0 else x
    k, axis = integer(k, "top_k.k"), integer(axis, "top_k.axis")
    largest, sorted = boolean(largest, "top_k.largest"), boolean(sorted, "top_k.sorted")
    index_type = index_data_type("int64" if index_dtype is None else index_dtype, "top_k.index_dtype")
    if -x.ndim <= axis < x.ndim:
        chunks.check_known(x, axis, where)
    with chunks.mark_unknown_sizes(x):
        infer_top_k(TOP_K.words, broadcast_rows(chunks.describe(x, where), axis, {}), k, index_type)
    axis %= x.ndim
    if k == 0:
        # dask does not merge chunks that are all empty.
        before = [slice(None)] * axis
        x = x[(*before, slice(0, 0))].blocks[(*before, slice(0, 1))]
    options = {
        "k": k,
        "axis": axis,
        "largest": largest,
        # Candidates in order of index can be merged as well, and take less time to find.
        "sorted": sorted and x.numblocks[axis] == 1,
        "index_dtype": numpy_dtype(index_type),
    }
    values, indices = _select(_select_from_chunk, (x,), options)
    while values.numblocks[axis] > 1:
        sizes = values.chunks[axis]
        starts = range(0, len(sizes), _MERGED_AT_ONCE)
        together = {axis: tuple(sum(sizes[start : start + _MERGED_AT_ONCE]) for start in starts)}
        options = options | {"sorted": sorted and len(starts) == 1}
        values, indices = _select(_merge, (values.rechunk(together), indices.rechunk(together)), options)
    return TopKResult(values, indices)


def _select(block: Any, arrays: Any, options: dict[str, Any]) -> tuple[da.Array, da.Array]:
    """Map blocks to pairs of values and indices, and return those as two arrays."""
    x, k, axis = arrays[0], options["k"], options["axis"]
    selected = list(x.chunks)
    selected[axis] = tuple(min(k, size) for size in selected[axis])
    metas = meta_from_array(x), chunks.empty_like(x, x.ndim, options["index_dtype"])
    no_pairs = np.empty((0,) * x.ndim, object)
    pairs = da.map_blocks(block, *arrays, **options, chunks=selected, meta=no_pairs)
    values, indices = (pairs.map_blocks(itemgetter(i), meta=meta) for i, meta in enumerate(metas))
    return values, indices


def _select_from_chunk(
    x: Any, *, k: int, axis: int, index_dtype: Any, block_info: Any = None, **order: bool
) -> tuple[Any, Any]:
    values, indices = dmlops.top_k(x, min(k, x.shape[axis]), axis=axis, index_dtype=index_dtype, **order)
    indices += index_dtype.type(block_info[0]["array-location"][axis][0])
    return values, indices


def _merge(
    values: Any, indices: Any, *, k: int, axis: int, index_dtype: Any, **order: bool
) -> tuple[Any, Any]:
    # Candidates are in the order of their chunks, so positions of equal ones ascend with their indices.
    best, places = dmlops.top_k(values, min(k, values.shape[axis]), axis=axis, index_dtype="int64", **order)
    return best, np.take_along_axis(indices, places, axis)
