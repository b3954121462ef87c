"""The two operations that wait for the answer of a kernel: checked gathers, and listings of unknown length.

Each is one function for both devices.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dmlops.devices.executors import Executor
from dmlops.types.data_types import numpy_dtype
from dmlops.types.errors import IndexOutOfRangeError, error_text

if TYPE_CHECKING:
    from dmlops.calls.call import BoundCall


def check_then_gather(
    call: "BoundCall", executor: Executor, addresses: Sequence[int], *, is_new: bool
) -> None:
    """Gather, or raise for an index out of range before anything is written to the caller's memory.

    Parameters
    ----------
    call : BoundCall
        A gather whose plan is safe for any indices.
    executor : Executor
        Where it runs.
    addresses : sequence of int
        Of input, indices and output.
    is_new : bool
        Whether nobody has seen the output yet, so that it may be written before the check has ended.
    """
    gather = partial(call.launch, executor, addresses) if is_new else None
    first = executor.first_offender(call.plan, addresses[1], gather)
    if first >= 0:
        _raise_offender(call, executor, addresses[1], first)
    if not is_new:
        call.launch(executor, addresses)


def count_then_expand(call: "BoundCall", executor: Executor, x: int, count: int) -> Any:
    """Count, and return a new array with that many rows of coordinates.

    Parameters
    ----------
    call : BoundCall
        A listing of non-zero elements.
    executor : Executor
        Where it runs.
    x, count : int
        The addresses of the input and of the count.
    """
    coordinates = call.results[0]
    columns = coordinates.sizes[1]
    with executor.scratch(call.counting_bytes) as scratch:
        rows = executor.count(call, x, count, scratch)
        listed = call.library.empty((rows, columns), coordinates.data_type, call.device)
        if rows and columns:
            executor.expand(call, x, call.library.address(listed), rows, scratch)
    return listed


def _raise_offender(call: "BoundCall", executor: Executor, indices_at: int, first: int) -> None:
    """Raise the error that names the tuple at a position, in element order."""
    x, indices = call.inputs
    position = tuple(int(i) for i in np.unravel_index(first, indices.sizes[:-1]))
    *steps, step = indices.effective_strides
    start = sum(i * stride for i, stride in zip(position, steps, strict=True))
    dtype = numpy_dtype(indices.data_type)
    coordinates = tuple(
        executor.read(indices_at + (start + j * step) * dtype.itemsize, dtype)
        for j in range(indices.sizes[-1])
    )
    for j, coordinate in enumerate(coordinates):
        dimension = call.batch_dims + j
        bound = x.sizes[dimension]
        low = -bound if indices.data_type.is_signed else 0
        if not low <= coordinate < bound:
            got = f"tuple {coordinates} at position {position}"
            reason = f"coordinate {j} is {coordinate}, and dimension {dimension} of x has {bound} elements"
            allowed = f"it must be in [{low}, {bound - 1}]"
            raise IndexOutOfRangeError(error_text("gather_nd.indices", got, reason, allowed))
