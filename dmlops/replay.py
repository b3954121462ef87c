"""The fast path: a call on the host, on arrays of the kinds that such a call had before.

Around a small array's kernel every look-up shows. Here remain one look-up by the other arguments, new
outputs, and one native call, which looks at the arrays itself, and launches a small kernel. Where it finds
anything else, the ordinary path is taken.
"""

import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np

from dmlops import backend
from dmlops.array_libraries import ArrayLibrary, Operand
from dmlops.call import BoundCall, Manner, is_profiled
from dmlops.cuda import PER_THREAD_STREAM
from dmlops.enums import TensorDataType
from dmlops.memory import CPU, aligned, take_scratch
from kernels_cpu.kernel import BoundKernel, LoadedKernel, Table
from kernels_cpu.native_call import (
    CALL,
    LAUNCH,
    LOOK,
    MISMATCH,
    native_call,
    native_look,
)
from kernels_cpu.native_call import Operand as NativeOperand

# Calls that move so many bytes, all operands together, take some microseconds, for which the GIL may be kept.
_MAX_BYTES = 1 << 16
# Launches on a GPU depend on where operands begin, modulo this.
_LAUNCH_ALIGNMENT = 16
_log = logging.getLogger("dmlops")
_has_gil: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)

# Asking for shape and type raises these where there are none, or none that can be hashed. Not any exception:
# what a signal handler raises must reach the caller.
_NO_ARRAY_ERRORS = (AttributeError, TypeError, ValueError, RuntimeError)


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
    """A bound call whose arrays one native call looks at; if it is small, that runs it too.

    Parameters
    ----------
    call : BoundCall
        What is run.
    library : ArrayLibrary
        Whose arrays it is run on.
    operands : sequence of NativeOperand
        The arrays: inputs, outputs and the workspace, if there is one.
    launch : BoundKernel, optional
        What is run, where that is no more than one kernel of the host, or launches on a GPU.
    is_small : bool
        Whether it may keep the GIL, and share memory with other calls that do.
    has_out, has_workspace : bool
        Whether the caller gives these.
    """

    def __init__(
        self,
        call: BoundCall,
        library: ArrayLibrary,
        operands: Sequence[NativeOperand],
        launch: BoundKernel | None,
        *,
        is_small: bool,
        has_out: bool,
        has_workspace: bool,
    ) -> None:
        self._call, self._library, self._has_workspace = call, library, has_workspace
        self._allocators = () if has_out else call.small_allocators if is_small else call.allocators
        self._n_given = len(operands) - len(self._allocators)
        self._reaches = [*call.reaches, call.workspace_size][: self._n_given]
        self._outputs = slice(
            self._n_given - has_workspace - len(call.results), self._n_given - has_workspace
        )
        overlaps = [*call.overlap_candidates] if has_out else []
        if has_workspace:
            overlaps += call.workspace_candidates
        self._is_counted = call.manner is Manner.COUNT_THEN_EXPAND
        # A gather that is checked while it writes says by any bit that an index is out of range.
        self._failure = -1 if call.manner is Manner.CHECK_THEN_GATHER else 0
        # Native calls look at all that there is to say of a NumPy array.
        self._are_plain = None if type(library).are_plain is ArrayLibrary.are_plain else library.are_plain
        self._run: Callable[[tuple[Any, ...], int, int], int] | None = None
        self._go_on: Callable[..., list[Any]] = (
            call.run_on_host if call.device is CPU else partial(call.run_on_cuda, library)
        )
        self._is_on_gpu = call.device is not CPU
        self._workspace, self._workspace_size = 0, call.workspace_size
        array_type: Any = library.native_type
        if is_small:
            self._scratch = _scratch.of(call.workspace_size)
            self._workspace = aligned(self._scratch.ctypes.data)
        if launch is not None:
            self._run = native_call(
                *(launch, call.n_leading, operands, overlaps),
                keeps_gil=is_small,
                array_type=array_type,
                load=backend.load_on_host,
            )
        else:
            self._look = native_look(operands, overlaps, array_type=array_type, load=backend.load_on_host)

    @classmethod
    def of(
        cls,
        call: BoundCall,
        inputs: Sequence[Operand],
        out: Sequence[Operand],
        workspace: Operand | None = None,
    ) -> "Replay | None":
        """Return a replay of a bound call, or None if that cannot be one."""
        if call.plan is None or not _has_gil():
            return None
        given = [*inputs, *out, *([] if workspace is None else [workspace])]
        library = given[0].library if given else call.library
        if library.native_type is None or (not out and library is not call.library):
            return None
        on_host = call.device is CPU
        is_one = workspace is None and on_host and _is_one_kernel(call, has_out=bool(out))
        is_small = is_one and call.bytes_moved <= _MAX_BYTES
        allocators = call.small_allocators if is_small else call.allocators
        made = [] if out else [library.as_output(make(), call.name) for make in allocators]
        operands = []
        for place, operand in enumerate([*given, *made]):
            if operand.library is not library:
                return None
            known = library.native_operand(operand, is_output=place >= len(inputs))
            if known is None:
                return None
            operands.append(known)
        launch = None
        if is_small or (is_one and call.manner is not Manner.COUNT_THEN_EXPAND):
            launch = call.plan.launch
        elif workspace is None and not on_host:
            launch = _launch_on_gpu(call, [operand.address for operand in (*given, *made)])
            if launch is not None:
                operands = [known.aligned_to(_LAUNCH_ALIGNMENT) for known in operands]
        return cls(
            *(call, library, operands, launch),
            is_small=is_small,
            has_out=bool(out),
            has_workspace=workspace is not None,
        )

    def __call__(self, arrays: tuple[Any, ...]) -> Sequence[Any] | None:
        """Return the outputs, or None with nothing done where the ordinary path must be taken."""
        if len(arrays) != self._n_given:
            return None
        made = []
        for make in self._allocators:  # not in a comprehension, which costs Python 3.11 another call
            made.append(make())
        if self._are_plain is not None and not self._are_plain(arrays, self._reaches):
            return None
        view = (*arrays, *made)
        if self._run is None:
            addresses = self._look(view)
            if not addresses:
                return None
            workspace = addresses[-1] if self._has_workspace else 0
            made = self._go_on(addresses[: len(addresses) - self._has_workspace], made, workspace)
        elif self._is_on_gpu:
            if not self._launched(view):
                return None
        else:
            if self._workspace or not self._workspace_size:
                status = self._run(view, self._workspace, 0)
            else:
                scratch = take_scratch(self._workspace_size)
                status = self._run(view, scratch.address, 0)
                scratch.give_back()
            if status == MISMATCH or status & self._failure:
                return None
            if self._is_counted:
                made[0] = self._library.trimmed(made[0], status)
        return made or arrays[self._outputs]

    def _launched(self, view: tuple[Any, ...]) -> bool:
        """Return whether one native call has launched everything; the ordinary path may do so again."""
        library, call, run = self._library, self._call, self._run
        if run is None or not library.is_current(call.device):
            return False
        stream = library.current_stream(call.device)
        if not call.workspace_size:
            return run(view, 0, stream) == 0
        if stream == PER_THREAD_STREAM:
            return False
        scratch = library.empty((call.workspace_size,), TensorDataType.UINT8, call.device)
        return run(view, aligned(library.address(scratch)), stream) == 0


