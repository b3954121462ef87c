"""Top-k of chunked arrays: the candidates of the chunks are merged in a tree."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array

import dmlops
from dmlops import TopKResult
from dmlops.functions.top_k import SPEC, given_arrays, plain_max_length
from dmlops.integrations.dask import chunks
from dmlops.operators.top_k import broadcast_rows, check_type_of_numbers, infer_top_k
from dmlops.types.arguments import boolean, integer
from dmlops.types.data_types import index_data_type, numpy_dtype
from dmlops.types.enums import TensorDataType

# The candidates of so many chunks are merged at a time.
_MERGED_AT_ONCE = 8
_LARGEST = 2**63 - 1


def top_k(
    x: Any,
    k: int,
    *,
    axis: int = -1,
    largest: bool = True,
    sorted: bool = True,
    starts: object = None,
    lengths: object = None,
    max_length: int | None = None,
    indices: Any = None,
    nan_last: bool = False,
    index_dtype: Any = None,
) -> TopKResult[da.Array, da.Array]:
    """Return the `k` largest or smallest elements along an axis, as `dmlops.top_k` does.

    If the axis is chunked, the candidates of the chunks are merged in a tree. The result has one chunk along
    the axis, and the chunks of `x` along the other dimensions. `starts`, `lengths` and `indices` may be
    arrays of NumPy or Dask; dimensions that they add have their chunks.

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
    nan_last = boolean(nan_last, "top_k.nan_last")
    given = given_arrays(lengths, starts, indices)
    arrays = {name: chunks.as_dask_array(array, f"top_k.{name}") for name, array in given.items()}
    max_length = plain_max_length(max_length, arrays)
    index_type: Any = None if index_dtype is None else index_data_type(index_dtype, "top_k.index_dtype")
    if -x.ndim <= axis < x.ndim:
        chunks.check_known(x, axis, where)
    with chunks.mark_unknown_sizes(x, *arrays.values()):
        described = {name: chunks.describe(array, f"top_k.{name}") for name, array in arrays.items()}
        if "indices" in described:
            check_type_of_numbers(described["indices"], index_type)
            index_type = described["indices"].data_type
        rows = broadcast_rows(chunks.describe(x, where), axis, described)
        index_type = index_type or TensorDataType.INT64
        infer_top_k(SPEC.words, rows, k, index_type)
    axis = rows.axis % len(rows.x.sizes)
    x, arrays = _of_rows(x, axis, rows.x.sizes, arrays)
    if k == 0:
        # dask does not merge chunks that are all empty.
        before = [slice(None)] * axis
        x, arrays = x[(*before, slice(0, 0))].blocks[(*before, slice(0, 1))], {}
    dtype = numpy_dtype(index_type)
    selection = _Selection(k, axis, dtype, largest, nan_last, sorted, is_last=x.numblocks[axis] == 1)
    window = {"names": tuple(arrays), "size": x.shape[axis], "max_length": max_length}
    values, indices = _select(_select_from_chunk, (x, *arrays.values()), selection, **window)
    while values.numblocks[axis] > 1:
        sizes = values.chunks[axis]
        first = range(0, len(sizes), _MERGED_AT_ONCE)
        together = {axis: tuple(sum(sizes[start : start + _MERGED_AT_ONCE]) for start in first)}
        selection = selection._replace(is_last=len(first) == 1)
        candidates = chunks.rechunk(values, together), chunks.rechunk(indices, together)
        values, indices = _select(_merge_numbers if arrays else _merge, candidates, selection)
    return TopKResult(values, indices)


def _of_rows(
    x: da.Array, axis: int, sizes: tuple[int, ...], arrays: dict[str, da.Array]
) -> tuple[da.Array, dict[str, da.Array]]:
    """Return `x` with all rows, and the arrays beside it in its dimensions and chunks.

    Those of windows have size 1 along the axis.
    """
    if not arrays:
        return x, arrays
    for name, array in {"x": x, **arrays}.items():
        for d in range(array.ndim):
            chunks.check_known(array, d, f"top_k.{name}")
    # Dask takes a dimension of size 1 for one that is broadcast, and then misses its empty chunks.
    x, *others = [
        chunks.rechunk(array, {d: -1 for d, size in enumerate(array.shape) if size == 1})
        for array in (x, *arrays.values())
    ]
    arrays = dict(zip(arrays, others, strict=True))
    n_added = len(sizes) - x.ndim
    of_rows = (*sizes[:axis], *sizes[axis + 1 :])
    laid_out = {}
    for name, array in arrays.items():
        if name != "indices":
            laid_out[name] = da.expand_dims(da.broadcast_to(array, of_rows), axis)
        elif array.ndim == 1:  # along the axis alone
            laid_out[name] = da.broadcast_to(array.reshape(-1, *(1,) * (len(sizes) - 1 - axis)), sizes)
        else:
            laid_out[name] = da.broadcast_to(array, sizes)
    if x.shape != sizes:
        added = tuple(
            max((array.chunks[d] for array in laid_out.values()), key=len)
            if d < n_added or x.shape[d - n_added] != size
            else x.chunks[d - n_added]
            for d, size in enumerate(sizes)
        )
        x = da.broadcast_to(x, sizes, chunks=added)
    return x, {
        name: chunks.rechunk(array, {d: x.chunks[d] for d in range(x.ndim) if d != axis or name == "indices"})
        for name, array in laid_out.items()
    }


