"""One native call for any sizes: read the arrays, fit the problem, plan it, and run its kernels.

As calls of their own, each of these steps would take as long as a small kernel. What does not change from one
call of a kind to the next is in a table (`KindTable`). Arrays are described by a public C interface: the
array interface, whose structure every NumPy array hands out as a capsule, or DLPack's exchange functions,
which describe an array in place.

`native_call` does nothing and returns a negative number if it cannot serve a call: `MISMATCH` if the arrays
are of another kind or their sizes do not fit, `NEEDS_PYTHON` if a kernel is not loaded, the work should be
shared by threads, or the workspace is too small. Called again with memory for a reply, it writes the
addresses and the plan there, which Python then runs.
"""

import ctypes
import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernels_cpu.call_words import MAX_ARRAYS, MAX_SIZES
from kernels_cpu.integers import signed
from kernels_cpu.kernel import INTEGER, INTEGERS, Kernel, Load
from kernels_cpu.plan_words import MAX_WORDS

if TYPE_CHECKING:
    import numpy as np

CALL = Kernel(
    "native_call",
    "kernels_cpu.native_call_kernel:native_call",
    (INTEGERS, INTEGER, INTEGER),
    uses_python=True,
)
LAUNCH = Kernel("native_launch", "kernels_cpu.kind_kernel:native_launch", 3 * (INTEGERS,))
"""Launches a plan on a GPU: the kind's table, the addresses with the stream after them, and the plan."""

# Native calls return these if they have done nothing. Kernels return no negative number but -1: a check that
# has found nothing.
MISMATCH, NEEDS_PYTHON = -2, -3

STATUS_BITS = 16
"""The low bits of a native call's result on a GPU: the driver's error. Above are the workspace's bytes."""

# Fields of the table:
# - TYPE, OTHER_TYPE: the classes that arrays have; TYPE is 0 if arrays are described in words
# - DESCRIBE: DLPack's function that describes an array; 0 for the array interface, an attribute called NAME
# - PLAN_ENTRY: the compiled plan; HOST, DEVICE: words that it reads, DEVICE being 0 on the CPU
# - DRIVER, LAUNCH_ENTRY: on a GPU the driver's cuLaunchKernelEx, and `native_launch`
# - MAY_OVERLAP: whether a launch may begin before the one ahead of it has ended
# - SCRATCH: where the CPU keeps memory for the next call
# - IS_LIMITED: whether all tensors must be DirectML's; HAS_LIMITS: whether calls say how large memory is
# - EXPECTED, PROBLEM: the only call that is served, and its problem (`KindTable.expect`), or 0
# - FIRST, N_OPERANDS: the arrays are those from FIRST up to N_OPERANDS; N_GIVEN: outputs of the caller
# - N_SIZES, N_TEMPLATE, N_KERNELS: how many there are
# - GATHERED: the array of which only the selected part is read, or -1
# - HAS_WORKSPACE, LEAST_WORKSPACE: whether another array is a workspace, and the bytes that it must have
(TYPE, DESCRIBE, NAME, PLAN_ENTRY, HOST, DEVICE, DRIVER) = range(7)
(MAY_OVERLAP, SCRATCH, IS_LIMITED, EXPECTED, N_OPERANDS, N_SIZES, N_TEMPLATE) = range(7, 14)
N_GIVEN, HAS_LIMITS, GATHERED, LAUNCH_ENTRY, N_KERNELS, FIRST, PROBLEM, OTHER_TYPE = range(14, 22)
HAS_WORKSPACE, LEAST_WORKSPACE = 22, 23
OPERANDS = 24
# Fields of an operand: the type of its elements and its device, as the interface has them; flags that the
# array interface must set, or bits of the address that must be 0 for DLPack; its number of dimensions; the
# logarithm of its element size; and the word of the problem for its residue, or -1.
KIND, FLAGS, N_DIMS, ITEM_SHIFT, RESIDUE = range(5)
OPERAND = 5
FIXED_WORDS = OPERANDS + MAX_ARRAYS * OPERAND
TEMPLATE = FIXED_WORDS + MAX_SIZES
MAX_TEMPLATE = 80
KERNEL_LIST = TEMPLATE + MAX_TEMPLATE
MAX_KERNELS = 64
TABLE_WORDS = KERNEL_LIST + 2 * MAX_KERNELS

# Flags of the array interface.
ALIGNED, NOT_SWAPPED, WRITEABLE = 0x100, 0x200, 0x400
# Of dlpack.h: a DLPackExchangeAPI begins with its version, as two 32-bit integers, and the address of an
# older one; the fourth function after these describes an array.
_DESCRIBE_AT = 40
_DLPACK_MAJOR = 1
_ATTRIBUTE = sys.intern("__array_struct__")
_PROTOTYPE = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.py_object)
_PROTOTYPE_OF_WORDS = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_MAX_REPLY = MAX_ARRAYS + MAX_WORDS


