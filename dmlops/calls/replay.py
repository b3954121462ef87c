"""The fast path: replay a bound call on arrays that no library has vouched for.

For a small array, every look-up in Python takes noticeable time compared with the kernel. A replay therefore
allocates the outputs, and makes one native call, which checks the arrays. If the call is a single kernel on
the CPU, or launches on a GPU that need no wait, the same native call runs it: a small kernel with the GIL
held, everything else without it. Any other call is run by its `BoundCall`, on the addresses that the native
call returns. If the arrays differ from those that the call was bound for, it takes the ordinary path.
"""

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dmlops.array_libraries import ArrayLibrary, Operand
from dmlops.calls.call import BoundCall, Manner, is_profiled
from dmlops.devices import backend
from dmlops.devices.cuda import PER_THREAD_STREAM
from dmlops.devices.executors import HOST
from dmlops.devices.memory import CPU, aligned, take_scratch
from dmlops.types.enums import TensorDataType
from dmlops.types.errors import DmlError
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

# Calls that read and write up to this many bytes take some microseconds, and may keep the GIL. Of a gather's
# input, only what it selects counts.
_MAX_BYTES = 1 << 16
# Launches on a GPU depend on the addresses of operands modulo this.
LAUNCH_ALIGNMENT = 16
_has_gil: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)


class Replay:
    """Runs a bound call on arrays that one native call checks.

    Parameters
    ----------
    call : BoundCall
        The call.
    library : ArrayLibrary
        The library of all operands.
    allocators : sequence of callable
        Make the outputs; empty if the caller gives them.
    operands : sequence of NativeOperand
        The arrays: inputs, outputs and the workspace, if there is one.
    """

    def __init__(
        self,
        call: BoundCall,
        library: ArrayLibrary,
        allocators: Sequence[Callable[[], Any]],
        operands: Sequence[NativeOperand],
    ) -> None:
        self._call, self._library, self._allocators = call, library, allocators
        self._array_type: Any = library.native_type
        self._n_given = len(operands) - len(allocators)
        self._n_inputs = len(call.inputs)
        reaches = [*call.reaches, call.workspace_size][: self._n_given]
        self._are_plain = library.plain_check(reaches, has_complex=call.has_complex)
        self._was_written: Any = None if allocators else library.was_written

    def __call__(self, arrays: tuple[Any, ...]) -> Sequence[Any] | None:
        """Return the outputs; or do nothing and return None if the call must take the ordinary path."""
        if len(arrays) != self._n_given:
            return None
        written = () if self._was_written is None else arrays[self._n_inputs :]
        if self._are_plain is not None and not self._are_plain(arrays, written):
            return None
        if not written:
            made = []
            for make in self._allocators:  # not in a comprehension, which costs Python 3.11 another call
                made.append(make())
            return self._run((*arrays, *made) if made else arrays, made)
        # As in `BoundCall`.
        try:
            results = self._run(arrays, [])
            if results is not None:
                self._was_written(written)
        except DmlError:
            raise
        except BaseException:
            self._was_written(written)
            raise
        return results

    def _run(self, arrays: tuple[Any, ...], made: list[Any]) -> list[Any] | None:
        """Make the native call, and return the new outputs; None if it finds anything else."""
        raise NotImplementedError


class _SmallScratch:
    """Memory that all small calls share: only one thread at a time holds the GIL."""

    def __init__(self) -> None:
        self.memory = np.empty(0, np.uint8)

    def of(self, size: int) -> "np.ndarray[Any, Any]":
        if size > self.memory.size:
            self.memory = np.empty(1 << (size - 1).bit_length(), np.uint8)
        return self.memory


_small_scratch = _SmallScratch()


