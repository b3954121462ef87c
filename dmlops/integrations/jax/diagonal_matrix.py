"""`dmlops.diagonal_matrix` inside JAX's transformations."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from dmlops.array_libraries.base import ArrayLibrary, Operand
from dmlops.array_libraries.jax import Jax
from dmlops.calls.call import BoundCall
from dmlops.functions.diagonal_matrix import MATRIX_WITHOUT_INPUT, SPEC, NewMatrix, refuse_with_input
from dmlops.integrations.jax.tracing import as_array, as_number, call_in_batches, traced, untraced
from dmlops.integrations.jax.xla_calls import bound_by, call, number_of, number_text
from dmlops.operators.diagonal_matrix import band_bounds, near_band
from dmlops.types import arguments, scalars
from dmlops.types.data_types import data_type_of, named_data_type
from dmlops.types.errors import error_text
from dmlops.types.opaque_types import type_name


def diagonal_matrix(
    x: object = None,
    *,
    shape: Sequence[int] | None = None,
    dtype: object = None,
    value: complex = 1,
    begin: float = 0,
    end: float | None = None,
) -> Array:
    """Return a copy of `x`, or zeros, with a band filled with `value`, as `dmlops.diagonal_matrix` does.

    The function is differentiable with respect to `x`. Without `x`, `shape` and `dtype` are those of
    `jax.numpy.zeros`.

    Raises
    ------
    TypeError
        If neither `x` nor `shape` is given, both are, or `value` is traced.
    """
    where = "diagonal_matrix"
    number = scalars.fill_scalar(untraced(value, f"{where}.value"), f"{where}.value")
    number = as_number(number, f"{where}.value")
    band = number_text(number), *near_band(*band_bounds(where, begin, end))
    if x is not None:
        refuse_with_input(shape=shape, dtype=dtype)
        return traced(_diagonal_matrix, (as_array(x, f"{where}.x"),), (None, *band))
    if shape is None:
        allowed = "one of x and shape must be given"
        raise TypeError(error_text(f"{where}.shape", None, "neither x nor shape is given", allowed))
    if any(dtype is kind for kind in (None, int, float, complex)):  # of the size that JAX is set to
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    data_type = data_type_of(dtype, f"{where}.dtype")
    Jax().check_representable(data_type, f"{where}.dtype")
    matrix = (type_name(data_type), arguments.sizes(shape, f"{where}.shape"))
    return traced(_matrix_without_input, (), (matrix, *band))


@bound_by(SPEC)
def _bind(library: ArrayLibrary, operands: Sequence[Operand], parameters: Sequence[Any]) -> BoundCall:
    matrix, value, *bounds = parameters
    if matrix is None:
        return SPEC.bind(operands, (), None, number_of(value), *bounds)
    name, sizes = matrix
    matrix = NewMatrix(library, tuple(sizes), named_data_type(name, ""), library.device(None))
    return MATRIX_WITHOUT_INPUT.bind((), (), matrix, number_of(value), *bounds)


def _diagonal_matrix(x: Array, options: tuple[object, ...]) -> Array:
    *_, begin, end = options

    @jax.custom_jvp
    def fill(x: Array) -> Array:
        return call_in_batches(SPEC, (x,), options)[0]

    @fill.defjvp
    def differentiate(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Array, Array]:
        # DirectML has no matrices of bools.
        is_filled = _matrix_without_input((("uint8", primals[0].shape[-2:]), 1, begin, end))
        return fill(*primals), jnp.where(is_filled, 0, tangents[0])

    return fill(x)


def _matrix_without_input(options: tuple[object, ...]) -> Array:
    return call(MATRIX_WITHOUT_INPUT, (), options)[0]
