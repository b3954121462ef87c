"""Bound calls: everything that depends only on the kinds of the arguments is decided once, and kept.

Each call then only allocates, checks addresses and launches, and on a GPU orders the streams of the libraries
that take part.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, NoReturn

from dmlops.array_libraries import ArrayLibrary, Operand
from dmlops.calls.waiting import check_then_gather, count_then_expand
from dmlops.devices import cuda
from dmlops.devices.executors import HOST, Executor, Stream
from dmlops.devices.memory import (
    ALIGNMENT,
    CPU,
    ByteExtent,
    Device,
    OverlapCandidate,
    aligned,
    overlap_candidate,
    share_memory,
)
from dmlops.store import kernel_store
from dmlops.types.enums import TensorDataType
from dmlops.types.errors import DmlError, InvalidDescriptorError, error_text, refuse, shown
from dmlops.types.opaque_types import part_bytes
from dmlops.types.tensor import TensorDesc
from kernels_cpu.cached import cached_property

_log = logging.getLogger("dmlops")

# If all possible coordinates need so little room, one pass and a copy cost less than two passes.
_ONE_PASS_BYTES = 1 << 20


class Named(NamedTuple):
    """An array that a call takes: what error texts call it, how it lies in memory, and whose it is."""

    name: str
    desc: TensorDesc
    library: ArrayLibrary


class Manner(Enum):
    """The manner in which a call runs its plan."""

    LAUNCH = "launch"
    CHECK_THEN_GATHER = "check"
    """Raise for an index out of range before anything is written to the caller's memory."""
    COUNT_THEN_EXPAND = "count"
    """Allocate as many rows as were counted."""