class _HostLaunch(Replay):
    """Launches the only kernel of a call in the native call; a small one keeps the GIL meanwhile."""

    def __init__(
        self,
        call: BoundCall,
        library: ArrayLibrary,
        allocators: Sequence[Callable[[], Any]],
        operands: Sequence[NativeOperand],
        *,
        is_small: bool,
    ) -> None:
        super().__init__(call, library, allocators, operands)
        self._is_counted = call.manner is Manner.COUNT_THEN_EXPAND
        # A gather that checks while it writes sets a bit if any index is out of range.
        self._failure = -1 if call.manner is Manner.CHECK_THEN_GATHER else 0
        self._takes_scratch, self._workspace = call.workspace_size > 0 and not is_small, 0
        if is_small:
            self._memory = _small_scratch.of(call.workspace_size)
            self._workspace = aligned(self._memory.ctypes.data)
        self._launch = native_call(
            *(call.plan.launch, call.n_leading, operands, _overlaps(call, allocators)),
            keeps_gil=is_small,
            array_type=self._array_type,
            load=backend.load_on_host,
        )

    def _run(self, arrays: tuple[Any, ...], made: list[Any]) -> list[Any] | None:
        try:
            if self._takes_scratch:
                with take_scratch(self._call.workspace_size) as scratch:
                    status = self._launch(arrays, scratch, 0)
            else:
                status = self._launch(arrays, self._workspace, 0)
        except ctypes.ArgumentError:  # out of memory or of stack, which the ordinary path says by its name
            return None
        if status == MISMATCH or status & self._failure:
            return None
        if self._is_counted:
            made[0] = self._library.trimmed(made[0], status)
        return made


class _StreamLaunch(Replay):
    """Launches all kernels of a call on a GPU's current stream in the native call."""

    def __init__(
        self,
        call: BoundCall,
        library: ArrayLibrary,
        allocators: Sequence[Callable[[], Any]],
        operands: Sequence[NativeOperand],
        launch: BoundKernel,
    ) -> None:
        super().__init__(call, library, allocators, operands)
        self._launch = native_call(
            *(launch, call.n_leading, operands, _overlaps(call, allocators)),
            keeps_gil=False,
            array_type=self._array_type,
            load=backend.load_on_host,
        )

    def _run(self, arrays: tuple[Any, ...], made: list[Any]) -> list[Any] | None:
        library, call = self._library, self._call
        if not library.is_current(call.device):
            return None
        stream = library.current_stream(call.device)
        workspace = 0
        if call.workspace_size:
            if stream == PER_THREAD_STREAM:
                return None
            scratch = library.empty((call.workspace_size,), TensorDataType.UINT8, call.device)
            workspace = aligned(library.address(scratch))
        # After an error of the driver, the ordinary path launches everything again.
        try:
            return None if self._launch(arrays, workspace, stream) else made
        except ctypes.ArgumentError:  # as in `_HostLaunch`
            return None


class _CheckedRun(Replay):
    """Checks the arrays in the native call, and runs the bound call on the addresses that it returns."""

    def __init__(
        self,
        call: BoundCall,
        library: ArrayLibrary,
        allocators: Sequence[Callable[[], Any]],
        operands: Sequence[NativeOperand],
        *,
        has_workspace: bool = False,
    ) -> None:
        super().__init__(call, library, allocators, operands)
        self._has_workspace = has_workspace
        overlaps = _overlaps(call, allocators)
        if has_workspace:
            overlaps += call.workspace_candidates
        self._look = native_look(operands, overlaps, array_type=self._array_type, load=backend.load_on_host)

    def _run(self, arrays: tuple[Any, ...], made: list[Any]) -> list[Any] | None:
        addresses = self._look(arrays)
        if not addresses:
            return None
        workspace = addresses[-1] if self._has_workspace else 0
        addresses = addresses[: len(addresses) - self._has_workspace]
        if self._call.device is CPU:
            return self._call.run(HOST, addresses, made, workspace)
        return self._call.run_on_cuda(self._library, addresses, made, workspace)


class _SmallCount(_CheckedRun):
    """Writes coordinates with several kernels, with room for all possible ones, and trims the result."""

    def _run(self, arrays: tuple[Any, ...], made: list[Any]) -> list[Any] | None:
        addresses = self._look(arrays)
        if not addresses:
            return None
        rows = self._call.launch(HOST, addresses)
        return [self._library.trimmed(made[0], rows), *made[1:]]


