"""Function calls: looked up by the kind of their arguments, then run on the arrays."""

import math
from collections.abc import Callable, Hashable, Sequence
from operator import index
from typing import Any, NamedTuple

import numpy as np

from dmlops import arrays, cuda
from dmlops.compiled import CompiledOperator, host_scratch
from dmlops.dispatch import level_set
from dmlops.enums import TensorDataType
from dmlops.errors import IndexOutOfRangeError, refuse, wording
from dmlops.libraries import Library
from dmlops.memory import CPU, Device
from dmlops.tensor import TensorDesc
from kernels_cpu import threads

Operand = tuple[Library, Any]
# What the check of gather indices writes where every tuple is in range.
NO_OFFENDER = 2**63 - 1
CALLS_KEPT = 4096
# With so little room for all coordinates that there could be, one pass to it and a copy cost less than two.
_AT_ONCE = 1 << 20


class Call(NamedTuple):
    """One kind of call.

    Attributes
    ----------
    operator : CompiledOperator or None
        What computes it; None where there is nothing to compute.
    outputs : tuple of TensorDesc
        What is allocated where the caller gives no outputs.
    device : Device
        Where the arrays live.
    """

    operator: CompiledOperator | None
    outputs: tuple[TensorDesc, ...]
    device: Device


_calls: dict[Hashable, Call] = {}


def planned(key: Hashable) -> Call | None:
    """Return the call planned for `key`, or None where there is none yet."""
    try:
        return _calls.get(key)
    except TypeError:  # an argument that cannot be hashed: planning finds out which
        return None


def keep(key: Hashable, call: Call) -> Call:
    """Keep a call for the next time that `key` is asked for, and return it."""
    if len(_calls) >= CALLS_KEPT:
        _calls.clear()
    _calls[key] = call
    return call


def common_key(library: Library, x: Any, outputs: Sequence[Operand]) -> tuple[Hashable, ...]:
    """Return what distinguishes calls of every function."""
    return (
        library,
        None if x is None else library.signature(x),
        tuple([(other, other.signature(array)) for other, array in outputs]) if outputs else None,
        level_set(),
        threads.get_num_threads(),
    )


def adopt_outputs(out: Any, names: Sequence[str]) -> list[Operand]:
    """Return the arrays of an ``out`` argument with their libraries; none where it was left out."""
    if out is None:
        return []
    if not isinstance(out, (tuple, list)) or len(out) != len(names):
        reason = f"there are {len(names)} results"
        got = f"{len(out)} arrays" if isinstance(out, (tuple, list)) else type(out).__name__
        raise TypeError(wording(names[0].partition("[")[0], got, reason, f"out must be {len(names)} arrays"))
    return [arrays.adopt_output(array, name) for array, name in zip(out, names, strict=True)]


def integer(value: Any, where: str) -> int:
    """Return an argument as a plain int."""
    if type(value) is int:
        return value
    try:
        return index(value)
    except TypeError:
        raise TypeError(wording(where, repr(value), "it is no integer", "it must be one")) from None


def run(
    call: Call,
    library: Library,
    operands: Sequence[Operand | None],
    given: Sequence[Operand],
    names: Sequence[str],
    stream: Any,
    *,
    before: Callable[[CompiledOperator, Sequence[int], int], None] | None = None,
) -> list[Any]:
    """Allocate what was not given, launch, and return the outputs.

    `names` are those of operands and outputs in error texts; `before` is called with the operator, the
    operands' addresses and the stream ahead of the launch.
    """
    operator = call.operator
    if operator is None:
        return [array for _, array in given] or [
            library.deliver(library.empty(desc.sizes, desc.data_type, call.device), 0)
            for desc in call.outputs
        ]
    if call.device is CPU and stream is None:
        return _run_on_host(call, operator, library, operands, given, names, before)
    present = [operand for operand in (*operands, *given) if operand is not None] or [(library, None)]
    handle = operator.stream(stream, present, f"{names[0].partition('.')[0]}.stream")
    with operator.allocating_on(library, stream, handle):
        outputs = given or _allocated(call, library)
        addresses = operator.addresses((*operands, *outputs))
        if given:
            operator.check_overlap(addresses, names)
        if before is not None:
            before(operator, addresses, handle)
        memory, _owner = operator.scratch(library)
        operator.launch(addresses, memory, handle)
    return [array if given else library.deliver(array, handle) for _, array in outputs]


def _run_on_host(
    call: Call,
    operator: CompiledOperator,
    library: Library,
    operands: Sequence[Operand | None],
    given: Sequence[Operand],
    names: Sequence[str],
    before: Callable[[CompiledOperator, Sequence[int], int], None] | None,
) -> list[Any]:
    # The short way that small arrays feel: no stream, no context to allocate in.
    outputs = given or _allocated(call, library)
    addresses = operator.addresses((*operands, *outputs))
    if given:
        operator.check_overlap(addresses, names)
    if before is not None:
        before(operator, addresses, 0)
    memory, _owner = operator.scratch(library)
    operator.launch(addresses, memory, 0)
    return [array if given else library.deliver(array, 0) for _, array in outputs]


