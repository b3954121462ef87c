"""The operators on chunked dask arrays: lazy, and equal to what `dmlops` gives for the whole array.

Chunks may be NumPy's or any other library's that `dmlops` serves; a scheduler may run them in threads.
"""

import itertools
import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array

import dmlops
from dmlops import InvalidDescriptorError, NonzeroResult, TensorDesc, TopKResult
from dmlops.data_types import data_type_of, index_data_type, numpy_dtype
from dmlops.errors import wording
from dmlops.integrations import inference

# How many chunks' candidates are merged at a time.
_MERGED_AT_ONCE = 8


def top_k(
    x: da.Array, k: int, *, axis: int = -1, largest: bool = True, index_dtype: Any = "uint32"
) -> TopKResult:
    """Return the `k` largest or smallest elements along an axis, and where they are in the whole array.

    As `dmlops.top_k`. Where the axis is chunked, candidates of each chunk are merged in a tree; the result
    is one chunk along the axis. Chunks along the other dimensions stay.

    Examples
    --------
    >>> import dask.array as da
    >>> values, indices = top_k(da.asarray([3, 7, 7, 1], chunks=2), 2)
    >>> values.compute(), indices.compute()
    (array([7, 7]), array([1, 2], dtype=uint32))
    """
    x = x.reshape(1) if x.ndim == 0 else x
    index_type = index_data_type(index_dtype, "top_k.index_dtype")
    inference.top_k(_describe(x, "top_k.x"), k, axis, index_type)
    axis %= x.ndim
    _check_known(x, axis, "top_k.x")
    if k == 0:
        x = x[(*[slice(None)] * axis, slice(0, 0))]
    options = {"k": k, "axis": axis, "largest": largest, "index_dtype": numpy_dtype(index_type)}
    values, indices = _select(_select_from_chunk, (x,), options)
    while values.numblocks[axis] > 1:
        sizes = values.chunks[axis]
        starts = range(0, len(sizes), _MERGED_AT_ONCE)
        merged = {axis: tuple(sum(sizes[start : start + _MERGED_AT_ONCE]) for start in starts)}
        values, indices = _select(_merge, (values.rechunk(merged), indices.rechunk(merged)), options)
    return TopKResult(values, indices)


def nonzero_coordinates(x: da.Array, *, index_dtype: Any = "uint32") -> NonzeroResult:
    """Return the coordinates of the non-zero elements, in ascending element order, and their count.

    As `dmlops.nonzero_coordinates`, of which the rows are trimmed: their chunks, one for each of `x` along
    the first dimension, have unknown sizes. `x` is rechunked where other dimensions are chunked.
    """
    where = "nonzero_coordinates"
    index_type = index_data_type(index_dtype, f"{where}.index_dtype")
    columns = x.ndim
    inference.nonzero_coordinates(_describe(x, f"{where}.x"), 0, index_type)
    x = x.reshape(1) if columns == 0 else x
    _check_known(x, 0, f"{where}.x")
    if any(blocks > 1 for blocks in x.numblocks[1:]):
        # dask cannot choose chunks for an array without elements.
        x = x.rechunk({0: "auto" if x.size else -1} | dict.fromkeys(range(1, x.ndim), -1))
    dtype = numpy_dtype(index_type)
    blocks = x.numblocks[0]
    coordinates = x.map_blocks(
        _coordinates_in_chunk,
        columns=columns,
        index_dtype=dtype,
        drop_axis=list(range(1, x.ndim)),
        new_axis=1,
        chunks=((math.nan,) * blocks, (columns,)),
        meta=meta_from_array(x, 2, dtype),
    )
    counts = coordinates.map_blocks(
        _count_rows, drop_axis=1, chunks=((1,) * blocks,), meta=meta_from_array(x, 1, dtype)
    )
    return NonzeroResult(coordinates, counts.sum(keepdims=True, dtype=dtype))


def gather_nd(x: da.Array, indices: da.Array, *, batch_dims: int = 0, mode: str = "raise") -> da.Array:
    """Return the elements or blocks of `x` that tuples of indices name.

    As `dmlops.gather_nd`. Every chunk of `indices` meets the whole of the dimensions of `x` that it indexes;
    batch dimensions, and those that are copied, keep their chunks. The position in an IndexOutOfRangeError
    is that within the chunk.
    """
    data, picks = _describe(x, "gather_nd.x"), _describe(indices, "gather_nd.indices")
    for d in range(min(batch_dims, x.ndim, indices.ndim)):
        if math.isnan(x.shape[d]) != math.isnan(indices.shape[d]):
            _check_known(x, d, "gather_nd.x")
            _check_known(indices, d, "gather_nd.indices")
    inference.gather_nd(data, picks, batch_dims)
    end = batch_dims + picks.sizes[-1]
    x = x.rechunk(dict.fromkeys(range(batch_dims, end), -1))
    indices = indices.rechunk({indices.ndim - 1: -1})
    letters = itertools.count()
    batch = list(itertools.islice(letters, batch_dims))
    tuples = list(itertools.islice(letters, indices.ndim - 1 - batch_dims))
    indexed = list(itertools.islice(letters, picks.sizes[-1]))
    copied = list(itertools.islice(letters, x.ndim - end))
    return da.blockwise(
        _gather_from_chunk,
        (*batch, *tuples, *copied),
        x,
        (*batch, *indexed, *copied),
        indices,
        (*batch, *tuples, next(letters)),
        batch_dims=batch_dims,
        mode=mode,
        concatenate=True,
        meta=meta_from_array(x, len(batch) + len(tuples) + len(copied)),
    )


