"""Coordinates of the non-zero elements of chunked arrays, and their count.

Each chunk is searched by itself. Where other axes than the first are chunked, element order runs across
chunks: the coordinates found in those are then sorted together.
"""

import itertools
import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.utils import parse_bytes

import dmlops
from dmlops import NonzeroResult
from dmlops.functions.nonzero_coordinates import SPEC
from dmlops.integrations.dask import chunks
from dmlops.operators.nonzero_coordinates import infer_nonzero_coordinates
from dmlops.types.data_types import index_data_type, numpy_dtype


def nonzero_coordinates(x: Any, *, index_dtype: object = None) -> NonzeroResult[da.Array]:
    """Return the coordinates of the non-zero elements, in ascending element order, and their count.

    The result has chunks of unknown size, one for each chunk of `x` along the first dimension, or more where
    other dimensions are chunked; there is no `size`. See `dmlops.nonzero_coordinates` for the rest.

    Notes
    -----
    Each task reads one chunk of `x`. If dimensions other than the first are chunked, the coordinates of
    chunks that lie beside each other are sorted together: those of ``array.chunk-size`` bytes of `x`, or of
    one row.

    Examples
    --------
    >>> import dask.array as da
    >>> x = da.asarray([0, 5, 0, 7], chunks=2)
    >>> coordinates, count = nonzero_coordinates(x)
    >>> coordinates.compute().tolist(), count.compute().item()
    ([[1], [3]], 2)
    """
    where = "nonzero_coordinates.x"
    x = chunks.as_dask_array(x, where)
    index_type = index_data_type(
        "int64" if index_dtype is None else index_dtype, "nonzero_coordinates.index_dtype"
    )
    columns = x.ndim
    with chunks.mark_unknown_sizes(x):
        infer_nonzero_coordinates(SPEC.words, chunks.describe(x, where), 0, index_type)
    x = x.reshape(1) if columns == 0 else x
    chunks.check_known(x, 0, where)
    for axis in range(1, x.ndim):
        if x.numblocks[axis] > 1:
            chunks.check_known(x, axis, where)
    x, axis = _in_slabs(x)
    dtype = numpy_dtype(index_type)
    pairs = da.map_blocks(
        _coordinates_in_chunk,
        x,
        columns=columns,
        index_dtype=dtype,
        chunks=tuple((1,) * n_chunks for n_chunks in x.numblocks),
        meta=np.empty((0,) * x.ndim, object),
    )
    coordinates = _merged_in_slabs(pairs, axis, columns, chunks.empty_like(x, 2, dtype))
    counts = pairs.map_blocks(itemgetter(1), meta=chunks.empty_like(x, x.ndim, dtype))
    return NonzeroResult(coordinates, counts.sum(dtype=dtype))


def _in_slabs(x: da.Array) -> tuple[da.Array, int]:
    """Return an array in chunks that form slabs, and the axis that the slabs are cut along.

    All elements of a slab come before those of the next one: it has all chunks along the axes after that one,
    and single positions along those before. Chunks are cut where a slab would have too many elements.
    """
    axis = 0
    if all(n_chunks == 1 for n_chunks in x.numblocks[1:]):
        return x, axis
    slab_bytes = parse_bytes(dask.config.get("array.chunk-size"))
    while True:
        # NaN if a size is unknown, which is not chunked then.
        row_bytes = math.prod(x.shape[axis + 1 :]) * x.dtype.itemsize
        rows = slab_bytes // row_bytes if row_bytes > 0 else math.inf
        if rows < max(x.chunks[axis]):
            most = max(int(rows), 1)
            parts = [[most] * (size // most) + [size % most] * (size % most > 0) for size in x.chunks[axis]]
            x = x.rechunk({axis: tuple(itertools.chain.from_iterable(parts))})
        if not rows < 1 or axis == x.ndim - 1:
            return x, axis
        axis += 1


def _merged_in_slabs(pairs: da.Array, axis: int, columns: int, meta: np.ndarray) -> da.Array:
    """Return the coordinates of all chunks, those of a slab in one."""
    name = f"nonzero_coordinates-{tokenize(pairs, axis)}"
    others = list(np.ndindex(pairs.numblocks[axis + 1 :]))
    slabs = list(np.ndindex(pairs.numblocks[: axis + 1]))
    tasks = {
        (name, number, 0): (_merge, [(pairs.name, *slab, *other) for other in others])
        for number, slab in enumerate(slabs)
    }
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=[pairs])
    return da.Array(graph, name, ((math.nan,) * len(slabs), (columns,)), meta=meta)


def _merge(pairs: Sequence[tuple[object, object]]) -> object:
    """Return the coordinates in a slab, in element order."""
    if len(pairs) == 1:
        return pairs[0][0]
    joined = np.concatenate([coordinates for coordinates, _ in pairs])
    if not len(joined):
        return joined
    place = 0
    for column, size in zip(joined.T, (joined.max(axis=0) + 1).tolist(), strict=True):
        place = place * size + column.astype("int64")
    # Stable sorts merge what is sorted in parts.
    return joined[np.argsort(place, kind="stable")]


def _coordinates_in_chunk(
    x: Any, *, columns: int, index_dtype: Any, block_info: Any = None
) -> tuple[object, object]:
    """Return the coordinates in a chunk, and an array with their count."""
    coordinates, count = dmlops.nonzero_coordinates(x, index_dtype=index_dtype)
    coordinates = coordinates[:, :columns]
    for column, (start, _) in enumerate(block_info[0]["array-location"][:columns]):
        if start:
            coordinates[:, column] += index_dtype.type(start)
    return coordinates, count.reshape((1,) * x.ndim)