class _Selection(NamedTuple):
    """The selection that a call makes from each block."""

    k: int
    axis: int
    """The number of elements and the dimension."""
    index_dtype: Any
    """The type of the indices."""
    largest: bool
    nan_last: bool
    is_sorted: bool
    """The order of elements and of results."""
    is_last: bool
    """Whether a block gives results, and not candidates."""

    def of(self, size: int) -> int:
        """Return how many elements are selected from a block of a size."""
        return self.k if self.is_last else min(self.k, size)

    def run(self, x: Any, **arguments: Any) -> tuple[Any, Any]:
        """Select from a block."""
        return dmlops.top_k(
            x,
            self.of(x.shape[self.axis]),
            axis=self.axis,
            largest=self.largest,
            nan_last=self.nan_last,
            # Candidates in order of index can be merged as well, and take less time to find.
            sorted=self.is_sorted and self.is_last,
            **arguments,
        )


def _select(block: object, arrays: Any, selection: _Selection, **options: Any) -> tuple[da.Array, da.Array]:
    """Map blocks to pairs of values and indices, and return those as two arrays."""
    x, axis = arrays[0], selection.axis
    selected = list(x.chunks)
    selected[axis] = tuple(map(selection.of, selected[axis]))
    metas = meta_from_array(x), chunks.empty_like(x, x.ndim, selection.index_dtype)
    no_pairs = np.empty((0,) * x.ndim, object)
    pairs = da.map_blocks(block, *arrays, selection=selection, **options, chunks=selected, meta=no_pairs)
    values, indices = (pairs.map_blocks(itemgetter(i), meta=meta) for i, meta in enumerate(metas))
    return values, indices


def _select_from_chunk(
    x: object,
    *others: Any,
    selection: _Selection,
    names: Sequence[str],
    size: int,
    max_length: int | None,
    block_info: Any = None,
) -> tuple[object, object]:
    arrays = {name: chunks.beside(x, other) for name, other in zip(names, others, strict=True)}
    offset, dtype = block_info[0]["array-location"][selection.axis][0], selection.index_dtype
    if not arrays:
        values, indices = selection.run(x, index_dtype=dtype)
        indices += dtype.type(offset)
        return values, indices
    starts, lengths = arrays.pop("starts", None), arrays.pop("lengths", None)
    if not (starts is lengths is None):
        starts, lengths = _window(starts, lengths, size, max_length)
        arrays |= {"starts": np.squeeze(starts - offset, selection.axis)}
        arrays |= {"lengths": np.squeeze(lengths, selection.axis)}
    values, indices = selection.run(x, **arrays)
    if "indices" not in arrays:
        indices = np.where(indices < 0, -1, indices + offset).astype(dtype)
    return values, indices


def _window(starts: Any, lengths: Any, size: int, max_length: int | None) -> tuple[Any, Any]:
    """Return windows within an axis of a size, as int64: their starts and lengths."""
    # Unsigned numbers that are beyond int64 are beyond the axis, too.
    start, length = (
        None
        if array is None
        else np.minimum(array, array.dtype.type(min(_LARGEST, np.iinfo(array.dtype).max)))
        for array in (starts, lengths)
    )
    start = np.zeros_like(length, np.int64) if start is None else start.astype(np.int64)
    length = np.full_like(start, size) if length is None else np.maximum(length.astype(np.int64), 0)
    if lengths is not None:
        length = np.maximum(length + np.minimum(start, 0), 0)
    length = np.minimum(length, size if max_length is None else max_length)
    return np.clip(start, 0, size), length


def _merge(values: object, indices: object, *, selection: _Selection) -> tuple[Any, Any]:
    # Candidates are in the order of their chunks, so positions of equal ones ascend with their indices.
    best, places = selection.run(values, index_dtype="int64")
    return best, np.take_along_axis(indices, places, selection.axis)


def _merge_numbers(values: object, indices: object, *, selection: _Selection) -> tuple[object, object]:
    """Merge candidates with numbers, of which -1 is padding."""
    return selection.run(values, indices=indices)
