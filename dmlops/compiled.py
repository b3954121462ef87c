"""An operator planned for one device: arrays are bound to its tensors, viewed as memory, and launched on."""

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from dmlops import arrays, cuda
from dmlops.arrays import Library
from dmlops.data_types import numpy_dtype
from dmlops.enums import TensorDataType
from dmlops.errors import DeviceMismatchError, InvalidDescriptorError, wording
from dmlops.memory import CPU, Device, Slot, share_memory
from dmlops.operators import Descriptor
from dmlops.tensor import TensorDesc

_log = logging.getLogger("dmlops")

# What kernels may rely on where their workspace begins, on either device.
_ALIGNMENT = 256
# Scratch up to this size is kept between calls: fresh pages cost more than the work done in them.
_KEPT_SCRATCH = 1 << 26


@dataclass(frozen=True, eq=False)
class CompiledOperator:
    """An operator that is planned for one device; made by `compile`.

    It is immutable, and may be used from any thread and on any stream.

    Attributes
    ----------
    descriptor : Descriptor
        What is computed.
    device : Device
        Where.
    inputs, outputs : mapping of str to TensorDesc
        The tensors by field name.
    workspace_size : int
        Bytes of temporary memory that one execution needs.
    """

    descriptor: Descriptor
    device: Device
    inputs: Mapping[str, TensorDesc]
    outputs: Mapping[str, TensorDesc]
    workspace_size: int
    plan: Any = field(repr=False)
    # Fields in the order in which the kernels take them, and how each is viewed; None where it is absent.
    operands: tuple[str, ...] = field(repr=False)
    slots: tuple[Slot | None, ...] = field(repr=False)
    # Pairs of an output and another operand, which must not share memory.
    exclusive: tuple[tuple[int, int], ...] = field(repr=False)
    # Where the operands' layouts begin and end, in bytes from the first element.
    reaches: tuple[tuple[int, int], ...] = field(repr=False)
    # The exclusive pairs, and between which distances of their first elements the bounds of both overlap.
    clashes: tuple[tuple[int, int, int, int], ...] = field(repr=False)
    # What the kernels get for operands, and for a workspace, that are not there.
    absent: tuple[Any, ...] = field(repr=False)
    no_memory: Any = field(repr=False)
    # Kinds of arrays and workspaces that have been checked before.
    _accepted: set[Any] = field(default_factory=set, repr=False)
    _repeated: dict[Any, tuple[Library, int]] = field(default_factory=dict, repr=False)
    _workspaces: dict[Any, Slot] = field(default_factory=dict, repr=False)

    def execute(self, tensors: Mapping[str, Any], workspace: Any = None, stream: Any = None) -> None:
        """Compute the outputs from the inputs, all of them given.

        Parameters
        ----------
        tensors : mapping of str to array
            An array for each field of `inputs` and `outputs`, of the described type, sizes and strides.
        workspace : array, optional
            At least `workspace_size` bytes of temporary memory on the operator's device, contiguous and
            apart from the tensors. With it nothing is allocated, and nothing waits.
        stream : int or stream object, optional
            Where a GPU runs it; None for the current stream of the input's library.

        Raises
        ------
        InvalidDescriptorError
            If an array is missing, does not fit its description, or an output overlaps another array.
        DeviceMismatchError
            If an array lives on another device.
        TypeError
            If something is no array.

        Notes
        -----
        Gather indices out of range are clamped, as DirectML does.
        """
        if stream is None and workspace is not None and self._repeat(tensors, workspace):
            return
        name = self.descriptor.name
        expected = {**self.inputs, **self.outputs}
        if tensors.keys() != expected.keys():
            got = f"arrays for {', '.join(sorted(tensors)) or 'nothing'}"
            reason = "the operator has other fields"
            allowed = f"arrays must be given for {', '.join(expected)}"
            raise InvalidDescriptorError(wording(f"{name}.execute", got, reason, allowed))
        bound = {key: self._bind(key, array, expected[key]) for key, array in tensors.items()}
        present = [bound[key] for key in self.operands if key in bound]
        views = self.views([bound.get(key) for key in self.operands])
        self.check_overlap(views, [f"{name}.{key}" for key in self.operands])
        handle = self.stream(stream, present, f"{name}.stream")
        if workspace is not None:
            self.launch(views, self._given_workspace(workspace, views), handle)
            if stream is None:
                self._expect(tensors, workspace, present[0][0])
            return
        library = present[0][0]
        with self.allocating_on(library, stream, handle):
            memory, _owner = self.scratch(library)
            self.launch(views, memory, handle)

    def _expect(self, tensors: Mapping[str, Any], workspace: Any, library: Library) -> None:
        """Know such arrays on a GPU again, when they come next."""
        if all(slot is not None for slot in self.slots):
            signatures = arrays.gpu_signatures([*[tensors[key] for key in self.operands], workspace])
            if signatures is not None:
                desc = library.describe(workspace, f"{self.descriptor.name}.workspace")
                self._repeated[signatures] = library, desc.element_count * desc.data_type.bytes

    def _repeat(self, tensors: Mapping[str, Any], workspace: Any) -> bool:
        """Execute on arrays like others before, and return whether that was possible."""
        if not self._repeated or len(tensors) != len(self.operands) or _log.isEnabledFor(logging.DEBUG):
            return False
        try:
            given = [*[tensors[key] for key in self.operands], workspace]
        except KeyError:
            return False
        signatures = arrays.gpu_signatures(given)
        known = None if signatures is None else self._repeated.get(signatures)
        if known is None:
            return False
        library, size = known
        addresses = library.addresses(given)
        memory = addresses.pop()
        for i, j, low, high in self.clashes:
            if low < addresses[j] - addresses[i] < high:
                return False
        if self.workspace_size == 0:
            memory = 0
        else:
            for address, (begin, end) in zip(addresses, self.reaches, strict=True):
                if address + begin < memory + size and memory < address + end:
                    return False
        self.ranged_launch()(library.current_stream(self.device), *addresses, _aligned(memory))
        return True

    def views(self, bound: Sequence[tuple[Library, Any] | None]) -> list[Any]:
        """Return the operands as the kernels take them."""
        return [
            absent if operand is None or slot is None else operand[0].view(operand[1], slot)
            for operand, slot, absent in zip(bound, self.slots, self.absent, strict=True)
        ]

    def check_overlap(self, views: Sequence[Any], names: Sequence[str]) -> None:
        """Refuse outputs that share memory with another operand; `names` are theirs in error texts.

        Raises
        ------
        InvalidDescriptorError
            If two of them do.
        """
        for i, j in self.exclusive:
            if share_memory(views[i], self.slots[i], views[j], self.slots[j]):
                _refuse_overlap(names[j], names[i], "an output must have memory of its own")

    def launch(self, views: Sequence[Any], workspace: Any, handle: int) -> None:
        """Run the kernels on viewed operands."""
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s on %s: %s", self.descriptor.name, self.device, self.plan.variant)
        if self.device is CPU:
            self.plan.launch(*views, workspace)
        else:
            with _profiler_range(self.descriptor.name):
                self.plan.launch(handle, *views, workspace)

    def ranged_launch(self) -> Callable[..., None]:
        """Return the kernels' launch on a GPU, in a profiler's range if there is one to see it."""
        if _annotate() is nullcontext:
            launch: Callable[..., None] = self.plan.launch
            return launch

        def ranged(*arguments: Any) -> None:
            with _profiler_range(self.descriptor.name):
                self.plan.launch(*arguments)

        return ranged

    def stream(self, stream: Any, operands: Sequence[tuple[Library, Any]], where: str) -> int:
        """Return the stream handle to launch on, with the work of other libraries ordered before it."""
        if self.device is CPU:
            if stream is not None:
                reason = "the arrays live on cpu"
                raise InvalidDescriptorError(wording(where, repr(stream), reason, "stream must be None"))
            return 0
        first = operands[0][0]
        if stream is None:
            handle: int = first.current_stream(self.device)
        else:
            handle = cuda.stream_handle(stream, self.device.number, where)
        for library, array in operands:
            if stream is None and library is not first:
                cuda.wait_for(handle, library.current_stream(self.device))
            if array is not None and (producer := library.producer_stream(array)) is not None:
                cuda.wait_for(handle, producer)
        return handle

    def stream_argument(self, handle: int) -> tuple[Any, ...]:
        """Return what precedes the operands in a call of the kernels."""
        return () if self.device is CPU else (handle,)

    def read(self, view: Any, data_type: TensorDataType, handle: int, at: int = 0) -> int:
        """Return one integer of an operand, `at` elements from where its view begins; waits on a GPU."""
        dtype = numpy_dtype(data_type)
        if self.device is CPU:
            return int(view.view(dtype)[at])
        return int(cuda.read_back(view + at * dtype.itemsize, dtype, 1, handle)[0])

    def allocating_on(self, library: Library, stream: Any, handle: int) -> AbstractContextManager[Any]:
        """Return a context in which the library's new arrays belong to the stream of this call."""
        if stream is None or self.device is CPU:
            return nullcontext()
        return library.allocating_on(handle, self.device)

    def scratch(self, library: Library) -> tuple[Any, Any]:
        """Return temporary memory as the kernels take it, and the object that keeps it alive."""
        if self.workspace_size == 0:
            return self.no_memory, None
        if self.device is CPU:
            memory = host_scratch(self.workspace_size)
            return memory, memory
        owner = library.empty((self.workspace_size,), TensorDataType.UINT8, self.device)
        return _aligned(library.view(owner, _bytes(self.workspace_size))), owner

    def _bind(self, key: str, array: Any, desc: TensorDesc) -> tuple[Library, Any]:
        where = f"{self.descriptor.name}.{key}"
        adopt = arrays.adopt_output if key.startswith("output_") else arrays.adopt
        library, array = adopt(array, where)
        kind = key, library, library.signature(array)
        if kind not in self._accepted:
            self._check(where, library, array, desc)
            self._accepted.add(kind)
        return library, array

    def _check(self, where: str, library: Library, array: Any, desc: TensorDesc) -> None:
        self._check_device(where, library.device(array))
        got = library.describe(array, where)
        if got.data_type != desc.data_type:
            reason = f"the descriptor says {desc.data_type.name}"
            raise InvalidDescriptorError(wording(where, got.data_type.name, reason, "types must be equal"))
        if got.sizes != desc.sizes:
            reason = f"the descriptor says {desc.sizes}"
            raise InvalidDescriptorError(wording(where, f"sizes {got.sizes}", reason, "sizes must be equal"))
        if got.element_count and _meaningful_strides(got) != _meaningful_strides(desc):
            given = f"strides {got.effective_strides}"
            reason = f"the descriptor says {desc.effective_strides}"
            raise InvalidDescriptorError(wording(where, given, reason, "strides in elements must be equal"))

    def _check_device(self, where: str, device: Device) -> None:
        if device != self.device:
            reason = f"the operator is compiled for {self.device}"
            got, allowed = f"an array on {device}", "both must be the same"
            raise DeviceMismatchError(wording(where, got, reason, allowed))

    def _given_workspace(self, workspace: Any, views: Sequence[Any]) -> Any:
        where = f"{self.descriptor.name}.workspace"
        library, array = arrays.adopt_output(workspace, where)
        kind = "workspace", library, library.signature(array)
        slot = self._workspaces.get(kind)
        if slot is None:
            slot = self._workspaces[kind] = self._checked_workspace(where, library, array)
        if self.workspace_size == 0:
            return self.no_memory
        memory = library.view(array, slot)
        for key, view, operand_slot in zip(self.operands, views, self.slots, strict=True):
            if operand_slot is not None and share_memory(view, operand_slot, memory, slot):
                allowed = "it must have memory of its own"
                _refuse_overlap(where, f"{self.descriptor.name}.{key}", allowed)
        return _aligned(memory)

    def _checked_workspace(self, where: str, library: Library, array: Any) -> Slot:
        self._check_device(where, library.device(array))
        desc = library.describe(array, where)
        size = desc.element_count * desc.data_type.bytes
        if size < self.workspace_size:
            allowed = f"at least {self.workspace_size} bytes are needed"
            raise InvalidDescriptorError(wording(where, f"{size} bytes", "the operator needs more", allowed))
        if desc.extent != desc.element_count or desc.offset:
            got, allowed = f"strides {desc.effective_strides}", "it must be contiguous"
            raise InvalidDescriptorError(wording(where, got, "it has gaps or runs backwards", allowed))
        return _bytes(size)


