"""The fast path: a small call on the host, on arrays of the kinds that such a call had before.

Around a small array's kernel every look-up shows. Here remain one look-up by the other arguments, new outputs, and
one native call, which looks at the arrays itself before it launches. Where it finds anything else, the ordinary
path is taken.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from dmlops import backend
from dmlops.array_libraries import Operand
from dmlops.call import BoundCall, Manner
from dmlops.memory import CPU, aligned
from kernels_cpu.kernel import BoundKernel
from kernels_cpu.native_call import MISMATCH, native_call, native_look
from kernels_cpu.native_call import Operand as NativeOperand

# Calls that move so many bytes, all operands together, take some microseconds, for which the GIL may be kept.
_MAX_BYTES = 1 << 16
_has_gil: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)


class _Scratch:
    """Memory that all native calls share, as only one thread at a time holds the GIL."""

    def __init__(self) -> None:
        self.memory = np.empty(0, np.uint8)

    def of(self, size: int) -> "np.ndarray[Any, Any]":
        if size > self.memory.size:
            self.memory = np.empty(1 << (size - 1).bit_length(), np.uint8)
        return self.memory


_scratch = _Scratch()


class Replay:
    """A bound call whose arrays one native call looks at, and runs it on if it is small.

    Parameters
    ----------
    call : BoundCall
        What is run.
    operands : sequence of NativeOperand
        Its arrays, new outputs among them.
    n_given : int
        How many of them are the caller's.
    has_out : bool
        Whether the outputs are.
    """

    __slots__ = ("_allocators", "_call", "_keeps", "_library", "_look", "_n_given", "_reaches", "_run", "_skipped", "_status")

    def __init__(self, call: BoundCall, operands: Sequence[NativeOperand], n_given: int, *, has_out: bool) -> None:
        self._call, self._library = call, call.library
        self._allocators = () if has_out else call.allocators
        self._n_given, self._reaches = n_given, call.reaches[:n_given]
        self._skipped = n_given - len(call.results) if has_out else 0
        overlaps = call.overlap_candidates if has_out else ()
        describe = self._library.native_describe
        self._look = self._run = self._keeps = None
        self._status = 0
        if not _is_one_small_kernel(call, has_out=has_out):
            self._look = native_look(operands, overlaps, describe=describe, load=backend.load_on_host)
            return
        # A gather that is checked while it writes says by any bit that an index is out of range.
        self._status = -1 if call.manner is Manner.CHECK_THEN_GATHER else 0
        self._keeps = _scratch.of(call.workspace_size)
        workspace = aligned(self._keeps.ctypes.data) if call.workspace_size else 0
        self._run = native_call(
            call.plan.launch,
            call.n_leading,
            operands,
            overlaps,
            workspace=workspace,
            describe=describe,
            load=backend.load_on_host,
        )

    @classmethod
    def of(cls, call: BoundCall, inputs: Sequence[Operand], out: Sequence[Operand]) -> "Replay | None":
        """Return a replay of a bound call, or None if that cannot be one."""
        if call.plan is None or call.device is not CPU or not _has_gil():
            return None
        library = call.library
        given = [*inputs, *out]
        made = [] if out else [library.as_output(make(), call.name) for make in call.allocators]
        operands = []
        for place, operand in enumerate([*given, *made]):
            known = library.native_operand(operand, is_output=place >= len(inputs))
            if known is None or operand.library is not library:
                return None
            operands.append(known)
        return cls(call, operands, len(given), has_out=bool(out))

    def __call__(self, arrays: tuple[Any, ...]) -> Sequence[Any] | None:
        """Return the outputs, or None with nothing done where the ordinary path must be taken."""
        if len(arrays) != self._n_given:
            return None
        made = []
        for make in self._allocators:  # not in a comprehension, which costs Python 3.11 another call
            made.append(make())
        view = self._library.native_view((*arrays, *made), self._reaches)
        if view is None:
            return None
        if self._run is not None:
            status = self._run(view)
            return None if status == MISMATCH or status & self._status else made or arrays[self._skipped :]
        addresses = self._look(view)
        return self._call.run_on_host(addresses, made) or arrays[self._skipped :] if addresses else None


def _is_one_small_kernel(call: BoundCall, *, has_out: bool) -> bool:
    """Return whether a call is one kernel that moves few bytes."""
    if call.bytes_moved > _MAX_BYTES or call.manner is Manner.COUNT_THEN_EXPAND:
        return False
    if call.manner is Manner.CHECK_THEN_GATHER and (has_out or not call.plan.reports):
        return False
    return isinstance(call.plan.launch, BoundKernel)


class Replays:
    """Calls that may be replayed, by the other arguments and by sizes and types of the first arrays.

    The oldest leaves when it is full.
    """

    def __init__(self, max_entries: int) -> None:
        self._replays: OrderedDict[Hashable, Replay] = OrderedDict()
        self._max_entries = max_entries
        # Whose objects are sure to have sizes and a data type that can be hashed.
        self._array_types: set[type] = set()

    def run(self, parameters: Hashable, arrays: tuple[Any, ...]) -> Sequence[Any] | None:
        """Return the outputs of a call, or None with nothing done where the ordinary path must be taken."""
        for array in arrays[:2]:
            if array.__class__ not in self._array_types:
                return None
        replay = self._replays.get(_key(parameters, arrays))
        return None if replay is None else replay(arrays)

    def learn(self, parameters: Hashable, call: BoundCall, inputs: Sequence[Operand], out: Sequence[Operand]) -> None:
        """Let a call that was found bound be replayed next time."""
        replay = call.replay
        if replay is None:
            replay = call.replay = Replay.of(call, inputs, out) or False
        if replay:
            arrays = [operand.array for operand in (*inputs, *out)]
            self._array_types.update(type(array) for array in arrays)
            key = _key(parameters, arrays)
            while len(self._replays) >= self._max_entries and key not in self._replays:
                try:
                    self._replays.popitem(last=False)
                except KeyError:  # another thread was faster
                    break
            self._replays[key] = replay

    def __len__(self) -> int:
        return len(self._replays)


def _key(parameters: Hashable, arrays: Sequence[Any]) -> Hashable:
    """Return what most calls that need other plans differ in; the native call looks at the rest."""
    if len(arrays) > 1:
        return parameters, arrays[0].shape, arrays[0].dtype, arrays[1].shape, arrays[1].dtype
    return (parameters, arrays[0].shape, arrays[0].dtype) if arrays else parameters


REPLAYS = Replays(max_entries=1024)
"""Together with `call.CALLS`, all that is kept of past calls of functions."""
