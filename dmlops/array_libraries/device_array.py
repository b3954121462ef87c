"""`DeviceArray`: an array on a GPU for callers without an array library; it needs only the CUDA driver."""

import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from dmlops.devices import cuda_driver
from dmlops.devices.memory import Device
from dmlops.store import once
from dmlops.types import arguments
from dmlops.types.errors import error_text

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike


class DeviceArray:
    """A contiguous array in the memory of a CUDA device, with undefined contents at first.

    Functions return such arrays if their first operand is known only by ``__cuda_array_interface__`` or
    DLPack. Array libraries take them without a copy: ``torch.as_tensor(array)``, ``cupy.asarray(array)``,
    ``numba.cuda.as_cuda_array(array)``, or ``from_dlpack`` of any library.

    Parameters
    ----------
    shape : sequence of int
        Number of elements along each dimension.
    dtype : dtype
        Data type of the elements.
    device : int
        Number of the CUDA device.
    stream : int or stream object, optional
        The stream that orders the memory. The array is written on it, and freed after the work that is then
        on it. None means the default stream. The stream behind an integer must exist as long as the array.

    Attributes
    ----------
    shape : tuple of int
        Number of elements along each dimension.
    dtype : dtype
        Data type of the elements.
    device : Device
        The device that has the array; ``str(device)`` is ``"cuda:0"``, for example.
    stream : int
        Handle of the stream that orders the memory.
    pointer : int
        Address of the first element; 0 if there are no elements.

    Raises
    ------
    UnsupportedFeatureError
        If the cuda extra, the driver or the device is missing.
    DeviceMismatchError
        If the stream belongs to another device.
    InvalidDescriptorError
        If a size is negative, or the stream is being captured into a CUDA graph, which would own the memory.
    TypeError
        If the data type is not bool, a number, a date or a duration of NumPy, or `stream` is not a stream.

    Notes
    -----
    A library that reads the array on another stream has to wait for `stream`, as both protocols say, and to
    keep the array until it has read it.
    """

    __slots__ = ("__weakref__", "device", "dtype", "pointer", "shape", "stream")

    def __init__(
        self, shape: Sequence[int], dtype: "DTypeLike", device: int = 0, stream: object = None
    ) -> None:
        where = type(self).__name__
        self.shape = arguments.sizes(shape, f"{where}.shape")
        self.dtype = np.dtype(dtype)
        if self.dtype.kind not in "biufcMm":
            reason = "__cuda_array_interface__ has no name for it here"
            allowed = "dtype must be bool, a number, a date or a duration of NumPy's"
            raise TypeError(error_text(f"{where}.dtype", str(self.dtype), reason, allowed))
        device = arguments.integer(device, f"{where}.device")
        cuda_driver.check_device(device, f"{where}.device")  # says what is missing
        self.device = Device("cuda", device)
        handle = 0 if stream is None else cuda_driver.stream_handle(stream, f"{where}.stream")
        cuda_driver.check_stream_device(handle, device, f"{where}.stream")
        self.stream = handle or cuda_driver.LEGACY_STREAM
        self.pointer = 0
        if self.nbytes:
            with cuda_driver.device_made_current(device):
                self.pointer = cuda_driver.allocate(self.nbytes, self.stream, where)
            release = weakref.finalize(self, cuda_driver.free, self.pointer, self.stream, device, stream)
            release.atexit = False  # the driver takes all memory back

    @classmethod
    def from_numpy(cls, array: "ArrayLike", device: int = 0, stream: object = None) -> "DeviceArray":
        """Return a copy of a host array on a device.

        Parameters
        ----------
        array : array_like
            The array to copy.
        device, stream
            As for the class. The host waits for the copy.

        Examples
        --------
        On a machine with a GPU, this is ``[[3], [5]]``::

            x = DeviceArray.from_numpy([[3, 1], [2, 5]])
            dmlops.top_k(x, 1).values.to_numpy()
        """
        host = np.asarray(array, order="C")
        made = cls(host.shape, host.dtype, device, stream)
        if made.pointer:
            with cuda_driver.device_made_current(device):
                cuda_driver.copy(made.pointer, host.ctypes.data, made.nbytes, made.stream)
        return made

    def to_numpy(self) -> np.ndarray:
        """Return a copy in host memory, after waiting for the array's stream."""
        host: np.ndarray = np.empty(self.shape, self.dtype)
        if self.pointer:
            with cuda_driver.device_made_current(self.device.number):
                cuda_driver.copy(host.ctypes.data, self.pointer, self.nbytes, self.stream)
        return host

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the elements take."""
        n_bytes: int = math.prod(self.shape) * self.dtype.itemsize
        return n_bytes

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """The array, for libraries that know this protocol."""
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": None,
            "stream": self.stream,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return where the array lives, for libraries that know DLPack."""
        return 2, self.device.number  # kDLCUDA

    def __dlpack__(self, *, stream: int | None = None, **options: object) -> object:
        """Return the array as a capsule of DLPack, ordered with the consumer's stream."""
        views = once.imported("cuda.core.utils").StridedMemoryView  # takes longer than all else
        with cuda_driver.device_made_current(self.device.number):
            # Make the consumer's stream wait for the array's stream; -1 requests no order.
            view = views.from_cuda_array_interface(
                self, stream_ptr=cuda_driver.LEGACY_STREAM if stream is None else stream
            )
            return view.__dlpack__(stream=-1, **options)

    def __array__(self, *arguments: object, **options: object) -> NoReturn:
        """Refuse an implicit copy to the host.

        Raises
        ------
        TypeError
            Always.
        """
        reason, remedy = "nothing is copied between devices unasked", "use to_numpy()"
        raise TypeError(error_text(type(self).__name__, f"an array on {self.device}", reason, remedy))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype}, device={self.device})"
