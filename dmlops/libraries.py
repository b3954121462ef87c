"""What dmlops needs of an array library: where an array lives, how it is laid out, how another is made.

No library is imported here on the user's behalf: one that made an array is already in `sys.modules`.
"""

import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from dmlops import cuda
from dmlops.data_types import SUPPORTED, named_data_type, numpy_dtype
from dmlops.enums import TensorDataType
from dmlops.errors import InvalidDescriptorError, wording
from dmlops.memory import CPU, Device
from dmlops.tensor import TensorDesc, packed_strides
from kernels_cpu.addresses import Address, address_of


class Library:
    """What dmlops needs of an array library; this base class serves NumPy."""

    name = "numpy"
    index_type = TensorDataType.UINT32

    def adopt(self, array: Any, where: str) -> Any:
        """Return the array in a form whose memory can be used as it is."""
        if type(array) is not np.ndarray:
            array = np.asarray(array)
        return array if array.flags.aligned else array.copy()

    def adopt_output(self, array: Any, where: str) -> Any:
        """Return an output array in a form whose memory can be written to.

        Raises
        ------
        InvalidDescriptorError
            If it is read-only or not aligned to its elements.
        """
        array = np.asarray(array)
        if not array.flags.behaved:
            got = "an unaligned array" if array.flags.writeable else "a read-only array"
            raise InvalidDescriptorError(
                wording(where, got, "it is written to", "an output must be writable and aligned")
            )
        return array

    def signature(self, array: Any) -> Hashable:
        """Return what distinguishes the array's type, layout and device, quickly."""
        return array.dtype, array.shape, array.strides

    def signatures(self, operands: Sequence[Any]) -> Hashable:
        """Return what distinguishes arrays with all that matters to a call, more quickly than `signature`.

        None unless all of them are this library's own, and of its plain kind.
        """
        found: tuple[Hashable, ...] = ()
        for array in operands:
            if array.__class__ is not np.ndarray:
                return None
            # The flags tell whether it is aligned and writable.
            found += array.dtype, array.shape, array.strides, array.flags.num
        return found

    def likeness_test(self, operands: Sequence[Any]) -> Callable[[tuple[Any, ...]], bool] | None:
        """Return what tells whether others have the signatures of these, if there is a quicker way."""
        from kernels_cpu.likeness import likeness_test  # noqa: PLC0415 - imports Numba

        return likeness_test(operands)

    def addresses(self, operands: Sequence[Any]) -> Sequence[Address]:
        """Return what kernels take for arrays that `signatures` knows."""
        return operands

    def device(self, array: Any) -> Device:
        """Return where the array lives."""
        return CPU

    def describe(self, array: Any, where: str) -> TensorDesc:
        """Return the array's type, sizes and strides.

        Raises
        ------
        TypeError
            If the element type is none that dmlops serves; the text begins with `where`.
        """
        return _describe(array.dtype, array.shape, array.strides, where)

    def address(self, array: Any) -> int:
        """Return where element [0, ..., 0] of the array is."""
        return address_of(array)

    def empty(self, sizes: tuple[int, ...], data_type: TensorDataType, device: Device) -> Any:
        """Return a new array with undefined contents."""
        return np.empty(sizes, numpy_dtype(data_type))

    def allocator(self, desc: TensorDesc, device: Device) -> Callable[[], Any]:
        """Return `empty` for one kind of array, as quick as it can be."""
        return partial(np.empty, desc.sizes, numpy_dtype(desc.data_type))

    def deliver(self, array: Any, stream: int) -> Any:
        """Return a filled output as the caller gets it."""
        return array

    def current_stream(self, device: Device) -> int:
        """Return the handle of the stream that the library's next kernel would use."""
        return 0

    def stream_getter(self, device: Device) -> Callable[[], int]:
        """Return `current_stream` for one device, as quick as it can be."""
        return partial(self.current_stream, device)

    def producer_stream(self, array: Any) -> int | None:
        """Return the stream whose work must end before the array may be read, if it names one."""
        return None

    def allocating_on(self, stream: int, device: Device) -> AbstractContextManager[Any]:
        """Return a context in which new arrays belong to `stream`."""
        return nullcontext()


