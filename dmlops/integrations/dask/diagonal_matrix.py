"""Diagonal matrices in chunks: the band is shifted by the position of a chunk in the matrix."""

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array

import dmlops
from dmlops.functions.diagonal_matrix import DIAGONAL_MATRIX, MATRIX_WITHOUT_INPUT, refuse_with_input
from dmlops.integrations.dask.chunks import (
    as_dask_array,
    check_known,
    describe,
    empty_like,
    mark_unknown_sizes,
)
from dmlops.operators.diagonal_matrix import infer_diagonal_matrix
from dmlops.types import arguments
from dmlops.types.data_types import data_type_of, numpy_dtype
from dmlops.types.errors import error_text, refuse, shown
from dmlops.types.scalars import fill_scalar


def diagonal_matrix(
    x: Any = None,
    *,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    chunks: Any = None,
    value: Any = 1,
    begin: int = 0,
    end: int = 1,
    like: Any = None,
) -> da.Array:
    """Return a copy of `x`, or zeros, with a band filled with `value`, as `dmlops.diagonal_matrix` does.

    Without `x`, the result has the given `shape`, `dtype` (by default float64) and `chunks` (by default
    ``"auto"``). Its chunks are NumPy arrays, or arrays of the library of `like`, which is such an array or a
    dask array of them.
    """
    where = "diagonal_matrix"
    begin, end = arguments.integer(begin, f"{where}.begin"), arguments.integer(end, f"{where}.end")
    band: dict[str, Any] = {"value": fill_scalar(value, f"{where}.value"), "begin": begin, "end": end}
    if x is not None:
        refuse_with_input(shape=shape, dtype=dtype, chunks=chunks, like=like)
        x = as_dask_array(x, f"{where}.x")
        data = describe(x, f"{where}.x")
        with mark_unknown_sizes(x):
            infer_diagonal_matrix(DIAGONAL_MATRIX.words, data.data_type, data.sizes, band["value"])
        check_known(x, -1, f"{where}.x")
        check_known(x, -2, f"{where}.x")
        return x.map_blocks(_fill_chunk, **band, meta=meta_from_array(x))
    if shape is None:
        allowed = "one of x and shape must be given"
        raise TypeError(error_text(f"{where}.shape", None, "neither x nor shape is given", allowed))
    sizes = arguments.sizes(shape, f"{where}.shape")
    data_type = data_type_of(np.float64 if dtype is None else dtype, f"{where}.dtype")
    dtype = numpy_dtype(data_type)
    infer_diagonal_matrix(MATRIX_WITHOUT_INPUT.words, data_type, sizes, band["value"])
    try:
        chunks = da.core.normalize_chunks("auto" if chunks is None else chunks, sizes, dtype=dtype)
    except ZeroDivisionError:
        # dask cannot choose chunks for an array without elements: a single chunk will do.
        chunks = da.core.normalize_chunks(-1, sizes)
    except (TypeError, ValueError) as error:
        refuse(f"{where}.chunks", shown(chunks), f"Dask refuses them: {error}", "they must fit shape")
    pattern = np.empty(0) if like is None else as_dask_array(like, f"{where}.like")
    meta = empty_like(pattern, len(sizes), dtype)
    return da.map_blocks(_make_chunk, **band, like=meta, chunks=chunks, dtype=dtype, meta=meta)


def _fill_chunk(x: Any, *, value: Any, begin: int, end: int, block_info: Any = None) -> Any:
    shift = _diagonal_of(block_info[0])
    return dmlops.diagonal_matrix(x, value=value, begin=begin - shift, end=end - shift)


def _make_chunk(*, value: Any, begin: int, end: int, like: Any, block_info: Any = None) -> Any:
    block = block_info[None]
    shift = _diagonal_of(block)
    return dmlops.diagonal_matrix(
        shape=block["chunk-shape"],
        dtype=block["dtype"],
        value=value,
        begin=begin - shift,
        end=end - shift,
        like=like,
    )


def _diagonal_of(block: Any) -> int:
    """Return the diagonal of the whole matrix on which a block's first element lies."""
    (row, _), (column, _) = block["array-location"][-2:]
    return int(column - row)
