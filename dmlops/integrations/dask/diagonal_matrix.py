"""Diagonal matrices in chunks: the band is shifted by the position of a chunk in the matrix."""

from typing import Any

import dask.array as da
from dask.array.utils import meta_from_array

import dmlops
from dmlops.functions.diagonal_matrix import SPEC
from dmlops.integrations.dask.chunks import as_dask_array, check_known, describe, mark_unknown_sizes
from dmlops.operators.diagonal_matrix import band_bounds, infer_diagonal_matrix
from dmlops.types.scalars import fill_scalar


def diagonal_matrix(x: Any, *, value: object = 1, begin: float = 0, end: float | None = None) -> da.Array:
    """Return a copy of `x` with a band filled with `value`, as `dmlops.diagonal_matrix` does.

    There is no call without `x`: pass ``dask.array.zeros(shape, dtype=..., chunks=...)``.
    """
    where = "diagonal_matrix.x"
    begin, end = band_bounds("diagonal_matrix", begin, end)
    value = fill_scalar(value, "diagonal_matrix.value")
    x = as_dask_array(x, where)
    data = describe(x, where)
    with mark_unknown_sizes(x):
        infer_diagonal_matrix(SPEC.words, data.data_type, data.sizes, value)
    check_known(x, -1, where)
    check_known(x, -2, where)
    return x.map_blocks(_fill_chunk, value=value, begin=begin, end=end, meta=meta_from_array(x))


def _fill_chunk(x: object, *, value: object, begin: int, end: int, block_info: Any = None) -> object:
    (row, _), (column, _) = block_info[0]["array-location"][-2:]
    # The diagonal of the whole matrix on which the chunk's first element lies.
    shift = int(column - row)
    return dmlops.diagonal_matrix(x, value=value, begin=begin - shift, end=end - shift)
