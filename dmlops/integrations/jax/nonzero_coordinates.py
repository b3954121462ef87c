"""`dmlops.nonzero_coordinates` inside JAX's transformations."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import dmlops
from dmlops import NonzeroResult
from dmlops.array_libraries.base import ArrayLibrary, Operand, are_nonzero
from dmlops.calls.call import BoundCall
from dmlops.functions.nonzero_coordinates import SPEC
from dmlops.integrations.jax.tracing import as_array, sharded_as_batch, traced
from dmlops.integrations.jax.xla_calls import bound_by, call, check_input, index_type_name
from dmlops.operators.nonzero_coordinates import row_fill
from dmlops.types import arguments
from dmlops.types.data_types import SUPPORTED
from dmlops.types.errors import refuse


def nonzero_coordinates(
    x: Any, *, size: int | None = None, fill_value: int | Sequence[int] | None = None, index_dtype: Any = None
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
    x = as_array(x, f"{where}.x")
    if size is None:
        if isinstance(x, jax.core.Tracer):
            reason = "jit, vmap and grad need shapes that do not depend on elements"
            refuse(f"{where}.size", None, reason, "size must be a number of rows")
        found = dmlops.nonzero_coordinates(x, fill_value=fill_value, index_dtype=index_dtype)
        return NonzeroResult(*found)
    options = (
        arguments.integer(size, f"{where}.size"),
        0 if fill_value is None else row_fill(fill_value),
        index_type_name(index_dtype, where),
    )
    return NonzeroResult(*traced(_nonzero_coordinates, (x,), options))


@bound_by(SPEC)
def _bind(library: ArrayLibrary, operands: Sequence[Operand], parameters: Sequence[Any]) -> BoundCall:
    size, fill, index_type = parameters
    fill = tuple(fill) if isinstance(fill, list) else fill  # JSON has no tuples
    return SPEC.bind(operands, (), size, fill, SUPPORTED[index_type])


def _nonzero_coordinates(x: Array, options: tuple[object, ...]) -> object:
    # Neither result has a derivative.
    x = jax.lax.stop_gradient(x)
    return _find(are_nonzero(x, jnp.int64) if x.dtype == jnp.complex128 else x, options)


def _find(x: Array, options: tuple[object, ...]) -> Sequence[Array]:
    rows, fill, index_type = options

    @jax.custom_batching.custom_vmap
    def find(x: Array) -> Sequence[Array]:
        return call(SPEC, (x,), options)

    @find.def_vmap
    def find_in_batch(size: int, is_batched: Sequence[bool], x: Array) -> Sequence[Array]:
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
        return sharded_as_batch(results, is_batched, (x,)), (True, True)

    found: Sequence[Array] = find(x)
    return found
