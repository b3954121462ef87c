"""The short way for arrays of torch and CuPy on a GPU: a call like one before, ready but for addresses.

What is left for a call is to know its kind again, to see that outputs stay clear of other operands, to take
the current stream and scratch memory from the array's library, and to launch.
"""

import logging
from collections.abc import Callable, Hashable
from typing import Any

from dmlops import arrays
from dmlops.arrays import Library
from dmlops.calls import CALLS_KEPT, Call
from dmlops.dispatch import level_set

Runner = Callable[..., Any]

_log = logging.getLogger("dmlops")
_runners: dict[Hashable, Runner] = {}


def find(kind: tuple[Hashable, ...], operands: tuple[Any, ...]) -> Runner | None:
    """Return what answers a call on such operands, or None; see `express.find`."""
    signatures = arrays.gpu_signatures(operands)
    if signatures is None:
        return None
    try:
        runner = _runners.get((kind, signatures, level_set()))
    except TypeError:  # an argument that cannot be hashed: the long way finds out which
        return None
    return None if runner is None or _log.isEnabledFor(logging.DEBUG) else runner


def keep(kind: tuple[Hashable, ...], operands: tuple[Any, ...], call: Call) -> None:
    """Keep the runner of a planned call, if its operands can take the short way."""
    operator, signatures = call.operator, arrays.gpu_signatures(operands)
    if operator is None or signatures is None or any(slot is None for slot in operator.slots):
        return
    if len(_runners) >= CALLS_KEPT:
        _runners.clear()
    _runners[kind, signatures, level_set()] = _launcher(call, arrays.find_library(operands[0]))


def _launcher(call: Call, library: Library) -> Runner:
    """Return a runner that allocates the outputs, if they are not given, and launches."""
    operator, device = call.operator, call.device
    assert operator is not None
    n_inputs = len(operator.slots) - len(call.outputs)
    outputs = [(desc.sizes, desc.data_type) for desc in call.outputs]
    addresses_of, current_stream, scratch = library.addresses, library.stream_getter(device), operator.scratch
    launch, clashes = operator.ranged_launch(), operator.clashes
    needs_scratch = operator.workspace_size > 0

    def run(*operands: Any) -> Any:
        if len(operands) == n_inputs:
            made: Any = [library.empty(sizes, data_type, device) for sizes, data_type in outputs]
            addresses = addresses_of((*operands, *made))
        else:
            made = operands[n_inputs:]
            addresses = addresses_of(operands)
            for i, j, low, high in clashes:
                if low < addresses[j] - addresses[i] < high:
                    return None
        if needs_scratch:
            memory, _owner = scratch(library)
            launch(current_stream(), *addresses, memory)
        else:
            launch(current_stream(), *addresses, 0)
        return made

    return run
