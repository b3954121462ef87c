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
from dmlops.data_types import numpy_dtype
from dmlops.enums import TensorDataType
from dmlops.errors import DeviceMismatchError, InvalidDescriptorError, wording
from dmlops.libraries import Library
from dmlops.memory import (
    ALIGNMENT,
    CPU,
    Clash,
    Device,
    Reach,
    aligned,
    clash_of,
    read_integer,
    share_memory,
)
from dmlops.operators import Descriptor
from dmlops.relaunch import relauncher
from dmlops.repeats import Kept, Repeats
from dmlops.tensor import TensorDesc
from kernels_cpu.addresses import address_of

_log = logging.getLogger("dmlops")

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
    # Fields in the order in which the kernels take them, and how far each reaches; None where it is absent.
    operands: tuple[str, ...] = field(repr=False)
    # Those of them that are there.
    present: tuple[str, ...] = field(repr=False)
    reaches: tuple[Reach | None, ...] = field(repr=False)
    # Pairs of an output and another operand, which must not share memory.
    clashes: tuple[Clash, ...] = field(repr=False)
    # Kinds of arrays and workspaces that have been checked before.
    _accepted: set[Any] = field(default_factory=set, repr=False)
    _repeats: Repeats[Callable[[Sequence[Any]], bool]] = field(default_factory=Repeats, repr=False)
    _workspaces: dict[Any, Reach] = field(default_factory=dict, repr=False)

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
        if stream is None and self._repeat(tensors, workspace):
            return
        name = self.descriptor.name
        expected = {**self.inputs, **self.outputs}
        if tensors.keys() != expected.keys():
            got = f"arrays for {', '.join(sorted(tensors)) or 'nothing'}"
            reason = "the operator has other fields"
            allowed = f"arrays must be given for {', '.join(expected)}"
            raise InvalidDescriptorError(wording(f"{name}.execute", got, reason, allowed))
        bound = {key: self._bind(key, array, expected[key]) for key, array in tensors.items()}
        present = [bound[key] for key in self.present]
        addresses = self.addresses([bound.get(key) for key in self.operands])
        self.check_overlap(addresses, [f"{name}.{key}" for key in self.operands])
        handle = self.stream(stream, present, f"{name}.stream")
        library = present[0][0]
        if workspace is not None:
            self.launch(addresses, self._given_workspace(workspace, addresses), handle)
        else:
            with self.allocating_on(library, stream, handle):
                memory, _owner = self.scratch(library)
                self.launch(addresses, memory, handle)
        if stream is None and all(bound[key][1] is array for key, array in tensors.items()):
            self._expect(tensors, workspace, library)

    def _expect(self, tensors: Mapping[str, Any], workspace: Any, library: Library) -> None:
        """Know such arrays again, when they come next."""
        given = tuple([tensors[key] for key in self.present])
        reach = None
        if workspace is not None:
            given = (*given, workspace)
            reach = Reach.of(library.describe(workspace, f"{self.descriptor.name}.workspace"))
        self._repeats.keep(given, Kept(self.repeated(library, reach)))

    def _repeat(self, tensors: Mapping[str, Any], workspace: Any) -> bool:
        """Execute on arrays like others before, and return whether that was possible."""
        if len(tensors) != len(self.present) or _log.isEnabledFor(logging.DEBUG):
            return False
        try:
            given = tuple([tensors[key] for key in self.present])
        except KeyError:
            return False
        if workspace is not None:
            given = (*given, workspace)
        is_like_last, run = self._repeats.last
        if not is_like_last(given):
            run = self._repeats.find(given)
        return run is not None and run(given)

    def repeated(self, library: Library, workspace: Reach | None = None) -> Callable[[Sequence[Any]], bool]:
        """Return what executes on arrays of the library that were checked once: all but their addresses.

        It takes the operands, and the workspace if one is given, and returns False, with nothing done, where
        they may share memory.
        """
        clashes = list(self.clashes)
        n_operands = len(self.operands)
        size = self.workspace_size
        if workspace is not None and size:
            reaches = enumerate(self.reaches)
            clashes += [clash_of(i, reach, n_operands, workspace) for i, reach in reaches if reach]
        if self.device is CPU:
            return self._repeated_on_host(library, clashes, workspace is None)
        relaunch = self._relauncher(library, clashes)
        if workspace is not None or not size:
            return relaunch
        make = self.scratch_maker(library)
        return lambda given: relaunch((*given, make()))

    def allocating(
        self, library: Library, outputs: Sequence[TensorDesc]
    ) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Return what executes on inputs that were checked once; it returns new outputs."""
        makers = [library.allocator(desc, self.device) for desc in outputs]
        addresses_of, size = self._addresses_of(library), self.workspace_size
        if self.device is CPU:
            launch = self.plan.launch

            def run_on_host(inputs: Sequence[Any]) -> Sequence[Any]:
                made = []
                for make in makers:  # not in a comprehension, which costs Python 3.11 another call
                    made.append(make())
                memory, _owner = host_scratch(size) if size else _NO_SCRATCH
                launch(*addresses_of((*inputs, *made)), memory)
                return made

            return run_on_host
        relaunch = self._relauncher(library, ())
        temporary = [self.scratch_maker(library)] if size else []

        def run(inputs: Sequence[Any]) -> Sequence[Any]:
            made = [make() for make in makers]
            relaunch((*inputs, *made, *[make() for make in temporary]))
            return made

        return run

    def _relauncher(self, library: Library, clashes: Sequence[Clash]) -> Callable[[Sequence[Any]], bool]:
        return relauncher(
            self.plan,
            None if _annotate() is nullcontext else self.launch,
            library.stream_getter(self.device),
            self._addresses_of(library),
            clashes,
            n_operands=len(self.operands),
            has_workspace=self.workspace_size > 0,
        )

    def _addresses_of(self, library: Library) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Return the library's `addresses`, with a 0 for an operand that is absent."""
        absent = [place for place, reach in enumerate(self.reaches) if reach is None]
        if not absent:
            return library.addresses

        def addresses_of(arrays: Sequence[Any]) -> Sequence[Any]:
            addresses = [*library.addresses(arrays)]
            for place in absent:
                addresses.insert(place, 0)
            return addresses

        return addresses_of

    def scratch_maker(self, library: Library) -> Callable[[], Any]:
        """Return what allocates the workspace, as quick as it can be."""
        return library.allocator(TensorDesc(TensorDataType.UINT8, (self.workspace_size,)), self.device)

    def _repeated_on_host(
        self, library: Library, clashes: Sequence[Clash], allocates: bool
    ) -> Callable[[Sequence[Any]], bool]:
        from kernels_cpu.overlap import MOST_OPERANDS, closeness_test  # noqa: PLC0415 - imports Numba

        n_operands, size = len(self.operands), self.workspace_size
        launch, are_close = self.plan.launch, closeness_test(clashes)
        absent = (0,) * (MOST_OPERANDS - n_operands - (not allocates))
        addresses_of = self._addresses_of(library)

        def run(given: Sequence[Any]) -> bool:
            places = addresses_of(given)
            if are_close(*places, *absent):
                return False
            if allocates:
                memory, _owner = host_scratch(size)
                launch(*places, memory)
            else:
                launch(*places[:n_operands], aligned(address_of(places[n_operands])) if size else 0)
            return True

        return run

    def addresses(self, bound: Sequence[tuple[Library, Any] | None]) -> list[int]:
        """Return the operands as the kernels take them: by address, 0 where one is absent."""
        return [0 if operand is None else operand[0].address(operand[1]) for operand in bound]

    def check_overlap(self, addresses: Sequence[int], names: Sequence[str]) -> None:
        """Refuse outputs that share memory with another operand; `names` are theirs in error texts.

        Raises
        ------
        InvalidDescriptorError
            If two of them do.
        """
        for i, j, _, _ in self.clashes:
            if self._share(addresses, i, addresses[j], self.reaches[j]):
                _refuse_overlap(names[j], names[i], "an output must have memory of its own")

    def _share(self, addresses: Sequence[int], place: int, other: int, other_reach: Reach | None) -> bool:
        reach = self.reaches[place]
        return bool(reach and other_reach and share_memory(addresses[place], reach, other, other_reach))

    def launch(self, addresses: Sequence[int], workspace: int, handle: int) -> None:
        """Run the kernels."""
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s on %s: %s", self.descriptor.name, self.device, self.plan.variant)
        if self.device is CPU:
            self.plan.launch(*addresses, workspace)
        else:
            with _profiler_range(self.descriptor.name):
                self.plan.launch(handle, *addresses, workspace)

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

    def read(self, address: int, data_type: TensorDataType, handle: int) -> int:
        """Return the integer at an address; waits on a GPU."""
        dtype = numpy_dtype(data_type)
        if self.device is CPU:
            return read_integer(address, dtype)
        return cuda.read_back(address, dtype, handle)

    def allocating_on(self, library: Library, stream: Any, handle: int) -> AbstractContextManager[Any]:
        """Return a context in which the library's new arrays belong to the stream of this call."""
        if stream is None or self.device is CPU:
            return nullcontext()
        return library.allocating_on(handle, self.device)

    def scratch(self, library: Library) -> tuple[int, Any]:
        """Return the address of temporary memory, and the object that keeps it alive."""
        if self.workspace_size == 0:
            return 0, None
        if self.device is CPU:
            return host_scratch(self.workspace_size)
        owner = library.empty((self.workspace_size,), TensorDataType.UINT8, self.device)
        return aligned(library.address(owner)), owner

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

    def _given_workspace(self, workspace: Any, addresses: Sequence[int]) -> int:
        where = f"{self.descriptor.name}.workspace"
        library, array = arrays.adopt_output(workspace, where)
        kind = "workspace", library, library.signature(array)
        reach = self._workspaces.get(kind)
        if reach is None:
            reach = self._workspaces[kind] = self._checked_workspace(where, library, array)
        if self.workspace_size == 0:
            return 0
        address = library.address(array)
        for place, key in enumerate(self.operands):
            if self._share(addresses, place, address, reach):
                allowed = "it must have memory of its own"
                _refuse_overlap(where, f"{self.descriptor.name}.{key}", allowed)
        return aligned(address)

    def _checked_workspace(self, where: str, library: Library, array: Any) -> Reach:
        self._check_device(where, library.device(array))
        desc = library.describe(array, where)
        size = desc.element_count * desc.data_type.bytes
        if size < self.workspace_size:
            allowed = f"at least {self.workspace_size} bytes are needed"
            raise InvalidDescriptorError(wording(where, f"{size} bytes", "the operator needs more", allowed))
        if desc.extent != desc.element_count or desc.offset:
            got, allowed = f"strides {desc.effective_strides}", "it must be contiguous"
            raise InvalidDescriptorError(wording(where, got, "it has gaps or runs backwards", allowed))
        return Reach.of(desc)


