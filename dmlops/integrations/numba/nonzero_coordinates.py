"""`dmlops.nonzero_coordinates` in compiled functions."""

import numpy as np
from numba import types

import dmlops
from dmlops import NonzeroResult
from dmlops.functions.nonzero_coordinates import SPEC
from dmlops.integrations.numba.building import call, check, function, is_none, is_pair, named, shape_with
from dmlops.integrations.numba.calls import Bindable, CallError, Request, index_type_of, operation
from dmlops.operators.nonzero_coordinates import check_fill
from dmlops.types.enums import TensorDataType
from kernels_cpu.nonzero_coordinates.problem_words import WHOLE


def _bind(request: Request) -> Bindable:
    has_size, has_fill, has_fills, code, *fills = request.scalars
    _, value, size = request.sizes
    index_type = index_type_of(code, "nonzero_coordinates.index_dtype")
    fill = tuple(fills) if has_fills else value if has_fill else None
    if not request.has_out:
        n_columns, held_by = request.arrays[0].ndim, index_type or TensorDataType.INT64
        check_fill(fill, held_by, n_columns, is_trimmed=not has_size)
        size = size if has_size else len(request.arrays[1])
    return SPEC, 1, (size if has_size or not request.has_out else None, fill, index_type)


LIST = operation(1, _bind)


@function(dmlops.nonzero_coordinates)
def _nonzero_coordinates(x, size=None, fill_value=None, index_dtype=None, out=None):
    has_size, has_fill = not is_none(size), not is_none(fill_value)
    has_fills = isinstance(fill_value, types.BaseTuple)
    for value in fill_value if has_fills else [fill_value]:
        check("nonzero_coordinates", {"size": size, "fill_value": value}, x=x)
    has_out = is_pair("nonzero_coordinates", out)
    dtype, code = named(index_dtype, "nonzero_coordinates.index_dtype", np.int64)
    n_bytes = dtype.itemsize

    def call_nonzero(x, size=None, fill_value=None, index_dtype=None, out=None):
        rows, fill = size if has_size else 0, fill_value if has_fill and not has_fills else 0
        fills = fill_value if has_fills else ()
        scalars, count = (has_size, has_fill, has_fills, code, fills), np.empty((), dtype)
        if has_out:
            if call(LIST, scalars, (WHOLE, fill, rows), True, (x, out)) != 0:
                raise CallError
            return NonzeroResult(out[0], out[1])
        if not has_size:
            none = np.empty(shape_with((0, x.ndim), 2, 0, n_bytes), dtype)
            if call(LIST, scalars, (WHOLE, fill, 0), False, (x, none, count)) != 0:
                raise CallError  # this counts alone
            rows = np.int64(count[()])
        results = np.empty(shape_with((rows, x.ndim), 2, 0, n_bytes), dtype), count
        if call(LIST, scalars, (WHOLE, fill, rows), False, (x, results)) != 0:
            raise CallError
        return NonzeroResult(results[0], results[1])

    return call_nonzero
