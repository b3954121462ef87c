"""The operators inside JAX's transformations: `jit`, `vmap` and derivatives, on the CPU and on CUDA.

The functions are those of `dmlops` for JAX arrays. XLA calls the kernels through its foreign function
interface, on its own stream and with memory that it allocates. To compute a derivative, the kernels find the
positions, and JAX's own operations move the elements.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

try:
    import jax
except ImportError as error:
    msg = 'dmlops.integrations.jax needs JAX; type: pip install "dmlops[jax]" (on a GPU also "jax[cuda13]")'
    raise ImportError(msg) from error
import jax.numpy as jnp
from jax import Array
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import dmlops
from dmlops import NonzeroResult, TopKResult
from dmlops.array_libraries.base import are_nonzero
from dmlops.array_libraries.jax import Jax
from dmlops.array_libraries.numpy import NUMPY
from dmlops.calls.dispatch import level_set
from dmlops.functions.diagonal_matrix import refuse_with_input
from dmlops.functions.sample import split
from dmlops.functions.top_k import given_arrays, plain_max_length
from dmlops.integrations.jax.xla_calls import call, check_input, index_type_name, number_text
from dmlops.operators.diagonal_matrix import band_bounds, near_band
from dmlops.operators.gather_nd import check_is_one_array, check_mode, plain_fill
from dmlops.operators.nonzero_coordinates import plain_fill as fill_of_rows
from dmlops.operators.top_k import Selection
from dmlops.types import arguments, scalars
from dmlops.types.array_types import Mode
from dmlops.types.data_types import data_type_of
from dmlops.types.errors import error_text, refuse, shown
from dmlops.types.opaque_types import type_name


def top_k(
    x: Any,
    k: int,
    *,
    axis: int = -1,
    largest: bool = True,
    sorted: bool = True,
    starts: Any = None,
    lengths: Any = None,
    max_length: int | None = None,
    indices: Any = None,
    nan_last: bool = False,
    index_dtype: Any = None,
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
    arrays = [_as_array(array, f"top_k.{name}") for name, array in given.items()]
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
    return TopKResult(*_traced(_top_k, (_as_array(x, "top_k.x"), *arrays), options, level_set()))


def nonzero_coordinates(
    x: Any,
    *,
    size: int | None = None,
    fill_value: int | Sequence[int] | None = None,
    index_dtype: Any = None,
) -> NonzeroResult[Array]:
    """Return the coordinates of the non-zero elements, in ascending element order, and their count.

    This is `dmlops.nonzero_coordinates`, except that the rows from the count on hold 0 if `fill_value` is
    None. In transformations, `size` must be given. Neither result has a derivative.

    Raises
    ------
    InvalidDescriptorError
        If `size` is left out under jit, vmap or grad.
    """
    where = "nonzero_coordinates"
    x = _as_array(x, f"{where}.x")
    if size is None:
        if isinstance(x, jax.core.Tracer):
            reason = "jit, vmap and grad need shapes that do not depend on elements"
            refuse(f"{where}.size", None, reason, "size must be a number of rows")
        found = dmlops.nonzero_coordinates(x, fill_value=fill_value, index_dtype=index_dtype)
        return NonzeroResult(*found)
    options = (
        arguments.integer(size, f"{where}.size"),
        0 if fill_value is None else fill_of_rows(fill_value),
        index_type_name(index_dtype, where),
    )
    return NonzeroResult(*_traced(_nonzero_coordinates, (x,), options, level_set()))


def sample(
    logits: Any,
    seeds: Any,
    *,
    steps: Any = 0,
    temperature: Any = 1.0,
    k: Any = None,
    top_p: Any = 1.0,
    min_p: Any = 0.0,
    index_dtype: Any = None,
) -> Array:
    """Return one token per row of logits, drawn by a seed, as `dmlops.sample` does.

    In transformations, parameters are numbers or arrays, traced ones included. There is no derivative.

    Examples
    --------
    >>> import jax
    >>> logits = jax.numpy.asarray([[0.0, 1.0, 2.0], [5.0, 4.0, 3.0]])
    >>> jax.jit(sample)(logits, jax.numpy.asarray([3, 4])).shape
    (2,)
    """
    names, arrays, values = split((seeds, steps, temperature, k, top_p, min_p))
    given = [_as_array(array, f"sample.{name}") for name, array in zip(names, arrays, strict=True)]
    options = names, values, index_type_name(index_dtype, "sample")
    result: Array = _traced(_sample, (_as_array(logits, "sample.logits"), *given), options, level_set())
    return result


def gather_nd(
    x: Any,
    indices: Any,
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
    fill = plain_fill(_untraced(fill_value, "gather_nd.fill_value"), mode)
    wraps = arguments.boolean(wrap_negative, "gather_nd.wrap_negative")
    check_is_one_array(indices)
    inputs = _as_array(x, "gather_nd.x"), _as_array(indices, "gather_nd.indices")
    if mode == "raise":
        if any(isinstance(array, jax.core.Tracer) for array in inputs):
            reason = "jit, vmap and grad cannot raise for what elements are"
            refuse("gather_nd.mode", shown(mode), reason, 'mode must be "clip" or "fill"')
        return dmlops.gather_nd(*inputs, batch_dims=batch_dims, wrap_negative=wraps)
    number = number_text(_as_number(fill, "gather_nd.fill_value"))
    options = arguments.integer(batch_dims, "gather_nd.batch_dims"), mode, number, wraps
    return _traced(_gather_nd, inputs, options, level_set())


def diagonal_matrix(
    x: Any = None,
    *,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
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
    number = scalars.fill_scalar(_untraced(value, f"{where}.value"), f"{where}.value")
    number = _as_number(number, f"{where}.value")
    band = number_text(number), *near_band(*band_bounds(where, begin, end))
    if x is not None:
        refuse_with_input(shape=shape, dtype=dtype)
        return _traced(_diagonal_matrix, (_as_array(x, f"{where}.x"),), (None, *band), level_set())
    if shape is None:
        allowed = "one of x and shape must be given"
        raise TypeError(error_text(f"{where}.shape", None, "neither x nor shape is given", allowed))
    if any(dtype is kind for kind in (None, int, float, complex)):  # of the size that JAX is set to
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    data_type = data_type_of(dtype, f"{where}.dtype")
    Jax().check_representable(data_type, f"{where}.dtype")
    made = (type_name(data_type), arguments.sizes(shape, f"{where}.shape"))
    return _traced(_matrix_without_input, (), (made, *band), level_set())


def _untraced(value: Any, where: str) -> Any:
    """Return a value that fills elements, unless it is traced."""
    if isinstance(value, jax.core.Tracer):
        reason = "kernels are planned for its value, and there is no derivative with respect to it"
        allowed = "pass a number (static_argnames of jit makes an argument one), or fill with jax.numpy.where"
        raise TypeError(error_text(where, "a traced array", reason, allowed))
    return value


def _as_number(value: Any, where: str) -> complex:
    """Return a scalar of `fill_scalar` that is a number; refuse others."""
    if not isinstance(value, (int, float, complex)):
        allowed = f"{where.rpartition('.')[2]} must be a number"
        raise TypeError(error_text(where, shown(value), "JAX has no such elements", allowed))
    return value


def _as_array(x: Any, where: str) -> Array:
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
        allowed = "it must be an array of a type that JAX has"
        raise TypeError(error_text(where, got, "JAX cannot make an array of it", allowed)) from error
    if isinstance(x, np.ndarray) and x.dtype.kind in "iu" and x.dtype != array.dtype and x.size:
        held, extremes = jnp.iinfo(array.dtype), (x.min(), x.max())
        if extremes[0] < held.min or extremes[1] > held.max:
            reason = "jax_enable_x64 is off, and JAX would wrap them around"
            allowed = f"turn it on, or pass integers in [{held.min}, {held.max}]"
            refuse(where, f"integers from {extremes[0]} to {extremes[1]}", reason, allowed)
    return array


@functools.partial(jax.jit, static_argnums=(0, 2, 3), inline=True)
def _traced(function: Callable[..., Any], inputs: Any, options: Sequence[Any], level: Any) -> Any:
    """Trace a function once for inputs of the same kinds; the result depends on the current level."""
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


# Each operator is a function that JAX differentiates; inside is one that vmap replaces, which calls XLA.
def _top_k(x: Array, *inputs: Any) -> Any:
    *others, options = inputs

    @jax.custom_jvp
    def select(x: Array, *others: Array) -> Any:
        return _select(x, *others, options)

    @select.defjvp
    def differentiate(primals: Any, tangents: Any) -> Any:
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

    return select(x, *others)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _taken_from_rows(x: Array, axis: int, places: Array) -> Array:
    """Return the elements at places along an axis of rows to which `x` broadcasts."""
    rows, axis_of_places = jnp.moveaxis(x, axis, -1), axis + places.ndim - x.ndim
    first = jnp.arange(math.prod(rows.shape[:-1])).reshape(rows.shape[:-1]) * x.shape[axis]
    first = jnp.broadcast_to(first, _without(places.shape, axis_of_places))
    return rows.reshape(-1)[jnp.expand_dims(first, axis_of_places) + places]


def _select_by_number(inputs: Sequence[Array], options: Selection) -> tuple[Array, Array, Array]:
    """Return values, the caller's numbers and positions: where an element comes by its number tells these."""
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


