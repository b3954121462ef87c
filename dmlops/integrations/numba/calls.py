"""The part of Python in calls from nopython functions: the first call of each kind, and all that fail.

The arguments of a function are read from the block in which a compiled caller describes its call
(`kernels_cpu.nopython_call`), and checked and planned as always. Native code then makes the later calls of
that kind by the same plan.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Context
from itertools import islice
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from dmlops.calls.binding import Spec
from dmlops.calls.call import BoundCall
from dmlops.calls.native import Native
from dmlops.devices import cpu
from dmlops.store.once import VERSION, kept_by
from dmlops.types.data_types import index_data_type
from dmlops.types.enums import TensorDataType
from dmlops.types.errors import DmlError, error_text
from kernels_cpu import nopython_call as words_of
from kernels_cpu.host_words import THREADS
from kernels_cpu.kernel import WORD_MASK
from kernels_cpu.native_call import FIXED_WORDS, ArrayKind
from kernels_cpu.plan import NO_CHANGES

UNSIGNED, FLOAT, KINDS_IN_WORD = 1, 2, 31
"""The kind of a scalar's word; 0 is a signed integer. Kinds take 2 bits each, in words after all scalars."""

_ENTRY = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)
# Compiled callers refer to the cell of their version for the life of the process, and to its callback. Slots
# that are never written take no memory.
_kept = kept_by("numba")
_cell: Any = _kept.setdefault(("cell", words_of.FORMAT, VERSION), np.zeros(words_of.CELL_WORDS, np.int64))
CELL: int = _cell.ctypes.data
# By thread: a `threading.local` forgets those that Python has not started.
_last_errors: dict[int, BaseException] = {}


class CallError(Exception):
    """The class that compiled callers raise; constructing it gives the last error of the thread."""

    def __new__(cls, *_: object) -> Any:
        """Return a new error of the same type, or the error itself if its class is the user's own."""
        error = _last_errors[threading.get_ident()]
        if isinstance(error, DmlError) or type(error).__module__ == "builtins":
            return type(error)(*error.args)  # nothing else refers to it
        return error


def code_of(dtype: "np.dtype | None") -> int:
    """Return a data type, or none, as the low 6 bytes of a word; of structured types, only the size."""
    if dtype is not None and dtype.names is not None:
        return ord("V") | dtype.itemsize << 8
    return 0 if dtype is None else int.from_bytes(dtype.str[1:].encode(), "little")


def dtype_of_code(code: int) -> Any:
    """Return the data type of `code_of`."""
    code &= (1 << words_of.N_DIMS) - 1
    if code & 0xFF == ord("V"):
        return np.dtype([("", f"V{code >> 8}")])
    return np.dtype(code.to_bytes(8, "little").rstrip(b"\0").decode()) if code else None


def index_type_of(code: int, where: str) -> TensorDataType | None:
    """Return the index type of `code_of`, or None."""
    return index_data_type(dtype_of_code(code), where) if code else None


class _Array:
    """An array of a compiled caller, for NumPy to read in place."""

    def __init__(self, word: int, rest: Iterator[int]) -> None:
        dtype, address = dtype_of_code(word), next(rest)
        shape = tuple(islice(rest, word >> words_of.N_DIMS & 0x7F))
        self.__array_interface__ = {
            "version": 3,
            "data": (address, bool(word >> words_of.IS_READ_ONLY & 1)),
            "typestr": dtype.str,
            "descr": dtype.descr,
            "shape": shape,
            "strides": None if word >> words_of.IS_PACKED & 1 else tuple(islice(rest, len(shape))),
        }


def _number(word: int, kind: int) -> float:
    """Return the scalar of a word."""
    if kind == FLOAT:
        return float(np.array(word).view(np.float64))
    return word & WORD_MASK if kind == UNSIGNED else word


class Request(NamedTuple):
    """The call that a block asks for."""

    operation: int
    """What it asks for."""
    key: tuple[int, ...]
    """All that tells its kind."""
    words: list[int]
    """The scalars as words."""
    scalars: list[Any]
    sizes: list[Any]
    """The arguments that are no arrays."""
    arrays: list[Any]
    """In the order in which kernels take them."""
    has_out: bool
    """Whether the outputs are the caller's."""

    @classmethod
    def read(cls, block: int) -> "Request":
        """Read a block."""
        n_key = ctypes.c_int64.from_address(block).value
        key = tuple((ctypes.c_int64 * n_key).from_address(block + 8 * words_of.KEY))
        first = key[0]
        if first >> 32 != words_of.FORMAT:
            remedy = "remove Numba's cache of its module, and run again"
            reason = "another version of dmlops made it"
            raise DmlError(error_text("dmlops", "a compiled caller", reason, remedy))
        n_scalars, n_arrays = first >> words_of.N_SCALARS & 0xFF, first >> words_of.N_ARRAYS & 0xF
        rest = _words_from(block + 8 * (words_of.KEY + n_key))
        words = [*key[1 : 1 + n_scalars], *islice(rest, first >> words_of.N_SIZES & 0xFF)]
        masks = key[1 + n_scalars : n_key - n_arrays]
        kinds = [mask >> 2 * i & 3 for mask in masks for i in range(KINDS_IN_WORD)]
        numbers = list(map(_number, words, kinds))
        arrays = [np.asarray(_Array(word, rest)) for word in key[n_key - n_arrays :]]
        has_out = bool(first >> words_of.HAS_OUT & 1)
        return cls(first & 0xFF, key, words, numbers[:n_scalars], numbers[n_scalars:], arrays, has_out)

    def has_plain_sizes(self) -> bool:
        """Return whether native code reads all sizes as they are: integers with a sign, or bits of floats."""
        if _OPERATIONS[self.operation].reads_bits:
            return True
        return all(type(size) is int for size in self.sizes) and self.sizes == self.words[len(self.scalars) :]


