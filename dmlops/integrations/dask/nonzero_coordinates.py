"""Coordinates of the non-zero elements of chunked arrays, and their count."""

import math
from operator import itemgetter
from typing import Any

import dask.array as da
import numpy as np

import dmlops
from dmlops import NonzeroResult
from dmlops.functions.nonzero_coordinates import NONZERO_COORDINATES
from dmlops.integrations.dask import chunks
from dmlops.operators.nonzero_coordinates import infer_nonzero_coordinates
from dmlops.types.data_types import index_data_type, numpy_dtype


def nonzero_coordinates(x: Any, *, index_dtype: Any = None) -> NonzeroResult[da.Array]:
    """Return the coordinates of the non-zero elements, in ascending element order, and their count.

    There is one chunk for each chunk of `x` along the first dimension, of unknown size; there is no `size`.
    If dimensions other than the first are chunked, `x` is rechunked. See `dmlops.nonzero_coordinates` for the
    rest.

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
        infer_nonzero_coordinates(NONZERO_COORDINATES.words, chunks.describe(x, where), 0, index_type)
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
        index_dtype=dtype,
        drop_axis=list(range(1, x.ndim)),
        chunks=((math.nan,) * x.numblocks[0],),
        meta=np.empty(0, object),
    )
    coordinates = pairs.map_blocks(
        itemgetter(0),
        new_axis=1,
        chunks=((math.nan,) * x.numblocks[0], (columns,)),
        meta=chunks.empty_like(x, 2, dtype),
    )
    counts = pairs.map_blocks(
        itemgetter(1), chunks=((1,) * x.numblocks[0],), meta=chunks.empty_like(x, 1, dtype)
    )
    return NonzeroResult(coordinates, counts.sum(dtype=dtype))


def _coordinates_in_chunk(
    x: Any, *, columns: int, index_dtype: Any, block_info: Any = None
) -> tuple[Any, Any]:
    """Return the coordinates in a chunk, and an array with their count."""
    coordinates, count = dmlops.nonzero_coordinates(x, index_dtype=index_dtype)
    coordinates = coordinates[:, :columns]
    coordinates[:, :1] += index_dtype.type(block_info[0]["array-location"][0][0])
    return coordinates, count.reshape(1)
