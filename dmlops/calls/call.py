"""Bound calls: everything that depends only on the kinds of the arguments is decided once, and kept.

Each call then only allocates, checks addresses and launches, and on a GPU orders the streams of the libraries
that take part.
"""

import ctypes
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from dmlops.array_libraries.base import ArrayLibrary, Operand
from dmlops.calls.guard import Guard, NamedTensor
from dmlops.devices import cuda_driver
from dmlops.devices.cpu import HOST, Host
from dmlops.devices.cuda import Stream
from dmlops.devices.memory import ALIGNMENT, CPU, Device, aligned
from dmlops.devices.plans import Plan
from dmlops.types.errors import DmlError, refuse, shown
from dmlops.types.tensor import TensorDesc
from kernels_cpu.problems import Problem

Executor = Host | Stream

_log = logging.getLogger("dmlops")

# Calls that read and write up to this many bytes take some microseconds.
_SMALL_BYTES = 1 << 16


class KindForm(NamedTuple):
    """How native code can make other calls of a kind, as its operator says."""

    operator: str
    """The module's name in ``kernels_cpu`` and ``kernels_cuda``."""
    make: Callable[..., Any]
    """Makes the kind (`kinds.Kind`)."""
    sizes: tuple[int, ...]
    """The sizes of the first call, in the order in which the operator's `fit` takes them."""
    fixed: tuple[int, ...]
    """What `fit` needs besides."""
    shapes: Callable[[Sequence[object], tuple[int, ...]], Sequence[tuple[int, ...]]]
    """Returns the shapes of the outputs for the inputs and the sizes of a call."""
    gathered: int = -1
    """The input of which only what is selected is read; -1 if there is none."""
    is_limited: bool = False
    """Whether all tensors must be those of DirectML."""
    expected: Sequence[TensorDesc] | None = None
    """How the arrays must lie in memory, if the kind has no sizes."""
    host: "ctypes.Array[ctypes.c_int64] | None" = None
    """The words of the host for which it is planned; by default the host as it is when a call is made."""
    workspace: int = 0
    """The bytes that the caller's workspace must have."""


