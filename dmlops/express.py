"""The short way: a call on arrays like those of one before, with everything looked up beforehand.

Around a small array's kernel every look-up shows. What the kind of the arguments settles was settled when
such a call was planned; here remain an entry in a table, new outputs and the launch.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from dmlops import arrays, cuda
from dmlops.calls import CALLS_KEPT, NO_OFFENDER, Call, bytes_at_once, copy_bytes
from dmlops.compiled import CompiledOperator, host_scratch
from dmlops.data_types import numpy_dtype
from dmlops.dispatch import level_set
from dmlops.enums import TensorDataType
from dmlops.libraries import NUMPY, Library
from dmlops.memory import CPU, aligned
from dmlops.repeats import Kept, Repeats
from dmlops.tensor import TensorDesc
from kernels_cpu.threads import get_num_threads

Runner = Callable[[tuple[Any, ...]], Sequence[Any] | None]
Maker = Callable[[Call, CompiledOperator, Library, bool], Runner]

# Operands of so many bytes, all together, are worked on in some microseconds, for which the GIL may be kept.
_DIRECT_BYTES = 1 << 16

# Where the check of indices writes a position.
_FLAG = TensorDesc(TensorDataType.INT64, (1,))
_POSITION = np.dtype(np.int64)

_is_logging = partial(logging.getLogger("dmlops").isEnabledFor, logging.DEBUG)
_repeats: dict[Hashable, Repeats[Runner]] = {}


def answer(kind: tuple[Hashable, ...], operands: tuple[Any, ...]) -> Sequence[Any] | None:
    """Return the outputs of a call on such operands, or None where the long way must be gone.

    `kind` is the function's name and its other arguments; `operands` are the inputs and, if the caller gives
    them, the outputs.
    """
    try:
        repeats = _repeats.get((kind, level_set(), get_num_threads()))
    except TypeError:  # an argument that cannot be hashed: the long way finds out which
        return None
    if repeats is None or _is_logging():
        return None
    is_like_last, run = repeats.last
    if not is_like_last(operands):
        run = repeats.find(operands)
    return None if run is None else run(operands)


def keep(
    kind: tuple[Hashable, ...],
    operands: tuple[Any, ...],
    call: Call,
    make: Maker,
) -> None:
    """Keep the runner that `make` makes of a planned call, if its operands can take the short way."""
    operator = call.operator
    if operator is None or arrays.signatures(operands) is None:
        return
    library = arrays.find_library(operands[0])
    if any(library.adopt(array, "") is not array for array in operands):
        return
    key = kind, level_set(), get_num_threads()
    if len(_repeats) >= CALLS_KEPT and key not in _repeats:
        _repeats.clear()
    allocates = len(operands) + len(call.outputs) == len(operator.present)
    kept = Kept(make(call, operator, library, allocates))
    is_direct = make in (launcher, checked_launcher) and operator.present == operator.operands
    if library is NUMPY and is_direct and _bytes_moved(operator) <= _DIRECT_BYTES:
        kept = _direct(kept.prepared, call, operator, operands, make is checked_launcher)
    _repeats.setdefault(key, Repeats()).keep(operands, kept)


def _bytes_moved(operator: CompiledOperator) -> int:
    """Return about how many bytes a call reads and writes; a gather reads what it writes."""
    gathers = "indices_tensor" in operator.inputs
    tensors = [desc for name, desc in operator.inputs.items() if not gathers or name == "indices_tensor"]
    tensors += [*operator.outputs.values()] * (1 + gathers)
    return sum(desc.element_count * desc.data_type.bytes for desc in tensors)


def _direct(
    ordinary: Runner, call: Call, operator: CompiledOperator, operands: tuple[Any, ...], is_checked: bool
) -> Kept[Runner]:
    """Return what calls the kernel at once for most arrays, if one kernel is all that there is to call."""
    from kernels_cpu import direct  # noqa: PLC0415 - imports Numba

    launch, size = operator.plan.launch, operator.workspace_size
    if len(operands) == len(operator.operands):
        # With a check, given outputs must not be touched before it.
        run = None if is_checked else direct.runner(launch, operands, operator.clashes, size)
        outputs_of = itemgetter(slice(len(operands) - len(call.outputs), None))
        return Kept(ordinary) if run is None else Kept(ordinary, run, outputs_of)
    makers = [NUMPY.allocator(desc, CPU) for desc in call.outputs]
    examples = (*operands, *[make() for make in makers])
    run = direct.runner(launch, examples, (), size, refused=int(is_checked))
    test = NUMPY.likeness_test(operands)
    if run is None or test is None:
        return Kept(ordinary)

    def allocate_and_run(operands: tuple[Any, ...]) -> Sequence[Any] | None:
        made = []
        for make in makers:  # not in a comprehension, which costs Python 3.11 another call
            made.append(make())
        return made if run((*operands, *made)) else None

    return Kept(ordinary, test, allocate_and_run)


def launcher(call: Call, operator: CompiledOperator, library: Library, allocates: bool) -> Runner:
    """Return a runner that launches; it allocates the outputs, if they are not given."""
    if allocates:
        return operator.allocating(library, call.outputs)
    n_inputs = len(operator.present) - len(call.outputs)
    repeat = operator.repeated(library)
    return lambda operands: operands[n_inputs:] if repeat(operands) else None


def maker(call: Call, operator: CompiledOperator, library: Library, allocates: bool) -> Runner:
    """Return a runner for an operator without inputs, whose operand only tells what the output is like."""
    make = operator.allocating(library, call.outputs)
    return lambda operands: make(())


def checked_launcher(call: Call, operator: CompiledOperator, library: Library, allocates: bool) -> Runner:
    """Return a runner that launches a gather if all indices are in range."""
    if call.device is not CPU:
        return _checked_on_gpu(call, operator, library, allocates)
    plan, addresses_of = operator.plan, library.addresses
    if allocates and plan.reports:
        (make,) = [library.allocator(desc, CPU) for desc in call.outputs]
        gather = plan.launch

        def run_at_once(operands: tuple[Any, ...]) -> Sequence[Any] | None:
            made = make()
            if library is NUMPY:
                is_outside = gather(*operands, made, 0)
            else:
                is_outside = gather(*addresses_of((*operands, made)), 0)
            return None if is_outside else (made,)

        return run_at_once
    check, launch = plan.check, launcher(call, operator, library, allocates)

    def run(operands: tuple[Any, ...]) -> Sequence[Any] | None:
        return None if check(*addresses_of(operands[1:2]), 0) >= 0 else launch(operands)

    return run


def trimmed_launcher(call: Call, operator: CompiledOperator, library: Library, allocates: bool) -> Runner:
    """Return a runner that counts, and allocates exactly as many rows of coordinates."""
    if call.device is not CPU:
        return _trimmed_on_gpu(call, operator, library)
    plan, addresses_of, size = operator.plan, library.addresses, operator.workspace_size
    coordinates, counted = call.outputs
    data_type, columns = coordinates.data_type, coordinates.sizes[1]
    at_once = bytes_at_once(call, operator)
    if library is NUMPY and at_once is not None:
        return _trimmed_copier(call, operator, at_once)
    make_count = library.allocator(counted, CPU)

    def run(operands: tuple[Any, ...]) -> Sequence[Any]:
        memory, _owner = host_scratch(size)
        count = make_count()
        x_at, count_at = addresses_of((*operands, count))
        rows = plan.count(x_at, count_at, memory)
        made = library.empty((rows, columns), data_type, CPU)
        if rows and columns:
            plan.expand(x_at, *addresses_of((made,)), rows, columns, 1, memory)
        return made, count

    return run


def _trimmed_copier(call: Call, operator: CompiledOperator, size: int) -> Runner:
    """Return a runner for NumPy: it writes to `size` bytes of scratch, and copies the rows that there are."""
    launch, copy = operator.plan.launch, copy_bytes()
    coordinates, counted = call.outputs
    dtype, columns = numpy_dtype(coordinates.data_type), coordinates.sizes[1]
    row_bytes = columns * dtype.itemsize
    make_count = NUMPY.allocator(counted, CPU)

    def run(operands: tuple[Any, ...]) -> Sequence[Any]:
        memory, _owner = host_scratch(size)
        count = make_count()
        rows = launch(*operands, memory, count, 0)
        made = np.empty((rows, columns), dtype)
        copy(made, memory, rows * row_bytes)
        return made, count

    return run


def _checked_on_gpu(call: Call, operator: CompiledOperator, library: Library, allocates: bool) -> Runner:
    plan = operator.plan
    addresses_of: Callable[[Sequence[Any]], Sequence[Any]] = library.addresses
    current_stream = library.stream_getter(call.device)
    make_flag = library.allocator(_FLAG, call.device)
    launch = launcher(call, operator, library, allocates)

    def run(operands: tuple[Any, ...]) -> Sequence[Any] | None:
        stream = current_stream()
        if cuda.is_capturing(stream):
            return None
        flag = make_flag()
        indices_at, flag_at = addresses_of((operands[1], flag))
        plan.check(stream, indices_at, flag_at)
        # Outputs that nobody has seen yet may be written while the host waits, even if for nothing.
        results = launch(operands) if allocates else None
        if cuda.read_back(flag_at, _POSITION, stream) != NO_OFFENDER:
            return None
        return results if allocates else launch(operands)

    return run


def _trimmed_on_gpu(call: Call, operator: CompiledOperator, library: Library) -> Runner:
    plan, device = operator.plan, call.device
    addresses_of: Callable[[Sequence[Any]], Sequence[Any]] = library.addresses
    coordinates, counted = call.outputs
    data_type, columns = coordinates.data_type, coordinates.sizes[1]
    count_type = numpy_dtype(counted.data_type)
    current_stream = library.stream_getter(device)
    make_count = library.allocator(counted, device)
    temporary = [operator.scratch_maker(library)] if operator.workspace_size else []

    def run(operands: tuple[Any, ...]) -> Sequence[Any] | None:
        stream = current_stream()
        if cuda.is_capturing(stream):
            return None
        count = make_count()
        scratch = [make() for make in temporary]
        x_at, count_at, *rest = addresses_of((*operands, count, *scratch))
        memory = aligned(rest[0]) if rest else 0
        plan.count(stream, x_at, count_at, memory)
        rows = cuda.read_back(count_at, count_type, stream)
        made = library.empty((rows, columns), data_type, device)
        if rows and columns:
            plan.expand(stream, x_at, *addresses_of((made,)), memory)
        return made, count

    return run
