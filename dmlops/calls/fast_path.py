"""The fast path: repeat a bound call on arrays that no library has vouched for.

For a small array, every look-up in Python takes noticeable time compared with the kernel. The fast path
therefore allocates the outputs, and makes one native call, which checks the arrays. If the call is a single
kernel on the CPU, or launches on a GPU that need no wait, the same native call runs it: a small kernel with
the GIL held, everything else without it. Any other call is run by its `BoundCall`, on the addresses that the
native call returns. If the arrays differ from those that the call was bound for, it takes the ordinary path.
"""

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from dmlops.calls.call import BoundCall, Manner
from dmlops.devices import cpu
from dmlops.devices.cpu import HOST
from dmlops.devices.cuda_driver import PER_THREAD_STREAM
from dmlops.devices.memory import CPU, aligned, take_scratch
from dmlops.types.enums import TensorDataType
from dmlops.types.errors import DmlError
from kernels_cpu.kernel import BoundKernel, LoadedKernel, Table
from kernels_cpu.native_call import CALL, KERNELS, LAUNCH, LOOK, MISMATCH, native_call, native_look
from kernels_cpu.native_call import Operand as NativeOperand

# Launches on a GPU depend on the addresses of operands modulo this.
LAUNCH_ALIGNMENT = 16
_has_gil: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)

# Takes all arrays of a call, and those of them that are new; returns the new outputs in the caller's form, or
# None with nothing done.
Run = Callable[[tuple[Any, ...], list[Any]], list[Any] | None]

# Takes the arrays that the caller gives; returns the outputs, or does nothing and returns None where the call
# must take the ordinary path.
FastPath = Callable[[tuple[Any, ...]], Sequence[Any] | None]


def load_native_calls(call: BoundCall, *, has_out: bool, has_workspace: bool) -> None:
    """Load what the fast path of a call needs, so that no later call imports or compiles anything."""
    if call.plan is not None and call.library.native_type is not None and _has_gil():
        is_launched = not has_workspace and _may_launch(call, has_out=has_out)
        on_host = (CALL,) if is_launched else (LOOK,)
        for kernel in KERNELS if is_launched and call.device is not CPU else on_host:
            cpu.load(kernel)


def _may_launch(call: BoundCall, *, has_out: bool) -> bool:
    """Return whether the native call may run the plan: one kernel on a CPU, or launches that need no wait."""
    if call.device is not CPU:
        return call.manner is Manner.LAUNCH
    # Other calls do not launch the plan, or not first. To look at `launch` loads its kernel.
    is_counted = call.manner is Manner.COUNT_THEN_EXPAND and not call.is_trimmed
    if is_counted or (call.manner is Manner.CHECK_THEN_GATHER and has_out):
        return False
    return isinstance(call.plan.launch, BoundKernel)


def make_fast_path(call: BoundCall, given: tuple[Any, ...]) -> FastPath | Literal[False] | None:
    """Return the fast path of a call.

    Parameters
    ----------
    call : BoundCall
        The call.
    given : tuple of array
        Arrays of the kinds that it is bound for, for which nobody has vouched.

    Returns
    -------
    FastPath, False or None
        False if there can be none, and None if these arrays do not tell.
    """
    library, n_inputs = call.library, len(call.inputs)
    has_out, has_workspace = len(given) > n_inputs, len(given) > n_inputs + len(call.results)
    if call.plan is None or library.native_type is None or not _has_gil():
        return False
    if any(type(array) is not library.native_type for array in given):
        return False
    are_plain = None if library.plain_check is None else library.plain_check(given)
    if are_plain is not None and not are_plain(given, given[n_inputs:]):
        return None
    arrays = [*given, *([] if has_out else [make() for make in call.allocators])]
    operands = library.native_operands(arrays, n_inputs)
    if operands is None:
        return False
    overlaps = call.guard.candidates_of(len(given)) if has_out else []
    run = None
    if not has_workspace and _may_launch(call, has_out=has_out):
        if call.device is CPU:
            run = _run_on_host(call, operands, overlaps)
        else:
            run = _run_on_stream(call, operands, overlaps, list(map(library.address, arrays)))
    run = run or _run_by_call(call, operands, overlaps, has_workspace=has_workspace)
    return _fast_path(call, len(given), are_plain, run)


