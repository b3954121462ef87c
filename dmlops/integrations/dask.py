"""The operators on chunked dask arrays: lazy, and equal to what `dmlops` gives for the whole array.

Chunks may be NumPy's or any other library's that `dmlops` serves; a scheduler may run them in threads.
NumPy arrays and lists are taken too, as `dask.array.asarray` takes them. What `dmlops` refuses of an array's
type, its sizes or the other arguments is refused when the graph is built.
"""

import itertools
import math
from collections.abc import Sequence
from operator import index, itemgetter
from typing import Any

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array

import dmlops
from dmlops import NonzeroResult, TensorDesc, TopKResult
from dmlops.arguments import integer
from dmlops.array_types import Mode
from dmlops.data_types import data_type_of, index_data_type, numpy_dtype
from dmlops.errors import error_text, refuse, shown
from dmlops.operators.diagonal_matrix import infer_diagonal_matrix
from dmlops.operators.gather_nd import infer_gather_nd
from dmlops.operators.nonzero_coordinates import infer_nonzero_coordinates
from dmlops.operators.top_k import infer_top_k
from dmlops.scalars import real_number

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
    index_dtype: Any = "int64",
) -> TopKResult[da.Array, da.Array]:
    """Return the `k` largest or smallest elements along an axis, and where they are in the whole array.

    As `dmlops.top_k`. Where the axis is chunked, candidates of each chunk are merged in a tree; the result
    is one chunk along the axis. Chunks along the other dimensions stay, and `lengths` are chunked like them.

    Examples
    --------
    >>> import dask.array as da
    >>> values, indices = top_k(da.asarray([3, 7, 7, 1], chunks=2), 2)
    >>> values.compute(), indices.compute()
    (array([7, 7]), array([1, 2]))
    """
    where = "top_k.x"
    x = _lazy(x, where)
    x = x.reshape(1) if x.ndim == 0 else x
    k, axis = integer(k, "top_k.k"), integer(axis, "top_k.axis")
    index_type = index_data_type(index_dtype, "top_k.index_dtype")
    if -x.ndim <= axis < x.ndim:
        _check_known(x, axis, where)
    described = None
    if lengths is not None:
        lengths = _lazy(lengths, "top_k.lengths")
        described = _describe(lengths, "top_k.lengths")
    infer_top_k(_describe(x, where), k, axis, index_type, described)
    axis %= x.ndim
    if k == 0:
        # dask does not merge chunks where all are empty.
        before = [slice(None)] * axis
        x = x[(*before, slice(0, 0))].blocks[(*before, slice(0, 1))]
        lengths = None
    options = {
        "k": k,
        "axis": axis,
        "largest": bool(largest),
        "sorted": bool(sorted),
        "index_dtype": numpy_dtype(index_type),
    }
    if lengths is None:
        values, indices = _select(_select_from_chunk, (x,), options)
    else:
        if not np.isnan(x.shape).any():
            lengths = lengths.rechunk((*x.chunks[:axis], *x.chunks[axis + 1 :]))
        values, indices = _select(_select_from_chunk, (x, da.expand_dims(lengths, axis)), options)
    options["are_padded"] = lengths is not None
    while values.numblocks[axis] > 1:
        sizes = values.chunks[axis]
        starts = range(0, len(sizes), _MERGED_AT_ONCE)
        merged = {axis: tuple(sum(sizes[start : start + _MERGED_AT_ONCE]) for start in starts)}
        values, indices = _select(_merge, (values.rechunk(merged), indices.rechunk(merged)), options)
    return TopKResult(values, indices)


def nonzero_coordinates(x: Any, *, index_dtype: Any = "int64") -> NonzeroResult[da.Array]:
    """Return the coordinates of the non-zero elements, in ascending element order, and their count.

    As `dmlops.nonzero_coordinates`, of which the rows are trimmed: their chunks, one for each of `x` along
    the first dimension, have unknown sizes. `x` is rechunked where other dimensions are chunked.
    """
    where = "nonzero_coordinates.x"
    x = _lazy(x, where)
    index_type = index_data_type(index_dtype, "nonzero_coordinates.index_dtype")
    columns = x.ndim
    infer_nonzero_coordinates(_describe(x, where), 0, index_type)
    x = x.reshape(1) if columns == 0 else x
    _check_known(x, 0, where)
    chunked = [axis for axis in range(1, x.ndim) if x.numblocks[axis] > 1]
    for axis in chunked:
        _check_known(x, axis, where)
    if chunked:
        # dask cannot choose chunks for an array without elements, or of unknown size.
        x = x.rechunk(dict.fromkeys(chunked, -1) | ({0: "auto"} if x.size > 0 else {}))
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
    return NonzeroResult(coordinates, counts.sum(dtype=dtype))


