"""The short way for contiguous NumPy arrays: a call like one before, with everything looked up beforehand.

Around a small array's kernel every look-up shows. What the kind of the arguments settles was settled when
such a call was planned; here remain an entry in a table, new outputs and the launch.
"""

import logging
from collections.abc import Callable, Hashable
from typing import Any

from numpy import empty, ndarray

from dmlops.calls import CALLS_KEPT, Call
from dmlops.compiled import CompiledOperator, host_scratch
from dmlops.data_types import numpy_dtype
from dmlops.dispatch import level_set
from dmlops.memory import CPU, address_of
from kernels_cpu.threads import get_num_threads

Runner = Callable[..., Any]

_log = logging.getLogger("dmlops")
_runners: dict[Hashable, Runner] = {}


def answer(kind: tuple[Hashable, ...], operands: tuple[Any, ...]) -> Any:
    """Answer a call on such operands, or return None where the long way must be gone.

    `kind` is the function's name and its other arguments; `operands` are the inputs and, if the caller gives
    them, the outputs. The answer is the sequence of outputs.
    """
    for array in operands:
        if array.__class__ is not ndarray or not array.flags.carray:
            return None
    try:
        run = _runners.get(_key(kind, operands))
    except TypeError:  # an argument that cannot be hashed: the long way finds out which
        return None
    return None if run is None or _log.isEnabledFor(logging.DEBUG) else run(*operands)


def operands(inputs: tuple[Any, ...], out: Any) -> tuple[Any, ...]:
    """Return the inputs of a call, and the arrays of its ``out`` argument."""
    return (*inputs, *out) if type(out) is tuple else (*inputs, out)


def keep(
    kind: tuple[Hashable, ...], operands: tuple[Any, ...], call: Call, make: Callable[[Call], Runner]
) -> None:
    """Keep the runner that `make` makes of a planned call, if its operands can take the short way."""
    if call.operator is None or call.device is not CPU:
        return
    if any(type(array) is not ndarray or not array.flags.carray for array in operands):
        return
    if len(_runners) >= CALLS_KEPT:
        _runners.clear()
    _runners[_key(kind, operands)] = make(call)


def _key(kind: tuple[Hashable, ...], operands: tuple[Any, ...]) -> Hashable:
    if len(operands) == 1:
        x = operands[0]
        return kind, x.dtype, x.shape, level_set(), get_num_threads()
    return kind, *[(x.dtype, x.shape) for x in operands], level_set(), get_num_threads()


def launcher(call: Call) -> Runner:
    """Return a runner that allocates the outputs, if they are not given, and launches."""
    operator, allocations = _operator(call), _allocations(call)
    launch, size = operator.plan.launch, operator.workspace_size
    n_inputs = len(operator.slots) - len(allocations)
    extents = [0 if slot is None else slot.size_in_bytes for slot in operator.slots]
    exclusive = [(i, j, extents[i], extents[j]) for i, j in operator.exclusive]

    def run(*operands: Any) -> Any:
        memory, _owner = host_scratch(size)
        if len(operands) == n_inputs:
            made = [empty(sizes, dtype) for sizes, dtype in allocations]
            launch(*[address_of(array) for array in (*operands, *made)], memory)
            return made
        addresses = [address_of(array) for array in operands]
        for i, j, extent_i, extent_j in exclusive:
            # Contiguous arrays whose bounds are apart share nothing; of others the long way finds out.
            if addresses[i] < addresses[j] + extent_j and addresses[j] < addresses[i] + extent_i:
                return None
        launch(*addresses, memory)
        return operands[n_inputs:]

    return run


def checked_launcher(call: Call) -> Runner:
    """Return a runner that launches a gather if all indices are in range."""
    operator, launch = _operator(call), launcher(call)
    check, size = operator.plan.check, operator.workspace_size

    def run(x: Any, indices: Any, *given: Any) -> Any:
        memory, _owner = host_scratch(size)
        if check(address_of(indices), memory) >= 0:
            return None
        return launch(x, indices, *given)

    return run


def trimmed_launcher(call: Call) -> Runner:
    """Return a runner that counts, and writes exactly as many rows of coordinates."""
    operator, ((shape, dtype), _) = _operator(call), _allocations(call)
    columns, size = shape[1], operator.workspace_size
    count, expand = operator.plan.count, operator.plan.expand

    def run(x: Any) -> tuple[Any, Any]:
        memory, _owner = host_scratch(size)
        counted = empty(1, dtype)
        address = address_of(x)
        count(address, address_of(counted), memory)
        rows = counted.item()
        coordinates = empty((rows, columns), dtype)
        if rows and columns:
            expand(address, address_of(coordinates), rows, columns, 1, memory)
        return coordinates, counted

    return run


def _operator(call: Call) -> CompiledOperator:
    operator = call.operator
    if operator is None:
        msg = "there is nothing to launch"
        raise ValueError(msg)
    return operator


def _allocations(call: Call) -> list[tuple[tuple[int, ...], Any]]:
    return [(desc.sizes, numpy_dtype(desc.data_type)) for desc in call.outputs]