Bindable = tuple[Spec, int, tuple[Any, ...]]
"""A function, the number of its inputs, and the other arguments of `bind`."""


class _Operation(NamedTuple):
    """An operation that a block may ask for."""

    bind: Callable[[Request], Bindable]
    """Returns the function that serves a request, and its arguments."""
    reads_bits: bool = False
    """Whether sizes may be floats."""
    has_value_in_key: bool = False
    """Whether the scalars in the key are all that a kind fixes."""
    changes: Mapping[int, int] = NO_CHANGES
    """Words of the problem that differ from those of the function."""
    expected: int | None = None
    """What the kernel of a successful call returns, if that differs from the function."""
    check: Callable[[Request, BoundCall], None] | None = None
    """Refuses requests that the function itself would serve."""


_OPERATIONS: dict[int, _Operation] = {}


def operation(number: int, bind: Callable[[Request], Bindable], **options: Any) -> int:
    """Register an operation by its number in blocks, which must never change: Numba caches callers."""
    _OPERATIONS[number] = _Operation(bind, **options)
    return number


def _words_from(address: int) -> Iterator[int]:
    while True:
        yield ctypes.c_int64.from_address(address).value
        address += 8


def value_of(request: Request, first: int, last: int, code: int) -> object:
    """Return the scalar of some words, of a type that `code` tells."""
    return np.array(request.words[first:last]).view(dtype_of_code(code))[0]


@_ENTRY
def _ask(block: int, cell: int, is_late: int) -> int:
    """Make the call of a block: its first word becomes 0, or negative if this has raised an error."""
    try:
        if is_late:  # `ctypes` prints and loses what signal handlers raise before the first line
            raise RuntimeError("dmlops: an exception that Python has printed came first")  # noqa: EM101
        # Outside of any `feature_level`, by which later calls could not be told apart.
        Context().run(_answer, block)
    except BaseException as error:
        # After an error, Numba runs other rows of a `guvectorize`; Python then objects that an error is set.
        found = error.__cause__ if type(error) is SystemError and error.__cause__ else error
        # Frames refer to arrays of the caller, which it may free.
        _last_errors[threading.get_ident()] = found.with_traceback(None)
        ctypes.c_int64.from_address(block).value = -1
    return 0


def _answer(block: int) -> None:
    cpu.plan_threads.set(1)
    if cpu.compiles_plans():  # without sources, all calls come here
        _cell[words_of.FUNCTION] = cpu.load(words_of.CALL).address
    request = Request.read(block)
    asked = _OPERATIONS[request.operation]
    function, n_inputs, others = asked.bind(request)
    inputs, outs = request.arrays[:n_inputs], request.arrays[n_inputs:]
    operands, outputs = function.operands(inputs, outs if request.has_out else ())
    call = function.bind(operands, outputs, *others)
    if asked.check is not None:
        asked.check(request, call)
    new = [] if request.has_out else outs
    for array, desc in zip(new, call.results, strict=False):
        if array.shape != desc.sizes:
            np.empty(desc.sizes, array.dtype)  # NumPy says why there is no such array
            raise MemoryError
    addresses = [operand.address for operand in (*operands, *outputs)]
    addresses += [array.ctypes.data for array in new]
    if call.plan is not None:
        call.guard.check(addresses, are_given=request.has_out)
        given = [operand.array for operand in (*operands, *outputs)]
        is_in_place = all(map(is_, request.arrays, given))
        if is_in_place and request.has_plain_sizes() and _is_native(call, request.arrays):
            _keep(block, request, call)
        call.run(cpu.HOST, addresses, list(new))
    ctypes.c_int64.from_address(block).value = 0


def _is_native(call: BoundCall, arrays: Sequence[Any]) -> bool:
    """Return whether native code can make calls of a kind: their elements are not taken apart."""
    is_whole = call.problem is not None and call.problem.element_size == arrays[0].itemsize
    return call.form is not None and is_whole and cpu.compiles_plans()


def _keep(block: int, request: Request, call: BoundCall) -> None:
    """Let native code make later calls of a kind, with the kernels of this one."""
    asked = _OPERATIONS[request.operation]
    native = _natives.get(request.key)
    if native is None:
        n_given = len(call.results) if request.has_out else 0
        operands = [ArrayKind(0, 0, array.ndim, array.itemsize) for array in request.arrays]
        call.form = call.kind_form._replace(host=_ONE_THREAD)
        new = Native(call, operands, n_given, asked.changes)
        if asked.has_value_in_key:
            new.table.set(FIXED_WORDS, 1)
        native = _natives.setdefault(request.key, new)  # native code may have that of a faster thread
    native.load_kernels(call.problem)
    # Only a gather to a new array, and a check, tell by their results whether they have succeeded.
    expected = words_of.ANYTHING
    if asked.expected is not None:
        expected = asked.expected
    elif call.expected is not None and not request.has_out:
        expected = call.expected
    kind = (ctypes.c_int64 * 2)(native.table.address, expected)
    if len(request.key) <= words_of.MAX_KEY:
        _ENTRY(int(_cell[words_of.FUNCTION]))(block, CELL, ctypes.addressof(kind))


# Compiled callers use one thread.
_ONE_THREAD = cpu.words_of_host()
_ONE_THREAD[THREADS] = 1
# The tables of kinds by their keys, which native code may read at any time.
_natives: dict[tuple[int, ...], Native] = _kept.setdefault(("kinds", words_of.FORMAT, VERSION), {})
_kept.setdefault("callbacks", []).append(_ask)
_cell[words_of.CALLBACK] = _cell[words_of.FUNCTION] = ctypes.cast(_ask, ctypes.c_void_p).value or 0
