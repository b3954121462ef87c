"""The fast path: a small call on NumPy arrays of the kinds that such a call had before.

Around a small array's kernel every look-up shows. Here remain one look-up by the other arguments, new outputs, and
one native call, which looks at the arrays itself before it launches. Where it finds anything else, the ordinary
path is gone.
"""

import ctypes
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from dmlops import backend
from dmlops.array_libraries import NUMPY, Operand
from dmlops.call import BoundCall, Manner
from dmlops.data_types import numpy_dtype
from dmlops.memory import CPU, aligned, take_scratch

# Calls that move so many bytes, all operands together, take some microseconds, for which the GIL may be kept.
_MAX_BYTES = 1 << 16
# A capsule of the array interface does not tell bfloat16 from other types that NumPy does not know.
_TOLD_KINDS = "biuf"

# What a native call returns where it did nothing: `kernels_cpu.native_call.MISMATCH`.
MISMATCH = -1
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
        What is run; `is_small` says whether it may be.
    inputs, out : sequence of ndarray
        Arrays of the kinds that it is bound to.
    """

    __slots__ = ("_allocators", "_check", "_keeps", "_n_arrays", "_native", "_refusals", "_result", "_scratch_bytes", "_skipped")

    def __init__(self, call: BoundCall, inputs: Sequence[Any], out: Sequence[Any]) -> None:
        from kernels_cpu.native_call import Operand, native_call  # noqa: PLC0415 - loads a kernel

        counts = call.manner is Manner.COUNT_THEN_EXPAND
        self._allocators = () if out else call.allocators[1:] if counts else call.allocators
        self._scratch_bytes = call.result_bytes if counts else 0
        self._result = (call.results[0].sizes[1], numpy_dtype(call.results[0].data_type)) if counts else None
        self._n_arrays = len(inputs) + len(out)
        self._skipped = len(inputs) if out else 0
        checks = call.manner is Manner.CHECK_THEN_GATHER
        launch = call.plan.launch
        first = len(launch.leading)
        arrays = [*inputs, *(out or [make() for make in self._allocators])]
        slots = [first + call.n_leading + place for place in range(len(arrays))]
        if counts:  # The coordinates, which stand before the count, go to scratch.
            slots[1] += 1
        operands = [
            Operand(slot, array.dtype.kind, array.itemsize, array.shape, array.strides, place >= len(inputs))
            for place, (slot, array) in enumerate(zip(slots, arrays, strict=True))
        ]
        n_arguments = slots[-1] + 2
        # A gather that is checked while it writes says by any bit that an index is out of range.
        self._refusals = -1 if checks and not out else 0
        self._check: Callable[[tuple[Any, ...], int], int] | None = None
        if checks and out:
            check = call.plan.checker
            indices = operands[1]._replace(slot=len(check.leading))
            n_check = len(check.leading) + 1
            self._check = native_call(check, n_check, [indices], (), fixed={}, scratch_slot=-1, load=backend.load_on_host)
        workspace = _scratch.of(call.workspace_size)
        self._keeps = workspace
        self._native = native_call(
            launch,
            n_arguments,
            operands,
            call.overlap_candidates if out else (),
            fixed={n_arguments - 1: aligned(workspace.ctypes.data) if call.workspace_size else 0},
            scratch_slot=slots[0] + 1 if counts else -1,
            load=backend.load_on_host,
        )

    def __call__(self, arrays: tuple[Any, ...]) -> Sequence[Any] | None:
        """Return the outputs, or None with nothing done where the ordinary path must be gone."""
        if len(arrays) != self._n_arrays:
            return None
        for array in arrays:
            if array.__class__ is not np.ndarray:
                return None
        if self._scratch_bytes:
            return self._count(arrays)
        made = []
        for make in self._allocators:  # not in a comprehension, which costs Python 3.11 another call
            made.append(make())
        # The check returns where an index is out of range, or -1, as it does of other arrays than it knows: then
        # so does the launch.
        if self._check is not None and self._check((arrays[1].__array_struct__,), 0) >= 0:
            return None
        capsules = tuple([array.__array_struct__ for array in (*arrays, *made)])
        status = self._native(capsules, 0)
        if status == MISMATCH or status & self._refusals:
            return None
        return made or arrays[self._skipped :]

    def _count(self, arrays: tuple[Any, ...]) -> Sequence[Any] | None:
        """Write coordinates to scratch, and copy as many rows as there are."""
        assert self._result is not None
        columns, dtype = self._result
        (make_count,) = self._allocators
        count, scratch = make_count(), take_scratch(self._scratch_bytes)
        rows = self._native((arrays[0].__array_struct__, count.__array_struct__), scratch.address)
        if rows == MISMATCH:
            return None
        coordinates = np.empty((rows, columns), dtype)
        ctypes.memmove(NUMPY.address(coordinates), scratch.address, coordinates.nbytes)
        scratch.give_back()
        return coordinates, count


def is_small(call: BoundCall, inputs: Sequence[Any], out: Sequence[Any]) -> bool:
    """Return whether a call may be replayed: one kernel, on few bytes of plain NumPy arrays."""
    from kernels_cpu.kernel import BoundKernel  # noqa: PLC0415

    if call.plan is None or call.device is not CPU or not _has_gil():
        return False
    if any(library is not NUMPY for library in (call.library, *call.libraries)):
        return False
    if call.manner is Manner.CHECK_THEN_GATHER and (call.plan.checker is None or not (out or call.plan.reports)):
        return False
    if call.manner is Manner.COUNT_THEN_EXPAND and not (call.counts_in_one_pass and call.result_bytes):
        return False
    if not isinstance(call.plan.launch, BoundKernel):
        return False
    if any(array.dtype.kind not in _TOLD_KINDS for array in (*inputs, *out)):
        return False
    return call.bytes_moved <= _MAX_BYTES


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
            arrays = [[operand.array for operand in operands] for operands in (inputs, out)]
            replay = call.replay = Replay(call, *arrays) if is_small(call, *arrays) else False
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