def gather_nd(x: Any, indices: Any, *, batch_dims: int = 0, mode: Mode = "raise") -> da.Array:
    """Return the elements or blocks of `x` that tuples of indices name.

    As `dmlops.gather_nd`. Every chunk of `indices` meets the whole of the dimensions of `x` that it indexes;
    batch dimensions, and those that are copied, keep their chunks. The position in an IndexOutOfRangeError
    is that within the chunk.
    """
    where_x, where_indices = "gather_nd.x", "gather_nd.indices"
    x, indices = _lazy(x, where_x), _lazy(indices, where_indices)
    batch_dims = integer(batch_dims, "gather_nd.batch_dims")
    if indices.ndim > 0:
        _check_known(indices, -1, where_indices)
    for axis in range(min(batch_dims, x.ndim, indices.ndim)):
        if math.isnan(x.shape[axis]) != math.isnan(indices.shape[axis]):
            _check_known(x, axis, where_x)
            _check_known(indices, axis, where_indices)
        if math.isnan(x.shape[axis]) and x.numblocks[axis] != indices.numblocks[axis]:
            got = f"chunks of unknown sizes along axis {axis}"
            reason = f"there are {indices.numblocks[axis]} of them, and {x.numblocks[axis]} of x"
            refuse(where_indices, got, reason, "call compute_chunk_sizes() on both first")
    data, picks = _describe(x, where_x), _describe(indices, where_indices)
    infer_gather_nd(data, picks, batch_dims, mode)
    end = batch_dims + picks.sizes[-1]
    chunked = [axis for axis in range(batch_dims, end) if x.numblocks[axis] > 1]
    for axis in chunked:
        _check_known(x, axis, where_x)
    x = x.rechunk(dict.fromkeys(chunked, -1))
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
    x: Any = None,
    *,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    chunks: Any = None,
    value: float = 1,
    begin: int = 0,
    end: int = 1,
) -> da.Array:
    """Return matrices that hold `value` along a band of diagonals, and `x` or zeros elsewhere.

    As `dmlops.diagonal_matrix`, chunk by chunk. Without `x`, the result has `shape`, `dtype` and `chunks`:
    float64 and ``"auto"`` where left out.
    """
    where = "diagonal_matrix"
    begin, end = integer(begin, f"{where}.begin"), integer(end, f"{where}.end")
    band: dict[str, Any] = {"value": real_number(value, f"{where}.value"), "begin": begin, "end": end}
    if x is not None:
        for name, argument in (("shape", shape), ("dtype", dtype), ("chunks", chunks)):
            if argument is not None:
                allowed = f"{name} describes a result without x"
                refuse(f"{where}.{name}", shown(argument), "x is given", allowed)
        x = _lazy(x, f"{where}.x")
        data = _describe(x, f"{where}.x")
        infer_diagonal_matrix(data.data_type, data.sizes, band["value"])
        _check_known(x, -1, f"{where}.x")
        _check_known(x, -2, f"{where}.x")
        return x.map_blocks(_fill_chunk, **band, meta=meta_from_array(x))
    if shape is None:
        raise TypeError(error_text(f"{where}.shape", None, "x is left out too", "one of them must be given"))
    try:
        sizes = tuple(map(index, shape))
    except TypeError:
        reason, allowed = "it is no sequence of integers", "it must be a sequence of sizes"
        raise TypeError(error_text(f"{where}.shape", shown(shape), reason, allowed)) from None
    data_type = data_type_of(np.float64 if dtype is None else dtype, f"{where}.dtype")
    dtype = numpy_dtype(data_type)
    infer_diagonal_matrix(data_type, sizes, band["value"])
    try:
        chunks = da.core.normalize_chunks("auto" if chunks is None else chunks, sizes, dtype=dtype)
    except ZeroDivisionError:
        # dask cannot choose chunks for an array without elements: one holds them all.
        chunks = da.core.normalize_chunks(-1, sizes)
    meta = np.empty((0,) * len(sizes), dtype)
    return da.map_blocks(_make_chunk, **band, chunks=chunks, dtype=dtype, meta=meta)