def _allocated(call: Call, library: Library) -> list[Operand]:
    return [(library, library.empty(desc.sizes, desc.data_type, call.device)) for desc in call.outputs]


def run_trimmed(call: Call, library: Library, x: Any, stream: Any) -> list[Any]:
    """Count, wait for the count, and write exactly as many rows."""
    operator, device = call.operator, call.device
    assert operator is not None
    where = "nonzero_coordinates"
    handle = operator.stream(stream, [(library, x)], f"{where}.stream")
    if device != CPU and cuda.is_capturing(handle):
        reason = "the stream is being captured into a CUDA graph"
        refuse(f"{where}.size", None, reason, "size must be a number of rows, so that nothing waits")
    coordinates, count = call.outputs
    with operator.allocating_on(library, stream, handle):
        counted = library.empty(count.sizes, count.data_type, device)
        memory, _owner = operator.scratch(library)
        (x_at, _, count_at) = operator.addresses([(library, x), None, (library, counted)])
        columns = coordinates.sizes[1]
        if (size := bytes_at_once(call, operator)) is not None:
            memory, _owner = host_scratch(size)
            rows = operator.plan.launch(x_at, memory, count_at, 0)
            written = library.empty((rows, columns), coordinates.data_type, device)
            copy_bytes()(library.address(written), memory, rows * columns * coordinates.data_type.bytes)
            return [library.deliver(array, handle) for array in (written, counted)]
        stream_first = operator.stream_argument(handle)
        operator.plan.count(*stream_first, x_at, count_at, memory)
        rows = operator.read(count_at, count.data_type, handle)
        written = library.empty((rows, columns), coordinates.data_type, device)
        if rows and columns:
            address = library.address(written)
            layout = (rows, columns, 1) if device is CPU else ()
            operator.plan.expand(*stream_first, x_at, address, *layout, memory)
    return [library.deliver(array, handle) for array in (written, counted)]


def bytes_at_once(call: Call, operator: CompiledOperator) -> int | None:
    """Return how much scratch all coordinates could need, where they are to be written there in one pass."""
    desc = call.outputs[0]
    size = desc.element_count * desc.data_type.bytes
    return size if call.device is CPU and operator.plan.in_one_pass and size <= _AT_ONCE else None


def copy_bytes() -> Callable[[Any, Any, int], None]:
    """Return a function that copies from one address in host memory to another: ``copy(to, start, size)``."""
    from kernels_cpu.copying import copier  # noqa: PLC0415 - imports Numba

    return copier()


def check_indices(
    operands: Sequence[Operand], batch: int
) -> Callable[[CompiledOperator, Sequence[int], int], None]:
    """Return the check that `run` makes before a gather with ``mode="raise"``."""

    def check(operator: CompiledOperator, addresses: Sequence[int], handle: int) -> None:
        library = operands[0][0]
        if operator.device == CPU:
            first = operator.plan.check(addresses[1], 0)
        else:
            if cuda.is_capturing(handle):
                reason = "the stream is being captured into a CUDA graph, where nothing can be checked"
                refuse("gather_nd.mode", "'raise'", reason, 'mode must be "clip" or "fill"')
            found = library.empty((8,), TensorDataType.UINT8, operator.device)
            address = library.address(found)
            operator.plan.check(*operator.stream_argument(handle), addresses[1], address)
            first = operator.read(address, TensorDataType.INT64, handle)
        if first not in (-1, NO_OFFENDER):
            _raise_offender(operands, batch, operator, addresses[1], first, handle)

    return check


def _raise_offender(
    operands: Sequence[Operand], batch: int, operator: CompiledOperator, address: int, first: int, handle: int
) -> None:
    (library, x), (index_library, indices) = operands
    sizes = library.describe(x, "gather_nd.x").sizes
    picks = index_library.describe(indices, "gather_nd.indices")
    position = tuple(int(i) for i in np.unravel_index(first, picks.sizes[:-1]))
    *steps, step = picks.effective_strides
    start = sum(i * stride for i, stride in zip(position, steps, strict=True))
    size = picks.data_type.bytes
    coordinates = [
        operator.read(address + (start + j * step) * size, picks.data_type, handle)
        for j in range(picks.sizes[-1])
    ]
    for j, coordinate in enumerate(coordinates):
        bound = sizes[batch + j]
        low = -bound if picks.data_type.is_signed else 0
        if not low <= coordinate < bound:
            got = f"tuple {tuple(coordinates)} at position {position}"
            reason = f"coordinate {j} is {coordinate}, and dimension {batch + j} of x has {bound} elements"
            allowed = f"it must be in [{low}, {bound - 1}]"
            raise IndexOutOfRangeError(wording("gather_nd.indices", got, reason, allowed))


def scalar(value: Any) -> Any:
    """Return a scalar of any library as a plain bool, int or float."""
    if type(value) is int:
        return value
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, (int, float)):
        reason, allowed = "it fills a matrix", "value must be a real number"
        raise TypeError(wording("diagonal_matrix.value", repr(value), reason, allowed))
    return math.nan if value != value else value  # noqa: PLR0124 - one NaN object makes one key