class BoundCall:
    """An operator planned for arrays of certain kinds on one device; may be called from any thread.

    Parameters
    ----------
    name : str
        The operator's name, in logs and profilers.
    plan : object
        The kernels' plan; None where there is nothing to compute.
    inputs, outputs : sequence of Named
        The arrays that are passed, in the order in which the kernels take them.
    library : ArrayLibrary
        Whose arrays the results are, where the caller gives no outputs.
    device : Device
        Where the arrays live.
    manner : Manner
        How the plan is run.
    batch_dims : int
        Dimensions that the input and the indices of a gather share.
    """

    def __init__(
        self,
        name: str,
        plan: Any,
        inputs: Sequence[Named],
        outputs: Sequence[Named],
        library: ArrayLibrary,
        device: Device,
        manner: Manner = Manner.LAUNCH,
        batch_dims: int = 0,
    ) -> None:
        self.name, self.plan, self.library, self.device = name, plan, library, device
        self.manner, self.batch_dims = manner, batch_dims
        self.workspace_size = workspace_bytes(plan)
        self.inputs = tuple([operand.desc for operand in inputs])
        self.results = tuple([operand.desc for operand in outputs])
        self._operands = (*inputs, *outputs)
        # Only a matrix may have no input; its kernels then get address 0.
        self._leading = () if inputs else (0,)
        allocators = [library.allocator(desc, device) for desc in self.results]
        # Coordinates are allocated after they have been counted.
        uncounted = 1 if manner is Manner.COUNT_THEN_EXPAND else 0
        self.allocators = tuple(allocators[uncounted:])
        # A small call has room for all possible coordinates, and returns a copy of the actual ones.
        self.small_allocators = tuple(allocators)
        self._passed = (*inputs, *outputs[uncounted:])
        self._item_sizes = tuple([_item_size(operand.desc) for operand in self._passed])
        self._finalizes = type(library).finalize is not ArrayLibrary.finalize
        # What `replay` runs this call with: None until it is requested, False if there is none.
        self.replay: Any = None

    @property
    def n_leading(self) -> int:
        """The number of kernel arguments before the arrays that are passed."""
        return len(self._leading)

    # Computed when first needed: a single call that allocates its outputs needs none of it.
    @cached_property
    def _extents(self) -> tuple[ByteExtent, ...]:
        """The byte extent of each operand."""
        return tuple(ByteExtent.of(operand.desc) for operand in self._operands)

    @cached_property
    def overlap_candidates(self) -> tuple[OverlapCandidate, ...]:
        """The overlap candidates of each output and the operands before it."""
        extents = self._extents
        return tuple(
            overlap_candidate(i, extents[i], j, extents[j])
            for j in range(len(self.inputs), len(extents))
            for i in range(j)
        )

    @property
    def has_complex(self) -> bool:
        """Whether any operand is complex."""
        return any(getattr(operand.desc.data_type, "family", "") == "complex" for operand in self._operands)

    @property
    def reaches(self) -> list[int]:
        """The number of bytes that each array must have from its first element on."""
        return [extent.end for extent in self._extents]

    @cached_property
    def result_bytes(self) -> int:
        """The size of the first result, with a row for each possible coordinate."""
        return self.results[0].element_count * self.results[0].data_type.bytes

    @cached_property
    def counts_in_one_pass(self) -> bool:
        """Whether the possible coordinates are few enough to be written before they are counted."""
        return bool(self.plan.in_one_pass) and self.result_bytes <= _ONE_PASS_BYTES

    @property
    def counting_bytes(self) -> int:
        """The size of the scratch memory that the two passes of `count_then_expand` share."""
        in_one_pass = self.device is CPU and self.counts_in_one_pass
        return self.result_bytes if in_one_pass else self.workspace_size

    @property
    def bytes_moved(self) -> int:
        """About how many bytes a call reads and writes; a gather reads what it writes."""
        sizes = [extent.desc.element_count * extent.desc.data_type.bytes for extent in self._extents]
        return sum(sizes[1:]) + (sizes[-1] if len(sizes) == 3 and self.name == "gather_nd" else sizes[0])

    def __call__(
        self,
        inputs: Sequence[Operand],
        out: Sequence[Operand] = (),
        stream: Any = None,
        workspace: Operand | None = None,
    ) -> Sequence[Any]:
        """Run the operator and return the outputs.

        Parameters
        ----------
        inputs, out : sequence of Operand
            Arrays of the kinds that the call is bound to; without `out` the outputs are allocated.
        stream : int or stream object, optional
            The stream that the caller chose.
        workspace : Operand, optional
            An array of at least `workspace_size` bytes; allocated where left out.
        """
        handle = None if stream is None else self._handle(stream)
        if self.plan is None:
            return self._finalized([make() for make in self.allocators], 0)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s on %s: %s", self.name, self.device, self.plan.variant)
        run = self._on_host if self.device is CPU else partial(self._on_cuda, stream, handle)
        if not out:
            return run(inputs, out, workspace)
        written = out if workspace is None else (*out, workspace)
        try:
            outputs = run(inputs, out, workspace)
            _tell_of_write(written)
        except DmlError:  # raised before anything is written
            raise
        except BaseException:
            # An interrupt may come between the write and the line that tells of it.
            _tell_of_write(written)
            raise
        return outputs

    def _on_host(
        self, inputs: Sequence[Operand], out: Sequence[Operand], workspace: Operand | None
    ) -> Sequence[Any]:
        addresses, made = self._addresses(inputs, out, workspace)
        outputs = self.run(HOST, addresses, made, 0 if workspace is None else workspace.address)
        return self._finalized(outputs, 0) if self._finalizes else outputs

    def _handle(self, stream: Any) -> int:
        """Return the handle of the caller's stream, which must belong to the device of the arrays."""
        where = f"{self.name}.stream"
        if self.device == CPU:
            refuse(where, shown(stream), "the arrays live on cpu", "stream must be None")
        handle = cuda.stream_handle(stream, where)
        cuda.check_stream_device(handle, self.device.number, where)
        return handle

    def run(
        self, executor: Executor, addresses: Sequence[int], made: list[Any], workspace: int = 0
    ) -> list[Any]:
        """Run the plan on addresses that were checked, and return the new outputs.

        Parameters
        ----------
        executor : Executor
            Where it runs.
        addresses : sequence of int
            Of the inputs and of the outputs.
        made : list of array
            New outputs; empty where the outputs are the caller's.
        workspace : int, optional
            Address of at least `workspace_size` bytes; allocated where left out.
        """
        if self.manner is Manner.COUNT_THEN_EXPAND:
            x, count = addresses
            return [count_then_expand(self, executor, x, count), *made]
        if self.manner is Manner.CHECK_THEN_GATHER:
            check_then_gather(self, executor, addresses, is_new=bool(made))
        else:
            self.launch(executor, addresses, workspace)
        return made

    def launch(self, executor: Executor, addresses: Sequence[int], workspace: int = 0) -> Any:
        """Launch the plan, and return what it does: on the host what its only kernel found, if it has one."""
        arguments = (*executor.leading, *self._leading, *addresses)
        if not self.workspace_size:
            return self.plan.launch(*arguments, 0)
        if workspace:
            return self.plan.launch(*arguments, aligned(workspace))
        with executor.scratch(self.workspace_size) as scratch:
            return self.plan.launch(*arguments, scratch)

    def run_on_cuda(
        self, library: ArrayLibrary, addresses: Sequence[int], made: list[Any], workspace: int = 0
    ) -> list[Any]:
        """Run the plan as `run`, on a library's current stream."""
        with cuda.device_made_current(self.device.number), _profiler_range(self.name):
            stream = library.current_stream(self.device)
            with Stream(stream, library, self.device) as executor:
                self._check_capture(stream)
                return self.run(executor, addresses, made, workspace)

    def _on_cuda(
        self,
        given: Any,
        stream: int | None,
        inputs: Sequence[Operand],
        out: Sequence[Operand],
        workspace: Operand | None,
    ) -> Sequence[Any]:
        operands = (*inputs, *out) if workspace is None else (*inputs, *out, workspace)
        first = operands[0].library if operands else self.library
        with cuda.device_made_current(self.device.number), _profiler_range(self.name):
            handle = first.current_stream(self.device) if stream is None else stream
            ordering = self._order(handle, first, operands)
            if ordering is not None:
                ordering.begin()
            with Stream(handle, first, self.device) as executor:
                with nullcontext() if stream is None else first.on_stream(handle, self.device, given):
                    self._check_capture(handle)
                    addresses, made = self._addresses(inputs, out, workspace)
                    at = 0 if workspace is None else workspace.address
                    outputs = self.run(executor, addresses, made, at)
                if ordering is not None:
                    ordering.end()
                return self._finalized(outputs, handle) if self._finalizes and outputs else outputs

    def _order(self, handle: int, first: ArrayLibrary, operands: Sequence[Operand]) -> cuda.Ordering | None:
        """Return the order between the call's stream and those of the libraries that do not own it."""
        libraries = {operand.library for operand in operands}
        if libraries <= {first} and not first.needs_ordering:
            return None
        streams = {library.current_stream(self.device) for library in libraries - {first}}
        named = [operand.library.producer_stream(operand.array) for operand in operands]
        streams.update(stream for stream in named if stream is not None)
        return cuda.Ordering(
            handle, streams, [operand.array for operand in operands if operand.library.is_lent]
        )

    def _check_capture(self, stream: int) -> None:
        """Refuse a call that waits while its stream is being captured."""
        if self.manner is Manner.LAUNCH or not cuda.is_capturing(stream):
            return
        reason = "the stream is being captured into a CUDA graph"
        if self.manner is Manner.CHECK_THEN_GATHER:
            reason += ", where nothing can be checked"
            refuse("gather_nd.mode", "'raise'", reason, 'mode must be "clip" or "fill"')
        allowed = "size must be a number of rows, so that nothing waits"
        refuse("nonzero_coordinates.size", None, reason, allowed)

    def _addresses(
        self, inputs: Sequence[Operand], out: Sequence[Operand], workspace: Operand | None
    ) -> tuple[list[int], list[Any]]:
        """Return the checked addresses of inputs and outputs, and the outputs that were allocated."""
        made = [] if out else [make() for make in self.allocators]
        addresses = [address for _, _, _, address in (*inputs, *out)]
        if made:
            addresses += self.library.addresses(made)
        self._check_addresses(addresses)
        if out:
            self._check_overlap(addresses)
        if workspace is not None:
            self._check_workspace(workspace.address, addresses)
        return addresses, made

    def _check_addresses(self, addresses: Sequence[int]) -> None:
        """Refuse addresses that kernels could not use: the last check, after those of the libraries."""
        for address, size in zip(addresses, self._item_sizes):  # noqa: B905 - slow with strict
            if size and (not address or address % size):
                self._refuse_address(address, size, self._passed[addresses.index(address)].name)

    def _refuse_address(self, address: int, size: int, name: str) -> NoReturn:
        got, reason = f"an array at address {address:#x}", f"it has elements of {size} bytes"
        allowed = "they must be in memory, at a multiple of their size"
        raise InvalidDescriptorError(error_text(name, got, reason, allowed))

    def _check_overlap(self, addresses: Sequence[int]) -> None:
        """Refuse outputs that share memory with another operand."""
        for i, j, above, below in self.overlap_candidates:
            if above < addresses[j] - addresses[i] < below and share_memory(
                addresses[i], self._extents[i], addresses[j], self._extents[j]
            ):
                names = self._operands[j].name, self._operands[i].name
                _refuse_overlap(*names, "an output must have memory of its own")

    @property
    def workspace_candidates(self) -> list[OverlapCandidate]:
        """The overlap candidates of each operand and the workspace, which comes after them."""
        extents = self._extents
        return [
            overlap_candidate(i, extent, len(extents), self._workspace_extent)
            for i, extent in enumerate(extents)
        ]

    @property
    def _workspace_extent(self) -> ByteExtent:
        return ByteExtent.of(TensorDesc(TensorDataType.UINT8, (self.workspace_size,)))

    def _check_workspace(self, workspace: int, addresses: Sequence[int]) -> None:
        """Refuse a workspace that shares memory with an operand."""
        extent = self._workspace_extent
        for address, other, operand in zip(addresses, self._extents, self._operands, strict=True):
            if share_memory(address, other, workspace, extent):
                _refuse_overlap(f"{self.name}.workspace", operand.name, "it must have memory of its own")

    def _finalized(self, outputs: Sequence[Any], stream: int) -> Sequence[Any]:
        finalize = self.library.finalize
        return [finalize(array, stream) for array in outputs]