def prepare(call: BoundCall, library: ArrayLibrary) -> None:
    """Load what replays on a library's arrays will need: no later call imports or compiles anything."""
    if call.plan is not None and library.native_type is not None and _has_gil():
        for kernel in (CALL, LOOK, *(() if call.device is CPU else (LAUNCH,))):
            backend.load_on_host(kernel)


def _launch_on_gpu(call: BoundCall, addresses: Sequence[int]) -> BoundKernel | None:
    """Return what launches a call from compiled code, with such addresses; None where the plan decides."""
    if call.manner is not Manner.LAUNCH or is_profiled() or any(at % _LAUNCH_ALIGNMENT for at in addresses):
        return None
    bases = [*[0] * call.n_leading, *addresses]
    launches = call.plan.launches(*bases)
    words = None if launches is None else launches.words()
    if words is None:
        return None
    launch: LoadedKernel = backend.load_on_host(LAUNCH)
    return launch.bind((Table(words), len(bases) + 1), len(bases) + 2)


def _is_one_kernel(call: BoundCall, *, has_out: bool) -> bool:
    """Return whether a call is no more than one kernel."""
    if not isinstance(call.plan.launch, BoundKernel):
        return False
    if call.manner is Manner.COUNT_THEN_EXPAND:
        return call.counts_in_one_pass and call.result_bytes > 0
    return call.manner is Manner.LAUNCH or (call.plan.reports and not has_out)


def _key(parameters: Hashable, arrays: Sequence[Any]) -> Hashable:
    """Return what most calls that need other plans differ in; the native call looks at the rest."""
    if not arrays:
        return parameters
    first = arrays[0]
    if len(arrays) == 1:
        return parameters, first.shape, first.dtype
    return parameters, first.shape, first.dtype, arrays[1].shape


class Replays:
    """Calls that may be replayed, by the other arguments and by sizes and types of the first two arrays.

    The oldest leaves when it is full.
    """

    def __init__(self, max_entries: int) -> None:
        self._replays: OrderedDict[Hashable, Replay] = OrderedDict()
        self._max_entries = max_entries

    def run(self, parameters: Hashable, arrays: tuple[Any, ...]) -> Sequence[Any] | None:
        """Return the outputs of a call, or None with nothing done where the ordinary path must be taken."""
        if _log.isEnabledFor(logging.DEBUG):  # that path says what it does
            return None
        try:
            replay = self._replays.get(_key(parameters, arrays))
        except _NO_ARRAY_ERRORS:
            return None
        return None if replay is None else replay(arrays)

    def learn(
        self, parameters: Hashable, call: BoundCall, inputs: Sequence[Operand], out: Sequence[Operand]
    ) -> Sequence[Any] | None:
        """Let a call that was found bound be replayed from now on, and do so, as `run`."""
        if call.replay is None:
            call.replay = Replay.of(call, inputs, out) or False
        if call.replay is False:
            return None
        arrays = tuple([operand.array for operand in (*inputs, *out)])
        key = _key(parameters, arrays)
        while len(self._replays) >= self._max_entries and key not in self._replays:
            try:
                self._replays.popitem(last=False)
            except KeyError:  # another thread was faster
                break
        self._replays[key] = call.replay
        return call.replay(arrays)  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self._replays)


REPLAYS = Replays(max_entries=1024)
"""Together with `call.CALLS`, all that is kept of past calls of functions."""