def _lazy(x: Any, where: str) -> da.Array:
    """Return an argument as a dask array of elements that are all there."""
    if isinstance(x, np.ndarray) and x.size == 0:
        # dask cannot choose chunks for an array without elements.
        x = da.from_array(x, chunks=-1)
    try:
        x = da.asarray(x)
    except (TypeError, ValueError) as error:
        reason = "dask.array.asarray makes no array of it"
        raise TypeError(error_text(where, type(x).__name__, reason, "it must be an array")) from error
    _check_not_masked(meta_from_array(x), where)
    return x


def _check_not_masked(chunk: Any, where: str) -> None:
    """Refuse what numpy.ma made; the chunks tell, as the description of a dask array may be wrong."""
    if isinstance(chunk, np.ma.MaskedArray):
        reason, allowed = "no operator takes a mask", "call dask.array.ma.filled(x, value) first"
        raise TypeError(error_text(where, "a masked array", reason, allowed))


def _describe(x: da.Array, where: str) -> TensorDesc:
    """Describe an array for the checks; sizes that are unknown count as 1."""
    if not x.dtype.isnative:
        got = f"{x.dtype.name} in foreign byte order"
        allowed = 'use x.astype(x.dtype.newbyteorder("="))'
        raise TypeError(error_text(where, got, "kernels read the machine's own order", allowed))
    sizes = tuple(1 if math.isnan(size) else size for size in x.shape)
    return TensorDesc(data_type_of(x.dtype, where), sizes)


def _check_known(x: da.Array, axis: int, where: str) -> None:
    if math.isnan(x.shape[axis]):
        got = f"chunks of unknown sizes along axis {axis % x.ndim}"
        refuse(where, got, "the result depends on them", "call compute_chunk_sizes() on it first")


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
    _check_not_masked(x, "top_k.x")
    first = block_info[0]["array-location"][axis][0]
    options = {"axis": axis, "largest": largest, "sorted": sorted, "index_dtype": index_dtype}
    if lengths is not None:
        _check_not_masked(lengths, "top_k.lengths")
        most = min(np.iinfo(lengths.dtype).max, np.iinfo("int64").max)
        whole = np.minimum(lengths, lengths.dtype.type(most)).astype("int64").squeeze(axis)
        options["lengths"] = np.maximum(whole, first) - first
    values, indices = dmlops.top_k(x, min(k, x.shape[axis]), **options)
    if lengths is None:
        indices += index_dtype.type(first)
        return values, indices
    nowhere = _nowhere(index_dtype)
    return values, np.where(indices == nowhere, nowhere, indices + index_dtype.type(first))


def _nowhere(index_dtype: Any) -> Any:
    """Return the index of padding."""
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
    # Candidates stand in the order of their chunks, so that among equals position and index ascend together.
    # Of chunks that are not empty only the last one of a row is padded: all its candidates come first.
    count = min(k, values.shape[axis])
    options: dict[str, Any] = {"axis": axis, "largest": largest, "sorted": sorted, "index_dtype": "int64"}
    if are_padded:
        options["lengths"] = (indices != _nowhere(index_dtype)).sum(axis, dtype="int64")
    best, places = dmlops.top_k(values, count, **options)
    # The place of padding, -1, is the last one, which is padding where any is.
    return best, np.take_along_axis(indices, places, axis)


def _coordinates_in_chunk(x: Any, *, columns: int, index_dtype: Any, block_info: Any = None) -> Any:
    _check_not_masked(x, "nonzero_coordinates.x")
    coordinates = dmlops.nonzero_coordinates(x, index_dtype=index_dtype).coordinates[:, :columns]
    coordinates[:, :1] += index_dtype.type(block_info[0]["array-location"][0][0])
    return coordinates


def _count_rows(coordinates: Any) -> Any:
    return np.full_like(coordinates, len(coordinates), shape=(1,))


def _gather_from_chunk(x: Any, indices: Any, *, batch_dims: int, mode: Mode) -> Any:
    _check_not_masked(x, "gather_nd.x")
    _check_not_masked(indices, "gather_nd.indices")
    batches, expected = indices.shape[:batch_dims], x.shape[:batch_dims]
    if batches != expected:
        # Sizes that are unknown meet here.
        allowed = "they must be equal: call compute_chunk_sizes() on both first"
        refuse("gather_nd.indices", f"a chunk of batches {batches}", f"that of x has {expected}", allowed)
    return dmlops.gather_nd(x, indices, batch_dims=batch_dims, mode=mode)


def _fill_chunk(x: Any, *, value: float, begin: int, end: int, block_info: Any = None) -> Any:
    _check_not_masked(x, "diagonal_matrix.x")
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