def _select(x: Array, *inputs: Any) -> Any:
    *others, options = inputs

    @jax.custom_batching.custom_vmap
    def select(x: Array, *others: Array) -> Any:
        return call("top_k", (x, *others), options)

    @select.def_vmap
    def select_in_batch(size: int, is_batched: Sequence[bool], *inputs: Array) -> Any:
        x_rank = max(inputs[0].ndim - is_batched[0], 1)
        names = ["x", *options.given]
        ranks = [array.ndim - has_batch for array, has_batch in zip(inputs, is_batched, strict=True)]
        windows = [rank + 1 for rank, name in zip(ranks, names, strict=True) if name in ("lengths", "starts")]
        rank = max(x_rank, *windows, 0)
        axis = options.axis % x_rank + rank - x_rank
        batched = []
        for array, name in zip(_with_batch(size, is_batched, inputs), names, strict=True):
            shape = array.shape[1:] or ((1,) if name == "x" else ())
            if name == "indices" and len(shape) == 1:
                shape = (*shape, *(1,) * (rank - 1 - axis))
            n_dims = rank - (name in ("lengths", "starts"))
            batched.append(array.reshape(size, *(1,) * (n_dims - len(shape)), *shape))
        results = _select(*batched, options._replace(axis=axis + 1))
        return _sharded_as_batch(results, is_batched, inputs), (True, True)

    return select(x, *others)


