"""The native calls of a kind, on the CPU and on CUDA devices."""

import ctypes
import struct
from array import array as words_array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from dmlops.calls.call import BoundCall, KindForm
from dmlops.devices import cpu, cuda
from dmlops.devices.cuda_driver import PER_THREAD_STREAM, is_capturing
from dmlops.devices.memory import ALIGNMENT, aligned, take_scratch
from dmlops.types.enums import TensorDataType
from dmlops.types.tensor import TensorDesc
from kernels_cpu import native_call, plan_words, processor
from kernels_cpu.call_words import CALL_WORDS, RANK, SHAPE, STRIDES, array_at
from kernels_cpu.host_words import WORDS
from kernels_cpu.kernel import Kernel, packer
from kernels_cpu.native_call import NEEDS_PYTHON, ArrayKind, KindTable
from kernels_cpu.plan import NO_CHANGES, Launches, planned
from kernels_cpu.problems import Problem

_ERROR = (1 << native_call.STATUS_BITS) - 1

HostWords = ctypes.Array[ctypes.c_int64]
"""Words of a host or a device, which plans read."""


class Native:
    """The native calls of a kind.

    Parameters
    ----------
    call : BoundCall
        The first call of the kind.
    operands : sequence of ArrayKind
        How native calls recognise its inputs and outputs.
    n_given : int
        How many of them, at the end, are outputs that the caller gives.
    changes : mapping of int to int
        Words of the problem that differ from those of the first call.
    """

    def __init__(
        self,
        call: BoundCall,
        operands: Sequence[ArrayKind],
        n_given: int,
        changes: Mapping[int, int] = NO_CHANGES,
    ) -> None:
        form, library = call.kind_form, call.library
        self._operator, self._changes, self._n_leading = form.operator, changes, len(call.leading)
        self._kernels = cpu.kernels_of(form.operator)
        kernels = self._kernels
        self._n_arrays = len(call.leading) + len(operands)
        self._n_array_words = sum(1 + 2 * operand.rank for operand in operands)
        self._has_workspace = self._n_arrays > len(call.leading) + len(call.inputs) + len(call.results)
        template = self._problem_words(call.problem)
        plan, words = self._plan_of(form)
        arrays: list[ArrayKind | None] = [*[None] * len(call.leading), *operands]
        for number, word in enumerate(kernels.RESIDUES):
            operand = arrays[number]
            if operand is not None:
                arrays[number] = operand._replace(residue_at=word)
        self.table = table = KindTable(
            arrays,
            library.native_type,
            cpu.load(plan).address,
            ctypes.addressof(words),
            form.fixed,
            template[: kernels.DIMS],
            has_workspace=self._has_workspace,
        )
        table.set(native_call.OTHER_TYPE, id(library.other_native_type or library.native_type))
        table.set(native_call.N_SIZES, len(form.sizes))
        table.set(native_call.HAS_LIMITS, int(library.limits is not None))
        table.set(native_call.GATHERED, form.gathered)
        # The table outlives this module if another copy of dmlops takes its place.
        self._memory = words, cpu.SCRATCH
        table.set(native_call.SCRATCH, ctypes.addressof(cpu.SCRATCH))
        table.set(native_call.IS_LIMITED, int(form.is_limited))
        table.set(native_call.LEAST_WORKSPACE, form.workspace)
        table.set(native_call.N_GIVEN, n_given)
        if form.expected is not None:
            table.expect(call_words_of([*[None] * len(call.leading), *form.expected]), template)
        self._run, self._planner = table.caller(cpu.load), table.planner(cpu.load)
        if library.native_type is None:
            self._run = partial(self._on_words, self._run, library.words)
            self._planner = partial(self._on_words, self._planner, library.words)

    def _on_words(
        self,
        call: Callable[[Any], Any],
        words_of: Callable[[Any], tuple[int, ...]],
        arguments: tuple[Any, ...],
    ) -> Any:
        """Make a native call in which each array is described in words."""
        n_arrays = self._n_arrays - self._n_leading
        try:
            words = [word for array in arguments[:n_arrays] for word in words_of(array)]
            if len(words) != self._n_array_words:  # outputs have another number of dimensions
                raise ValueError(arguments)
            words += arguments[n_arrays:]
            packed = packer(len(words))(*words)
        except (ValueError, struct.error) as error:  # strides between elements, integers of more than 64 bits
            raise ctypes.ArgumentError from error
        return call(packed)

    def _plan_of(self, form: KindForm) -> tuple[Kernel, HostWords]:
        """Return the kernel that plans, and the words of the host or the device that it reads."""
        cpu.host_words()
        return self._kernels.PLAN, form.host or WORDS

    def _problem_words(self, problem: Problem | None) -> list[int]:
        words: list[int] = self._kernels.words_of_problem(problem)
        for at, word in self._changes.items():
            words[at] = word
        return words

    def load_kernels(self, problem: Problem | None) -> None:
        """Load the kernels of a problem that one thread runs."""
        host = [1, processor.streaming_bytes()]
        inputs = self._problem_words(problem), host
        plan = self._kernels.PLAN
        self._load(planned(plan, cpu.load(plan), inputs, plan_words.MAX_WORDS)[1])

    def _load(self, plan: Sequence[int]) -> None:
        for key in plan_words.kernels_of(plan):
            self.table.add_kernel(key, cpu.load(self._kernels.kernel_of(key)).address)

    def __call__(self, arguments: tuple[object, ...]) -> int | None:
        """Make a call; return what its kernel finds, or None with nothing done."""
        try:
            status = self._run(arguments)
        except ctypes.ArgumentError:  # also without memory or stack, which the call in Python says
            return None
        if status > native_call.MISMATCH:
            return status
        if status != NEEDS_PYTHON:
            return None
        planned = self.planned(arguments)
        if planned is None:
            return None
        addresses, launches = planned
        if self._has_workspace:
            *addresses, workspace = addresses
            return launches.run(*addresses, aligned(workspace))
        with take_scratch(launches.workspace_size) as scratch:
            return launches.run(*addresses, scratch)

    def planned(self, arguments: tuple[object, ...]) -> tuple[Sequence[int], Launches] | None:
        """Return the addresses of a call's arrays, and its launches with their kernels loaded; or None."""
        found = self.planned_words(arguments)
        if found is None:
            return None
        addresses, plan = found
        return addresses, Launches(plan, self._kernels.kernel_of, cpu.target())

    def planned_words(
        self, arguments: tuple[object, ...]
    ) -> "tuple[words_array[int], words_array[int]] | None":
        """Return the addresses of a call's arrays and the words of its plan, all kernels loaded; or None."""
        try:
            found = self._planner(arguments)
        except ctypes.ArgumentError:  # as above
            return None
        if not found:
            return None
        words = words_array("q", found)
        addresses, plan = words[: self._n_arrays], words[self._n_arrays :]
        self._load(plan)
        return addresses, plan


