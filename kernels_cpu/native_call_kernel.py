"""The kernel of native calls; `native_call` says what its table holds."""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from kernels_cpu.jit import helper, kernel
from kernels_cpu.native_call import MAX_ARGUMENTS, MISMATCH

_WORD = ir.IntType(64)
# Fields of the table, in bytes.
_CODE, _N_ARGUMENTS, _N_OPERANDS, _SCRATCH_SLOT, _N_OVERLAPS, _TEMPLATE = range(0, 48, 8)
_OPERAND_BYTES = 40  # of an operand, before its shape and strides
# Fields of the structure PyArrayInterface, in bytes: two 32-bit integers, a character, two 32-bit integers, and
# the addresses of shape, strides and data.
_N_DIMS, _KIND, _ITEM_SIZE, _FLAGS, _SHAPE, _STRIDES, _DATA = 4, 8, 12, 16, 24, 32, 40

# Python's C interface.
_tuple_item = types.ExternalFunction("PyTuple_GetItem", types.intp(types.intp, types.intp))
_capsule_pointer = types.ExternalFunction("PyCapsule_GetPointer", types.intp(types.intp, types.intp))


def _loader(bits: int) -> Any:
    def load(typing_context, address):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = builder.load(builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()))
            return value if bits == 64 else builder.zext(value, _WORD)

        return types.int64(types.int64), generate

    load.__name__ = load.__qualname__ = f"load_{bits}"
    return intrinsic(load)


_load, _load_32, _load_8 = _loader(64), _loader(32), _loader(8)


@intrinsic
def _store(typing_context, address, value):  # type: ignore[no-untyped-def]
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], _WORD.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _stack_words(typing_context):  # type: ignore[no-untyped-def]
    """Return the address of `MAX_ARGUMENTS` words that live as long as the kernel runs."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        with builder.goto_entry_block():
            memory = builder.alloca(_WORD, MAX_ARGUMENTS)
        return builder.ptrtoint(memory, _WORD)

    return types.int64(), generate


@intrinsic
def _call(typing_context, code, words):  # type: ignore[no-untyped-def]
    """Call the entry of a kernel."""
    kind = ir.FunctionType(_WORD, [_WORD])

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code, words = arguments
        return builder.call(builder.inttoptr(code, kind.as_pointer()), [words])

    return types.int64(types.int64, types.int64), generate


@helper
def _has_kind(array: int, at: int) -> bool:
    """Return whether an array interface is what the table says at an address."""
    n_dims = _load(at + 32)
    if _load_32(array + _N_DIMS) != n_dims or _load_8(array + _KIND) != _load(at + 8):
        return False
    flags = _load(at + 24)
    if _load_32(array + _ITEM_SIZE) != _load(at + 16) or _load_32(array + _FLAGS) & flags != flags:
        return False
    shape, strides = _load(array + _SHAPE), _load(array + _STRIDES)
    known = at + _OPERAND_BYTES
    for d in range(n_dims):
        if _load(shape + 8 * d) != _load(known + 8 * d):
            return False
        if _load(strides + 8 * d) != _load(known + 8 * (n_dims + d)):
            return False
    return True


@kernel
def native_call(table: int, capsules: int, scratch: int) -> int:
    """Check the arrays of a call, and launch its kernel on them."""
    words = _stack_words()
    n_words = _load(table + _N_ARGUMENTS)
    for i in range(n_words):
        _store(words + 8 * i, _load(table + _TEMPLATE + 8 * i))
    overlaps = table + _TEMPLATE + 8 * n_words
    n_overlaps = _load(table + _N_OVERLAPS)
    at = overlaps + 32 * n_overlaps
    for i in range(_load(table + _N_OPERANDS)):
        array = _capsule_pointer(_tuple_item(capsules, i), 0)
        if not _has_kind(array, at):
            return MISMATCH
        address = _load(array + _DATA)
        if address == 0:
            return MISMATCH
        _store(words + 8 * _load(at), address)
        at += _OPERAND_BYTES + 16 * _load(at + 32)
    for i in range(n_overlaps):
        pair = overlaps + 32 * i
        distance = _load(words + 8 * _load(pair + 8)) - _load(words + 8 * _load(pair))
        if _load(pair + 16) < distance < _load(pair + 24):
            return MISMATCH
    slot = _load(table + _SCRATCH_SLOT)
    if slot >= 0:
        _store(words + 8 * slot, scratch)
    return _call(_load(table + _CODE), words)
