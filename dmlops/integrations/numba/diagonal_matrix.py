"""`dmlops.diagonal_matrix` in compiled functions."""

import numpy as np
from numba import TypingError, types
from numba.extending import overload

import dmlops
from dmlops.functions.diagonal_matrix import MATRIX_WITHOUT_INPUT, SPEC, new_matrix_of, plain_band
from dmlops.integrations.numba import building
from dmlops.integrations.numba.calls import Bindable, CallError, Request, dtype_of_code, operation, value_of

# No matrix has a diagonal so far out.
_FARTHEST = (1 << 62) - 1


def _bind(request: Request) -> Bindable:
    has_end, code, made_code, n_dims = request.scalars[:4]
    begin, end, _, *shape = request.sizes
    value = value_of(request, 4, len(request.scalars) - 1, code)
    band = plain_band("diagonal_matrix", value, begin, end if has_end else None)
    if request.operation == FILL:
        return SPEC, 1, (None, *band)
    given = request.arrays[0] if request.has_out else None
    matrix = new_matrix_of(
        "diagonal_matrix", None if n_dims < 0 else tuple(shape), dtype_of_code(made_code), None, given
    )
    return MATRIX_WITHOUT_INPUT, 0, (matrix, *band)


# Their keys have the value; `MAKE` is a matrix without an input.
FILL, MAKE = (operation(number, _bind, has_value_in_key=True) for number in (4, 5))


@building.function(dmlops.diagonal_matrix)
def _diagonal_matrix(x=None, shape=None, dtype=None, value=1, begin=0, end=None, out=None):
    has_x, has_shape, has_out = (not building.is_none(kind) for kind in (x, shape, out))
    building.check("diagonal_matrix", {"begin": begin, "end": end}, out=out, **({"x": x} if has_x else {}))
    if has_x and (has_shape or not building.is_none(dtype)):
        building.refuse("diagonal_matrix.x", x, "shape and dtype describe a result without x")
    if not (has_x or has_shape or has_out):
        building.refuse("diagonal_matrix.shape", shape, "one of x, shape and out must be given")
    if has_shape and not isinstance(shape, types.BaseTuple):
        building.refuse("diagonal_matrix.shape", shape, "it must be a tuple")
    for size in shape if has_shape else ():
        building.check("diagonal_matrix", {"shape": size})
    result_type, code = building.named(dtype, "diagonal_matrix.dtype", np.float64)
    has_end = not building.is_none(end)
    coded = building.value_code(value, "diagonal_matrix.value"), code
    described = has_end, *coded, len(shape) if has_shape else -1
    asked, n_bytes = FILL if has_x else MAKE, result_type.itemsize

    def call_diagonal_matrix(x=None, shape=None, dtype=None, value=1, begin=0, end=None, out=None):
        sizes = shape if has_shape else ()
        last = end if has_end else begin + (begin < _FARTHEST)
        if has_out:
            result = out
        elif has_x:
            result = np.empty(x.shape, x.dtype)
        else:
            result = np.empty(building.shape_with(sizes, len(sizes), 0, n_bytes), result_type)
        is_made = not has_shape or result.shape == shape
        scalars, sizes_of_call = (described, value, is_made), (begin, last, 0, sizes)
        if building.call(asked, scalars, sizes_of_call, has_out, (x, result)) != 0:
            raise CallError
        return result

    return call_diagonal_matrix


@overload(dmlops.eye)
@overload(dmlops.triu)
@overload(dmlops.tril)
def _forms(*_, **__):
    msg = "dmlops.tril, triu and eye cannot be compiled; call diagonal_matrix with value, begin and end"
    raise TypingError(msg)
