"""Top-k of chunked arrays: the candidates of the chunks are merged in a tree."""

import math
from typing import Any

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array

import dmlops
from dmlops import TopKResult
from dmlops.functions.top_k import TOP_K
from dmlops.integrations.dask import chunks
from dmlops.operators.top_k import infer_top_k
from dmlops.types.arguments import boolean, integer
from dmlops.types.data_types import index_data_type, numpy_dtype

# The candidates of so many chunks are merged at a time.
_MERGED_AT_ONCE = 8


def top_k(
    x: Any,
    k: int,
    *,
    axis: int = -1,
    largest: bool = True,
    sorted: bool = True,
    lengths: Any = None,
    index_dtype: Any = None,
) -> TopKResult[da.Array, da.Array]:
    """Return the `k` largest or smallest elements along an axis, as `dmlops.top_k` does.

    If the axis is chunked, the candidates of the chunks are merged in a tree. The result has one chunk along
    the axis. Along the other dimensions it has the chunks of `x`, and `lengths` are chunked like them.

    Examples
    --------
    >>> import dask.array as da
    >>> values, indices = top_k(da.asarray([3, 7, 7, 1], chunks=2), 2)
    >>> values.compute(), indices.compute()
    (array([7, 7]), array([1, 2]))
    """
    where, where_lengths = "top_k.x", "top_k.lengths"
    x = chunks.as_dask_array(x, where)
    x = x.reshape(1) if x.ndim == 0 else x
    k, axis = integer(k, "top_k.k"), integer(axis, "top_k.axis")
    largest, sorted = boolean(largest, "top_k.largest"), boolean(sorted, "top_k.sorted")
    index_type = index_data_type("int64" if index_dtype is None else index_dtype, "top_k.index_dtype")
    if -x.ndim <= axis < x.ndim:
        chunks.check_known(x, axis, where)
    described = None
    if lengths is not None:
        lengths = chunks.as_dask_array(lengths, where_lengths)
        described = chunks.describe(lengths, where_lengths)
        if lengths.ndim == x.ndim - 1 and -x.ndim <= axis < x.ndim:
            others = [other for other in range(x.ndim) if other != axis % x.ndim]
            for i, other in enumerate(others):
                chunks.check_alike(x, other, where, lengths, i, where_lengths)
    with chunks.mark_unknown_sizes(x, lengths):
        infer_top_k(TOP_K.words, chunks.describe(x, where), k, axis, index_type, described)
    axis %= x.ndim
    if k == 0:
        # dask does not merge chunks that are all empty.
        before = [slice(None)] * axis
        x = x[(*before, slice(0, 0))].blocks[(*before, slice(0, 1))]
        lengths = None
    if lengths is not None and lengths.size == 0:
        # dask rechunks no array of which all sizes are 0, and there are no rows.
        lengths = None
    options = {
        "k": k,
        "axis": axis,
        "largest": largest,
        # Candidates in order of index can be merged as well, and take less time to find.
        "sorted": sorted and x.numblocks[axis] == 1,
        "index_dtype": numpy_dtype(index_type),
    }
    if lengths is None:
        values, indices = _select(_select_from_chunk, (x,), options)
    else:
        of_rows = (*x.chunks[:axis], *x.chunks[axis + 1 :])
        known = (i for i, size in enumerate(lengths.shape) if not math.isnan(size))
        lengths = lengths.rechunk({i: of_rows[i] for i in known})
        values, indices = _select(_select_from_chunk, (x, lengths[(*[slice(None)] * axis, None)]), options)
    return _merged(values, indices, options | {"are_padded": lengths is not None}, sorted)


def _merged(
    values: da.Array, indices: da.Array, options: dict[str, Any], sorted: bool
) -> TopKResult[da.Array, da.Array]:
    """Select among the candidates of several chunks at a time, until there is one chunk along the axis."""
    axis = options["axis"]
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
    return chunks.map_to_pairs(block, arrays, metas, **options, chunks=selected)


def _select_from_chunk(
    x: Any,
    lengths: Any = None,
    *,
    k: int,
    axis: int,
    largest: bool,
    sorted: bool,
    index_dtype: Any,
    block_info: Any = None,
) -> tuple[Any, Any]:
    chunks.check_not_masked(x, "top_k.x")
    first = block_info[0]["array-location"][axis][0]
    options = {"axis": axis, "largest": largest, "sorted": sorted, "index_dtype": index_dtype}
    if lengths is not None:
        chunks.check_not_masked(lengths, "top_k.lengths")
        lengths = chunks.beside(x, lengths).squeeze(axis)
        chunks.check_sizes_alike((*x.shape[:axis], *x.shape[axis + 1 :]), lengths.shape, "top_k.lengths")
        most = min(np.iinfo(lengths.dtype).max, np.iinfo("int64").max)
        whole = np.minimum(lengths, lengths.dtype.type(most)).astype("int64")
        options["lengths"] = np.maximum(whole, first) - first
    values, indices = dmlops.top_k(x, min(k, x.shape[axis]), **options)
    if lengths is None:
        indices += index_dtype.type(first)
        return values, indices
    nowhere = _nowhere(index_dtype)
    return values, np.where(indices == nowhere, nowhere, indices + index_dtype.type(first))


def _nowhere(index_dtype: Any) -> Any:
    """Return the index that marks padding."""
    return np.array(-1).astype(index_dtype)[()]


def _merge(
    values: Any,
    indices: Any,
    *,
    k: int,
    axis: int,
    largest: bool,
    sorted: bool,
    index_dtype: Any,
    are_padded: bool,
) -> tuple[Any, Any]:
    # Candidates are in the order of their chunks, so positions of equal ones ascend with their indices.
    # Of the chunks of a row with elements, only the last one is padded: its candidates come first.
    count = min(k, values.shape[axis])
    options: dict[str, Any] = {"axis": axis, "largest": largest, "sorted": sorted, "index_dtype": "int64"}
    if are_padded:
        options["lengths"] = (indices != _nowhere(index_dtype)).sum(axis, dtype="int64")
    best, places = dmlops.top_k(values, count, **options)
    # The position of padding, -1, means the last one, which is padding if any is.
    return best, np.take_along_axis(indices, places, axis)
