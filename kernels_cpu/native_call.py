"""Check in one native call that arrays are of known kinds and do not overlap, and run a kernel in it.

As a call of its own, each of these steps would take as long as a small kernel. Arrays are described by a
public C interface: the array interface, whose structure every NumPy array hands out as a capsule, or DLPack's
exchange functions, which describe an array in place.

`native_call` also runs a kernel on the CPU, or launches kernels on a GPU. For a small kernel it keeps the
GIL: releasing and taking it would be another such step. Otherwise it releases the GIL once the arrays are
checked. `native_look` only checks the arrays.
"""

import ctypes
import functools
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kernels_cpu.kernel import INTEGER, INTEGERS, BoundKernel, Kernel, Load, Table

CALL = Kernel(
    "native_call", "kernels_cpu.native_call_kernel:native_call", (INTEGERS, *(INTEGER,) * 3), uses_python=True
)
LOOK = Kernel(
    "native_look", "kernels_cpu.native_call_kernel:native_look", (INTEGERS, INTEGER), uses_python=True
)
LAUNCH = Kernel("native_launch", "kernels_cpu.native_call_kernel:native_launch", (INTEGERS, *(INTEGER,) * 7))
"""Launches a list on a GPU: its words, the number of addresses, and these, with the stream after the last."""
KERNELS = (CALL, LOOK, LAUNCH)
MAX_ARGUMENTS = 16

# A native call returns this if it has done nothing; no kernel of an operator returns a negative number.
MISMATCH = -1

# Flags of the array interface.
_ALIGNED, _NOT_SWAPPED, _WRITEABLE = 0x100, 0x200, 0x400
# Of dlpack.h: a DLPackExchangeAPI begins with its version, as two 32-bit integers, and the address of an
# older one; the fourth function after these describes an array.
_DESCRIBE_AT = 40
_DLPACK_MAJOR = 1
_ATTRIBUTE = sys.intern("__array_struct__")
# Each of these is a class; one instance is enough.
_CALL_PROTOTYPE = ctypes.PYFUNCTYPE(
    *(ctypes.c_int64, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)
)
_LOOK_PROTOTYPE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object)