class BoundCall:
    """An operator planned for arrays of certain kinds on one device; may be called from any thread.

    Parameters
    ----------
    name : str
        The operator's name, in logs and profilers.
    plan : Plan, optional
        The kernels' plan; None where there is nothing to compute.
    inputs, outputs : sequence of NamedTensor
        The arrays that are passed, in the order in which the kernels take them.
    library : ArrayLibrary
        Whose arrays the results are, where the caller gives no outputs.
    device : Device
        Where the arrays live.
    form : KindForm, optional
        How native code can make other calls of the kind.
    problem : Problem, optional
        What is planned, if that is one problem.

    Attributes
    ----------
    waits : bool
        Whether a run on a GPU waits for it.
    expected : int or None
        What the kernel of a call with new outputs returns if it has succeeded; None if it does not say.
    """

    waits = False
    expected: int | None = None

    def __init__(
        self,
        name: str,
        plan: Plan | None,
        inputs: Sequence[NamedTensor],
        outputs: Sequence[NamedTensor],
        library: ArrayLibrary,
        device: Device,
        form: "KindForm | None" = None,
        problem: Problem | None = None,
    ) -> None:
        self.form, self.problem = form, problem
        # Whether native code was asked to serve the kind, after a run.
        self.was_offered = False
        self.name, self.plan, self.library, self.device = name, plan, library, device
        self.workspace_size = workspace_bytes(plan)
        self.inputs = tuple([operand.desc for operand in inputs])
        self.results = tuple([operand.desc for operand in outputs])
        # Only a matrix may have no input; its kernels then get address 0.
        self.leading = () if inputs else (0,)
        sizes = [desc.element_count * desc.data_type.bytes for desc in (*self.inputs, *self.results)]
        self.is_small = sum(sizes) <= _SMALL_BYTES
        self.load()
        n_later = self.n_made_later()
        self.allocators = tuple([library.allocator(desc, device) for desc in self.results[n_later:]])
        self.guard = Guard(name, inputs, outputs[n_later:], self.workspace_size)

    def load(self) -> None:
        """Load all kernels that a run may need: a later call shall not wait for them."""
        if self.plan is not None:
            self.plan.prepared()

    def n_made_later(self) -> int:
        """Return how many outputs, the first ones, are allocated only when a run knows their sizes."""
        return 0

    @property
    def kind_form(self) -> KindForm:
        """The form of the kind, of a call that has one."""
        assert self.form is not None
        return self.form

    def __call__(
        self,
        inputs: Sequence[Operand],
        out: Sequence[Operand] = (),
        stream: object = None,
        workspace: Operand | None = None,
        make: Callable[[], Sequence[object] | None] | None = None,
    ) -> Sequence[object] | None:
        """Run the operator and return the outputs.

        Parameters
        ----------
        inputs, out : sequence of Operand
            Arrays of the kinds that the call is bound to; without `out` the outputs are allocated.
        stream : int or stream object, optional
            The stream that the caller chose.
        workspace : Operand, optional
            An array of at least `workspace_size` bytes; allocated where left out.
        make : callable, optional
            Makes another call of the kind on these arrays instead, and returns its new outputs; or None with
            nothing done, and then this call does nothing either.
        """
        handle = None if stream is None else self._handle(stream)
        if self.plan is None:
            return self._finalized([make() for make in self.allocators], 0)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s on %s: %s", self.name, self.device, self.plan.variant)
        written = out if workspace is None else (*out, workspace)

        def run(executor: Executor) -> Sequence[object] | None:
            if make is not None:
                return make()
            return self.run(executor, *self._addresses(inputs, out, workspace))

        try:
            if self.device is CPU:
                outputs = self._finalized(run(HOST), 0)
            else:
                outputs = self._on_cuda(stream, handle, (*inputs, *written), run)
            _tell_of_write(written)
        except DmlError:  # raised before anything is written
            raise
        except BaseException:
            # An interrupt may come between the write and the line that tells of it.
            _tell_of_write(written)
            raise
        return outputs

    def _handle(self, stream: object) -> int:
        """Return the handle of the caller's stream, which must belong to the device of the arrays."""
        where = f"{self.name}.stream"
        if self.device == CPU:
            refuse(where, shown(stream), "the arrays live on cpu", "stream must be None")
        handle = cuda_driver.stream_handle(stream, where)
        cuda_driver.check_stream_device(handle, self.device.number, where)
        return handle

    def run(
        self, executor: Executor, addresses: Sequence[int], made: list[object], workspace: int = 0
    ) -> list[object]:
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
        self.launch(executor, addresses, workspace)
        return made

    def launch(self, executor: Executor, addresses: Sequence[int], workspace: int = 0) -> Any:
        """Launch the plan; return its result on the host (`Plan.launch`), or -1."""
        assert self.plan is not None
        arguments = (*executor.leading, *self.leading, *addresses)
        if not self.workspace_size:
            return self.plan.launch(*arguments, 0)
        if workspace:
            return self.plan.launch(*arguments, aligned(workspace))
        with executor.scratch(self.workspace_size) as scratch:
            return self.plan.launch(*arguments, scratch)

    def _on_cuda(
        self,
        given: object,
        stream: int | None,
        operands: Sequence[Operand],
        run: Callable[[Executor], Sequence[object] | None],
    ) -> Sequence[object] | None:
        first = operands[0].library if operands else self.library
        with cuda_driver.device_made_current(self.device.number):
            handle = first.current_stream(self.device) if stream is None else stream
            chosen = nullcontext() if stream is None else first.on_stream(handle, self.device, given)
            with Stream(handle, first, self.device) as executor:
                with self._ordered(handle, first, operands), chosen:
                    self._check_capture(handle)
                    outputs = run(executor)
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
        if self.waits and cuda_driver.is_capturing(stream):
            self.refuse_capture("the stream is being captured into a CUDA graph")

    def refuse_capture(self, reason: str) -> None:
        """Raise the error that says how to call without waiting."""
        raise NotImplementedError

    def _addresses(
        self, inputs: Sequence[Operand], out: Sequence[Operand], workspace: Operand | None
    ) -> tuple[list[int], list[object], int]:
        """Return the checked addresses of inputs and outputs, new outputs, and the workspace's address."""
        made = [] if out else [make() for make in self.allocators]
        addresses = [operand[3] for operand in (*inputs, *out)] + list(map(self.library.address, made))
        if workspace is None:
            self.guard.check(addresses, are_given=bool(out))
            return addresses, made, 0
        self.guard.check([*addresses, workspace.address], are_given=True)
        return addresses, made, workspace.address

    def _finalized(self, outputs: Sequence[object] | None, stream: int) -> Sequence[object] | None:
        finalize = self.library.finalize
        return None if outputs is None else [finalize(array, stream) for array in outputs]


def _tell_of_write(written: Sequence[Operand]) -> None:
    """Tell the library of each array that a call has written to it."""
    for operand in written:
        if operand.library.was_written is not None:
            operand.library.was_written((operand.array,))


def workspace_bytes(plan: Plan | None) -> int:
    """Return the size of a workspace whose aligned part is as large as the plan requires."""
    size = 0 if plan is None else plan.workspace_size
    return size + ALIGNMENT if size else 0
