"""Gathers that raise for an index out of range, before anything is written to the caller's memory.

A gather itself is safe for any indices. A new output may therefore be written before the check has ended:
nobody has seen it yet.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from dmlops.calls.call import BoundCall, Executor
from dmlops.calls.kinds import Kind
from dmlops.devices import cuda_driver
from dmlops.devices.cpu import HOST
from dmlops.devices.cuda import ALL_IN_RANGE, POSITION
from dmlops.devices.memory import CPU
from dmlops.types.data_types import numpy_dtype
from dmlops.types.errors import IndexOutOfRangeError, error_text, refuse
from dmlops.types.tensor import TensorDesc
from kernels_cpu.gather_nd.problem_words import CHECKS

if TYPE_CHECKING:
    from kernels_cpu.plan import ProblemPlan

# The words of the problem that make a gather a check.
_CHECK: Mapping[int, int] = MappingProxyType({CHECKS: 1})
_ReadInteger = Callable[[int, np.dtype], int]
"""Returns the integer at an address, of a type."""


class BoundCheckedGather(BoundCall):
    """A gather that raises for indices out of range, as a bound call.

    Parameters
    ----------
    batch_dims : int
        Dimensions that the input and the indices share.
    wraps : bool
        Whether negative indices count from the end.
    """

    waits = True
    plan: "ProblemPlan"
    expected = 0

    def __init__(self, *bound: Any, batch_dims: int, wraps: bool, **others: Any) -> None:
        super().__init__(*bound, **others)
        self.batch_dims, self.wraps = batch_dims, wraps

    def load(self) -> None:
        """Load the kernels of the gather and of the check."""
        super().load()
        self.plan.prepared(_CHECK)

    def run(
        self, executor: Executor, addresses: Sequence[int], made: list[object], workspace: int = 0
    ) -> list[object]:
        """Gather, or raise the error; see `BoundCall.run`."""
        gather = partial(self.launch, executor, addresses) if made else None
        first = executor.first_outside(self.plan, _CHECK, addresses[1], gather)
        if first >= 0:
            _refuse_tuple(self, self.inputs, addresses[1], first, executor.read)
        if not made:
            self.launch(executor, addresses)
        return made

    def refuse_capture(self, reason: str) -> None:
        """Raise the error that names the modes that do not wait."""
        reason += ", where nothing can be checked"
        refuse("gather_nd.mode", "'raise'", reason, 'mode must be "clip" or "fill"')


class CheckedGather(Kind):
    """The kind of a `BoundCheckedGather`: its native calls, of the gather and of the check."""

    call: BoundCheckedGather
    native: Any  # of a device or of the host

    def __init__(self, call: BoundCall, arrays: Sequence[object], *, has_out: bool) -> None:
        super().__init__(call, arrays, has_out=has_out)
        n_given = len(arrays) - len(call.inputs) if has_out else 0
        self._check: Any = type(self.native)(call, self.operands, n_given, _CHECK)
        self._has_out, self._is_on_host = has_out, call.device == CPU

    def run(self, arrays: tuple[object, ...], limits: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
        """Run a call, or raise for an index out of range; return whether it is done."""
        arguments = arrays + limits + sizes
        return self._run_on_host(arguments) if self._is_on_host else self._run_on_device(arguments)

    def _run_on_host(self, arguments: tuple[Any, ...]) -> bool:
        # A gather returns 0 if all tuples were in range, and -1 if it has not read them.
        outside = None if self._has_out else self.native(arguments)
        if outside == 0:
            return True
        first = self._check(arguments)
        if first is not None and first >= 0:
            self._refuse(arguments, first, HOST.read)
        if self._has_out:
            return first == -1 and self.native(arguments) is not None
        return outside == -1 and first == -1

    def _refuse(self, arguments: tuple[object, ...], first: int, read: _ReadInteger) -> None:
        """Raise the error for the tuple at a position, unless it has changed since the check."""
        library, indices = self.library, arguments[1]
        inputs = [library.describe(array, "gather_nd") for array in arguments[:2]]
        _refuse_tuple(self.call, inputs, library.address(indices), first, read)

    def _run_on_device(self, arguments: tuple[Any, ...]) -> bool:
        stream = self._check.waiting_stream()
        if stream is None:
            return False
        answer = self._check.launched(arguments, stream)
        if answer is None:
            return False
        # A new output is written while the check is under way.
        is_gathered = not self._has_out and self.native.launched(arguments, stream) is not None
        first = cuda_driver.read_back(answer.address, POSITION, stream)
        if first != ALL_IN_RANGE:
            self._refuse(arguments, first, lambda at, dtype: cuda_driver.read_back(at, dtype, stream))
            return False
        return is_gathered or self.native.launched(arguments, stream) is not None


def _refuse_tuple(
    call: BoundCheckedGather, inputs: Sequence[TensorDesc], at: int, first: int, read: _ReadInteger
) -> None:
    """Raise the error that names an index tuple of a gather, unless the tuple is in range.

    Parameters
    ----------
    call : BoundCheckedGather
        A gather of the same kind.
    inputs : sequence of TensorDesc
        The input and the indices.
    at : int
        The address of the indices.
    first : int
        The position of the tuple, in element order.
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
        low = -bound if indices.data_type.is_signed and call.wraps else 0
        if not low <= coordinate < bound:
            got = f"tuple {coordinates} at position {position}"
            reason = f"coordinate {j} is {coordinate}, and dimension {dimension} of x has {bound} elements"
            allowed = f"it must be in [{low}, {bound - 1}]"
            raise IndexOutOfRangeError(error_text("gather_nd.indices", got, reason, allowed))
