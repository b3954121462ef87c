"""The fast path: a small call on the host, on arrays of the kinds that such a call had before.

Around a small array's kernel every look-up shows. Here remain one look-up by the other arguments, new outputs, and
one native call, which looks at the arrays itself before it launches. Where it finds anything else, the ordinary
path is taken.
"""

import ctypes
import functools
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from dmlops import backend
from dmlops.array_libraries import Operand
from dmlops.call import BoundCall, Manner
from dmlops.memory import CPU, aligned, take_scratch
from dmlops.tensor import TensorDesc
from kernels_cpu.kernel import BoundKernel
from kernels_cpu.native_call import MISMATCH, native_call
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
    """One bound call as a native call.

    Parameters
    ----------
    call : BoundCall
        What is run.
    operands : sequence of NativeOperand
        Its arrays, new outputs among them.
    reaches : sequence of int
        How many bytes from its first element on each array of the caller's must have.
    has_out : bool
        Whether the caller gives the outputs.
    """

    __slots__ = ("_allocators", "_check", "_keeps", "_library", "_native", "_reaches", "_refusals", "_result", "_skipped")

    def __init__(self, call: BoundCall, operands: Sequence[NativeOperand], reaches: Sequence[int], *, has_out: bool) -> None:
        counts = call.manner is Manner.COUNT_THEN_EXPAND
        self._allocators = () if has_out else call.allocators[1:] if counts else call.allocators
        self._library = call.library
        self._reaches = reaches
        self._result = call.results[0] if counts else None
        self._skipped = len(reaches) - len(call.results) if has_out else 0
        launch = call.plan.launch
        n_arguments = operands[-1].slot + 2
        make = functools.partial(native_call, describe=self._library.native_describe, load=backend.load_on_host)
        # A gather that is checked while it writes says by any bit that an index is out of range.
        checks = call.manner is Manner.CHECK_THEN_GATHER
        self._refusals = -1 if checks and not has_out else 0
        self._check: Callable[[tuple[Any, ...], int], int] | None = None
        if checks and has_out:
            check = call.plan.checker
            slot = len(check.leading)
            self._check = make(check, slot + 1, [operands[1]._replace(slot=slot)], (), fixed={}, scratch_slot=-1)
        self._keeps = _scratch.of(call.workspace_size)
        self._native = make(
            launch,
            n_arguments,
            operands,
            call.overlap_candidates if has_out else (),
            fixed={n_arguments - 1: aligned(self._keeps.ctypes.data) if call.workspace_size else 0},
            scratch_slot=operands[0].slot + 1 if counts else -1,
        )

    @classmethod
    def of(cls, call: BoundCall, inputs: Sequence[Operand], out: Sequence[Operand]) -> "Replay | None":
        """Return a bound call as a native call; None where it moves more, or does more than launch one kernel."""
        if not _is_small(call, has_out=bool(out)):
            return None
        library = call.library
        given = [*inputs, *out]
        counts = call.manner is Manner.COUNT_THEN_EXPAND
        made = [] if out else [library.as_output(make(), call.name) for make in call.allocators[counts:]]
        # The coordinates, of which it is not known how many there are, stand before the count.
        first = len(call.plan.launch.leading) + call.n_leading
        places = [first + place + (counts and place > 0) for place in range(len(given) + len(made))]
        operands = []
        for place, (slot, operand) in enumerate(zip(places, [*given, *made], strict=True)):
            known = library.native_operand(slot, operand, is_output=place >= len(inputs))
            if known is None or operand.library is not library:
                return None
            operands.append(known)
        return cls(call, operands, call.reaches[: len(given)], has_out=bool(out))

    def __call__(self, arrays: tuple[Any, ...]) -> Sequence[Any] | None:
        """Return the outputs, or None with nothing done where the ordinary path must be taken."""
        if len(arrays) != len(self._reaches):
            return None
        made = []
        for make in self._allocators:  # not in a comprehension, which costs Python 3.11 another call
            made.append(make())
        view = self._library.native_view((*arrays, *made), self._reaches)
        if view is None:
            return None
        if self._result is not None:
            return self._count(view, made[0], self._result)
        # The check returns where an index is out of range, or -1, as it does of other arrays than it knows: then
        # so does the launch.
        if self._check is not None and self._check(view[1:2], 0) >= 0:
            return None
        status = self._native(view, 0)
        if status == MISMATCH or status & self._refusals:
            return None
        return made or arrays[self._skipped :]

    def _count(self, view: tuple[Any, ...], count: Any, coordinates: TensorDesc) -> Sequence[Any] | None:
        """Write coordinates to scratch, and copy as many rows as there are."""
        row_bytes = coordinates.sizes[1] * coordinates.data_type.bytes
        scratch = take_scratch(coordinates.sizes[0] * row_bytes)
        rows = self._native(view, scratch.address)
        if rows == MISMATCH:
            return None
        written = self._library.empty((rows, coordinates.sizes[1]), coordinates.data_type, CPU)
        ctypes.memmove(self._library.address(written), scratch.address, rows * row_bytes)
        scratch.give_back()
        return written, count


def _is_small(call: BoundCall, *, has_out: bool) -> bool:
    """Return whether a call is one kernel on few bytes in host memory."""
    if call.plan is None or call.device is not CPU or not _has_gil() or call.bytes_moved > _MAX_BYTES:
        return False
    if call.manner is Manner.CHECK_THEN_GATHER and (call.plan.checker is None or not (has_out or call.plan.reports)):
        return False
    if call.manner is Manner.COUNT_THEN_EXPAND and not (call.counts_in_one_pass and call.result_bytes):
        return False
    return isinstance(call.plan.launch, BoundKernel)


class Replays:
    """The last call that may be replayed, by all arguments that are no arrays; the oldest leaves when it is full."""

    def __init__(self, max_entries: int) -> None:
        self._replays: OrderedDict[Hashable, Replay] = OrderedDict()
        self._max_entries = max_entries
        self.find = self._replays.get

    def learn(self, key: Hashable, call: BoundCall, inputs: Sequence[Operand], out: Sequence[Operand]) -> None:
        """Make a call that was found bound the one that is replayed next."""
        replay = call.replay
        if replay is None:
            replay = call.replay = Replay.of(call, inputs, out) or False
        if replay:
            while len(self._replays) >= self._max_entries and key not in self._replays:
                try:
                    self._replays.popitem(last=False)
                except KeyError:  # another thread was faster
                    break
            self._replays[key] = replay

    def __len__(self) -> int:
        return len(self._replays)


REPLAYS = Replays(max_entries=1024)
"""Together with `call.CALLS`, all that is kept of past calls of functions."""
