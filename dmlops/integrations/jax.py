"""The operators inside JAX's transformations: jit, vmap, and derivatives, on the CPU and on CUDA.

The functions here are those of `dmlops` for JAX arrays. XLA calls the kernels by its foreign function
interface, on its own stream and with memory that it allocates. Where a derivative is asked for, the kernels
find the positions, and JAX's own operations move the elements there.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import dmlops
from dmlops import NonzeroResult, TopKResult, arguments, scalars
from dmlops.array_types import Mode
from dmlops.dispatch import level_set
from dmlops.errors import error_text, refuse, shown
from dmlops.integrations.xla_calls import call, index_type_name, number_text


def top_k(
    x: Any,
    k: int,
    *,
    axis: int = -1,
    largest: bool = True,
    sorted: bool = True,
    lengths: Any = None,
    index_dtype: Any = None,
) -> TopKResult[Array, Array]:
    """Return the `k` largest or smallest elements along an axis, and their indices.

    As `dmlops.top_k`: ties by ascending index. Differentiable with respect to `x`; results beyond the length
    of a row, of index -1, have no derivative.

    Examples
    --------
    >>> import jax
    >>> x = jax.numpy.asarray([1.0, 3.0, 3.0])
    >>> top_k(x, 2).indices.tolist()
    [1, 2]
    >>> jax.grad(lambda x: top_k(x, 1).values.sum())(x).tolist()
    [0.0, 1.0, 0.0]
    """
    options = (
        arguments.integer(k, "top_k.k"),
        arguments.integer(axis, "top_k.axis"),
        arguments.boolean(largest, "top_k.largest"),
        arguments.boolean(sorted, "top_k.sorted"),
        index_type_name(index_dtype, "top_k"),
    )
    inputs = (x,) if lengths is None else (x, lengths)
    return TopKResult(*_traced(_top_k, inputs, options))


def nonzero_coordinates(
    x: Any, *, size: int | None = None, fill_value: int | None = None, index_dtype: Any = None
) -> NonzeroResult[Array]:
    """Return the coordinates of the non-zero elements, in ascending element order, and their count.

    As `dmlops.nonzero_coordinates`, but that rows from the count on hold 0 where `fill_value` is None. In
    transformations `size` must be given. Neither result has a derivative.

    Raises
    ------
    InvalidDescriptorError
        If `size` is left out under jit, vmap or grad.
    """
    where = "nonzero_coordinates"
    if size is None:
        if isinstance(x, jax.core.Tracer):
            reason = "jit, vmap and grad need shapes that do not depend on elements"
            refuse(f"{where}.size", None, reason, "size must be a number of rows")
        return dmlops.nonzero_coordinates(jnp.asarray(x), fill_value=fill_value, index_dtype=index_dtype)
    options = (
        arguments.integer(size, f"{where}.size"),
        0 if fill_value is None else arguments.integer(fill_value, f"{where}.fill_value"),
        index_type_name(index_dtype, where),
    )
    return NonzeroResult(*_traced(_nonzero_coordinates, (x,), options))


def gather_nd(x: Any, indices: Any, *, batch_dims: int = 0, mode: Mode = "raise") -> Array:
    """Return the elements or blocks of `x` that tuples of indices name.

    As `dmlops.gather_nd`. In transformations `mode` must be ``"clip"`` or ``"fill"``. Differentiable with
    respect to `x`: gradients of an element that is gathered more than once are summed.

    Raises
    ------
    InvalidDescriptorError
        If `mode` is ``"raise"`` under jit, vmap or grad.
    """
    if mode == "raise":
        if isinstance(x, jax.core.Tracer) or isinstance(indices, jax.core.Tracer):
            reason = "jit, vmap and grad cannot raise for what elements are"
            refuse("gather_nd.mode", shown(mode), reason, 'mode must be "clip" or "fill"')
        return dmlops.gather_nd(jnp.asarray(x), jnp.asarray(indices), batch_dims=batch_dims)
    options = arguments.integer(batch_dims, "gather_nd.batch_dims"), mode
    return _traced(_gather_nd, (x, indices), options)


def diagonal_matrix(
    x: Any = None,
    *,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    value: float = 1,
    begin: int = 0,
    end: int = 1,
) -> Array:
    """Return matrices that hold `value` along a band of diagonals, and `x` or zeros elsewhere.

    As `dmlops.diagonal_matrix`. Differentiable with respect to `x`. Without it, `shape` and `dtype` mean what
    they do to `jax.numpy.zeros`.

    Raises
    ------
    TypeError
        If neither `x` nor `shape` is given, both are, or `value` is traced.
    """
    where = "diagonal_matrix"
    if isinstance(value, jax.core.Tracer):
        reason, allowed = "there is no derivative with respect to it", "it must be a number"
        raise TypeError(error_text(f"{where}.value", "a traced array", reason, allowed))
    band = (
        number_text(scalars.real_number(value, f"{where}.value")),
        arguments.integer(begin, f"{where}.begin"),
        arguments.integer(end, f"{where}.end"),
    )
    if x is not None:
        for name, given in (("shape", shape), ("dtype", dtype)):
            if given is not None:
                allowed = f"{name} describes a result without x"
                refuse(f"{where}.{name}", shown(given), "x is given", allowed)
        return _traced(_diagonal_matrix, (x,), band)
    if shape is None:
        allowed = "one of x and shape must be given"
        raise TypeError(error_text(f"{where}.shape", None, "x is left out too", allowed))
    data_type = arguments.data_type(jnp.zeros(0).dtype if dtype is None else dtype, f"{where}.dtype")
    made = (data_type.name.lower(), arguments.sizes(shape, f"{where}.shape"))
    return _traced(_matrix_without_input, (), (*made, *band))


def _traced(run: Callable[..., Any], inputs: Sequence[Any], options: Sequence[Any]) -> Any:
    return _compiled(run, tuple(map(jnp.asarray, inputs)), options, level_set())


@functools.partial(jax.jit, static_argnums=(0, 2, 3), inline=True)
def _compiled(run: Callable[..., Any], inputs: Sequence[Array], options: Sequence[Any], level: Any) -> Any:
    """Trace a function once for inputs of the same kinds; what it traces depends on the level that is set."""
    return run(inputs, options)


def _top_k(inputs: Sequence[Array], options: tuple[Any, ...]) -> Any:
    @jax.custom_jvp
    def select(*inputs: Array) -> tuple[Array, Array]:
        return _batched_top_k(inputs, options)

    @select.defjvp
    def differentiate(primals: Any, tangents: Any) -> Any:
        values, indices = select(*primals)
        x = tangents[0] if tangents[0].ndim else tangents[0].reshape(1)
        axis = options[1]
        # Of unsigned types all bits are set where there is no element.
        is_element = (indices >= 0) & (indices < x.shape[axis])
        moved = jnp.take_along_axis(x, jnp.where(is_element, indices, 0), axis, mode="clip")
        return (values, indices), (jnp.where(is_element, moved, 0), _no_tangent(indices))

    return select(*inputs)


def _batched_top_k(inputs: Sequence[Array], options: tuple[Any, ...]) -> Any:
    k, axis, *others = options

    def run_batch(size: int, is_batched: Sequence[bool], *inputs: Array) -> Any:
        x, *lengths = _with_batch(size, is_batched, inputs)
        x = x if x.ndim > 1 else x[:, None]
        return _batched_top_k((x, *lengths), (k, axis if axis < 0 else axis + 1, *others)), (True, True)

    return _vectorized(lambda *inputs: call("top_k", inputs, options), run_batch)(*inputs)


def _nonzero_coordinates(inputs: Sequence[Array], options: tuple[Any, ...]) -> Any:
    # Integers have no derivative, and JAX need not look for one.
    return _batched_nonzero_coordinates(jax.lax.stop_gradient(inputs[0]), options)


def _batched_nonzero_coordinates(x: Array, options: tuple[Any, ...]) -> Any:
    def run_batch(size: int, is_batched: Sequence[bool], x: Array) -> Any:
        run = functools.partial(call, "nonzero_coordinates", parameters=options)
        return jax.lax.map(lambda x: run((x,)), x), (True, True)

    return _vectorized(lambda x: call("nonzero_coordinates", (x,), options), run_batch)(x)


def _gather_nd(inputs: Sequence[Array], options: tuple[Any, ...]) -> Any:
    @jax.custom_jvp
    def gather(x: Array, indices: Array) -> Array:
        return _batched_gather_nd((x, indices), options)

    @gather.defjvp
    def differentiate(primals: Any, tangents: Any) -> Any:
        return gather(*primals), _moved(tangents[0], primals[1], *options)

    return gather(*inputs)


def _batched_gather_nd(inputs: Sequence[Array], options: tuple[Any, ...]) -> Any:
    batch_dims, mode = options

    def run_batch(size: int, is_batched: Sequence[bool], x: Array, indices: Array) -> Any:
        if is_batched[0]:
            inputs = _with_batch(size, is_batched, (x, indices))
            return _batched_gather_nd(inputs, (batch_dims + 1, mode)), True
        # More tuples.
        gathered = _batched_gather_nd((x, jnp.moveaxis(indices, 0, batch_dims)), options)
        return jnp.moveaxis(gathered, batch_dims, 0), True

    return _vectorized(lambda *inputs: call("gather_nd", inputs, options)[0], run_batch)(*inputs)


def _moved(x: Array, indices: Array, batch_dims: int, mode: str) -> Array:
    """Return what a gather returns, by JAX's own operations."""
    places, n = indices.shape[:-1], indices.shape[-1]
    shape = places + x.shape[batch_dims + n :]
    if 0 in x.shape:
        return jnp.zeros(shape, x.dtype)
    coordinates = [jax.lax.broadcasted_iota(indices.dtype, places, d) for d in range(batch_dims)]
    is_inside = jnp.ones(places, bool)
    for d, size in enumerate(x.shape[batch_dims : batch_dims + n]):
        index = indices[..., d]
        index = jnp.where(index < 0, index + size, index)
        is_inside &= (index >= 0) & (index < size)
        coordinates.append(jnp.clip(index, 0, size - 1))
    moved = x.at[tuple(coordinates)].get(mode="clip") if coordinates else jnp.broadcast_to(x, shape)
    if mode == "clip":
        return moved
    return jnp.where(is_inside.reshape(places + (1,) * (len(shape) - len(places))), moved, 0)


