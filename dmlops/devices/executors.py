"""Executors run kernels: on the host, or on a stream of a GPU.

An executor provides scratch memory and knows how the plans of its device launch, check and count. On the
host, the functions of a plan return their answers. On a GPU, they leave them in device memory, and the
executor waits for them.
"""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from dmlops.array_libraries import ArrayLibrary
from dmlops.devices import cuda
from dmlops.devices.memory import Device, aligned, read_integer, take_scratch
from dmlops.types.data_types import numpy_dtype
from dmlops.types.enums import TensorDataType
from dmlops.types.errors import DmlError

if TYPE_CHECKING:
    from dmlops.calls.call import BoundCall

# On a GPU, the check of gather indices writes this if every tuple is in range.
_NO_OFFENDER = 2**63 - 1
_POSITION = np.dtype(np.int64)


class Host:
    """Runs CPU plans, in the calling thread and those of the pool."""

    leading: Sequence[int] = ()
    """The first arguments of every launch."""

    def scratch(self, size: int) -> AbstractContextManager[int]:
        """Return scratch memory for a ``with`` block, which gets its aligned address."""
        return take_scratch(size)

    def first_offender(self, plan: Any, indices: int, meanwhile: Callable[[], Any] | None) -> int:
        """Return the position of the first tuple out of range, or -1.

        Parameters
        ----------
        plan : object
            That of a gather.
        indices : int
            Their address.
        meanwhile : callable, optional
            Launches the gather before the answer is known; returns 0 if it has found all tuples in range.
        """
        check = plan.check  # loads its kernel in the first call, whatever the indices are
        if meanwhile is not None and meanwhile() == 0:
            return -1
        return check(indices)  # type: ignore[no-any-return]

    def count(self, call: "BoundCall", x: int, count: int, scratch: int) -> int:
        """Write and return the number of non-zero elements."""
        if call.counts_in_one_pass:  # this writes the coordinates as well
            return call.plan.launch(x, scratch, count, 0)  # type: ignore[no-any-return]
        call.plan.expand  # noqa: B018 - loads its kernel in the first call, even if nothing is counted
        return call.plan.count(x, count, scratch)  # type: ignore[no-any-return]

    def expand(self, call: "BoundCall", x: int, coordinates: int, rows: int, scratch: int) -> None:
        """Write as many coordinates as were counted with the same scratch memory."""
        if call.counts_in_one_pass:
            result = call.results[0]
            ctypes.memmove(coordinates, scratch, rows * result.sizes[1] * result.data_type.bytes)
        else:
            call.plan.expand(x, coordinates, rows, scratch)

    def read(self, address: int, dtype: "np.dtype[Any]") -> int:
        """Return an integer of this memory."""
        return read_integer(address, dtype)


HOST = Host()


class Stream:
    """Runs plans of the current CUDA device, on one stream.

    An error that leaves a ``with`` block waits for the stream: no kernel may work on memory that is freed.

    Parameters
    ----------
    handle : int
        The stream.
    library : ArrayLibrary
        Allocates scratch memory.
    device : Device
        The device of the stream.
    """

    def __init__(self, handle: int, library: ArrayLibrary, device: Device) -> None:
        self.leading = (handle,)
        self.handle, self._library, self._device = handle, library, device

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        # dmlops raises its errors before anything is launched, or after a wait.
        if error is not None and not isinstance(error, DmlError):
            cuda.finish(self.handle)

    def scratch(self, size: int) -> AbstractContextManager[int]:
        """Return scratch memory for a ``with`` block, which gets its aligned address."""
        library = self._library
        # A library that keeps memory by the handle of a stream would mix up threads.
        is_shared = self.handle == cuda.PER_THREAD_STREAM or not library.allocates_on_streams
        if is_shared or (not library.knows_capture and cuda.is_capturing(self.handle)):
            return cuda.StreamMemory(size, self.handle)
        array = self._bytes(size)
        return cuda.LibraryMemory(aligned(library.address(array)), array)

    def _bytes(self, size: int) -> Any:
        return self._library.empty((size,), TensorDataType.UINT8, self._device)

    def first_offender(self, plan: Any, indices: int, meanwhile: Callable[[], Any] | None) -> int:
        """Launch a check, and wait for its answer; see `Host.first_offender`."""
        answer = self._bytes(_POSITION.itemsize)
        plan.check(self.handle, indices, self._library.address(answer))
        if meanwhile is not None:
            meanwhile()
        first = self.read(self._library.address(answer), _POSITION)
        return -1 if first == _NO_OFFENDER else first

    def count(self, call: "BoundCall", x: int, count: int, scratch: int) -> int:
        """Write the number of non-zero elements, and wait for it."""
        call.plan.count(self.handle, x, count, scratch)
        return self.read(count, numpy_dtype(call.results[0].data_type))

    def expand(self, call: "BoundCall", x: int, coordinates: int, rows: int, scratch: int) -> None:
        """Write as many coordinates as were counted with the same scratch memory."""
        call.plan.expand(self.handle, x, coordinates, rows, scratch)

    def read(self, address: int, dtype: "np.dtype[Any]") -> int:
        """Wait for the stream, and return an integer of device memory."""
        return cuda.read_back(address, dtype, self.handle)


Executor = Host | Stream
