"""The short way: a call on arrays like those of one before, with everything looked up beforehand.

Around a small array's kernel every look-up shows. What the kind of the arguments settles was settled when
such a call was planned; here remain an entry in a table, new outputs and the launch.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from dmlops import arrays
from dmlops.arrays import NUMPY, Library
from dmlops.calls import CALLS_KEPT, Call
from dmlops.compiled import CompiledOperator, host_scratch
from dmlops.dispatch import level_set
from dmlops.memory import CPU
from kernels_cpu.threads import get_num_threads

Runner = Callable[[tuple[Any, ...]], Sequence[Any] | None]

_log = logging.getLogger("dmlops")
_runners: dict[Hashable, Runner] = {}
# Up to this size, memory is taken for as many coordinates as there could be, and the rest given back.
_TRIMMED_BYTES = 1 << 20


def answer(kind: tuple[Hashable, ...], operands: tuple[Any, ...]) -> Sequence[Any] | None:
    """Return the outputs of a call on such operands, or None where the long way must be gone.

    `kind` is the function's name and its other arguments; `operands` are the inputs and, if the caller gives
    them, the outputs.
    """
    signatures = arrays.signatures(operands)
    if signatures is None:
        return None
    try:
        run = _runners.get((kind, signatures, level_set(), get_num_threads()))
    except TypeError:  # an argument that cannot be hashed: the long way finds out which
        return None
    if run is None or _log.isEnabledFor(logging.DEBUG):
        return None
    return run(operands)


def operands(inputs: tuple[Any, ...], out: Any) -> tuple[Any, ...]:
    """Return the inputs of a call, and the arrays of its ``out`` argument."""
    return (*inputs, *out) if type(out) is tuple else (*inputs, out)


def keep(
    kind: tuple[Hashable, ...],
    operands: tuple[Any, ...],
    call: Call,
    make: Callable[[Call, CompiledOperator, Library, bool], Runner],
) -> None:
    """Keep the runner that `make` makes of a planned call, if its operands can take the short way."""
    operator, signatures = call.operator, arrays.signatures(operands)
    if operator is None or signatures is None or None in operator.reaches:
        return
    if call.device is not CPU and make is not launcher:  # these wait for the GPU, longer than all look-ups
        return
    library = arrays.find_library(operands[0])
    if any(library.adopt(array, "") is not array for array in operands):
        return
    if len(_runners) >= CALLS_KEPT:
        _runners.clear()
    allocates = len(operands) + len(call.outputs) == len(operator.operands)
    _runners[kind, signatures, level_set(), get_num_threads()] = make(call, operator, library, allocates)


def launcher(call: Call, operator: CompiledOperator, library: Library, allocates: bool) -> Runner:
    """Return a runner that launches; it allocates the outputs, if they are not given."""
    if allocates:
        return operator.allocating(library, call.outputs)
    n_inputs = len(operator.operands) - len(call.outputs)
    repeat = operator.repeated(library)
    return lambda operands: operands[n_inputs:] if repeat(operands) else None


def checked_launcher(call: Call, operator: CompiledOperator, library: Library, allocates: bool) -> Runner:
    """Return a runner that launches a gather on the CPU if all indices are in range."""
    plan, addresses_of = operator.plan, library.addresses
    if allocates and plan.reports:
        (make,) = [library.allocator(desc, CPU) for desc in call.outputs]
        gather = plan.launch

        def run_at_once(operands: tuple[Any, ...]) -> Sequence[Any] | None:
            made = make()
            is_outside = gather(*addresses_of((*operands, made)), 0)
            return None if is_outside else (made,)

        return run_at_once
    check, launch = plan.check, launcher(call, operator, library, allocates)

    def run(operands: tuple[Any, ...]) -> Sequence[Any] | None:
        return None if check(*addresses_of(operands[1:2]), 0) >= 0 else launch(operands)

    return run


def trimmed_launcher(call: Call, operator: CompiledOperator, library: Library, allocates: bool) -> Runner:
    """Return a runner that counts on the CPU, and allocates exactly as many rows of coordinates."""
    plan, addresses_of, size = operator.plan, library.addresses, operator.workspace_size
    coordinates, counted = call.outputs
    data_type, columns = coordinates.data_type, coordinates.sizes[1]
    make_count = library.allocator(counted, CPU)
    if library is NUMPY and plan.in_one_pass and coordinates.total_tensor_size_in_bytes <= _TRIMMED_BYTES:
        make, launch = library.allocator(coordinates, CPU), plan.launch

        def run_at_once(operands: tuple[Any, ...]) -> Sequence[Any]:
            made, count = make(), make_count()
            made.resize((launch(*operands, made, count, 0), columns), refcheck=False)
            return made, count

        return run_at_once

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