class Operand(NamedTuple):
    """An array that a native call recognises.

    Attributes
    ----------
    kind : int
        The type of its elements and its device, as the interface has them.
    flags : int
        Flags that the array interface must set; for DLPack, bits of the address that must be 0.
    shape, strides : tuple of int
        Strides are in bytes for the array interface, and in elements for DLPack.
    """

    kind: int
    flags: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def aligned_to(self, alignment: int) -> "Operand":
        """Return the operand of DLPack whose address is a multiple of `alignment`, a power of two."""
        return self._replace(flags=self.flags | alignment - 1)

    @classmethod
    def of_array_interface(cls, arrays: Sequence[Any], n_inputs: int) -> "list[Operand]":
        """Return the descriptions of arrays by NumPy's array interface, inputs first."""
        described = []
        for place, array in enumerate(arrays):
            flags = _ALIGNED | _NOT_SWAPPED | (_WRITEABLE if place >= n_inputs else 0)
            kind = ord(array.dtype.kind) | array.itemsize << 32
            described.append(_new_operand((kind, flags, array.shape, array.strides)))
        return described

    @classmethod
    def of_dlpack(
        cls,
        code: int,
        bits: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        device: tuple[int, int],
    ) -> "Operand":
        """Return how DLPack describes an array of a DLDataTypeCode on a device: its type and its number."""
        lanes, (device_type, device_number) = 1, device
        where = device_type | device_number << 8
        return cls(code | bits << 8 | lanes << 16 | where << 32, bits // 8 - 1, shape, strides)


# The constructor of a named tuple takes three times as long.
_new_operand: Any = functools.partial(tuple.__new__, Operand)


def dlpack_describe(array_type: type) -> int:
    """Return the address of the function that describes arrays of a type to C; 0 where it has none."""
    capsule = getattr(array_type, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return 0
    table = _capsule_pointer(capsule, b"dlpack_exchange_api")
    major = ctypes.c_uint32.from_address(table).value
    return ctypes.c_size_t.from_address(table + _DESCRIBE_AT).value if major == _DLPACK_MAJOR else 0


_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_size_t, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def native_call(
    launch: BoundKernel,
    n_leading: int,
    operands: Sequence[Operand],
    overlaps: Sequence[tuple[int, int, int, int]],
    *,
    keeps_gil: bool,
    array_type: type,
    load: Load,
) -> Callable[[tuple[Any, ...], int, int], int]:
    """Return a function that launches a kernel on arrays, if they are of known kinds.

    Parameters
    ----------
    launch : BoundKernel
        The kernel and its first arguments.
    n_leading : int
        How many zeros it takes before the addresses of the arrays.
    operands : sequence of Operand
        The arrays, in the order in which they are passed.
    overlaps : sequence of (first, second, above, below)
        Operands `first` and `second` may share memory, if the second begins more than `above` and less than
        `below` bytes after the first.
    keeps_gil : bool
        Whether other threads have to wait for the kernel.
    array_type : type
        Whose instances all arrays are: NumPy's, or one with DLPack's exchange functions.
    load : callable
        Where native calls come from.

    Returns
    -------
    callable
        It takes the arrays as a tuple, the address of a workspace, and a stream; these follow the arrays'
        addresses. It returns what the kernel does, or `MISMATCH` with nothing done.
    """
    leading = [*launch.leading, *[0] * n_leading]
    template = [*leading, *[0] * (len(operands) + 1)]
    head = launch.kernel.address, int(keeps_gil)
    table = _table(head, template, len(leading), operands, overlaps, array_type)
    entry: Any = _CALL_PROTOTYPE(load(CALL).address)
    call = functools.partial(entry, table.address)
    call.keeps = table, launch  # type: ignore[attr-defined]
    return call


def native_look(
    operands: Sequence[Operand],
    overlaps: Sequence[tuple[int, int, int, int]],
    *,
    array_type: type,
    load: Load,
) -> Callable[[tuple[Any, ...]], tuple[int, ...]]:
    """Return a function that checks whether arrays are of known kinds.

    The parameters are those of `native_call`.

    Returns
    -------
    callable
        It takes the arrays as a tuple. It returns their addresses, or none if one is of another kind.
    """
    table = _table((0, 1), [0] * len(operands), 0, operands, overlaps, array_type)
    return _Look(load(LOOK).address, table, len(operands))


def _table(
    head: tuple[int, int],
    template: Sequence[int],
    first: int,
    operands: Sequence[Operand],
    overlaps: Sequence[tuple[int, int, int, int]],
    array_type: type,
) -> Table:
    """Return the table that the kernels read; the arrays' addresses go into the template from `first` on."""
    # Neither a type nor an interned name is ever freed.
    words = [*head, id(array_type), dlpack_describe(array_type), id(_ATTRIBUTE)]
    words += [len(overlaps), len(operands), first, len(template), *template]
    for overlap in overlaps:
        words += overlap
    for operand in operands:
        words += [operand.kind, operand.flags, len(operand.shape), *operand.shape, *operand.strides]
    return Table(words)


class _Look:
    """The kernel that only checks, called with the GIL held."""

    __slots__ = ("_entry", "_table", "_unpack")

    def __init__(self, address: int, table: Table, n_operands: int) -> None:
        entry: Any = _LOOK_PROTOTYPE(address)
        self._entry, self._table = functools.partial(entry, table.address), table
        self._unpack = struct.Struct(f"={n_operands}q").unpack

    def __call__(self, arrays: tuple[Any, ...]) -> tuple[int, ...]:
        try:
            words = self._entry(arrays)
        except ctypes.ArgumentError:  # out of memory or of stack: the ordinary path says so
            return ()
        return self._unpack(words) if words else ()
