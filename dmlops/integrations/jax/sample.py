"""`dmlops.sample` inside JAX's transformations."""

from collections.abc import Sequence
from typing import Any

import jax
from jax import Array

from dmlops.array_libraries.base import ArrayLibrary, Operand
from dmlops.calls.call import BoundCall
from dmlops.functions.sample import SPEC, split
from dmlops.integrations.jax.tracing import as_array, call_in_batches, traced
from dmlops.integrations.jax.xla_calls import bound_by, index_type_name
from dmlops.types.data_types import SUPPORTED


def sample(
    logits: object,
    seeds: object,
    *,
    steps: object = 0,
    temperature: object = 1.0,
    k: object = None,
    top_p: object = 1.0,
    min_p: object = 0.0,
    index_dtype: object = None,
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
    given = [as_array(array, f"sample.{name}") for name, array in zip(names, arrays, strict=True)]
    options = names, values, index_type_name(index_dtype, "sample")
    result: Array = traced(_sample, (as_array(logits, "sample.logits"), *given), options)
    return result


@bound_by(SPEC)
def _bind(library: ArrayLibrary, operands: Sequence[Operand], parameters: Sequence[Any]) -> BoundCall:
    names, values, index_type = parameters
    spec = SPEC.with_arrays(tuple(names))
    return spec.bind(operands, (), (), SUPPORTED[index_type], tuple(names), tuple(values))


def _sample(logits: Array, *inputs: Any) -> Array:
    *given, options = inputs
    names, *_ = options
    arrays = [jax.lax.stop_gradient(x) for x in (logits, *given)]
    return call_in_batches(SPEC.with_arrays(names), arrays, options)[0]
