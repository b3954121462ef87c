"""The parts of functions that JAX traces which all operators share: arguments, levels, batches."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dmlops.array_libraries.numpy import NUMPY
from dmlops.calls.binding import Spec
from dmlops.calls.dispatch import level_set
from dmlops.integrations.jax.xla_calls import call
from dmlops.operators.batching import BATCH, Layout
from dmlops.types.errors import argument_of, error_text, refuse, shown


def untraced(value: object, where: str) -> object:
    """Return a value that fills elements, unless it is traced."""
    if isinstance(value, jax.core.Tracer):
        reason = "kernels are planned for its value, and there is no derivative with respect to it"
        allowed = "pass a number (static_argnames of jit makes an argument one), or fill with jax.numpy.where"
        raise TypeError(error_text(where, "a traced array", reason, allowed))
    return value


def as_number(value: object, where: str) -> complex:
    """Return a scalar of `fill_scalar` that is a number; refuse others."""
    if not isinstance(value, (int, float, complex)):
        allowed = f"{argument_of(where)} must be a number"
        raise TypeError(error_text(where, shown(value), "JAX has no such elements", allowed))
    return value


def as_array(x: object, where: str) -> Array:
    """Return a JAX array of what JAX takes; refuse what would lose more than the precision of numbers."""
    if isinstance(x, Array):
        return x
    got = str(x.dtype) if isinstance(x, np.ndarray) else type(x).__name__
    # Lists, and classes of JAX's own kind, may hold traced values, of which NumPy knows nothing.
    if not isinstance(x, (list, tuple)) and not hasattr(x, "__jax_array__"):
        x = NUMPY.as_plain(x, where)
    try:
        array = jnp.asarray(x)
    except Exception as error:  # JAX raises errors of many kinds
        if isinstance(error, OverflowError) and isinstance(x, (list, tuple)):
            return as_array(NUMPY.as_plain(x, where), where)  # says which integers, or has a type for them
        allowed = "it must be an array of a type that JAX has"
        raise TypeError(error_text(where, got, "JAX cannot make an array of it", allowed)) from error
    if isinstance(x, np.ndarray) and x.dtype.kind in "iu" and x.dtype != array.dtype and x.size:
        held, extremes = jnp.iinfo(array.dtype), (x.min(), x.max())
        if extremes[0] < held.min or extremes[1] > held.max:
            reason = "jax_enable_x64 is off, and JAX would wrap them around"
            allowed = f"turn it on, or pass integers in [{held.min}, {held.max}]"
            refuse(where, f"integers from {extremes[0]} to {extremes[1]}", reason, allowed)
    return array


def traced(function: Callable[..., object], inputs: Sequence[Array], options: Sequence[object]) -> Any:
    """Trace a function once for inputs of the same kinds, options and level."""
    return _traced(function, inputs, options, level_set())


@functools.partial(jax.jit, static_argnums=(0, 2, 3), inline=True)
def _traced(
    function: Callable[..., object], inputs: Sequence[Array], options: Sequence[object], level: object
) -> object:
    return function(*map(_collected, inputs), options)


def _collected(x: Array) -> Array:
    """Return an array that each device has the whole of, as XLA passes it to kernels.

    If an array is sharded over explicit axes of a mesh, its type says so, and a derivative must have the
    type of its result.
    """
    sharding = jax.typeof(x).sharding
    return x if _is_whole(sharding.spec) else jax.sharding.reshard(x, NamedSharding(sharding.mesh, P()))


def _is_whole(spec: P) -> bool:
    return all(axes is None for axes in spec)


def call_in_batches(spec: Spec, inputs: Sequence[Array], options: Any) -> Sequence[Array]:
    """Call the kernels; vmap makes one call for all examples, by the batching rule of the operator."""

    @jax.custom_batching.custom_vmap
    def run(*inputs: Array) -> Sequence[Array]:
        return call(spec, inputs, options)

    @run.def_vmap
    def run_batch(size: int, is_batched: Sequence[bool], *inputs: Array) -> Sequence[Array]:
        assert spec.batch is not None
        arrays = dict(zip(spec.parameters, inputs, strict=True))
        batched = {name for name, has_batch in zip(arrays, is_batched, strict=True) if has_batch}
        shapes = {name: x.shape[name in batched :] for name, x in arrays.items()}
        rule = spec.batch(shapes, batched, options)
        for name, layout in rule.layouts.items():
            x = arrays[name]
            x = x if name in batched else jnp.broadcast_to(x, (size, *x.shape))
            arrays[name] = _laid_out(x, layout)
        changed = options._replace(**rule.changes) if rule.changes else options
        results = call_in_batches(spec, [*arrays.values()], changed)
        results = tuple([jnp.moveaxis(result, rule.batch_dim, 0) for result in results])
        return sharded_as_batch(results, is_batched, inputs), (True,) * len(results)

    results: Sequence[Array] = run(*inputs)
    return results


def _laid_out(x: Array, layout: Layout) -> Array:
    """Return an array whose first dimension is the batch in a layout."""
    x = jnp.transpose(x, [0 if d == BATCH else d + 1 for d in layout if d is not None])
    return jnp.expand_dims(x, [place for place, d in enumerate(layout) if d is None])


def sharded_as_batch(
    results: Sequence[Array], is_batched: Sequence[bool], inputs: Sequence[Array]
) -> Sequence[Array]:
    """Return results that are sharded over explicit axes of a mesh as the batch is, as JAX's own are."""
    batch = next(x for x, has_batch in zip(inputs, is_batched, strict=True) if has_batch)
    sharding = jax.typeof(batch).sharding
    if _is_whole(sharding.spec[:1]):
        return results
    placed: Sequence[Array] = jax.sharding.reshard(results, NamedSharding(sharding.mesh, P(sharding.spec[0])))
    return placed
