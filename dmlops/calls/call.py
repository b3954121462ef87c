"""Bound calls: everything that depends only on the kinds of the arguments is decided once, and kept.

Each call then only allocates, checks addresses and launches, and on a GPU orders the streams of the libraries
that take part.
"""

import ctypes
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dmlops.array_libraries.base import ArrayLibrary, Operand
from dmlops.calls.guard import Guard, Named
from dmlops.devices import cuda_driver
from dmlops.devices.cpu import HOST, Host
from dmlops.devices.cuda import Stream
from dmlops.devices.memory import ALIGNMENT, CPU, Device, aligned
from dmlops.types.data_types import numpy_dtype
from dmlops.types.errors import DmlError, IndexOutOfRangeError, error_text, refuse, shown
from dmlops.types.tensor import TensorDesc

Executor = Host | Stream
ReadInteger = Callable[[int, "np.dtype[Any]"], int]
"""Returns the integer of a type at an address."""

_log = logging.getLogger("dmlops")

# Calls that read and write up to this many bytes take some microseconds.
_SMALL_BYTES = 1 << 16
# If all possible coordinates need so little room, one pass and a copy cost less than two passes.
_ONE_PASS_BYTES = 1 << 20


class KindForm(NamedTuple):
    """What an operator says of a kind of its calls, for native code to make others of the kind.

    Attributes
    ----------
    operator : str
        The module's name in ``kernels_cpu`` and ``kernels_cuda``.
    make : callable
        Makes the kind (`kinds.Kind`).
    sizes : tuple of int
        The sizes of the first call, in the order in which the operator's `fit` takes them.
    fixed : tuple of int
        What `fit` needs besides.
    shapes : callable
        Returns the shapes of the outputs for the inputs and the sizes of a call.
    gathered : int
        The input of which only what is selected is read; -1 if there is none.
    is_limited : bool
        Whether all tensors must be those of DirectML.
    expected : sequence of TensorDesc, optional
        How the arrays must lie in memory, if the kind has no sizes.
    host : ctypes array, optional
        The words of the host for which it is planned; by default the host as it is when a call is made.
    workspace : int
        The bytes that the caller's workspace must have.
    """

    operator: str
    make: Callable[..., Any]
    sizes: tuple[int, ...]
    fixed: tuple[int, ...]
    shapes: Callable[[Sequence[Any], tuple[int, ...]], Sequence[tuple[int, ...]]]
    gathered: int = -1
    is_limited: bool = False
    expected: Sequence[TensorDesc] | None = None
    host: Any = None
    workspace: int = 0


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
    form : KindForm, optional
        How native code can make other calls of the kind.
    problem : Problem, optional
        What is planned, if that is one problem.
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
        form: "KindForm | None" = None,
        problem: Any = None,
    ) -> None:
        self.form, self.problem = form, problem
        # Whether native code was asked to serve the kind, after a run.
        self.was_offered = False
        self.name, self.plan, self.library, self.device = name, plan, library, device
        self.manner, self.batch_dims = manner, batch_dims
        self.workspace_size = workspace_bytes(plan)
        self.inputs = tuple([operand.desc for operand in inputs])
        self.results = tuple([operand.desc for operand in outputs])
        # Only a matrix may have no input; its kernels then get address 0.
        self.leading = () if inputs else (0,)
        sizes = [desc.element_count * desc.data_type.bytes for desc in (*self.inputs, *self.results)]
        # The size of the first result, with a row for each possible coordinate.
        self._result_bytes = sizes[len(inputs)]
        self.is_small = sum(sizes) <= _SMALL_BYTES
        counts = manner is Manner.COUNT_THEN_EXPAND
        # A small call has room for all possible coordinates, and returns a copy of the actual ones.
        self.is_trimmed = counts and device is CPU and self._result_bytes > 0 and self.is_small
        allocators = [library.allocator(desc, device) for desc in self.results]
        # Other coordinates are allocated after they have been counted.
        uncounted = 1 if counts and not self.is_trimmed else 0
        self.allocators = tuple(allocators[uncounted:])
        self.guard = Guard(name, inputs, outputs[uncounted:], self.workspace_size)

    @property
    def kind_form(self) -> KindForm:
        """The form of the kind, of a call that has one."""
        assert self.form is not None
        return self.form

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
        written = out if workspace is None else (*out, workspace)
        try:
            if self.device is CPU:
                outputs = self._finalized(self.run(HOST, *self._addresses(inputs, out, workspace)), 0)
            else:
                outputs = self._on_cuda(stream, handle, inputs, out, workspace)
            _tell_of_write(written)
        except DmlError:  # raised before anything is written
            raise
        except BaseException:
            # An interrupt may come between the write and the line that tells of it.
            _tell_of_write(written)
            raise
        return outputs

    def _handle(self, stream: Any) -> int:
        """Return the handle of the caller's stream, which must belong to the device of the arrays."""
        where = f"{self.name}.stream"
        if self.device == CPU:
            refuse(where, shown(stream), "the arrays live on cpu", "stream must be None")
        handle = cuda_driver.stream_handle(stream, where)
        cuda_driver.check_stream_device(handle, self.device.number, where)
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
        if self.manner is Manner.CHECK_THEN_GATHER:
            self._check_then_gather(executor, addresses, is_new=bool(made))
        elif self.manner is Manner.COUNT_THEN_EXPAND and not self.is_trimmed:
            made.insert(0, self._count_then_expand(executor, *addresses))
        else:
            found = self.launch(executor, addresses, workspace)
            if self.is_trimmed:
                made[0] = self.library.trimmed(made[0], found)
        return made

    def launch(self, executor: Executor, addresses: Sequence[int], workspace: int = 0) -> Any:
        """Launch the plan, and return what it does: on the host what its only kernel found, if it has one."""
        arguments = (*executor.leading, *self.leading, *addresses)
        if not self.workspace_size:
            return self.plan.launch(*arguments, 0)
        if workspace:
            return self.plan.launch(*arguments, aligned(workspace))
        with executor.scratch(self.workspace_size) as scratch:
            return self.plan.launch(*arguments, scratch)

    def _check_then_gather(self, executor: Executor, addresses: Sequence[int], *, is_new: bool) -> None:
        """Gather, or raise for an index out of range before anything is written to the caller's memory.

        The plan is safe for any indices. Nobody has seen a new output yet, so that it may be written before
        the check has ended.
        """
        gather = partial(self.launch, executor, addresses) if is_new else None
        first = executor.first_offender(self.plan, addresses[1], gather)
        if first >= 0:
            refuse_tuple(self, self.inputs, addresses[1], first, executor.read)
        if not is_new:
            self.launch(executor, addresses)

    def _count_then_expand(self, executor: Executor, x: int, count: int) -> Any:
        """Count, and return a new array with that many rows of coordinates."""
        coordinates = self.results[0]
        n_columns = coordinates.sizes[1]
        empty, address = self.library.empty, self.library.address
        if self.device is CPU and self.plan.in_one_pass and self._result_bytes <= _ONE_PASS_BYTES:
            with executor.scratch(self._result_bytes) as scratch:
                rows = self.plan.launch(x, scratch, count, 0)
                listed = empty((rows, n_columns), coordinates.data_type, self.device)
                n_bytes = rows * n_columns * coordinates.data_type.bytes
                ctypes.memmove(address(listed), scratch, n_bytes)
            return listed
        with executor.scratch(self.workspace_size) as scratch:
            rows = executor.count(self.plan, x, count, scratch, numpy_dtype(coordinates.data_type))
            listed = empty((rows, n_columns), coordinates.data_type, self.device)
            if rows and n_columns:
                self.plan.expand(*executor.leading, x, address(listed), rows, scratch)
        return listed

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
        with cuda_driver.device_made_current(self.device.number):
            handle = first.current_stream(self.device) if stream is None else stream
            chosen = nullcontext() if stream is None else first.on_stream(handle, self.device, given)
            with Stream(handle, first, self.device) as executor:
                with self._ordered(handle, first, operands), chosen:
                    self._check_capture(handle)
                    outputs = self.run(executor, *self._addresses(inputs, out, workspace))
                return self._finalized(outputs, handle)

    def _ordered(
        self, handle: int, first: ArrayLibrary, operands: Sequence[Operand]
    ) -> AbstractContextManager[None]:
        """Return a context of order between the call's stream and those of libraries that do not own it."""
        libraries = {operand.library for operand in operands}
        if libraries <= {first} and not first.needs_ordering:
            return nullcontext()
        streams = {library.current_stream(self.device) for library in libraries - {first}}
        named = [operand.library.producer_stream(operand.array) for operand in operands]
        streams.update(stream for stream in named if stream is not None)
        lent = [operand.array for operand in operands if operand.library.is_lent]
        return cuda_driver.ordered(handle, streams, lent)

    def _check_capture(self, stream: int) -> None:
        """Refuse a call that waits while its stream is being captured."""
        if self.manner is Manner.LAUNCH or not cuda_driver.is_capturing(stream):
            return
        reason = "the stream is being captured into a CUDA graph"
        if self.manner is Manner.CHECK_THEN_GATHER:
            reason += ", where nothing can be checked"
            refuse("gather_nd.mode", "'raise'", reason, 'mode must be "clip" or "fill"')
        allowed = "size must be a number of rows, so that nothing waits"
        refuse("nonzero_coordinates.size", None, reason, allowed)

    def _addresses(
        self, inputs: Sequence[Operand], out: Sequence[Operand], workspace: Operand | None
    ) -> tuple[list[int], list[Any], int]:
        """Return the checked addresses of inputs and outputs, new outputs, and the workspace's address."""
        made = [] if out else [make() for make in self.allocators]
        addresses = [operand[3] for operand in (*inputs, *out)] + list(map(self.library.address, made))
        if workspace is None:
            self.guard.check(addresses, are_given=bool(out))
            return addresses, made, 0
        self.guard.check([*addresses, workspace.address], are_given=True)
        return addresses, made, workspace.address

    def _finalized(self, outputs: Sequence[Any], stream: int) -> Sequence[Any]:
        finalize = self.library.finalize
        return [finalize(array, stream) for array in outputs]