def _nonzero_coordinates(x: Array, options: tuple[Any, ...]) -> Any:
    # Neither result has a derivative.
    x = jax.lax.stop_gradient(x)
    return _find(are_nonzero(x, jnp.int64) if x.dtype == jnp.complex128 else x, options)


def _find(x: Array, options: tuple[Any, ...]) -> Any:
    rows, fill, index_type = options

    @jax.custom_batching.custom_vmap
    def find(x: Array) -> Any:
        return call("nonzero_coordinates", (x,), options)

    @find.def_vmap
    def find_in_batch(size: int, is_batched: Sequence[bool], x: Array) -> Any:
        check_input(x, "nonzero_coordinates.x")
        example = math.prod(x.shape[1:])
        # The positions in the whole batch, and then its end.
        flat_type = "uint32" if x.size < 2**31 else "uint64"
        positions, _ = _find(x.reshape(-1), (max(x.size, 1), int(np.iinfo(flat_type).max), flat_type))
        begins = jnp.arange(size + 1, dtype=flat_type) * example
        offsets = jnp.searchsorted(positions[:, 0], begins)
        counts = jnp.diff(offsets)[:, None]
        row = jnp.arange(rows)
        found = positions[:, 0].at[offsets[:-1, None] + row].get(mode="clip") - begins[:-1, None]
        columns = jnp.asarray(jnp.unravel_index(found, x.shape[1:]), index_type)
        coordinates = jnp.moveaxis(columns.reshape(x.ndim - 1, size, rows), 0, -1)
        coordinates = jnp.where((row < counts)[..., None], coordinates, jnp.asarray(fill, index_type))
        results = coordinates, counts[:, 0].astype(index_type)
        return _sharded_as_batch(results, is_batched, (x,)), (True, True)

    return find(x)


def _sample(logits: Array, *inputs: Any) -> Any:
    *given, options = inputs
    return _draw(*map(jax.lax.stop_gradient, (logits, *given)), options)


