"""`dmlops.gather_nd` inside JAX's transformations."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import dmlops
from dmlops.array_libraries.base import ArrayLibrary, Operand
from dmlops.calls.call import BoundCall
from dmlops.functions.gather_nd import SPEC
from dmlops.integrations.jax.tracing import as_array, as_number, call_in_batches, traced, untraced
from dmlops.integrations.jax.xla_calls import bound_by, number_of, number_text
from dmlops.operators.gather_nd import check_is_one_array, check_mode, element_fill
from dmlops.types import arguments
from dmlops.types.array_types import Mode
from dmlops.types.errors import refuse, shown


class _Options(NamedTuple):
    """The arguments that are no arrays; the number to fill with is a text."""

    batch_dims: int
    mode: str
    fill: int | str
    wraps: bool


def gather_nd(
    x: object,
    indices: object,
    *,
    batch_dims: int = 0,
    mode: Mode = "raise",
    fill_value: complex = 0,
    wrap_negative: bool = True,
) -> Array:
    """Return the elements or slices of `x` that index tuples point at, as `dmlops.gather_nd` does.

    In transformations, `mode` must be ``"clip"`` or ``"fill"``. The function is differentiable with respect
    to `x`; the gradients of an element that is gathered more than once are summed.

    Raises
    ------
    InvalidDescriptorError
        If `mode` is ``"raise"`` under jit, vmap or grad.
    TypeError
        If `fill_value` is traced.
    """
    check_mode(mode)
    fill = element_fill(untraced(fill_value, "gather_nd.fill_value"), mode)
    wraps = arguments.boolean(wrap_negative, "gather_nd.wrap_negative")
    check_is_one_array(indices)
    inputs = as_array(x, "gather_nd.x"), as_array(arguments.integers(indices), "gather_nd.indices")
    if mode == "raise":
        if any(isinstance(array, jax.core.Tracer) for array in inputs):
            reason = "jit, vmap and grad cannot raise for what elements are"
            refuse("gather_nd.mode", shown(mode), reason, 'mode must be "clip" or "fill"')
        return dmlops.gather_nd(*inputs, batch_dims=batch_dims, wrap_negative=wraps)
    number = number_text(as_number(fill, "gather_nd.fill_value"))
    options = _Options(arguments.integer(batch_dims, "gather_nd.batch_dims"), mode, number, wraps)
    return traced(_gather_nd, inputs, options)


@bound_by(SPEC)
def _bind(library: ArrayLibrary, operands: Sequence[Operand], parameters: Sequence[Any]) -> BoundCall:
    batch_dims, mode, fill, wraps = parameters
    return SPEC.bind(operands, (), batch_dims, mode, number_of(fill), wraps)


def _gather_nd(x: Array, indices: Array, options: _Options) -> Array:
    @jax.custom_jvp
    def gather(x: Array, indices: Array) -> Array:
        return call_in_batches(SPEC, (x, indices), options)[0]

    @gather.defjvp
    def differentiate(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Array, Array]:
        return gather(*primals), _moved(tangents[0], primals[1], *options)

    return gather(x, indices)


def _moved(x: Array, indices: Array, batch_dims: int, mode: str, _: object, wraps: bool) -> Array:
    """Return the result of a gather that fills with zeros, with JAX's own operations."""
    places, end = indices.shape[:-1], batch_dims + indices.shape[-1]
    shape = places + x.shape[end:]
    if 0 in x.shape:
        return jnp.zeros(shape, x.dtype)
    coordinates = [jax.lax.broadcasted_iota(indices.dtype, places, d) for d in range(batch_dims)]
    is_inside = jnp.ones(places, bool)
    for d in range(batch_dims, end):
        index, size = indices[..., d - batch_dims], x.shape[d]
        index = jnp.where(index < 0, index + size, index) if wraps else index
        is_inside &= (index >= 0) & (index < size)
        coordinates.append(jnp.clip(index, 0, size - 1))
    moved = x.at[tuple(coordinates)].get(mode="clip") if coordinates else jnp.broadcast_to(x, shape)
    if mode == "clip":
        return moved
    return jnp.where(jnp.expand_dims(is_inside, range(len(places), len(shape))), moved, 0)