def refuse_tuple(
    call: BoundCall, inputs: Sequence[TensorDesc], at: int, first: int, read: ReadInteger
) -> None:
    """Raise the error that names a gather's tuple at a position, in element order, unless it is in range.

    Parameters
    ----------
    call : BoundCall
        A gather of the same kind.
    inputs : sequence of TensorDesc
        The input and the indices.
    at : int
        The address of the indices.
    first : int
        The position.
    read : callable
        Reads the memory of the indices.
    """
    x, indices = inputs
    position = tuple(int(i) for i in np.unravel_index(first, indices.sizes[:-1]))
    *steps, step = indices.effective_strides
    start = sum(i * stride for i, stride in zip(position, steps, strict=True))
    dtype = numpy_dtype(indices.data_type)
    places = [start + j * step for j in range(indices.sizes[-1])]
    coordinates = tuple(read(at + place * dtype.itemsize, dtype) for place in places)
    for j, coordinate in enumerate(coordinates):
        dimension = call.batch_dims + j
        bound = x.sizes[dimension]
        low = -bound if indices.data_type.is_signed and call.problem.wraps else 0
        if not low <= coordinate < bound:
            got = f"tuple {coordinates} at position {position}"
            reason = f"coordinate {j} is {coordinate}, and dimension {dimension} of x has {bound} elements"
            allowed = f"it must be in [{low}, {bound - 1}]"
            raise IndexOutOfRangeError(error_text("gather_nd.indices", got, reason, allowed))


def _tell_of_write(written: Sequence[Operand]) -> None:
    """Tell the library of each array that a call has written to it."""
    for operand in written:
        if operand.library.was_written is not None:
            operand.library.was_written((operand.array,))


def workspace_bytes(plan: Any) -> int:
    """Return the size of a workspace whose aligned part is as large as the plan requires."""
    size = 0 if plan is None else plan.workspace_size
    return size + ALIGNMENT if size else 0
