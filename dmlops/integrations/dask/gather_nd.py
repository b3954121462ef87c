"""Gathers from chunked arrays: index tuples go to the chunks of `x` that they point at.

If the indexed dimensions are a single chunk, every chunk of the result is one call. Otherwise, the tuples of
a chunk of `indices` are sorted by the chunk of `x` that they point at, every chunk of `x` answers its own
tuples, and the answers are put back in the order of the tuples. No task holds more than one chunk of `x`. If
the indices are in memory, chunks that they do not point at are never computed.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import slices_from_chunks
from dask.array.utils import meta_from_array
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

import dmlops
from dmlops.functions.gather_nd import GATHER_ND
from dmlops.integrations.dask import chunks
from dmlops.integrations.dask.gather_tasks import (
    WHERE_INDICES,
    WHERE_X,
    answer,
    check_range,
    merge,
    nothing,
    sort_by_chunk,
)
from dmlops.operators.gather_nd import check_is_one_array, check_mode, infer_gather_nd
from dmlops.types.array_types import Mode


def gather_nd(x: Any, indices: Any, *, mode: Mode = "raise") -> da.Array:
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
    x = chunks.as_dask_array(x, WHERE_X)
    indices = chunks.as_dask_array(indices if known is None else known, WHERE_INDICES)
    if indices.ndim > 0:
        chunks.check_known(indices, -1, WHERE_INDICES)
    data, tuples = chunks.describe(x, WHERE_X), chunks.describe(indices, WHERE_INDICES)
    check_mode(mode)
    with chunks.mark_unknown_sizes(x, indices):
        result = infer_gather_nd(GATHER_ND.words, data, tuples, 0)
    end = tuples.sizes[-1]
    if known is not None and not any(map(math.isnan, x.shape[:end])):
        check_range(known, x.shape[:end], mode)
    indices = indices.rechunk({indices.ndim - 1: -1})
    if known is not None and not np.isnan(x.shape).any():
        indices = indices.rechunk(_chunks_of_tuples(x, indices, result.sizes))
    of_x, of_indices = tuple(range(x.ndim)), tuple(range(x.ndim, x.ndim + indices.ndim))
    # Dask has one chunk of a dimension of size 1, whatever there was.
    _, (x, indices) = da.unify_chunks(x, of_x, indices, of_indices)
    if any(n_chunks > 1 for n_chunks in x.numblocks[:end]):
        for axis in range(end):
            chunks.check_known(x, axis, WHERE_X)
        return _gather_from_many_chunks(x, indices, known, mode)
    return da.blockwise(
        _gather_from_chunk,
        (*of_indices[:-1], *of_x[end:]),
        *(x, of_x, indices, of_indices),
        mode=mode,
        concatenate=True,
        meta=meta_from_array(x, len(result.sizes)),
    )


def _in_memory(indices: Any) -> Any:
    """Return indices with known values as a NumPy array; None for lazy ones and other types."""
    if isinstance(indices, (list, tuple)):
        try:
            indices = np.asarray(indices)
        except (TypeError, ValueError):
            return None  # `as_dask_array` raises the error
    is_plain = isinstance(indices, np.ndarray) and not isinstance(indices, np.ma.MaskedArray)
    return indices if is_plain and indices.dtype.isnative else None


def _chunks_of_tuples(x: da.Array, indices: da.Array, sizes: Sequence[int]) -> dict[int, Any]:
    """Return chunks of indices by axis, such that chunks of the result have the size that dask prefers."""
    n_dims = indices.ndim - 1
    if not n_dims or 0 in sizes:
        # dask cannot choose chunks for an array without elements.
        return {}
    wanted = (*["auto"] * n_dims, *x.chunks[x.ndim - (len(sizes) - n_dims) :])
    return dict(enumerate(da.core.normalize_chunks(wanted, sizes, dtype=x.dtype)[:n_dims]))


def _gather_from_chunk(x: Any, indices: Any, *, mode: Mode) -> Any:
    chunks.check_not_masked(indices, WHERE_INDICES)
    return dmlops.gather_nd(x, chunks.beside(x, indices), mode=mode)


def _gather_from_many_chunks(x: da.Array, indices: da.Array, known: Any, mode: Mode) -> da.Array:
    """Return a gather whose graph sends tuples of indices to the chunks of `x`.

    `known` are the indices that are in memory, or None.
    """
    end = indices.shape[-1]
    name = f"gather_nd-{tokenize(x, indices, mode)}"
    sort = partial(sort_by_chunk, chunks_of_x=x.chunks[:end], mode=mode)
    indexed = list(np.ndindex(x.numblocks[:end]))
    places = list(np.ndindex(indices.numblocks[:-1]))
    parts = places if known is None else slices_from_chunks(indices.chunks[:-1])
    all_sorted = (nothing, [(f"{name}-sorted", *place) for place in places])
    tasks: dict[Any, Any] = {f"{name}-all-sorted": all_sorted} if known is None else {}
    for place, part in zip(places, parts, strict=True):
        sorted_at = (f"{name}-sorted", *place)
        if known is None:
            tasks[sorted_at] = (sort, (indices.name, *place, 0))
            named = list(range(len(indexed)))
        else:
            tasks[sorted_at] = by_chunk = sort(known[part])
            # At least one chunk is needed, for the sizes and the type of its answer.
            named = [i for i, found in enumerate(by_chunk.places) if len(found)] or [0]
        after = [f"{name}-all-sorted"] if known is None else []
        for copied in np.ndindex(x.numblocks[end:]):
            answers = [(f"{name}-answer", *place, *copied, i) for i in named]
            for key, i in zip(answers, named, strict=True):
                tasks[key] = (answer, (x.name, *indexed[i], *copied), sorted_at, i, *after)
            tasks[(name, *place, *copied)] = (merge, sorted_at, named, answers)
    dependencies = [x, indices] if known is None else [x]
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=dependencies)
    of_result = (*indices.chunks[:-1], *x.chunks[end:])
    return da.Array(graph, name, of_result, meta=meta_from_array(x, len(of_result)))
