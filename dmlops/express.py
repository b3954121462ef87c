"""The short way for contiguous NumPy arrays: a call like one before, with everything looked up beforehand.

Around a small array's kernel every look-up shows. What the kind of the arguments settles was settled when
such a call was planned; here remain an entry in a table, new outputs, views and the launch.
"""

import logging
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from dmlops import express_cuda
from dmlops.calls import CALLS_KEPT, Call
from dmlops.compiled import CompiledOperator, host_scratch
from dmlops.data_types import numpy_dtype
from dmlops.dispatch import level_set
from dmlops.memory import CPU
from kernels_cpu.threads import get_num_threads

Runner = Callable[..., Any]

_log = logging.getLogger("dmlops")
_runners: dict[Hashable, Runner] = {}


def find(kind: tuple[Hashable, ...], operands: tuple[Any, ...]) -> Runner | None:
    """Return what answers a call on such operands, or None where the long way must be gone.

    `kind` is the function's name and its other arguments; `operands` are the inputs and, if the caller gives
    them, the outputs. The runner takes these, and returns the outputs, or None if it finds something amiss.
    """
    for array in operands:
        if array.__class__ is not np.ndarray:
            return express_cuda.find(kind, operands)
        if not array.flags.carray:
            return None
    try:
        runner = _runners.get(_key(kind, operands))
    except TypeError:  # an argument that cannot be hashed: the long way finds out which
        return None
    return None if runner is None or _log.isEnabledFor(logging.DEBUG) else runner


def operands(inputs: tuple[Any, ...], out: Any) -> tuple[Any, ...]:
    """Return the inputs of a call, and the arrays of its ``out`` argument."""
    if out is None:
        return inputs
    return (*inputs, *out) if type(out) is tuple else (*inputs, out)


def keep(
    kind: tuple[Hashable, ...], operands: tuple[Any, ...], call: Call, make: Callable[[Call], Runner]
) -> None:
    """Keep the runner that `make` makes of a planned call, if its operands can take the short way."""
    if call.operator is None:
        return
    if call.device is not CPU:
        if make is launcher:  # others wait for the GPU, which takes longer than all look-ups
            express_cuda.keep(kind, operands, call)
        return
    if any(type(array) is not np.ndarray or not array.flags.carray for array in operands):
        return
    if len(_runners) >= CALLS_KEPT:
        _runners.clear()
    _runners[_key(kind, operands)] = make(call)


def _key(kind: tuple[Hashable, ...], operands: tuple[Any, ...]) -> Hashable:
    if len(operands) == 1:
        (x,) = operands
        return kind, x.dtype, x.shape, level_set(), get_num_threads()
    return kind, *[(x.dtype, x.shape) for x in operands], level_set(), get_num_threads()


def launcher(call: Call) -> Runner:
    """Return a runner that allocates the outputs, if they are not given, and launches."""
    operator, outputs = _operator(call), _allocations(call)
    unsigned = [slot.unsigned for slot in operator.slots if slot is not None]
    n_inputs = len(unsigned) - len(outputs)
    launch, size = operator.plan.launch, operator.workspace_size

    def run(*operands: Any) -> Any:
        if len(operands) == n_inputs:
            made: Any = [np.empty(sizes, dtype) for sizes, dtype in outputs]
            operands = (*operands, *made)
        else:
            made = operands[n_inputs:]
            if _touch(operands, n_inputs):
                return None
        views = [array.reshape(-1).view(dtype) for array, dtype in zip(operands, unsigned, strict=True)]
        launch(*views, host_scratch(size))
        return made

    return run


def _touch(operands: tuple[Any, ...], n_inputs: int) -> bool:
    # Contiguous arrays whose bounds are apart share nothing; of others the long way finds out.
    for j in range(n_inputs, len(operands)):
        for i in range(j):
            if np.may_share_memory(operands[i], operands[j]):
                return True
    return False


def checked_launcher(call: Call) -> Runner:
    """Return a runner that launches a gather if all indices are in range."""
    operator, launch = _operator(call), launcher(call)
    unsigned, check, size = _slot(operator, 1), operator.plan.check, operator.workspace_size

    def run(x: Any, indices: Any, *given: Any) -> Any:
        if check(indices.reshape(-1).view(unsigned), host_scratch(size)) >= 0:
            return None
        return launch(x, indices, *given)

    return run


def trimmed_launcher(call: Call) -> Runner:
    """Return a runner that counts, and writes exactly as many rows of coordinates."""
    operator, ((shape, dtype), _) = _operator(call), _allocations(call)
    element, unsigned, columns = _slot(operator, 0), _slot(operator, 1), shape[1]
    count, expand, size = operator.plan.count, operator.plan.expand, operator.workspace_size

    def run(x: Any) -> tuple[Any, Any]:
        view, memory = x.reshape(-1).view(element), host_scratch(size)
        counted = np.empty(1, dtype)
        count(view, counted.view(unsigned), memory)
        rows = int(counted[0])
        coordinates = np.empty((rows, columns), dtype)
        if rows and columns:
            expand(view, coordinates.reshape(-1).view(unsigned), rows, columns, 1, memory)
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


def _slot(operator: CompiledOperator, place: int) -> Any:
    slot = operator.slots[place]
    return None if slot is None else slot.unsigned