def compile_operator(
    descriptor: Descriptor,
    device: Device,
    operands: tuple[str, ...],
    tensors: Mapping[str, TensorDesc],
    plan: Any,
) -> CompiledOperator:
    """Join a descriptor and the plan of its kernels; `tensors` are the operands as they lie in memory."""
    reaches = tuple(Reach.of(tensors[key]) if key in tensors else None for key in operands)
    clashes = tuple(
        clash_of(i, first, j, second)
        for j, (key, second) in enumerate(zip(operands, reaches, strict=True))
        for i, first in enumerate(reaches[:j] if key.startswith("output_") else ())
        if first is not None and second is not None
    )
    return CompiledOperator(
        descriptor=descriptor,
        device=device,
        inputs=MappingProxyType(descriptor.inputs),
        outputs=MappingProxyType(descriptor.outputs),
        workspace_size=plan.workspace_size + ALIGNMENT if plan.workspace_size else 0,
        plan=plan,
        operands=operands,
        present=tuple(key for key in operands if key in tensors),
        reaches=reaches,
        clashes=clashes,
    )


def _refuse_overlap(name: str, other: str, allowed: str) -> None:
    reason = f"it shares memory with {other}"
    raise InvalidDescriptorError(wording(name, "an overlapping array", reason, allowed))


def _meaningful_strides(desc: TensorDesc) -> list[int]:
    return [stride for size, stride in zip(desc.sizes, desc.effective_strides, strict=True) if size > 1]


class _Kept(threading.local):
    size = 0
    scratch: tuple[int, Any] = (0, None)


_kept = _Kept()
_NO_SCRATCH = (0, None)


def host_scratch(size: int) -> tuple[int, Any]:
    """Return the address of at least `size` bytes of scratch, and what keeps them alive.

    This thread alone uses them, until its next call.
    """
    if size <= _kept.size:
        return _kept.scratch
    memory = np.empty(size + ALIGNMENT, np.uint8)
    scratch = aligned(address_of(memory)), memory
    if size <= _KEPT_SCRATCH:
        _kept.size, _kept.scratch = size, scratch
    return scratch


@functools.cache
def _annotate() -> Callable[[str], AbstractContextManager[Any]]:
    try:
        import nvtx  # noqa: PLC0415
    except ImportError:
        return nullcontext
    return functools.partial(nvtx.annotate, domain="dmlops")


def _profiler_range(name: str) -> AbstractContextManager[Any]:
    return _annotate()(name)