def _overlaps(call: BoundCall, allocators: Sequence[Callable[[], Any]]) -> list[Any]:
    """Return which operands may share memory; new outputs share none."""
    return [] if allocators else [*call.overlap_candidates]


def make_replay(
    call: BoundCall, inputs: Sequence[Operand], out: Sequence[Operand], workspace: Operand | None = None
) -> Replay | None:
    """Return a replay of a bound call for arrays like these, or None if that cannot be one."""
    given = [*inputs, *out, *([] if workspace is None else [workspace])]
    library = given[0].library if given else call.library
    is_mixed = not out and library is not call.library
    if call.plan is None or library.native_type is None or is_mixed or not _has_gil():
        return None
    on_host = call.device is CPU
    is_one = workspace is None and on_host and _is_one_kernel(call, has_out=bool(out))
    is_counted = on_host and call.manner is Manner.COUNT_THEN_EXPAND and call.result_bytes > 0
    is_small = (is_one or is_counted) and call.bytes_moved <= _MAX_BYTES
    allocators = () if out else call.small_allocators if is_small else call.allocators
    made = [library.as_output(make(), call.name) for make in allocators]
    operands = _native_operands(library, inputs, [*given[len(inputs) :], *made])
    if operands is None:
        return None
    if is_counted and is_small and not is_one:
        return _SmallCount(call, library, allocators, operands)
    if is_small or (is_one and call.manner is not Manner.COUNT_THEN_EXPAND):
        return _HostLaunch(call, library, allocators, operands, is_small=is_small)
    if workspace is None and not on_host:
        launch = launch_on_gpu(call, [operand.address for operand in (*given, *made)])
        if launch is not None:
            operands = [known.aligned_to(LAUNCH_ALIGNMENT) for known in operands]
            return _StreamLaunch(call, library, allocators, operands, launch)
    return _CheckedRun(call, library, allocators, operands, has_workspace=workspace is not None)


def _native_operands(
    library: ArrayLibrary, inputs: Sequence[Operand], others: Sequence[Operand]
) -> list[NativeOperand] | None:
    """Return the descriptions by which native calls recognise these arrays of one library, or None."""
    known = []
    for place, operand in enumerate((*inputs, *others)):
        is_output = place >= len(inputs)
        native = library.native_operand(operand, is_output=is_output) if operand.library is library else None
        if native is None:
            return None
        known.append(native)
    return known


def prepare(call: BoundCall, library: ArrayLibrary) -> None:
    """Load what replays on a library's arrays need, so that no later call imports or compiles anything."""
    if call.plan is not None and library.native_type is not None and _has_gil():
        for kernel in (CALL, LOOK, *(() if call.device is CPU else (LAUNCH,))):
            backend.load_on_host(kernel)


def launch_on_gpu(call: BoundCall, addresses: Sequence[int]) -> BoundKernel | None:
    """Return a function that launches a call from compiled code; None if the plan must do so.

    It takes the leading arguments, the addresses, that of the workspace and the stream, and returns the
    driver's error or 0.
    """
    if call.manner is not Manner.LAUNCH or is_profiled() or any(at % LAUNCH_ALIGNMENT for at in addresses):
        return None
    bases = [*[0] * call.n_leading, *addresses]
    launches = call.plan.launches(*bases)
    words = None if launches is None else launches.words()
    if words is None:
        return None
    launch: LoadedKernel = backend.load_on_host(LAUNCH)
    return launch.bind((Table(words), len(bases) + 1), len(bases) + 2)


def _is_one_kernel(call: BoundCall, *, has_out: bool) -> bool:
    """Return whether a call is a single kernel."""
    if call.manner is Manner.COUNT_THEN_EXPAND and not (call.counts_in_one_pass and call.result_bytes):
        return False  # without a look at `launch`, which would load a kernel that no such call runs
    is_alone = call.manner is not Manner.CHECK_THEN_GATHER or not has_out
    return is_alone and isinstance(call.plan.launch, BoundKernel)