def _draw(logits: Array, *inputs: Any) -> Any:
    *given, options = inputs

    @jax.custom_batching.custom_vmap
    def draw(logits: Array, *given: Array) -> Any:
        return call("sample", (logits, *given), options)[0]

    @draw.def_vmap
    def draw_batch(size: int, is_batched: Sequence[bool], *inputs: Array) -> Any:
        logits, *given = inputs
        if not is_batched[0]:
            logits = jnp.broadcast_to(logits, (size, *logits.shape))
        n_rows_dims = logits.ndim - 1
        # Those that have a batch have all dimensions of rows, too.
        aligned = [
            array.reshape(size, *(1,) * (n_rows_dims - array.ndim), *array.shape[1:]) if has_batch else array
            for array, has_batch in zip(given, is_batched[1:], strict=True)
        ]
        return _sharded_as_batch(_draw(logits, *aligned, options), is_batched, inputs), True

    return draw(logits, *given)


def _gather_nd(x: Array, indices: Array, options: tuple[Any, ...]) -> Any:
    @jax.custom_jvp
    def gather(x: Array, indices: Array) -> Array:
        return _gather(x, indices, *options)

    @gather.defjvp
    def differentiate(primals: Any, tangents: Any) -> Any:
        return gather(*primals), _moved(tangents[0], primals[1], *options)

    return gather(x, indices)


def _gather(x: Array, indices: Array, batch_dims: int, *others: Any) -> Any:
    @jax.custom_batching.custom_vmap
    def gather(x: Array, indices: Array) -> Array:
        return call("gather_nd", (x, indices), (batch_dims, *others))[0]

    @gather.def_vmap
    def gather_in_batch(size: int, is_batched: Sequence[bool], x: Array, indices: Array) -> Any:
        inputs = x, indices
        if is_batched[0]:
            x, indices = _with_batch(size, is_batched, inputs)
            gathered = _gather(x, indices, batch_dims + 1, *others)
        else:  # the batch only adds tuples
            gathered = _gather(x, jnp.moveaxis(indices, 0, batch_dims), batch_dims, *others)
            gathered = jnp.moveaxis(gathered, batch_dims, 0)
        return _sharded_as_batch(gathered, is_batched, inputs), True

    return gather(x, indices)


def _moved(x: Array, indices: Array, batch_dims: int, mode: str, _: Any, wraps: bool) -> Array:
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


def _diagonal_matrix(x: Array, options: tuple[Any, ...]) -> Any:
    *_, begin, end = options

    @jax.custom_jvp
    def fill(x: Array) -> Array:
        return _fill(x, options)

    @fill.defjvp
    def differentiate(primals: Any, tangents: Any) -> Any:
        # DirectML has no matrices of bools.
        is_filled = _matrix_without_input((("uint8", primals[0].shape[-2:]), 1, begin, end))
        return fill(*primals), jnp.where(is_filled, 0, tangents[0])

    return fill(x)


def _fill(x: Array, options: tuple[Any, ...]) -> Any:
    @jax.custom_batching.custom_vmap
    def fill(x: Array) -> Array:
        return call("diagonal_matrix", (x,), options)[0]

    @fill.def_vmap
    def fill_in_batch(size: int, is_batched: Sequence[bool], x: Array) -> Any:
        return _sharded_as_batch(_fill(x, options), is_batched, (x,)), True

    return fill(x)


def _matrix_without_input(options: tuple[Any, ...]) -> Any:
    return call("diagonal_matrix", (), options)[0]


def _with_batch(size: int, is_batched: Sequence[bool], inputs: Sequence[Array]) -> list[Array]:
    """Return inputs whose first dimension is the batch."""
    pairs = zip(inputs, is_batched, strict=True)
    return [x if has_batch else jnp.broadcast_to(x, (size, *x.shape)) for x, has_batch in pairs]


def _sharded_as_batch(results: Any, is_batched: Sequence[bool], inputs: Sequence[Array]) -> Any:
    """Return results that are sharded over explicit axes of a mesh as the batch is, as JAX's own are."""
    batch = next(x for x, has_batch in zip(inputs, is_batched, strict=True) if has_batch)
    sharding = jax.typeof(batch).sharding
    if _is_whole(sharding.spec[:1]):
        return results
    return jax.sharding.reshard(results, NamedSharding(sharding.mesh, P(sharding.spec[0])))