def _fast_path(call: BoundCall, n_given: int, are_plain: Any, run: Run) -> FastPath:
    """Return the fast path on so many arrays, which pass `ArrayLibrary.plain_check` where there is one."""
    # Every call runs this: names of the closure are faster than attributes.
    n_inputs = len(call.inputs)
    allocators = () if n_given > n_inputs else call.allocators
    was_written: Any = None if allocators else call.library.was_written

    def repeat(arrays: tuple[Any, ...]) -> Sequence[Any] | None:
        if len(arrays) != n_given:
            return None
        written = () if was_written is None else arrays[n_inputs:]
        if are_plain is not None and not are_plain(arrays, written):
            return None
        if not written:
            made = []
            for make in allocators:  # not in a comprehension, which costs Python 3.11 another call
                made.append(make())
            return run((*arrays, *made) if made else arrays, made)
        # As in `BoundCall`.
        try:
            results = run(arrays, [])
            if results is not None:
                was_written(written)
        except DmlError:
            raise
        except BaseException:
            was_written(written)
            raise
        return results

    return repeat


def _run_on_host(call: BoundCall, operands: Sequence[NativeOperand], overlaps: Sequence[Any]) -> Run:
    """Return what launches the only kernel of a call in the native call."""
    is_small = call.is_small
    launch = native_call(
        *(call.plan.launch, len(call.leading), operands, overlaps),
        keeps_gil=is_small,
        array_type=call.library.native_type,
        load=cpu.load,
    )
    # A gather that checks while it writes sets a bit if any index is out of range.
    failure = -1 if call.manner is Manner.CHECK_THEN_GATHER else 0
    trimmed = call.library.trimmed if call.is_trimmed else None
    size = call.workspace_size
    shared = _small_scratch((size - 1).bit_length())[0] if is_small and size else 0

    def run(arrays: tuple[Any, ...], made: list[Any]) -> list[Any] | None:
        try:
            if size and not shared:
                with take_scratch(size) as scratch:
                    status = launch(arrays, scratch, 0)
            else:
                status = launch(arrays, shared, 0)
        except ctypes.ArgumentError:  # out of memory or of stack, which the ordinary path says by its name
            return None
        if status == MISMATCH or status & failure:
            return None
        if trimmed is not None:
            made[0] = trimmed(made[0], status)
        return made

    return run


@functools.cache
def _small_scratch(n_bits: int) -> tuple[int, Any]:
    """Return the address of memory that all small calls share, as only one thread at a time holds the GIL."""
    memory = np.empty(1 << n_bits, np.uint8)
    return aligned(memory.__array_interface__["data"][0]), memory


def _run_on_stream(
    call: BoundCall, operands: Sequence[NativeOperand], overlaps: Sequence[Any], addresses: Sequence[int]
) -> Run | None:
    """Return what launches all kernels of a call in the native call, on the current stream of a GPU."""
    launch_list, library = launch_on_gpu(call, addresses), call.library
    if launch_list is None:
        return None
    launch = native_call(
        *(launch_list, len(call.leading)),
        *([operand.aligned_to(LAUNCH_ALIGNMENT) for operand in operands], overlaps),
        keeps_gil=False,
        array_type=library.native_type,
        load=cpu.load,
    )

    def run(arrays: tuple[Any, ...], made: list[Any]) -> list[Any] | None:
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
            return None if launch(arrays, workspace, stream) else made
        except ctypes.ArgumentError:  # as in `_run_on_host`
            return None

    return run


def launch_on_gpu(call: BoundCall, addresses: Sequence[int]) -> BoundKernel | None:
    """Return a function that launches a call from compiled code; None if the plan must do so.

    It takes the leading arguments, the addresses, that of the workspace and the stream, and returns the
    driver's error or 0.
    """
    if call.manner is not Manner.LAUNCH or any(at % LAUNCH_ALIGNMENT for at in addresses):
        return None
    bases = [*call.leading, *addresses]
    launches = call.plan.launches(*bases)
    words = None if launches is None else launches.words()
    if words is None:
        return None
    launch: LoadedKernel = cpu.load(LAUNCH)
    return launch.bind((Table(words), len(bases) + 1), len(bases) + 2)


def _run_by_call(
    call: BoundCall, operands: Sequence[NativeOperand], overlaps: Sequence[Any], *, has_workspace: bool
) -> Run:
    """Return what checks the arrays in the native call, and has the bound call run on their addresses."""
    look = native_look(operands, overlaps, array_type=call.library.native_type, load=cpu.load)

    def run(arrays: tuple[Any, ...], made: list[Any]) -> list[Any] | None:
        addresses = look(arrays)
        if not addresses:
            return None
        workspace = addresses[-1] if has_workspace else 0
        addresses = addresses[:-1] if has_workspace else addresses
        if call.device is CPU:
            return call.run(HOST, addresses, made, workspace)
        return call.run_on_cuda(addresses, made, workspace)

    return run