def diagonal_matrix(
    x: da.Array | None = None,
    *,
    shape: Sequence[int] | None = None,
    dtype: Any = np.float64,
    chunks: Any = "auto",
    value: float = 1,
    begin: int = 0,
    end: int = 1,
) -> da.Array:
    """Return matrices that hold `value` along a band of diagonals, and `x` or zeros elsewhere.

    As `dmlops.diagonal_matrix`, chunk by chunk. Without `x`, the result has `shape`, `dtype` and `chunks`.
    """
    where = "diagonal_matrix"
    band = {"value": value, "begin": begin, "end": end}
    if x is not None:
        inference.diagonal_matrix(_describe(x, f"{where}.x"), value, begin, end)
        _check_known(x, -1, f"{where}.x")
        _check_known(x, -2, f"{where}.x")
        return x.map_blocks(_fill_chunk, **band, meta=x._meta)
    if shape is None:
        raise TypeError(wording(f"{where}.shape", None, "x is left out too", "one of them must be given"))
    data_type = data_type_of(dtype, f"{where}.dtype")
    dtype = numpy_dtype(data_type)
    inference.diagonal_matrix(TensorDesc(data_type, tuple(shape)), value, begin, end)
    chunks = da.core.normalize_chunks(chunks, tuple(shape), dtype=dtype)
    return da.map_blocks(
        _make_chunk, **band, chunks=chunks, dtype=dtype, meta=np.empty((0,) * len(shape), dtype)
    )


def _describe(x: da.Array, where: str) -> TensorDesc:
    """Describe an array for the checks; sizes that are unknown count as 1."""
    return TensorDesc(
        data_type_of(x.dtype, where), tuple(1 if math.isnan(size) else size for size in x.shape)
    )


def _check_known(x: da.Array, axis: int, where: str) -> None:
    if math.isnan(x.shape[axis]):
        got = f"chunks of unknown sizes along axis {axis % x.ndim}"
        reason = "positions in the whole array depend on them"
        raise InvalidDescriptorError(wording(where, got, reason, "call compute_chunk_sizes() on it first"))


def _select(block: Any, arrays: Sequence[da.Array], options: dict[str, Any]) -> tuple[da.Array, da.Array]:
    """Map blocks to pairs of values and indices, and return those as two arrays."""
    k, axis = options["k"], options["axis"]
    chunks = list(arrays[0].chunks)
    chunks[axis] = tuple(min(k, size) for size in chunks[axis])
    ndim = arrays[0].ndim
    pairs = da.map_blocks(block, *arrays, **options, chunks=chunks, meta=np.empty((0,) * ndim, object))
    values = pairs.map_blocks(itemgetter(0), meta=meta_from_array(arrays[0], ndim))
    indices = pairs.map_blocks(itemgetter(1), meta=meta_from_array(arrays[0], ndim, options["index_dtype"]))
    return values, indices


def _select_from_chunk(
    x: Any, *, k: int, axis: int, largest: bool, index_dtype: Any, block_info: Any = None
) -> tuple[Any, Any]:
    first = block_info[0]["array-location"][axis][0]
    count = min(k, x.shape[axis])
    values, indices = dmlops.top_k(x, count, axis=axis, largest=largest, index_dtype=index_dtype)
    indices += index_dtype.type(first)
    return values, indices


def _merge(
    values: Any, indices: Any, *, k: int, axis: int, largest: bool, index_dtype: Any
) -> tuple[Any, Any]:
    # Candidates stand in the order of their chunks, so that among equals position and index ascend together.
    count = min(k, values.shape[axis])
    best, places = dmlops.top_k(values, count, axis=axis, largest=largest, index_dtype="int64")
    return best, np.take_along_axis(indices, places, axis)


def _coordinates_in_chunk(x: Any, *, columns: int, index_dtype: Any, block_info: Any = None) -> Any:
    coordinates = dmlops.nonzero_coordinates(x, index_dtype=index_dtype).coordinates[:, :columns]
    coordinates[:, :1] += index_dtype.type(block_info[0]["array-location"][0][0])
    return coordinates


def _count_rows(coordinates: Any) -> Any:
    return np.full_like(coordinates, len(coordinates), shape=(1,))


def _gather_from_chunk(x: Any, indices: Any, *, batch_dims: int, mode: str) -> Any:
    return dmlops.gather_nd(x, indices, batch_dims=batch_dims, mode=mode)


def _fill_chunk(x: Any, *, value: float, begin: int, end: int, block_info: Any = None) -> Any:
    shift = _diagonal_of(block_info[0])
    return dmlops.diagonal_matrix(x, value=value, begin=begin - shift, end=end - shift)


def _make_chunk(*, value: float, begin: int, end: int, block_info: Any = None) -> Any:
    block = block_info[None]
    shift = _diagonal_of(block)
    return dmlops.diagonal_matrix(
        shape=block["chunk-shape"],
        dtype=block["dtype"],
        value=value,
        begin=begin - shift,
        end=end - shift,
    )


def _diagonal_of(block: Any) -> int:
    """Return which diagonal of the whole matrix a block's first element lies on."""
    (row, _), (column, _) = block["array-location"][-2:]
    return int(column - row)