def _tell_of_write(written: Sequence[Operand]) -> None:
    """Tell the library of each array that a call has written to it."""
    for operand in written:
        if operand.library.was_written is not None:
            operand.library.was_written((operand.array,))


def workspace_bytes(plan: Any) -> int:
    """Return the size of a workspace whose aligned part is as large as the plan requires."""
    size = 0 if plan is None else plan.workspace_size
    return size + ALIGNMENT if size else 0


def _item_size(desc: TensorDesc) -> int:
    """Return the number of which the address of such an array must be a multiple; 0 without elements."""
    return part_bytes(desc.data_type) if desc.element_count else 0


def _refuse_overlap(name: str, other: str, allowed: str) -> None:
    reason = f"it shares memory with {other}"
    raise InvalidDescriptorError(error_text(name, "an overlapping array", reason, allowed))


@functools.cache
def _annotate() -> Callable[[str], AbstractContextManager[Any]]:
    try:
        annotate = kernel_store.imported("nvtx").annotate
    except ImportError:
        return nullcontext
    return functools.partial(annotate, domain="dmlops")


def is_profiled() -> bool:
    """Return whether each call on a GPU is reported to profilers."""
    return _annotate() is not nullcontext


def _profiler_range(name: str) -> AbstractContextManager[Any]:
    return _annotate()(name)
