"""The interface between dmlops and an array library."""

import functools
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from dmlops.devices import cuda_driver
from dmlops.devices.memory import Device
from dmlops.types.arguments import check_dimensions
from dmlops.types.data_types import data_type_of_numpy
from dmlops.types.enums import TensorDataType
from dmlops.types.errors import argument_of, error_text, instance_of, is_output, refuse
from dmlops.types.opaque_types import ElementType, type_name
from dmlops.types.tensor import TensorDesc, packed_strides
from kernels_cpu.native_call import ArrayKind


class Operand(NamedTuple):
    """An array that its library has vouched for."""

    library: "ArrayLibrary"
    """Whose it is."""
    array: Any
    """A plain strided array of the library's own, with memory behind it."""
    signature: Hashable
    """What tells it apart from arrays that need other plans, of whichever library: type, sizes, strides and
    device."""
    address: int
    """Where its element [0, ..., 0] is."""


class ArrayLibrary:
    """The interface of an array library.

    Arrays are vouched for only by `as_input` and `as_output`. `as_plain`, `takes_over`, `check_scalar`,
    `signature`, `kind_signature` and `limits` may get arrays that nobody has vouched for; all other methods
    get only vouched ones, and those that the library itself has made.
    """

    name: str
    native_type: type | None = None
    """The type whose instances native calls can read; None if there is none."""
    other_native_type: type | None = None
    """Another such type, of the same layout."""
    index_type = TensorDataType.INT64
    needs_ordering = False
    """Whether a call must be ordered with the streams of its arrays, or must keep the arrays alive."""
    is_lent = False
    """Whether its arrays must be kept until a call has ended: none of its streams can wait for the call."""
    allocates_on_streams = False
    """Whether memory that it frees is reused only after the work on the stream that still uses it."""
    was_written: Callable[[Sequence[object]], None] | None = None
    """Tells the library that a call has written to arrays; None if the library does not track writes."""
    limits: Callable[[Sequence[object], Sequence[object]], tuple[int, ...] | None] | None = None
    """Makes the checks that native calls cannot make; None if there are none.

    It takes all arrays that the caller gives, and those of them that are written to. It returns how many
    bytes the memory of each has from its first element on; None if the call must be made in Python."""
    knows_capture = False
    """Whether memory that it allocates during a graph capture belongs to the graph."""

    def as_plain(self, array: object, where: str) -> object:
        """Convert a list, a subclass or the like to an array of the library; return its own arrays unchanged.

        Raises
        ------
        TypeError
            If more than elements would be lost, or silently copied; the text names the remedy.
        """
        return array

    def as_input(self, array: object, where: str, stream: int | None) -> Operand:
        """Return an array that kernels may read.

        Parameters
        ----------
        array : object
            What the caller gave.
        where : str
            What error texts begin with.
        stream : int, optional
            Where copies are made on a GPU; None for the library's current stream.

        Raises
        ------
        TypeError
            If it is not a plain array with memory of its own; the text names the remedy.
        """
        raise NotImplementedError

    def beside(self, operands: Sequence[Operand], place: int, where: str, stream: int | None) -> Operand:
        """Return an int or a list that NumPy has converted, as calls on arrays of this library take it.

        Beside arrays in host memory, it becomes an array of the library if that has the type. An int becomes
        an array on a GPU; lists stay on the host.

        Parameters
        ----------
        operands : sequence of Operand
            The inputs; the first one is of this library.
        place : int
            The place of the converted one.
        where, stream
            As `as_input` takes them.
        """
        operand, device = operands[place], self.device(operands[0].array)
        if device.kind != "cuda" or operand.array.ndim or operand.array.dtype.kind not in "iu":
            return operand
        cuda_driver.check_device(device.number, where)
        handle = self.current_stream(device) if stream is None else stream
        if not self.knows_capture and cuda_driver.is_capturing(handle):
            reason = "the stream is being captured into a CUDA graph, which would own its memory"
            refuse(where, "an int", reason, f"{argument_of(where)} must be an array there")
        lowest, highest = self.index_type.integer_range
        number = min(max(int(operand.array), lowest), highest)
        with (
            cuda_driver.device_made_current(device.number),
            nullcontext() if stream is None else self.on_stream(stream, device),
        ):
            made = self.empty((), self.index_type, device)
            cuda_driver.fill(self.address(made), number, self.index_type.bytes, handle)
            return self.as_input(made, where, stream)

    def as_pattern(self, array: object, where: str) -> object:
        """Return an array of the library that `describe` and `device` take; its elements are not read.

        Raises
        ------
        TypeError
            As `as_input`.
        """
        return self.as_input(array, where, None).array

    def data_type(self, array: Any, where: str) -> ElementType:
        """Return the element type of an array that `as_pattern` returns."""
        return self.describe(array, where).data_type

    def takes_over(self, array: object, differentiable: bool, *, alone: bool = False) -> ModuleType | None:
        """Return the library's own functions if they must make a call on an input, or None.

        They do if the result has a derivative, or if the array stands for others in a graph or a
        transformation. Each is called like the function, with its words for error texts in front of all
        inputs in one tuple, ``out``, ``stream`` and the arguments that are no arrays.

        Parameters
        ----------
        array : object
            What the caller gave.
        differentiable : bool
            Whether the result depends on the elements in a way that has a derivative.
        alone : bool
            Whether not to ask for transformations of other arrays, which costs more.
        """
        return None

    def check_scalar(self, array: object, where: str) -> None:
        """Refuse an array that is more than a number where a number is needed.

        Raises
        ------
        TypeError
            If a derivative by it would be lost.
        """

    def as_output(self, array: object, where: str) -> Operand:
        """Return an array that kernels may write.

        Raises
        ------
        TypeError
            If it is not a plain array with memory of its own; the text names the remedy.
        InvalidDescriptorError
            If it is read-only or not aligned to its elements.
        """
        raise NotImplementedError

    def owns(self, kind: type) -> bool:
        """Return whether all objects of a type are arrays of this library, and never of another one."""
        raise NotImplementedError

    def signature(self, array: Any) -> Hashable:
        """Return `Operand.signature`; arrays of `native_type` need not have been vouched for."""
        raise NotImplementedError

    def kind_signature(self, array: Any) -> Hashable:
        """Return the type, the rank and the device of an array: its kind.

        No array of another library has an equal one. Arrays of `native_type` need not have been vouched for.
        """
        return self, array.dtype, len(array.shape), self.device(array)

    def device(self, array: Any) -> Device:
        """Return the device that has the array."""
        raise NotImplementedError

    def describe(self, array: Any, where: str) -> TensorDesc:
        """Return the array's type, sizes and strides.

        Raises
        ------
        TypeError
            If it has an element type that no operator takes.
        """
        return describe_numpy_like(array.dtype, array.shape, array.strides, where)

    def address(self, array: Any) -> int:
        """Return the address of element [0, ..., 0] of the array."""
        raise NotImplementedError

    def native_operand(self, array: Any, *, is_written: bool) -> ArrayKind | None:
        """Return how native calls recognise arrays of the kind of this one; None if they cannot."""
        dtype = array.dtype
        if dtype.itemsize > 8 or dtype.names is not None:
            return None
        return ArrayKind(0, 0, len(array.shape), dtype.itemsize)

    def words(self, array: Any) -> tuple[int, ...]:
        """Return the address, the sizes and the strides in elements of an array, which native calls read.

        Raises
        ------
        ValueError
            If strides are no multiples of the elements.
        """
        shape = array.shape
        strides = getattr(array, "strides", None)
        if strides is None:  # arrays of JAX, and of our own, are packed
            return self.address(array), *shape, *packed_strides(shape)
        size = array.dtype.itemsize
        steps = [stride // size for stride in strides]
        if [step * size for step in steps] != list(strides):
            raise ValueError(strides)
        return self.address(array), *shape, *steps

    def is_current(self, device: Device) -> bool:
        """Return whether a CUDA device is known to be the current one of this thread."""
        return False

    def as_bools(self, operand: Operand, stream: int | None) -> Operand | None:
        """Return which elements of complex128 are not zero, as a new array of bools; None if it cannot tell.

        Parameters
        ----------
        operand : Operand
            An input.
        stream : int, optional
            As `as_input` takes it.
        """
        return None

    def trimmed(self, array: Any, rows: int) -> object:
        """Return a copy of the first rows of an array in host memory."""
        return array[:rows].copy()

    def check_representable(self, data_type: ElementType, where: str) -> None:
        """Refuse a data type that the library would silently change.

        Raises
        ------
        TypeError
            If it would.
        """

    def empty(self, sizes: tuple[int, ...], data_type: ElementType, device: Device) -> object:
        """Return a new packed array with undefined contents."""
        raise NotImplementedError

    def allocator(self, desc: TensorDesc, device: Device) -> Callable[[], object]:
        """Return `empty` for arrays of one type and shape, as fast as possible."""
        return functools.partial(self.empty, desc.sizes, desc.data_type, device)

    def maker(self, data_type: ElementType, device: Device) -> Callable[[tuple[int, ...]], object]:
        """Return `empty` for arrays of one type, which takes their shape, as fast as possible."""
        return functools.partial(self.empty, data_type=data_type, device=device)

    def finalize(self, array: Any, stream: int) -> object:
        """Return a new array, written on `stream`, in the form that the caller gets."""
        return array

    def current_stream(self, device: Device) -> int:
        """Return the handle of the stream that the library's next kernel would use."""
        return 0

    def producer_stream(self, array: Any) -> int | None:
        """Return the stream whose work must end before the array may be read, if the array names one."""
        return None

    def on_stream(self, stream: int, device: Device, given: object = None) -> AbstractContextManager[object]:
        """Return a context in which the library works, and allocates, on `stream`.

        Parameters
        ----------
        stream : int
            The stream.
        device : Device
            Its device.
        given : int or stream object, optional
            What the caller gave as the stream; such an object may be all that keeps it.
        """
        return nullcontext()


def describe_numpy_like(
    dtype: np.dtype, shape: Sequence[int], strides: Sequence[int], where: str
) -> TensorDesc:
    """Return the description of an array whose library has NumPy's data types and strides in bytes."""
    if not dtype.isnative:
        x = argument_of(where)
        remedy = f'use {x}.astype({x}.dtype.newbyteorder("="))'
        allowed = "an output must be in that order" if is_output(where) else remedy
        name = dtype.name if dtype.names is None else str(dtype)
        got = f"{name} in foreign byte order"
        raise TypeError(error_text(where, got, "kernels read the machine's own order", allowed))
    data_type = data_type_of_numpy(dtype, where)
    check_dimensions(where, len(shape))
    size = data_type.bytes
    steps = []
    for n, stride in zip(shape, strides, strict=True):
        # The stride of a dimension of size 1 has no meaning, and libraries fill in any number.
        step, rest = divmod(stride, size) if n > 1 else (0, 0)
        if rest:
            reason = f"it has elements of {size} bytes"
            raise TypeError(
                error_text(where, f"strides {tuple(strides)}", reason, "strides must be multiples of that")
            )
        steps.append(step)
    return TensorDesc(data_type, tuple(shape), tuple(steps))


def are_nonzero(array: Any, int64: Any) -> object:
    """Return which elements of an array of complex128 are not zero, by the bits of both parts.

    Comparisons of floats would miss subnormal numbers if the processor is set to treat them as zero.
    """
    return (array.real.view(int64) | array.imag.view(int64)) << 1 != 0


def described(data_type: ElementType, sizes: Sequence[int], strides: Sequence[int]) -> TensorDesc:
    """Return a description with strides in elements."""
    # As in `describe_numpy_like`, for libraries whose strides count elements.
    steps = [stride if size > 1 else 0 for size, stride in zip(sizes, strides, strict=True)]
    return TensorDesc(data_type, tuple(sizes), tuple(steps))


def refuse_type(data_type: ElementType, library: str, where: str) -> NoReturn:
    """Refuse a type that the library of new arrays does not have."""
    reason, allowed = f"{library} has no such type", f"it must be a type of {library}'s"
    raise TypeError(error_text(where, type_name(data_type), reason, allowed))


def refuse_unaligned(kind: str, where: str) -> NoReturn:
    """Refuse an array that kernels could not use element by element."""
    reason = "its first element is at an address that is not a multiple of the element size"
    refuse(where, f"an unaligned {kind}", reason, "it must be aligned to its elements")


def dlpack_device(array: Any, where: str) -> tuple[int, int]:
    """Return the kind and the number of the device that an array names by DLPack."""
    try:
        kind, number = array.__dlpack_device__()
        return int(kind), int(number)
    except Exception as error:  # a producer may raise anything, which is the cause of the new error
        refuse_exchange(array, where, error)


def refuse_exchange(array: object, where: str, error: Exception) -> NoReturn:
    """Raise an error that names the array instead of one that its producer or consumer has chosen."""
    if isinstance(error, MemoryError):
        raise error
    reason = f"DLPack does not pass it on ({type(error).__name__}: {error})"
    text = error_text(where, instance_of(array), reason, "pass it as an array of NumPy, CuPy, torch or JAX")
    raise TypeError(text) from error