class ArrayKind(NamedTuple):
    """The kind of an array that a native call recognises, whatever its sizes."""

    kind: int
    """The type of its elements and its device, as the interface has them."""
    flags: int
    """Flags that the array interface must set; for DLPack, bits of the address that must be 0."""
    rank: int
    """Its number of dimensions."""
    element_size: int
    """Bytes of an element, a power of two."""
    residue_at: int = -1
    """The word of the problem for its address modulo 16; -1 if plans do not ask for it."""

    @classmethod
    def of_array_interface(cls, array: "np.ndarray", *, is_written: bool) -> "ArrayKind":
        """Return how NumPy's array interface describes arrays of a type and a number of dimensions."""
        flags = ALIGNED | NOT_SWAPPED | (WRITEABLE if is_written else 0)
        kind = ord(array.dtype.kind) | array.itemsize << 32
        return cls(kind, flags, array.ndim, array.itemsize)

    @classmethod
    def of_dlpack(cls, code: int, bits: int, rank: int, device: tuple[int, int]) -> "ArrayKind":
        """Return how DLPack describes arrays of a DLDataTypeCode on a device: its type and its number."""
        lanes, (device_type, device_number) = 1, device
        where = device_type | device_number << 8
        return cls(code | bits << 8 | lanes << 16 | where << 32, bits // 8 - 1, rank, bits // 8)


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


class KindTable:
    """The table of a kind of calls, which native calls read.

    Parameters
    ----------
    operands : sequence of ArrayKind or None
        The arrays, in the order in which kernels take them; None, at the front, for arrays that do not exist.
    array_type : type or None
        Whose instances all arrays are: NumPy's, or one with DLPack's exchange functions; None if arrays are
        described in words.
    plan : int
        The entry of a compiled plan (`kernel.plan_kernel`).
    host : int
        The address of the words of the host or the device that plans read.
    fixed, template : sequence of int
        Numbers that `fit` reads, and the words of a problem as far as the kind fixes them.
    has_workspace : bool
        Whether the last array is a workspace of the caller.
    """

    def __init__(
        self,
        operands: Sequence[ArrayKind | None],
        array_type: type | None,
        plan: int,
        host: int,
        fixed: Sequence[int],
        template: Sequence[int],
        *,
        has_workspace: bool = False,
    ) -> None:
        if len(operands) > MAX_ARRAYS or len(fixed) > MAX_SIZES or len(template) > MAX_TEMPLATE:
            message = f"a kind has at most {MAX_ARRAYS} arrays, {MAX_SIZES} numbers, {MAX_TEMPLATE} words"
            raise ValueError(message)
        self._memory = (ctypes.c_int64 * TABLE_WORDS)()
        self.address = ctypes.addressof(self._memory)
        self._put(0, [0 if array_type is None else id(array_type), 0, id(_ATTRIBUTE), plan, host])
        if array_type is not None:
            self._memory[DESCRIBE] = dlpack_describe(array_type)
        # A matrix without an input has no first operand.
        first = sum(operand is None for operand in operands)
        self._memory[FIRST], self._memory[N_OPERANDS] = first, len(operands) - has_workspace
        self._memory[HAS_WORKSPACE] = has_workspace
        self._memory[N_TEMPLATE] = len(template)
        self._memory[GATHERED] = -1
        for number, operand in enumerate(operands):
            if operand is None:
                continue
            shift = operand.element_size.bit_length() - 1
            words = (operand.kind, operand.flags, operand.rank, shift, operand.residue_at)
            self._put(OPERANDS + number * OPERAND, words)
        self._put(FIXED_WORDS, fixed)
        self._put(TEMPLATE, template)
        self._places: dict[int, int] = {}
        self._fresh = itertools.count()
        self._kept: list[ctypes.Array[ctypes.c_int64]] = []

    def _put(self, at: int, words: Sequence[int]) -> None:
        for number, word in enumerate(words):
            self._memory[at + number] = signed(word)

    def set(self, field: int, word: int) -> None:
        """Set a field of the table."""
        self._memory[field] = signed(word)

    def expect(self, call: Sequence[int], problem: Sequence[int]) -> None:
        """Serve only calls whose arrays have these sizes and strides, which need no `fit`.

        Parameters
        ----------
        call : sequence of int
            Sizes and strides of the arrays, in the words of a call.
        problem : sequence of int
            The words of their problem.
        """
        for field, words in ((EXPECTED, call), (PROBLEM, problem)):
            memory = (ctypes.c_int64 * len(words))(*map(signed, words))
            self._kept.append(memory)
            self._memory[field] = ctypes.addressof(memory)
        self._memory[N_TEMPLATE] = len(problem)

    def add_kernel(self, key: int, address: int) -> None:
        """Let native calls find a kernel, if there is room.

        Any thread may add kernels while native code of others reads them: an entry never changes.
        """
        place = self._places.get(key)
        if place is None:
            place = self._places.setdefault(key, next(self._fresh))
        if place >= MAX_KERNELS:
            return
        at = KERNEL_LIST + 2 * place
        self._memory[at + 1] = address
        self._memory[at] = key
        self._memory[N_KERNELS] = min(max(self._places.values()) + 1, MAX_KERNELS)

    def _entry(self, load: Load) -> Callable[..., int]:
        prototype = _PROTOTYPE if self._memory[TYPE] else _PROTOTYPE_OF_WORDS
        entry: Callable[..., int] = prototype(load(CALL).address)
        return entry

    def caller(self, load: Load) -> Callable[[Any], int]:
        """Return the native call; it takes arrays, then integers, as a tuple or as words in bytes.

        See `native_call_kernel`.
        """
        return functools.partial(self._entry(load), self.address, None)

    def planner(self, load: Load) -> Callable[[Any], list[int]]:
        """Return the native call that plans: addresses and plan as words, or none after a mismatch."""
        entry = self._entry(load)

        def plan(arguments: object) -> list[int]:
            reply = (ctypes.c_int64 * _MAX_REPLY)()
            n_words = entry(self.address, reply, arguments)
            return reply[: max(n_words, 0)]

        return plan