def compile_operator(
    descriptor: Descriptor,
    device: Device,
    operands: tuple[str, ...],
    tensors: Mapping[str, TensorDesc],
    plan: Any,
) -> CompiledOperator:
    """Join a descriptor and the plan of its kernels; `tensors` are the operands as they lie in memory."""
    slots = tuple(Slot.of(tensors[key]) if key in tensors else None for key in operands)
    on_host = device is CPU
    width = next(slot.unsigned for slot in slots if slot is not None)
    exclusive = tuple(
        (i, j)
        for j, key in enumerate(operands)
        for i in range(j if key.startswith("output_") else 0)
        if slots[i] is not None and slots[j] is not None
    )
    reaches = [
        (-slot.offset_in_bytes, slot.size_in_bytes - slot.offset_in_bytes) if slot else (0, 0)
        for slot in slots
    ]
    return CompiledOperator(
        descriptor=descriptor,
        device=device,
        inputs=MappingProxyType(descriptor.inputs),
        outputs=MappingProxyType(descriptor.outputs),
        workspace_size=plan.workspace_size + _ALIGNMENT if plan.workspace_size else 0,
        plan=plan,
        operands=operands,
        slots=slots,
        exclusive=exclusive,
        reaches=tuple(reaches),
        clashes=tuple(
            (i, j, reaches[i][0] - reaches[j][1], reaches[i][1] - reaches[j][0]) for i, j in exclusive
        ),
        absent=tuple(np.empty(0, slot.unsigned if slot else width) if on_host else 0 for slot in slots),
        no_memory=np.empty(0, np.uint8) if on_host else 0,
    )


