"""Gathers from chunked arrays: index tuples go to the chunks of `x` that they point at.

If the indexed dimensions are a single chunk, every chunk of the result is one call. Otherwise, each tuple
gets the number of the chunk of `x` that it points into, every chunk of `x` answers its own tuples, and the
answers are put back in the order of the tuples. No task holds more than one chunk of `x`. If the indices are
in memory, chunks that they do not point at are never computed.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.array.core import slices_from_chunks
from dask.array.utils import meta_from_array
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

import dmlops
from dmlops.functions.gather_nd import SPEC
from dmlops.integrations.dask import chunks
from dmlops.operators.fill_values import held_value
from dmlops.operators.gather_nd import check_is_one_array, check_mode, element_fill, infer_gather_nd
from dmlops.types import arguments
from dmlops.types.array_types import Mode

_WHERE_X, _WHERE_INDICES = "gather_nd.x", "gather_nd.indices"


class _Options(NamedTuple):
    """The options of a gather, as its tasks take them."""

    mode: Mode
    fill_value: object
    wrap_negative: bool


def gather_nd(
    x: Any, indices: Any, *, mode: Mode = "raise", fill_value: Any = 0, wrap_negative: bool = True
) -> da.Array:
    """Return the elements or slices of `x` that index tuples point at, as `dmlops.gather_nd` does.

    The dimensions of slices keep their chunks; the others have the chunks of `indices`. NumPy indices and
    lists are checked at once, and chunked such that the chunks of the result have Dask's
    ``array.chunk-size``. Dask indices are checked when they are computed. There are no batch dimensions.

    Notes
    -----
    If indexed dimensions are chunked, there is a task for each pair of a chunk of `x` and a chunk of
    `indices`. If `indices` is not a Dask array, pairs with no element in common are left out. No task holds
    more than a chunk of `x`, of `indices` and of the result.

    Examples
    --------
    >>> import dask.array as da
    >>> gather_nd(da.arange(10, chunks=4), [[9], [0], [-1]]).compute()
    array([9, 0, 9])
    """
    check_is_one_array(indices)
    known = _in_memory(indices)
    x = chunks.as_dask_array(x, _WHERE_X)
    indices = chunks.as_dask_array(indices if known is None else known, _WHERE_INDICES)
    if indices.ndim > 0:
        chunks.check_known(indices, -1, _WHERE_INDICES)
    data, tuples = chunks.describe(x, _WHERE_X), chunks.describe(indices, _WHERE_INDICES)
    check_mode(mode)
    fill = element_fill(fill_value, mode)
    held_value("gather_nd.fill_value", fill, data.data_type)
    options = _Options(mode, fill, arguments.boolean(wrap_negative, "gather_nd.wrap_negative"))
    with chunks.mark_unknown_sizes(x, indices):
        result = infer_gather_nd(SPEC.words, data, tuples, 0)
    end = tuples.sizes[-1]
    if known is not None and not any(map(math.isnan, x.shape[:end])):
        _check_range(known, x.shape[:end], options)
    indices = chunks.rechunk(indices, {indices.ndim - 1: -1})
    if known is not None and not np.isnan(x.shape).any():
        indices = indices.rechunk(_chunks_of_tuples(x, indices, result.sizes))
    of_x, of_indices = tuple(range(x.ndim)), tuple(range(x.ndim, x.ndim + indices.ndim))
    # Dask has one chunk of a dimension of size 1, whatever there was.
    _, (x, indices) = da.unify_chunks(x, of_x, indices, of_indices)
    if any(n_chunks > 1 for n_chunks in x.numblocks[:end]):
        for axis in range(end):
            chunks.check_known(x, axis, _WHERE_X)
        return _gather_from_many_chunks(x, indices, known, options)
    return da.blockwise(
        _gather_from_chunk,
        (*of_indices[:-1], *of_x[end:]),
        *(x, of_x, indices, of_indices),
        options=options,
        concatenate=True,
        meta=meta_from_array(x, len(result.sizes)),
    )


def _in_memory(indices: object) -> object:
    """Return indices with known values as a NumPy array; None for lazy ones and other types."""
    if isinstance(indices, (list, tuple)):
        try:
            indices = np.asarray(arguments.integers(indices))
        except (TypeError, ValueError):
            return None  # `as_dask_array` raises the error
    return indices if isinstance(indices, np.ndarray) else None


def _chunks_of_tuples(x: da.Array, indices: da.Array, sizes: Sequence[int]) -> dict[int, object]:
    """Return chunks of indices by axis, such that chunks of the result have the size that dask prefers."""
    n_dims = indices.ndim - 1
    if 0 in sizes:
        # dask cannot choose chunks for an array without elements.
        return {}
    wanted = (*["auto"] * n_dims, *x.chunks[x.ndim - (len(sizes) - n_dims) :])
    return dict(enumerate(da.core.normalize_chunks(wanted, sizes, dtype=x.dtype)[:n_dims]))


def _gather_from_chunk(x: object, indices: object, *, options: _Options) -> object:
    chunks.check_not_masked(indices, _WHERE_INDICES)
    return dmlops.gather_nd(x, chunks.beside(x, indices), **options._asdict())


def _gather_from_many_chunks(x: da.Array, indices: da.Array, known: Any, options: _Options) -> da.Array:
    """Return a gather whose graph sends tuples of indices to the chunks of `x`.

    `known` are the indices that are in memory, or None.
    """
    end = indices.shape[-1]
    route = partial(_route, chunks_of_x=x.chunks[:end], options=options)
    name = f"gather_nd-{tokenize(x, indices, options)}"
    indexed = list(np.ndindex(x.numblocks[:end]))
    places = list(np.ndindex(indices.numblocks[:-1]))
    parts = places if known is None else slices_from_chunks(indices.chunks[:-1])
    tasks: dict[object, object] = {}
    after = []
    if known is None:
        after = [f"{name}-all-routed"]
        tasks[after[0]] = (_wait_for, [(f"{name}-routed", *place) for place in places])
    for place, part in zip(places, parts, strict=True):
        tuples = (f"{name}-routed", *place)
        if known is None:
            tasks[tuples] = (route, (indices.name, *place, 0))
            pointed_at = list(range(len(indexed)))
        else:
            tasks[tuples] = routed = route(known[part])
            numbers = np.unique(routed[..., 0])
            # At least one chunk is needed, for the sizes and the type of its answer.
            pointed_at = numbers[numbers >= 0].tolist() or [0]
        for copied in np.ndindex(x.numblocks[end:]):
            answers = [(f"{name}-answer", *place, *copied, i) for i in pointed_at]
            for key, i in zip(answers, pointed_at, strict=True):
                tasks[key] = (_answer, (x.name, *indexed[i], *copied), tuples, i, *after)
            tasks[(name, *place, *copied)] = (_merge, tuples, pointed_at, answers, options.fill_value)
    dependencies = [x, indices] if known is None else [x]
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=dependencies)
    of_result = (*indices.chunks[:-1], *x.chunks[end:])
    return da.Array(graph, name, of_result, meta=meta_from_array(x, len(of_result)))


def _check_range(indices: object, bounds: Sequence[int], options: _Options) -> None:
    """Raise the error of a gather from an array with these bounds."""
    if options.mode == "raise" or (options.mode == "clip" and 0 in bounds):
        # An array of any size in a single byte.
        element = np.zeros_like(indices, bool, shape=(1,) * len(bounds))
        stand_in = np.broadcast_to(element, bounds)
        # DirectML's levels say nothing about the stand-in.
        with dmlops.feature_level(dmlops.FeatureLevel.EXTENDED):
            dmlops.gather_nd(stand_in, indices, mode=options.mode, wrap_negative=options.wrap_negative)


def _route(indices: Any, *, chunks_of_x: Sequence[Sequence[int]], options: _Options) -> Any:
    """Return a row for each tuple: the number of a chunk of `x`, its own place, its coordinates in the chunk.

    The rows are in ascending order of the chunk, and are counted like the places in element order. Tuples out
    of range, which are filled, have the number -1.
    """
    chunks.check_not_masked(indices, _WHERE_INDICES)
    bounds, shape = [sum(sizes) for sizes in chunks_of_x], indices.shape[:-1]
    _check_range(indices, bounds, options)
    if indices.dtype == "uint64":
        indices = np.minimum(indices, np.uint64(np.iinfo("int64").max))
    columns = indices.reshape(-1, len(bounds)).astype("int64").T
    number, is_in, within = np.zeros_like(columns[0]), True, []
    for column, bound, sizes in zip(columns, bounds, chunks_of_x, strict=True):
        index = np.where(column < 0, column + bound, column) if options.wrap_negative else column
        if options.mode == "clip":
            index = np.clip(index, 0, bound - 1)
        is_in = is_in & (index >= 0) & (index < bound)
        starts = np.asarray(np.cumsum([0, *sizes[:-1]]), like=index)
        chunk = np.searchsorted(starts[1:], index, side="right")
        number = number * len(sizes) + chunk
        within.append(index - starts[chunk])
    number = np.where(is_in, number, -1)
    places = np.argsort(number)
    rows = [number[places], places, *(coordinates[places] for coordinates in within)]
    return np.stack(rows, axis=-1).reshape(*shape, len(rows))


def _wait_for(_: object) -> None:
    """Wait for tasks: if all tuples are routed before a chunk of `x` is computed, it is freed at once."""


def _pointing_at(chunk: int, routed: Any) -> tuple[Any, Any]:
    """Return the places of the tuples that point into a chunk, and their coordinates there."""
    rows = routed.reshape(-1, routed.shape[-1])
    begin, end = np.searchsorted(rows[:, 0], np.asarray([chunk, chunk + 1], like=rows)).tolist()
    return rows[begin:end, 1], rows[begin:end, 2:]


def _answer(x: object, routed: object, chunk: int, _: None = None) -> object:
    """Return the elements of a chunk of `x` that tuples point at."""
    _, tuples = _pointing_at(chunk, routed)
    # Every tuple is in range, and clamping is the cheapest mode.
    return dmlops.gather_nd(x, chunks.beside(x, tuples), mode="clip")


def _merge(routed: Any, pointed_at: Sequence[int], answers: Sequence[Any], fill: object) -> object:
    """Return the answers of chunks of `x` at the positions of their tuples, and the fill elsewhere."""
    sizes, copied = routed.shape[:-1], answers[0].shape[1:]
    shape = math.prod(sizes), *copied
    # Where no tuple is in range, an answer has no element, and an array of one stands for x.
    stand_in = np.zeros_like(answers[0], shape=(1,))
    nowhere = chunks.beside(stand_in, np.ones(1, "int64"))
    filled = dmlops.gather_nd(stand_in, nowhere, mode="fill", fill_value=fill)
    output = np.broadcast_to(filled, shape).copy()
    for chunk, answer in zip(pointed_at, answers, strict=True):
        places, _ = _pointing_at(chunk, routed)
        output[chunks.beside(output, places)] = answer
    return output.reshape((*sizes, *copied))