class _Torch(Library):
    name = "torch"
    index_type = TensorDataType.INT64

    def __init__(self) -> None:
        self.torch = sys.modules["torch"]
        self._empty = self.torch.empty
        self._raw_stream: Any = getattr(self.torch._C, "_cuda_getCurrentRawStream", None)
        # What torch.compile knows its inputs by; it compares in one call what would take eight a tensor.
        guards = getattr(getattr(self.torch._C, "_dynamo", None), "guards", None)
        self._guards: Any = getattr(guards, "TensorGuards", None)
        self._torch_devices: dict[Device, Any] = {}
        self._devices: dict[Any, Device] = {}
        self._dtypes = {
            data_type: getattr(self.torch, name)
            for name, data_type in SUPPORTED.items()
            if hasattr(self.torch, name)
        }

    def adopt(self, array: Any, where: str) -> Any:
        if array.layout is not self.torch.strided:
            got, reason = f"a {array.layout} tensor", "its elements are not strided"
            raise TypeError(wording(where, got, reason, "make it dense first"))
        return array.resolve_neg() if array.is_neg() else array

    def adopt_output(self, array: Any, where: str) -> Any:
        return self.adopt(array, where)

    def signature(self, array: Any) -> Hashable:
        return array.dtype, array.shape, array.stride(), array.device

    def signatures(self, operands: Sequence[Any]) -> Hashable:
        signatures = []
        tensor = self.torch.Tensor
        for array in operands:
            is_plain = array.__class__ is tensor and (array.is_cuda or array.is_cpu)
            if not is_plain or array.is_neg():
                return None
            layout = array.is_contiguous() or array.stride()
            signatures.append((array.dtype, array.shape, layout, array.get_device()))
        return tuple(signatures)

    def likeness_test(self, operands: Sequence[Any]) -> Callable[[tuple[Any, ...]], bool] | None:
        if self._guards is None:
            return None
        sizes, strides = [list(array.shape) for array in operands], [list(a.stride()) for a in operands]
        try:
            check = self._guards(*operands, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        except Exception:  # no public interface: another version of torch may have it differently
            self._guards = None
            return None
        count = len(operands)
        return lambda given: len(given) == count and check(*given)

    def addresses(self, operands: Sequence[Any]) -> list[int]:
        return [array.data_ptr() for array in operands]

    def device(self, array: Any) -> Device:
        found = self._devices.get(array.device)
        if found is None:
            kind, index = array.device.type, array.device.index
            found = self._devices[array.device] = CPU if kind == "cpu" else Device(kind, index or 0)
        return found

    def describe(self, array: Any, where: str) -> TensorDesc:
        if array.device.type not in ("cpu", "cuda"):
            got, allowed = f"a tensor on {array.device}", "it must be on the CPU or on a CUDA device"
            raise TypeError(wording(where, got, "no back-end serves that device", allowed))
        data_type = named_data_type(str(array.dtype).removeprefix("torch."), where)
        return _described(data_type, tuple(array.shape), tuple(array.stride()))

    def address(self, array: Any) -> int:
        return array.data_ptr()  # type: ignore[no-any-return]

    def empty(self, sizes: tuple[int, ...], data_type: TensorDataType, device: Device) -> Any:
        at = self._torch_devices.get(device)
        if at is None:
            at = self._torch_devices[device] = self.torch.device(str(device))
        return self._empty(sizes, dtype=self._dtypes[data_type], device=at)

    def allocator(self, desc: TensorDesc, device: Device) -> Callable[[], Any]:
        at = self.torch.device(str(device))
        return partial(self._empty, desc.sizes, dtype=self._dtypes[desc.data_type], device=at)

    def current_stream(self, device: Device) -> int:
        # The public getter builds a Stream object, which costs as much as the launch itself.
        return self._raw_stream(device.number)  # type: ignore[no-any-return]

    def stream_getter(self, device: Device) -> Callable[[], int]:
        return partial(self._raw_stream, device.number)

    def allocating_on(self, stream: int, device: Device) -> AbstractContextManager[Any]:
        external = self.torch.cuda.ExternalStream(stream, device=device.number)
        return self.torch.cuda.stream(external)  # type: ignore[no-any-return]


class _CuPy(Library):
    name = "cupy"

    def __init__(self) -> None:
        self.cupy = sys.modules["cupy"]

    def adopt(self, array: Any, where: str) -> Any:
        return array

    def adopt_output(self, array: Any, where: str) -> Any:
        return self.adopt(array, where)

    def signature(self, array: Any) -> Hashable:
        return array.dtype, array.shape, array.strides, array.data.device_id

    def signatures(self, operands: Sequence[Any]) -> Hashable:
        own = self.cupy.ndarray
        for array in operands:
            if array.__class__ is not own:
                return None
        return tuple([(a.dtype, a.shape, a.strides, a.data.device_id) for a in operands])

    def likeness_test(self, operands: Sequence[Any]) -> Callable[[tuple[Any, ...]], bool]:
        own = self.cupy.ndarray
        known = [(array.dtype, array.shape, array.strides, array.data.device_id) for array in operands]

        def are_like(given: tuple[Any, ...]) -> bool:
            if len(given) != len(known):
                return False
            for array, (dtype, shape, strides, device) in zip(given, known):  # noqa: B905 - slow with strict
                if (
                    array.__class__ is not own
                    or array.dtype is not dtype
                    or array.shape != shape
                    or array.strides != strides
                    or array.data.device_id != device
                ):
                    return False
            return True

        return are_like

    def addresses(self, operands: Sequence[Any]) -> list[int]:
        return [array.data.ptr for array in operands]

    def device(self, array: Any) -> Device:
        return Device("cuda", array.data.device_id)

    def address(self, array: Any) -> int:
        return array.data.ptr  # type: ignore[no-any-return]

    def allocator(self, desc: TensorDesc, device: Device) -> Callable[[], Any]:
        current = self.cupy.cuda.runtime.getDevice
        here = partial(self.cupy.empty, desc.sizes, numpy_dtype(desc.data_type))
        elsewhere = partial(self.empty, desc.sizes, desc.data_type, device)
        # To make a device current takes as long as to allocate.
        return lambda: here() if current() == device.number else elsewhere()

    def empty(self, sizes: tuple[int, ...], data_type: TensorDataType, device: Device) -> Any:
        with self.cupy.cuda.Device(device.number):
            return self.cupy.empty(sizes, numpy_dtype(data_type))

    def current_stream(self, device: Device) -> int:
        return self.cupy.cuda.get_current_stream(device.number).ptr  # type: ignore[no-any-return]

    def allocating_on(self, stream: int, device: Device) -> AbstractContextManager[Any]:
        external = cuda.launcher("stream").stream_from_handle(stream)
        if hasattr(self.cupy.cuda.Stream, "from_external"):
            return self.cupy.cuda.Stream.from_external(external)  # type: ignore[no-any-return]
        return self.cupy.cuda.ExternalStream(stream, device.number)  # type: ignore[no-any-return]


class _NumbaCuda(Library):
    """Numba's device arrays, which also hold the results for arrays of no known library."""

    name = "numba"

    def adopt(self, array: Any, where: str) -> Any:
        return array

    def adopt_output(self, array: Any, where: str) -> Any:
        return self.adopt(array, where)

    def signature(self, array: Any) -> Hashable:
        return array.dtype, array.shape, array.strides, self.device(array)

    def device(self, array: Any) -> Device:
        pointer = array.device_ctypes_pointer.value
        return Device("cuda", cuda.pointer_device(pointer) if pointer else 0)

    def signatures(self, operands: Sequence[Any]) -> Hashable:
        return None

    def address(self, array: Any) -> int:
        return array.device_ctypes_pointer.value or 0

    def empty(self, sizes: tuple[int, ...], data_type: TensorDataType, device: Device) -> Any:
        numba_cuda = cuda.numba_cuda()
        with numba_cuda.gpus[device.number]:
            return numba_cuda.device_array(sizes, numpy_dtype(data_type))


class _CudaArray:
    """An array known by its CUDA array interface or _DLPack capsule only."""

    def __init__(self, interface: dict[str, Any], owner: object) -> None:
        self.owner = owner
        self.pointer = interface["data"][0] or 0
        self.shape = tuple(interface["shape"])
        self.dtype = np.dtype(interface["typestr"])
        packed = tuple(stride * self.dtype.itemsize for stride in packed_strides(self.shape))
        self.strides = tuple(interface.get("strides") or packed)
        self.stream = interface.get("stream")
        self.device_index = cuda.pointer_device(self.pointer) if self.pointer else 0


class _CudaInterface(_NumbaCuda):
    """Anything else with ``__cuda_array_interface__``; results are Numba device arrays."""

    name = "__cuda_array_interface__"

    def adopt(self, array: Any, where: str) -> Any:
        return _CudaArray(array.__cuda_array_interface__, array)

    def signature(self, array: Any) -> Hashable:
        return array.dtype, array.shape, array.strides, array.device_index

    def device(self, array: Any) -> Device:
        return Device("cuda", array.device_index)

    def address(self, array: Any) -> int:
        # The results of a call are Numba's.
        return array.pointer if isinstance(array, _CudaArray) else super().address(array)

    def producer_stream(self, array: Any) -> int | None:
        return array.stream  # type: ignore[no-any-return]


class _DLPack(_CudaInterface):
    """Anything else with ``__dlpack__`` on a GPU."""

    name = "dlpack"

    def adopt(self, array: Any, where: str) -> Any:
        from cuda.core.utils import StridedMemoryView  # noqa: PLC0415

        view = StridedMemoryView.from_dlpack(array, stream_ptr=-1)
        item = view.dtype.itemsize
        interface = {
            "data": (view.ptr, view.readonly),
            "shape": view.shape,
            "typestr": view.dtype.str,
            "strides": None if view.strides is None else tuple(stride * item for stride in view.strides),
        }
        return _CudaArray(interface, (array, view))


class _HostDLPack(Library):
    """Anything else with ``__dlpack__`` in host memory; results are NumPy arrays."""

    name = "dlpack"

    def adopt(self, array: Any, where: str) -> Any:
        return super().adopt(np.from_dlpack(array), where)


class _Jax(Library):
    """JAX arrays: immutable, and without a stream to order work by, so that a GPU call waits."""

    name = "jax"

    def __init__(self) -> None:
        self.jax = sys.modules["jax"]

    def adopt(self, array: Any, where: str) -> Any:
        return self.jax.block_until_ready(array)

    def adopt_output(self, array: Any, where: str) -> Any:
        reason, allowed = "JAX arrays are immutable", "leave it out, and take the result"
        raise InvalidDescriptorError(wording(where, type(array).__name__, reason, allowed))

    def signature(self, array: Any) -> Hashable:
        return array.dtype, array.shape, self.device(array)

    def device(self, array: Any) -> Device:
        if isinstance(array, np.ndarray):
            return CPU
        device = next(iter(array.devices()))
        return CPU if device.platform == "cpu" else Device("cuda", device.local_hardware_id)

    def describe(self, array: Any, where: str) -> TensorDesc:
        return TensorDesc(named_data_type(array.dtype.name, where), array.shape)

    def address(self, array: Any) -> int:
        if self.device(array) == CPU:
            return super().address(np.asarray(array))  # JAX keeps this array, if it is no mere view
        return array.unsafe_buffer_pointer()  # type: ignore[no-any-return]

    def empty(self, sizes: tuple[int, ...], data_type: TensorDataType, device: Device) -> Any:
        if device == CPU:
            return np.empty(sizes, numpy_dtype(data_type))
        wanted = numpy_dtype(data_type)
        if self.jax.dtypes.canonicalize_dtype(wanted) != wanted:
            reason, allowed = "jax_enable_x64 is off", "turn it on, or use 32-bit types"
            raise TypeError(wording("jax", f"a result of {wanted}", reason, allowed))
        at = next(gpu for gpu in self.jax.devices("gpu") if gpu.local_hardware_id == device.number)
        array = self.jax.numpy.empty(sizes, wanted, device=at)
        return self.jax.block_until_ready(array)

    def deliver(self, array: Any, stream: int) -> Any:
        if isinstance(array, np.ndarray):
            return self.jax.numpy.asarray(array)
        cuda.launcher("stream").stream_from_handle(stream).sync()
        return array


NUMPY = Library()
_BY_NAME: dict[str, Library] = {}


def recognise(array: Any) -> Library:
    """Return the library of an array, by its type and what it has; scalars and lists belong to NumPy."""
    for module, attribute, library in _known_types():
        kind = getattr(sys.modules.get(module), attribute, None)
        if kind is not None and isinstance(array, kind):
            return _instance(library)
    if hasattr(array, "__cuda_array_interface__"):
        return _instance(_CudaInterface)
    if hasattr(array, "__dlpack_device__") and not hasattr(array, "__array__"):
        host = int(array.__dlpack_device__()[0]) == 1
        return _instance(_HostDLPack if host else _DLPack)
    return NUMPY


def _known_types() -> Iterator[tuple[str, str, Callable[[], Library]]]:
    yield "torch", "Tensor", _Torch
    yield "cupy", "ndarray", _CuPy
    yield "jax", "Array", _Jax
    yield "numba.cuda.cudadrv.devicearray", "DeviceNDArrayBase", _NumbaCuda


def _instance(library: Callable[[], Library]) -> Library:
    name: str = library.name  # type: ignore[attr-defined]
    key = f"{name}:{library.__name__}"
    if key not in _BY_NAME:
        _BY_NAME[key] = library()
    return _BY_NAME[key]


def _describe(dtype: Any, shape: Any, strides: Any, where: str) -> TensorDesc:
    if not dtype.isnative:
        got = f"{dtype.name} in foreign byte order"
        allowed = 'use x.astype(x.dtype.newbyteorder("="))'
        raise TypeError(wording(where, got, "kernels read the machine's own order", allowed))
    data_type = named_data_type(dtype.name, where)
    return _described(data_type, shape, [stride // data_type.bytes for stride in strides])


def _described(data_type: TensorDataType, sizes: Any, strides: Any) -> TensorDesc:
    # The strides of a dimension without neighbours mean nothing, and libraries fill in what they like.
    steps = tuple(stride if size > 1 else 0 for size, stride in zip(sizes, strides, strict=True))
    return TensorDesc(data_type, tuple(sizes), steps)