def _diagonal_matrix(inputs: Sequence[Array], options: tuple[Any, ...]) -> Any:
    @jax.custom_jvp
    def fill(x: Array) -> Array:
        return _batched_diagonal_matrix(x, options)

    @fill.defjvp
    def differentiate(primals: Any, tangents: Any) -> Any:
        (x,), (change,) = primals, tangents
        value, *band = options
        (is_filled,) = call("matrix_without_input", (), ("bool", x.shape[-2:], 1, *band))
        return fill(x), jnp.where(is_filled, 0, change)

    return fill(*inputs)


def _batched_diagonal_matrix(x: Array, band: tuple[Any, ...]) -> Any:
    def run_batch(size: int, is_batched: Sequence[bool], x: Array) -> Any:
        return _batched_diagonal_matrix(x, band), True

    return _vectorized(lambda x: call("diagonal_matrix", (x,), band)[0], run_batch)(x)


def _matrix_without_input(inputs: Sequence[Array], options: tuple[Any, ...]) -> Any:
    return call("matrix_without_input", inputs, options)[0]


def _vectorized(run: Callable[..., Any], run_batch: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that vmap replaces by one that runs the whole batch."""
    function = jax.custom_batching.custom_vmap(run)
    function.def_vmap(run_batch)
    return function


def _with_batch(size: int, is_batched: Sequence[bool], inputs: Sequence[Array]) -> list[Array]:
    """Return inputs that all have the batch as their first dimension."""
    pairs = zip(inputs, is_batched, strict=True)
    return [x if has_batch else jnp.broadcast_to(x, (size, *x.shape)) for x, has_batch in pairs]


def _no_tangent(x: Array) -> Any:
    return np.zeros(x.shape, jax.dtypes.float0)
