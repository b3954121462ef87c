"""Gathers from chunked arrays: tuples of indices go to the chunks of `x` that they name.

Where the indexed dimensions are one chunk, every chunk of the result is one call. Otherwise the tuples of a
chunk of `indices` are sorted by the chunk of `x` that each falls into; every chunk of `x` answers its own
ones, and the answers are put where their tuples stand. No task sees more of `x` than one chunk. Chunks that
indices in memory do not name are never computed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import Any

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

import dmlops
from dmlops.arguments import integer
from dmlops.array_types import Mode
from dmlops.integrations.dask import chunks
from dmlops.operators.gather_nd import infer_gather_nd

_WHERE_X, _WHERE_INDICES = "gather_nd.x", "gather_nd.indices"


def gather_nd(x: Any, indices: Any, *, batch_dims: int = 0, mode: Mode = "raise") -> da.Array:
    """Return the elements or blocks of `x` that tuples of indices name.

    As `dmlops.gather_nd`. Batch dimensions, and those that are copied, keep their chunks; the others are
    chunked as `indices` are. NumPy indices and lists are checked at once, and chunked so that chunks of the
    result have Dask's ``array.chunk-size``. Dask indices are checked as they are computed.

    Notes
    -----
    Where indexed dimensions are chunked, there is a task for each pair of a chunk of `x` and a chunk of
    `indices`; of indices that are no Dask array, only for pairs that have elements in common. No task sees
    more than a chunk of `x`, of `indices` and of the result.

    Examples
    --------
    >>> import dask.array as da
    >>> gather_nd(da.arange(10, chunks=4), [[9], [0], [-1]]).compute()
    array([9, 0, 9])
    """
    known = _in_memory(indices)
    x = chunks.as_dask_array(x, _WHERE_X)
    indices = chunks.as_dask_array(indices if known is None else known, _WHERE_INDICES)
    batch_dims = integer(batch_dims, "gather_nd.batch_dims")
    if indices.ndim > 0:
        chunks.check_known(indices, -1, _WHERE_INDICES)
    for axis in range(min(batch_dims, x.ndim, indices.ndim)):
        chunks.check_alike(x, axis, _WHERE_X, indices, axis, _WHERE_INDICES)
    data, tuples = chunks.describe(x, _WHERE_X), chunks.describe(indices, _WHERE_INDICES)
    with chunks.errors_in_words_of("gather_nd", x, indices):
        result = infer_gather_nd(data, tuples, batch_dims, mode)
    end = batch_dims + tuples.sizes[-1]
    if known is not None and not any(map(math.isnan, x.shape[:end])):
        _check_range(known, x.shape[batch_dims:end], batch_dims, mode)
    indices = indices.rechunk({indices.ndim - 1: -1})
    if known is not None and not np.isnan([*x.shape, *indices.shape]).any():
        indices = indices.rechunk(_chunks_of_tuples(x, indices, batch_dims, result.sizes))
    letters = count()
    batch = list(islice(letters, batch_dims))
    rest = list(islice(letters, indices.ndim - 1 - batch_dims))
    indexed = list(islice(letters, end - batch_dims))
    copied = list(islice(letters, x.ndim - end))
    x_letters, indices_letters = (*batch, *indexed, *copied), (*batch, *rest, next(letters))
    _, (x, indices) = da.unify_chunks(x, x_letters, indices, indices_letters)
    if any(x.numblocks[axis] > 1 for axis in range(batch_dims, end)):
        for axis in range(batch_dims, end):
            chunks.check_known(x, axis, _WHERE_X)
        return _gather_from_many_chunks(x, indices, known, batch_dims, mode)
    return da.blockwise(
        _gather_from_chunk,
        (*batch, *rest, *copied),
        *(x, x_letters, indices, indices_letters),
        batch_dims=batch_dims,
        mode=mode,
        concatenate=True,
        meta=meta_from_array(x, len(result.sizes)),
    )


def _in_memory(indices: Any) -> Any:
    """Return indices of which the values are known, as a NumPy array; None for lazy ones and other types."""
    if isinstance(indices, (list, tuple)) and not _holds_lazy(indices):
        try:
            indices = np.asarray(indices)
        except (TypeError, ValueError):
            return None  # the error is that of `as_dask_array`
    is_plain = isinstance(indices, np.ndarray) and not isinstance(indices, np.ma.MaskedArray)
    return indices if is_plain and indices.dtype.isnative else None


def _holds_lazy(indices: Any) -> bool:
    if isinstance(indices, (list, tuple)):
        return any(map(_holds_lazy, indices))
    return isinstance(indices, da.Array)


def _check_range(indices: Any, bounds: Sequence[int], batch_dims: int, mode: Mode) -> None:
    """Raise as a gather from an array with these bounds does.

    Raises
    ------
    IndexOutOfRangeError
        If a tuple is out of range.
    """
    if bounds and (mode == "raise" or (mode == "clip" and 0 in bounds)):
        # An array of any sizes in a single byte.
        element = np.zeros_like(indices, bool, shape=(1,) * (batch_dims + len(bounds)))
        stand_in = np.broadcast_to(element, (*indices.shape[:batch_dims], *bounds))
        dmlops.gather_nd(stand_in, indices, batch_dims=batch_dims, mode=mode)


def _chunks_of_tuples(
    x: da.Array, indices: da.Array, batch_dims: int, sizes: Sequence[int]
) -> dict[int, Any]:
    """Return chunks of indices by axis: such that those of the result are of the size that dask prefers."""
    axes = range(batch_dims, indices.ndim - 1)
    n_copied = len(sizes) - len(axes) - batch_dims
    wanted = (*x.chunks[:batch_dims], *["auto"] * len(axes), *x.chunks[x.ndim - n_copied :])
    if not axes or 0 in sizes:
        # dask cannot choose chunks for an array without elements.
        return {}
    chosen = da.core.normalize_chunks(wanted, sizes, dtype=x.dtype)
    return {axis: chosen[axis] for axis in axes}


def _gather_from_chunk(x: Any, indices: Any, *, batch_dims: int, mode: Mode) -> Any:
    chunks.check_not_masked(x, _WHERE_X)
    chunks.check_not_masked(indices, _WHERE_INDICES)
    # Sizes that are unknown meet here.
    chunks.check_sizes_alike(x.shape[:batch_dims], indices.shape[:batch_dims], _WHERE_INDICES)
    return dmlops.gather_nd(x, chunks.beside(x, indices), batch_dims=batch_dims, mode=mode)


def _gather_from_many_chunks(
    x: da.Array, indices: da.Array, known: Any, batch_dims: int, mode: Mode
) -> da.Array:
    """Return a gather of which the graph sends tuples of indices to the chunks of `x`."""
    end = batch_dims + indices.shape[-1]
    name = f"gather_nd-{tokenize(x, indices, batch_dims, mode)}"
    sort = partial(_sort_by_chunk, chunks_of_x=x.chunks[batch_dims:end], batch_dims=batch_dims, mode=mode)
    indexed = list(np.ndindex(x.numblocks[batch_dims:end]))
    tasks: dict[Any, Any] = {}
    for place in np.ndindex(indices.numblocks[:-1]):
        batch, sorted_at = place[:batch_dims], (f"{name}-sorted", *place)
        if known is None:
            tasks[sorted_at] = (sort, (indices.name, *place, 0))
            tasks.setdefault((f"{name}-all-sorted", *batch), (_nothing, []))[1].append(sorted_at)
            after = [(f"{name}-all-sorted", *batch)]
            named = list(range(len(indexed)))
        else:
            tasks[sorted_at] = by_chunk = sort(known[_slices(indices, place)])
            after = []
            # One chunk is needed in any case, for the sizes and the type of its answer.
            named = [i for i in range(len(indexed)) if by_chunk.count(i)] or [0]
        for copied in np.ndindex(x.numblocks[end:]):
            answers = [(f"{name}-answer", *place, *copied, i) for i in named]
            for key, i in zip(answers, named, strict=True):
                chunk_of_x = (x.name, *batch, *indexed[i], *copied)
                tasks[key] = (_answer, chunk_of_x, sorted_at, i, *after)
            tasks[(name, *place, *copied)] = (_merge, sorted_at, named, answers)
    dependencies = [x, indices] if known is None else [x]
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=dependencies)
    of_result = (*indices.chunks[:-1], *x.chunks[end:])
    return da.Array(graph, name, of_result, meta=meta_from_array(x, len(of_result)))


def _slices(x: da.Array, place: Sequence[int]) -> tuple[slice, ...]:
    """Return where in an array the elements of a chunk are."""
    starts = [sum(sizes[:i]) for sizes, i in zip(x.chunks, place, strict=False)]
    return tuple(
        slice(start, start + sizes[i]) for start, sizes, i in zip(starts, x.chunks, place, strict=False)
    )


@dataclass(frozen=True)
class _TuplesByChunk:
    """The tuples of a chunk of indices, sorted by the chunk of `x` that they fall into.

    Attributes
    ----------
    sizes : tuple of int
        Those of the chunk of indices, without the last one.
    batch_dims : int
        How many of them are batches.
    places : array
        Where in the chunk of indices, of which the tuples are counted in element order, each tuple stands.
    tuples : array
        Their batches, and their coordinates within the chunk of `x`.
    starts : list of int
        Where the tuples of each chunk of `x` begin, and where those of the last one end.
    """

    sizes: tuple[int, ...]
    batch_dims: int
    places: Any
    tuples: Any
    starts: list[int]

    def count(self, chunk: int) -> int:
        """Return how many tuples fall into a chunk of `x`."""
        return self.starts[chunk + 1] - self.starts[chunk]

    def of(self, chunk: int) -> slice:
        """Return where the tuples are that fall into a chunk of `x`."""
        return slice(self.starts[chunk], self.starts[chunk + 1])


def _sort_by_chunk(
    indices: Any, *, chunks_of_x: Sequence[Sequence[int]], batch_dims: int, mode: Mode
) -> _TuplesByChunk:
    chunks.check_not_masked(indices, _WHERE_INDICES)
    _check_range(indices, tuple(map(sum, chunks_of_x)), batch_dims, mode)
    sizes = indices.shape[:-1]
    columns = indices.reshape(math.prod(sizes), indices.shape[-1]).T
    # A chunk's number counts the chunks of the indexed dimensions in element order.
    number, n_chunks = np.zeros_like(columns[0], "int64"), 1
    is_in = np.ones_like(columns[0], bool)
    within = []
    for column, of_dimension in zip(columns, chunks_of_x, strict=True):
        bound = sum(of_dimension)
        coordinates = _from_start(column, bound)
        if mode == "clip":
            coordinates = np.clip(coordinates, 0, bound - 1)
        is_in &= (coordinates >= 0) & (coordinates < bound)
        starts = np.asarray(np.cumsum([0, *of_dimension[:-1]]), like=coordinates)
        chunk = np.searchsorted(starts[1:], coordinates, side="right")
        within.append(coordinates - starts[chunk])
        number, n_chunks = number * len(of_dimension) + chunk, n_chunks * len(of_dimension)
    number = np.where(is_in, number, n_chunks)
    places = np.argsort(number)
    ends = np.searchsorted(number[places], np.arange(n_chunks + 1, like=number)).tolist()
    places = places[: ends[-1]]
    *batches, _ = np.unravel_index(places, (*sizes[:batch_dims], math.prod(sizes[batch_dims:])))
    tuples = np.stack([*batches, *(coordinates[places] for coordinates in within)], axis=-1)
    return _TuplesByChunk(sizes, batch_dims, places, tuples, ends)


def _from_start(indices: Any, bound: int) -> Any:
    """Return indices as int64 that count from the start; those that are out of range stay so."""
    if indices.dtype == "uint64":
        indices = np.minimum(indices, np.uint64(np.iinfo("int64").max))
    indices = indices.astype("int64")
    return np.where(indices < 0, indices + bound, indices)


def _nothing(_: Any) -> None:
    """Wait for tasks: a chunk of `x` is done with at once if all tuples are sorted when it is computed."""


def _answer(x: Any, by_chunk: _TuplesByChunk, chunk: int, _: None = None) -> Any:
    """Return what the tuples that fall into a chunk of `x` name."""
    chunks.check_not_masked(x, _WHERE_X)
    batches = by_chunk.sizes[: by_chunk.batch_dims]
    chunks.check_sizes_alike(x.shape[: by_chunk.batch_dims], batches, _WHERE_INDICES)
    # Each tuple is in range, and clamping is the cheapest mode.
    return dmlops.gather_nd(x, chunks.beside(x, by_chunk.tuples[by_chunk.of(chunk)]), mode="clip")


def _merge(by_chunk: _TuplesByChunk, named: Sequence[int], answers: Sequence[Any]) -> Any:
    """Return the answers of chunks of `x` where their tuples stand, and zeros elsewhere."""
    copied = answers[0].shape[1:]
    output = np.zeros_like(answers[0], shape=(math.prod(by_chunk.sizes), *copied))
    for chunk, answer in zip(named, answers, strict=True):
        output[chunks.beside(output, by_chunk.places[by_chunk.of(chunk)])] = answer
    return output.reshape((*by_chunk.sizes, *copied))