class DeviceNative(Native):
    """The native calls of a kind on a CUDA device."""

    def __init__(
        self,
        call: BoundCall,
        operands: Sequence[ArrayKind],
        n_given: int,
        changes: Mapping[int, int] = NO_CHANGES,
    ) -> None:
        self._device, self._library = call.device, call.library
        self._target = cuda.native_target(call.device.number)
        super().__init__(call, operands, n_given, changes)
        self.table.set(native_call.DRIVER, self._target.driver)
        self.table.set(native_call.MAY_OVERLAP, int(self._target.may_overlap))
        self._launch = cpu.load(native_call.LAUNCH)
        self.table.set(native_call.LAUNCH_ENTRY, self._launch.address)
        measured = self._target.measured(call.kind_form.operator)
        if measured is not None:
            self.table.set(native_call.DEVICE, ctypes.addressof(measured))
        self._make_scratch = call.library.maker(TensorDataType.UINT8, call.device)
        # The bytes that the last call needed: most calls of a kind need about the same.
        self._n_scratch = 0

    def _plan_of(self, form: KindForm) -> tuple[Kernel, HostWords]:
        return self._target.plan(self._operator), self._target.words(self._operator)

    def _load(self, plan: Sequence[int]) -> None:
        for key in plan_words.kernels_of(plan):
            self.table.add_kernel(key, self._target.load(self._operator, key))

    def __call__(self, arguments: tuple[object, ...]) -> int | None:
        """Launch a call on the current stream; return 0, or None with nothing done."""
        stream = self.stream()
        return None if stream is None or self.launched(arguments, stream) is None else 0

    def stream(self) -> int | None:
        """Return the current stream of the library on the device; None if that is not the current one."""
        library, device = self._library, self._device
        if library.native_type is None:
            running_on = cuda.RUNNING_ON.get()
            return None if running_on is None else running_on.handle
        return library.current_stream(device) if library.is_current(device) else None

    def waiting_stream(self) -> int | None:
        """Return the current stream, if the host may wait for it; a capture may not be waited for."""
        stream = self.stream()
        return None if stream is None or is_capturing(stream) else stream

    def launched(self, arguments: tuple[object, ...], stream: int) -> "Scratch | None":
        """Launch a call; return its scratch memory, or None with nothing done."""
        scratch = self._scratch(0 if self._has_workspace else self._n_scratch, stream)
        status = self._launch_in(scratch, arguments, stream)
        if status == NEEDS_PYTHON:
            found = self.planned_words((*arguments, 0, 0, 0))
            if found is None:
                return None
            scratch = self._scratch(0 if self._has_workspace else found[1][plan_words.WORKSPACE], stream)
            status = self._launch_in(scratch, arguments, stream)
        # After an error of the driver, a call in Python launches everything again.
        if status < 0 or status & _ERROR:
            return None
        self._n_scratch = status >> native_call.STATUS_BITS
        return scratch

    def launched_in(self, scratch: "Scratch", arguments: tuple[object, ...], stream: int) -> bool:
        """Launch a call that continues in the scratch memory of an earlier one; return whether it is done."""
        status = self._launch_in(scratch, arguments, stream)
        if status == NEEDS_PYTHON and self.planned_words((*arguments, 0, 0, 0)) is not None:
            status = self._launch_in(scratch, arguments, stream)
        return status >= 0 and status & _ERROR == 0

    def _scratch(self, size: int, stream: int) -> "Scratch":
        running_on = cuda.RUNNING_ON.get() if self._library.native_type is None else None
        if size and running_on is not None:
            memory = running_on.scratch(size + ALIGNMENT)
            # The memory is freed with the object that would leave a `with` block.
            return Scratch(aligned(memory.__enter__()), size, memory)
        # A library that keeps memory by stream would mix up threads on the stream that each has of its own.
        if not size or stream == PER_THREAD_STREAM:
            return Scratch(0, 0, None)
        owner = self._make_scratch((size + ALIGNMENT,))
        return Scratch(aligned(self._library.address(owner)), size, owner)

    def _launch_in(self, scratch: "Scratch", arguments: tuple[object, ...], stream: int) -> int:
        """Launch a call with scratch memory; return what the native call does."""
        try:
            return self._run((*arguments, scratch.address, scratch.size, stream))
        except ctypes.ArgumentError:  # also without memory or stack, which the call in Python says
            return native_call.MISMATCH


class Scratch(NamedTuple):
    """Device memory of a call: where it is aligned, how large it is, and what keeps it."""

    address: int
    size: int
    owner: object


def call_words_of(descs: Sequence[TensorDesc | None]) -> list[int]:
    """Return the words of a call on arrays that lie in memory like this; None for one that there is not."""
    words = [0] * CALL_WORDS
    for number, desc in enumerate(descs):
        if desc is None:
            continue
        at = array_at(number)
        words[at + RANK] = desc.dimension_count
        for d, (size, stride) in enumerate(zip(desc.sizes, desc.effective_strides, strict=True)):
            words[at + SHAPE + d] = size
            words[at + STRIDES + d] = stride if size > 1 else 0
    return words
