"""Coordinates of the non-zero elements of chunked arrays, and their count."""

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array
from dask.delayed import delayed

import dmlops
from dmlops import NonzeroResult
from dmlops.functions.nonzero_coordinates import NONZERO_COORDINATES
from dmlops.integrations.dask import chunks
from dmlops.operators.nonzero_coordinates import check_fill, infer_nonzero_coordinates
from dmlops.types.arguments import integer
from dmlops.types.data_types import index_data_type, numpy_dtype


def nonzero_coordinates(
    x: Any, *, size: int | None = None, fill_value: int | None = None, index_dtype: Any = None
) -> NonzeroResult[da.Array]:
    """Return the coordinates of the non-zero elements, in ascending element order, and their count.

    Without `size`, the rows are trimmed. There is one chunk for each chunk of `x` along the first dimension,
    of unknown size. With `size`, the result is one chunk, and the rows from the count on hold `fill_value`,
    or zeros by default. The count is always that of all non-zero elements. If dimensions other than the first
    are chunked, `x` is rechunked. See `dmlops.nonzero_coordinates` for the rest.

    Examples
    --------
    >>> import dask.array as da
    >>> x = da.asarray([0, 5, 0, 7], chunks=2)
    >>> coordinates, count = nonzero_coordinates(x, size=3, fill_value=-1)
    >>> coordinates.shape, coordinates.compute().tolist(), count.compute().item()
    ((3, 1), [[1], [3], [-1]], 2)
    """
    where = "nonzero_coordinates.x"
    x = chunks.as_dask_array(x, where)
    size = None if size is None else integer(size, "nonzero_coordinates.size")
    fill = None if fill_value is None else integer(fill_value, "nonzero_coordinates.fill_value")
    index_type = index_data_type(
        "int64" if index_dtype is None else index_dtype, "nonzero_coordinates.index_dtype"
    )
    columns = x.ndim
    with chunks.mark_unknown_sizes(x):
        rows, words = 0 if size is None else size, NONZERO_COORDINATES.words
        infer_nonzero_coordinates(words, chunks.describe(x, where), rows, index_type)
    check_fill(fill, index_type, is_trimmed=size is None)
    x = x.reshape(1) if columns == 0 else x
    chunks.check_known(x, 0, where)
    chunked = [axis for axis in range(1, x.ndim) if x.numblocks[axis] > 1]
    for axis in chunked:
        chunks.check_known(x, axis, where)
    if chunked:
        # dask cannot choose chunks for an array without elements, or of unknown size.
        x = x.rechunk(dict.fromkeys(chunked, -1) | ({0: "auto"} if x.size > 0 else {}))
    dtype = numpy_dtype(index_type)
    pairs = da.map_blocks(
        _coordinates_in_chunk,
        x,
        columns=columns,
        size=size,
        index_dtype=dtype,
        drop_axis=list(range(1, x.ndim)),
        chunks=((math.nan,) * x.numblocks[0],),
        meta=np.empty(0, object),
    )
    found = pairs.map_blocks(
        itemgetter(0),
        new_axis=1,
        chunks=((math.nan,) * x.numblocks[0], (columns,)),
        meta=chunks.empty_like(x, 2, dtype),
    )
    counts = pairs.map_blocks(
        itemgetter(1), chunks=((1,) * x.numblocks[0],), meta=chunks.empty_like(x, 1, dtype)
    )
    coordinates = found if size is None else _of_size(found, size, 0 if fill is None else fill)
    return NonzeroResult(coordinates, counts.sum(dtype=dtype))


def _coordinates_in_chunk(
    x: Any, *, columns: int, size: int | None, index_dtype: Any, block_info: Any = None
) -> tuple[Any, Any]:
    """Return the coordinates in a chunk, at most `size` of them, and an array with their count."""
    most = None if size is None else min(size, x.size)
    coordinates, count = dmlops.nonzero_coordinates(x, size=most, index_dtype=index_dtype)
    coordinates = coordinates[: int(count), :columns]
    coordinates[:, :1] += index_dtype.type(block_info[0]["array-location"][0][0])
    return coordinates, count.reshape(1)


def _of_size(found: da.Array, size: int, fill: int) -> da.Array:
    """Return the first `size` rows of coordinates as one chunk; if there are fewer, the others are filled."""
    pieces = found.to_delayed(optimize_graph=False).ravel().tolist()
    rows = delayed(_join, pure=True)(pieces, size, fill)
    return da.from_delayed(rows, (size, found.shape[1]), meta=meta_from_array(found))


def _join(pieces: Sequence[Any], size: int, fill: int) -> Any:
    rows = np.concatenate(pieces)[:size]
    result = np.full_like(rows, fill, shape=(size, rows.shape[1]))
    result[: len(rows)] = rows
    return result