def _refuse_overlap(name: str, other: str, allowed: str) -> None:
    reason = f"it shares memory with {other}"
    raise InvalidDescriptorError(wording(name, "an overlapping array", reason, allowed))


@functools.lru_cache(maxsize=256)
def _bytes(size: int) -> Slot:
    return Slot.of(TensorDesc(TensorDataType.UINT8, (size,)))


def _meaningful_strides(desc: TensorDesc) -> list[int]:
    return [stride for size, stride in zip(desc.sizes, desc.effective_strides, strict=True) if size > 1]


def _aligned(memory: Any) -> Any:
    """Return memory, viewed as kernels take it, from its first aligned byte on."""
    if isinstance(memory, np.ndarray):
        return memory[-memory.__array_interface__["data"][0] % _ALIGNMENT :]
    return -(-memory // _ALIGNMENT) * _ALIGNMENT


_kept = threading.local()


_NOTHING = np.empty(0, np.uint8)


def host_scratch(size: int) -> "np.ndarray[Any, Any]":
    """Return at least `size` bytes of scratch that this thread alone uses, until its next call."""
    if size == 0:
        return _NOTHING
    kept: np.ndarray[Any, Any] | None = getattr(_kept, "scratch", None)
    if kept is not None and kept.size >= size:
        return kept
    memory: np.ndarray[Any, Any] = _aligned(np.empty(size + _ALIGNMENT, np.uint8))
    if size <= _KEPT_SCRATCH:
        _kept.scratch = memory
    return memory


@functools.cache
def _annotate() -> Callable[[str], AbstractContextManager[Any]]:
    try:
        import nvtx  # noqa: PLC0415
    except ImportError:
        return nullcontext
    return functools.partial(nvtx.annotate, domain="dmlops")


def _profiler_range(name: str) -> AbstractContextManager[Any]:
    return _annotate()(name)
