"""The part of Python in calls from nopython functions: the first call of each kind, and all that fail.

The arguments of a function are read from the block in which a compiled caller describes its call
(`kernels_cpu.nopython_call`), and checked and planned as always. Native code then makes the later calls of
that kind by the same plan.
"""

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextvars import Context
from itertools import islice
from operator import is_
from typing import Any

import numpy as np

from dmlops.calls.call import BoundCall, Manner
from dmlops.devices import cpu
from dmlops.functions.diagonal_matrix import DIAGONAL_MATRIX, MATRIX_WITHOUT_INPUT, made_of, plain_band
from dmlops.functions.gather_nd import GATHER_ND
from dmlops.functions.nonzero_coordinates import NONZERO_COORDINATES
from dmlops.functions.top_k import TOP_K
from dmlops.operators.nonzero_coordinates import check_fill
from dmlops.types.data_types import index_data_type
from dmlops.types.enums import TensorDataType
from dmlops.types.errors import DmlError, error_text, refuse
from kernels_cpu import nopython_call as words_of
from kernels_cpu.kernel import WORD_MASK, BoundKernel, Table
from kernels_cpu.nonzero_coordinates.planning import CAPACITY

SELECT, LIST, GATHER, CHECK, FILL, MAKE = range(6)
"""What a block asks for. `CHECK` comes before a `GATHER` to an output of the caller, which native code only
writes to if all indices are in range; `MAKE` is a matrix without an input."""
MODES = ("raise", "clip", "fill")
N_DIMS, IS_PACKED, IS_READ_ONLY, ALIGNMENT = 48, 55, 56, 57
"""By how many bits these are shifted in the word for an array, which begins with its type. The sizes follow;
the strides, too, if it is not packed."""

_ENTRY = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)
# Slots that are never written take no memory.
_cell = np.zeros(words_of.CELL_WORDS, np.int64)
CELL: int = _cell.ctypes.data
_last_errors: dict[int, Any] = {}  # by thread: a `threading.local` forgets those that Python has not started


class CallError(Exception):
    """What compiled callers raise: to make it gives the last error of the thread instead."""

    def __new__(cls, *_: Any) -> Any:
        """Return another one each time, which nothing else refers to."""
        kind, arguments = _last_errors[threading.get_ident()]
        return kind(*arguments)


def code_of(dtype: "np.dtype[Any] | None") -> int:
    """Return a data type, or none, as the low 6 bytes of a word; of structured types, only the size."""
    if dtype is not None and dtype.names is not None:
        return ord("V") | dtype.itemsize << 8
    return 0 if dtype is None else int.from_bytes(dtype.str[1:].encode(), "little")


def _dtype_of(code: int) -> Any:
    code &= (1 << N_DIMS) - 1
    if code & 0xFF == ord("V"):
        return np.dtype([("", f"V{code >> 8}")])
    return np.dtype(code.to_bytes(8, "little").rstrip(b"\0").decode()) if code else None


def _index_type(code: int, where: str) -> TensorDataType | None:
    return index_data_type(_dtype_of(code), where) if code else None


class _Array:
    """An array of a compiled caller, for NumPy to read in place."""

    def __init__(self, address: int, words: Iterator[int]) -> None:
        word = next(words)
        dtype = _dtype_of(word)
        shape = tuple(islice(words, word >> N_DIMS & 0x7F))
        self.__array_interface__ = {
            "version": 3,
            "data": (address, bool(word >> IS_READ_ONLY & 1)),
            "typestr": dtype.str,
            "descr": dtype.descr,
            "shape": shape,
            "strides": None if word >> IS_PACKED & 1 else tuple(islice(words, len(shape))),
        }


def _arguments(operation: int, scalars: list[int], arrays: list[Any], capacity: int) -> tuple[Any, ...]:
    """Return a function, its inputs, its outputs if they are given, and what else its `bind` takes."""
    if operation == SELECT:
        k, axis, largest, is_sorted, code = scalars
        n = 2 - len(arrays) % 2  # there may be lengths, and 2 outputs
        others = k, axis, bool(largest), bool(is_sorted), _index_type(code, "top_k.index_dtype")
        return TOP_K, arrays[:n], arrays[n:], others
    if operation == LIST:
        has_size, size, fill_kind, value, code = scalars
        index_type = _index_type(code, "nonzero_coordinates.index_dtype")
        fill = (None, value, value & WORD_MASK)[fill_kind]
        if len(arrays) == 1:
            check_fill(fill, index_type or TensorDataType.INT64, is_trimmed=not has_size)
            has_size, size = True, capacity
        return NONZERO_COORDINATES, arrays[:1], arrays[1:], (size if has_size else None, fill, index_type)
    if operation in (GATHER, CHECK):
        batch_dims, mode = scalars
        return GATHER_ND, arrays[:2], arrays[2:], (batch_dims, MODES[mode])
    begin, end, code, made_code, n_dims, *words = scalars
    value = np.array(words[max(n_dims, 0) :]).view(_dtype_of(code))[0]
    band = plain_band("diagonal_matrix", value, begin, end)
    if operation == FILL:
        return DIAGONAL_MATRIX, arrays[:1], arrays[1:], (None, *band)
    shape = None if n_dims < 0 else tuple(words[:n_dims])
    made = made_of("diagonal_matrix", shape, _dtype_of(made_code), None, arrays[0] if arrays else None)
    return MATRIX_WITHOUT_INPUT, [], arrays, (made, *band)


