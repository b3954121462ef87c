"""`dmlops.top_k` inside JAX's transformations."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from dmlops import TopKResult
from dmlops.array_libraries.base import ArrayLibrary, Operand
from dmlops.calls.call import BoundCall
from dmlops.functions.top_k import SPEC, given_arrays, plain_max_length
from dmlops.integrations.jax.tracing import as_array, call_in_batches, traced
from dmlops.integrations.jax.xla_calls import bound_by, index_type_name
from dmlops.operators.top_k import Selection
from dmlops.types import arguments
from dmlops.types.data_types import SUPPORTED


def top_k(
    x: object,
    k: int,
    *,
    axis: int = -1,
    largest: bool = True,
    sorted: bool = True,
    starts: object = None,
    lengths: object = None,
    max_length: int | None = None,
    indices: object = None,
    nan_last: bool = False,
    index_dtype: object = None,
) -> TopKResult[Array, Array]:
    """Return the `k` largest or smallest elements along an axis, and their indices.

    As `dmlops.top_k`: ties by ascending index. Differentiable with respect to `x`; results that no element of
    a row is left for, of index -1, have no derivative.

    Examples
    --------
    >>> import jax
    >>> x = jax.numpy.asarray([1.0, 3.0, 3.0])
    >>> top_k(x, 2).indices.tolist()
    [1, 2]
    >>> jax.grad(lambda x: top_k(x, 1).values.sum())(x).tolist()
    [0.0, 1.0, 0.0]
    """
    given = given_arrays(lengths, starts, indices)
    arrays = [as_array(array, f"top_k.{name}") for name, array in given.items()]
    of_numbers = indices is not None and index_dtype is None
    options = Selection(
        k=arguments.integer(k, "top_k.k"),
        axis=arguments.integer(axis, "top_k.axis"),
        largest=arguments.boolean(largest, "top_k.largest"),
        is_sorted=arguments.boolean(sorted, "top_k.sorted"),
        nan_last=arguments.boolean(nan_last, "top_k.nan_last"),
        max_length=plain_max_length(max_length, given),
        index_type=None if of_numbers else index_type_name(index_dtype, "top_k"),
        given=tuple(given),
    )
    return TopKResult(*traced(_top_k, (as_array(x, "top_k.x"), *arrays), options))


@bound_by(SPEC)
def _bind(library: ArrayLibrary, operands: Sequence[Operand], parameters: Sequence[Any]) -> BoundCall:
    selection = Selection(*parameters)
    given, name = tuple(selection.given), selection.index_type
    selection = selection._replace(given=given, index_type=None if name is None else SUPPORTED[name])
    return SPEC.with_arrays(given).bind(operands, (), selection)


def _top_k(x: Array, *inputs: Any) -> Sequence[Array]:
    *others, options = inputs

    @jax.custom_jvp
    def select(x: Array, *others: Array) -> Sequence[Array]:
        return _select(x, *others, options)

    @select.defjvp
    def differentiate(
        primals: Sequence[Array], tangents: Sequence[Array]
    ) -> tuple[Sequence[Array], Sequence[Array]]:
        if "indices" in options.given:
            values, indices, places = _select_by_number(primals, options)
        else:
            values, indices = select(*primals)
            places = indices
        x, axis = jnp.atleast_1d(tangents[0]), options.axis % max(primals[0].ndim, 1)
        # If a row has too few elements, all bits of the indices of its padding are set.
        is_element = (places >= 0) & (places < x.shape[axis])
        places = jnp.where(is_element, places, 0)
        if values.ndim == x.ndim and _without(values.shape, axis) == _without(x.shape, axis):
            moved = jnp.take_along_axis(x, places, axis, mode="clip")
        else:  # rows share elements
            moved = _taken_from_rows(x, axis, places)
        no_change = jax.custom_derivatives.zero_from_primal(indices)
        return (values, indices), (jnp.where(is_element, moved, 0), no_change)

    selected: Sequence[Array] = select(x, *others)
    return selected


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _taken_from_rows(x: Array, axis: int, places: Array) -> Array:
    """Return the elements at places along an axis of rows to which `x` broadcasts."""
    rows, axis_of_places = jnp.moveaxis(x, axis, -1), axis + places.ndim - x.ndim
    first = jnp.arange(math.prod(rows.shape[:-1])).reshape(rows.shape[:-1]) * x.shape[axis]
    first = jnp.broadcast_to(first, _without(places.shape, axis_of_places))
    return rows.reshape(-1)[jnp.expand_dims(first, axis_of_places) + places]


def _select_by_number(inputs: Sequence[Array], options: Selection) -> tuple[Array, Array, Array]:
    """Return values, the caller's numbers and positions, which the order of the numbers gives."""
    x, *others, numbers = inputs
    axis = options.axis % max(x.ndim, 1) - max(x.ndim, 1)
    size = x.shape[axis] if x.ndim else 1
    if numbers.ndim == 1:
        numbers = numbers.reshape(-1, *(1,) * (-axis - 1))
    numbers = numbers.reshape((1,) * (-axis - numbers.ndim) + numbers.shape)
    shape = [*numbers.shape]
    shape[axis] = size
    numbers = jnp.broadcast_to(numbers, shape)
    order = jnp.argsort(numbers, axis, stable=True)
    # The highest number of a type without a sign stands for -1.
    none = jnp.asarray(-1 if numbers.dtype.kind == "i" else jnp.iinfo(numbers.dtype).max, numbers.dtype)
    ranks = jnp.where(numbers == none, -1, jnp.argsort(order, axis))
    values, found = _select(x, *others, ranks, options._replace(index_type=None))
    shape = [*found.shape]
    shape[axis] = size
    places = jnp.take_along_axis(jnp.broadcast_to(order, shape), jnp.maximum(found, 0), axis, mode="clip")
    chosen = jnp.take_along_axis(jnp.broadcast_to(numbers, shape), places, axis, mode="clip")
    return values, jnp.where(found < 0, none, chosen), jnp.where(found < 0, -1, places)


def _select(x: Array, *inputs: Any) -> Sequence[Array]:
    *others, options = inputs
    return call_in_batches(SPEC.with_arrays(options.given), (x, *others), options)
