"""A call on small NumPy arrays as one step: known kinds, memory apart, and the kernel.

Each of these as a call of its own would take as long as a small kernel does. What an array is comes from NumPy's
public array interface, whose structure every array gives out as a capsule. The GIL is kept all the while: to give
it away and take it back is another such step.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kernels_cpu.kernel import INTEGER, BoundKernel, Kernel, Load, Table

KERNEL = Kernel(
    "native_call",
    "kernels_cpu.native_call_kernel:native_call",
    (INTEGER, INTEGER, INTEGER),
    uses_python=True,
)
MAX_ARGUMENTS = 16

# What the kernel returns where it did nothing; no kernel of an operator returns a negative number.
MISMATCH = -1

# Flags of the array interface.
_ALIGNED, _NOT_SWAPPED, _WRITEABLE = 0x100, 0x200, 0x400


class Operand(NamedTuple):
    """An array that a native call knows again.

    Attributes
    ----------
    slot : int
        Its place among the kernel's arguments.
    kind : str
        NumPy's letter for the kind of its data type.
    item_size : int
        Bytes of an element.
    shape, strides : tuple of int
        As NumPy has them: strides in bytes.
    is_output : bool
        Whether it must be writeable.
    """

    slot: int
    kind: str
    item_size: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_output: bool


def native_call(
    launch: BoundKernel,
    n_arguments: int,
    operands: Sequence[Operand],
    overlaps: Sequence[tuple[int, int, int, int]],
    *,
    fixed: dict[int, int],
    scratch_slot: int,
    load: Load,
) -> Callable[[tuple[Any, ...], int], int]:
    """Return a function that launches on arrays, if they are of known kinds.

    Parameters
    ----------
    launch : BoundKernel
        The kernel and its first arguments.
    n_arguments : int
        How many arguments it has.
    operands : sequence of Operand
        The arrays, in the order of their capsules.
    overlaps : sequence of (first, second, above, below)
        Operands `first` and `second` may share memory, if the second begins more than `above` and less than
        `below` bytes after the first.
    fixed : mapping of int to int
        Further arguments, by their slots.
    scratch_slot : int
        The slot of the address that comes with each call; -1 where there is none.
    load : callable
        Where the kernel of native calls comes from.

    Returns
    -------
    callable
        It takes the capsules (``array.__array_struct__``) as a tuple, and an address. It returns what the kernel
        does, or `MISMATCH` with nothing done.
    """
    template = [0] * n_arguments
    leading = launch.leading
    template[: len(leading)] = leading
    for slot, word in fixed.items():
        template[slot] = word
    words = [launch.kernel.address, n_arguments, len(operands), scratch_slot, len(overlaps), *template]
    for i, j, above, below in overlaps:
        words += [operands[i].slot, operands[j].slot, above, below]
    for operand in operands:
        flags = _ALIGNED | _NOT_SWAPPED | (_WRITEABLE if operand.is_output else 0)
        words += [operand.slot, ord(operand.kind), operand.item_size, flags, len(operand.shape)]
        words += [*operand.shape, *operand.strides]
    table = Table(words)
    return functools.partial(_Call(load(KERNEL).address), table, launch)


class _Call:
    """The kernel of native calls, called with the GIL held; the table and the launch are kept by whoever calls."""

    __slots__ = ("_entry",)

    def __init__(self, address: int) -> None:
        prototype = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        self._entry: Any = prototype(address)

    def __call__(self, table: Table, launch: BoundKernel, capsules: tuple[Any, ...], scratch: int) -> int:
        return self._entry(table.address, capsules, scratch)  # type: ignore[no-any-return]