@_ENTRY  # type: ignore[untyped-decorator]
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
        _last_errors[threading.get_ident()] = type(found), found.args
        ctypes.c_int64.from_address(block).value = -1
    return 0


def _answer(block: int) -> None:
    cpu.plan_threads.set(1)
    native = cpu.load(words_of.CALL).address
    _cell[words_of.FUNCTION] = native
    head = (ctypes.c_int64 * words_of.KEY).from_address(block)
    words = iter((ctypes.c_int64 * head[words_of.N_KEY]).from_address(block + 8 * words_of.KEY))
    first = next(words)
    if first >> 32 != words_of.FORMAT:
        remedy = "remove Numba's cache of its module, and run again"
        raise DmlError(error_text("dmlops", "a compiled caller", "another version of dmlops made it", remedy))
    operation, n_scalars, n_arrays = first & 0xFF, first >> 8 & 0xFF, first >> 16 & 0xFF
    scalars = list(islice(words, n_scalars))
    order = [1, 0, 2, 3] if operation == CHECK or (operation == SELECT and n_arrays in (2, 4)) else range(4)
    addresses = [head[words_of.ADDRESSES + i] for i in order]
    arrays = [np.asarray(_Array(address, words)) for address in addresses[:n_arrays]]
    function, inputs, out, others = _arguments(operation, scalars, arrays, head[words_of.CAPACITY])
    operands, outputs = function.operands(inputs, out)
    call = function.bind(operands, outputs, *others)
    if function is GATHER_ND and not out and call.results[0].sizes != inputs[1].shape[:-1]:
        reason = f"the result has shape {call.results[0].sizes}, and Numba has to know how many dimensions"
        refuse("gather_nd.out", None, reason, "pass an array of that shape")
    given = [operand.address for operand in (*operands, *outputs)]
    made = [] if out else addresses[n_arrays:][: len(call.results)]
    if call.plan is not None:
        call.guard.check([*given, *made], are_given=bool(out))
    is_in_place = all(map(is_, arrays, [operand.array for operand in (*operands, *outputs)]))
    kept = _plan_words(call, operation, order, has_out=bool(out)) if is_in_place else None
    if kept and len(kept) + head[words_of.N_KEY] <= words_of.SLOT_WORDS - words_of.CONTENT:
        table = Table([len(kept), *kept])
        _ENTRY(native)(block, CELL, table.address)
    if call.plan is not None:
        call.run(cpu.HOST, [*given, *made], made)
    head[words_of.N_KEY] = 0


def _plan_words(call: BoundCall, operation: int, order: Sequence[int], *, has_out: bool) -> list[int] | None:
    """Return the words of a call's plan; None where native code cannot run it."""
    plan, n_operands, head = call.plan, len(call.inputs) + len(call.results), words_of.N_OVERLAPS + 1
    if plan is None:
        return [0] * head
    launch = plan.check if operation == CHECK else plan.launch
    launch = getattr(launch, "lengths_first", launch)
    if not isinstance(launch, BoundKernel):
        return None
    checks = call.manner is Manner.CHECK_THEN_GATHER and not has_out
    expected = -1 if operation == CHECK else 0 if checks else words_of.ANYTHING
    candidates = call.guard.candidates_of(n_operands) if has_out else ()
    overlaps = [word for i, j, *distances in candidates for word in (order[i], order[j], *distances)]
    code, leading, table = launch.parts()
    leading += call.leading
    table_at = head + len(leading) + words_of.MAX_ARRAYS + 1  # a workspace follows the arrays
    capacity_at = table_at + CAPACITY if operation == LIST and not has_out else words_of.CAPACITY_AT
    words = [code, expected, plan.workspace_size, capacity_at, table_at, head + len(leading), n_operands]
    return [*words, len(overlaps) // 4, *leading, *[0] * (words_of.MAX_ARRAYS + 1), *table, *overlaps]


_cell[words_of.CALLBACK] = _cell[words_of.FUNCTION] = ctypes.cast(_ask, ctypes.c_void_p).value or 0
