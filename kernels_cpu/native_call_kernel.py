"""The kernels of native calls; `native_call` makes the table that they read."""

from typing import Any

from llvmlite import ir
from numba.core import types

from kernels_cpu.intrinsics.building import I32, I64, emitted
from kernels_cpu.jit import njit
from kernels_cpu.launch_list import (
    ATTRIBUTE_AT,
    ATTRIBUTES_AT,
    MAX_ADDRESSES,
    MAX_VALUES,
    STREAM_AT,
    VALUES_AT,
)
from kernels_cpu.native_call import MAX_ARGUMENTS, MISMATCH

# Fields of the table, in bytes.
_CODE, _KEEPS_GIL, _TYPE, _DESCRIBE, _NAME, _N_OVERLAPS, _N_OPERANDS, _FIRST = range(0, 64, 8)
_N_ARGUMENTS, _TEMPLATE = 64, 72
# Fields of an operand in the table.
_KIND, _FLAGS, _N_DIMS, _SIZES = range(0, 32, 8)
# Fields of the structure PyArrayInterface.
_ARRAY_N_DIMS, _ARRAY_KIND, _ARRAY_ITEM_SIZE, _ARRAY_FLAGS = 4, 8, 12, 16
_ARRAY_SHAPE, _ARRAY_STRIDES, _ARRAY_DATA = 24, 32, 40
# Fields of the structure DLTensor.
_TENSOR_DATA, _TENSOR_DEVICE_TYPE, _TENSOR_DEVICE_ID, _TENSOR_N_DIMS, _TENSOR_DATA_TYPE = 0, 8, 12, 16, 20
_TENSOR_SHAPE, _TENSOR_STRIDES, _TENSOR_OFFSET = 24, 32, 40
# Words of the memory of a call: its arguments, and a DLTensor.
_CALL_WORDS = MAX_ARGUMENTS + 6
# Words of the memory of a launch: its frame, with the address of each value, the null pointer, and the
# addresses that the list is launched with, with the stream after them.
_CONFIG_WORDS = VALUES_AT // 8
_NULL_AT = VALUES_AT + 16 * MAX_VALUES
_LAUNCH_WORDS = _NULL_AT // 8 + 1 + MAX_ADDRESSES + 1

_external: Any = types.ExternalFunction
# Python's C interface.
_tuple_item = _external("PyTuple_GetItem", types.intp(types.intp, types.intp))
_capsule_pointer = _external("PyCapsule_GetPointer", types.intp(types.intp, types.intp))
_bytes_of = _external("PyBytes_FromStringAndSize", types.intp(types.intp, types.intp))
_type_of = _external("PyObject_Type", types.intp(types.intp))
_attribute = _external("PyObject_GetAttr", types.intp(types.intp, types.intp))
_release = _external("Py_DecRef", types.void(types.intp))
_save_thread = _external("PyEval_SaveThread", types.intp())
_restore_thread = _external("PyEval_RestoreThread", types.void(types.intp))
_clear_error = _external("PyErr_Clear", types.void())


def _loader(bits: int) -> Any:
    def load(builder: Any, address: Any) -> Any:
        value = builder.load(builder.inttoptr(address, ir.IntType(bits).as_pointer()))
        return value if bits == 64 else builder.zext(value, I64)

    return emitted(lambda address: types.int64(types.int64))(load)


_load, _load_32, _load_8 = _loader(64), _loader(32), _loader(8)


@emitted(lambda address, value: types.void(types.int64, types.int64))
def _store(builder: Any, address: Any, value: Any) -> None:
    builder.store(value, builder.inttoptr(address, I64.as_pointer()))


@emitted(types.int64, literal=0)
def _stack_words(builder: Any, n: int) -> Any:
    """Return the address of `n` (a literal) words, which live as long as the kernel runs."""
    with builder.goto_entry_block():
        memory = builder.alloca(I64, n)
    return builder.ptrtoint(memory, I64)


def _called(builder: Any, result: ir.IntType, function: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(result, [I64] * len(arguments))
    value = builder.call(builder.inttoptr(function, kind.as_pointer()), arguments)
    return value if result == I64 else builder.zext(value, I64)


@emitted(lambda *kinds: types.int64(*[types.int64] * 2))
def _call(builder: Any, code: Any, words: Any) -> Any:
    """Call the entry of a kernel."""
    return _called(builder, I64, code, words)


@emitted(lambda *kinds: types.int64(*[types.int64] * 3))
def _describe(builder: Any, describe: Any, array: Any, tensor: Any) -> Any:
    """Call DLPack's description of an array, which returns 0, or sets an error."""
    return _called(builder, I32, describe, array, tensor)


@emitted(lambda *kinds: types.int64(*[types.int64] * 5))
def _ask_driver(builder: Any, entry: Any, config: Any, function: Any, addresses: Any, extra: Any) -> Any:
    """Call the driver's cuLaunchKernelEx, which returns 0, or an error."""
    return _called(builder, I32, entry, config, function, addresses, extra)


@njit
def _is_known(n_dims: int, kind: int, shape: int, strides: int, known: int) -> bool:
    """Return whether an interface describes an array as the table at an address does."""
    if n_dims != _load(known + _N_DIMS) or kind != _load(known + _KIND):
        return False
    sizes = known + _SIZES
    for d in range(n_dims):
        if _load(shape + 8 * d) != _load(sizes + 8 * d):
            return False
        if _load(strides + 8 * d) != _load(sizes + 8 * (n_dims + d)):
            return False
    return True


@njit
def _has_type(item: int, expected: int) -> bool:
    kind: int = _type_of(item)
    _release(kind)
    return kind == expected


@njit
def _numpy_address(name: int, item: int, known: int) -> int:
    """Return where an array of the known kind has its elements; 0 for any other."""
    capsule = _attribute(item, name)
    if capsule == 0:
        _clear_error()
        return 0
    array = _capsule_pointer(capsule, 0)
    n_dims = _load_32(array + _ARRAY_N_DIMS)
    kind = _load_8(array + _ARRAY_KIND) | _load_32(array + _ARRAY_ITEM_SIZE) << 32
    shape, strides = _load(array + _ARRAY_SHAPE), _load(array + _ARRAY_STRIDES)
    flags = _load(known + _FLAGS)
    address = 0
    if _load_32(array + _ARRAY_FLAGS) & flags == flags and _is_known(n_dims, kind, shape, strides, known):
        address = _load(array + _ARRAY_DATA)
    _release(capsule)
    return address


@njit
def _dlpack_address(describe: int, array: int, tensor: int, known: int) -> int:
    """Return where an array of the known kind has its elements; 0 for any other."""
    if _describe(describe, array, tensor) != 0:
        _clear_error()
        return 0
    n_dims = _load_32(tensor + _TENSOR_N_DIMS)
    device = _load_32(tensor + _TENSOR_DEVICE_TYPE) | _load_32(tensor + _TENSOR_DEVICE_ID) << 8
    kind = _load_32(tensor + _TENSOR_DATA_TYPE) | device << 32
    shape, strides = _load(tensor + _TENSOR_SHAPE), _load(tensor + _TENSOR_STRIDES)
    if n_dims > 0 and strides == 0:
        return 0
    if not _is_known(n_dims, kind, shape, strides, known):
        return 0
    address = _load(tensor + _TENSOR_DATA) + _load(tensor + _TENSOR_OFFSET)
    return 0 if address & _load(known + _FLAGS) else address


@njit
def _addresses(table: int, arrays: int, words: int) -> bool:
    """Write the template with the arrays' addresses; return whether all are of known kinds and apart."""
    tensor = words + 8 * MAX_ARGUMENTS
    n_words = _load(table + _N_ARGUMENTS)
    for i in range(n_words):
        _store(words + 8 * i, _load(table + _TEMPLATE + 8 * i))
    expected, describe, name = _load(table + _TYPE), _load(table + _DESCRIBE), _load(table + _NAME)
    overlaps = table + _TEMPLATE + 8 * n_words
    n_overlaps = _load(table + _N_OVERLAPS)
    known = overlaps + 32 * n_overlaps
    first = words + 8 * _load(table + _FIRST)
    for i in range(_load(table + _N_OPERANDS)):
        item = _tuple_item(arrays, i)
        if not _has_type(item, expected):
            return False
        address = (
            _dlpack_address(describe, item, tensor, known) if describe else _numpy_address(name, item, known)
        )
        if address == 0:
            return False
        _store(first + 8 * i, address)
        known += _SIZES + 16 * _load(known + _N_DIMS)
    for i in range(n_overlaps):
        pair = overlaps + 32 * i
        distance = _load(first + 8 * _load(pair + 8)) - _load(first + 8 * _load(pair))
        if _load(pair + 16) < distance < _load(pair + 24):
            return False
    return True


@njit
def native_call(table: int, arrays: int, workspace: int, stream: int) -> int:
    """Launch a kernel on arrays of known kinds; its last arguments are the workspace and the stream."""
    words = _stack_words(_CALL_WORDS)
    if not _addresses(table, arrays, words):
        return MISMATCH
    last = words + 8 * (_load(table + _N_ARGUMENTS) - 1)
    _store(last, workspace)
    _store(last + 8, stream)
    code = _load(table + _CODE)
    keeps_gil = _load(table + _KEEPS_GIL)
    thread = 0 if keeps_gil else _save_thread()
    result: int = _call(code, words)
    if not keeps_gil:
        _restore_thread(thread)
    return result


@njit
def native_launch(table: int, n_addresses: int, a: int, b: int, c: int, d: int, e: int, f: int) -> int:
    """Launch a list (`launch_list`) on a GPU; return 0, or the driver's error.

    The stream comes after `n_addresses` addresses.
    """
    frame = _stack_words(_LAUNCH_WORDS)
    # Slot -1 is the null pointer.
    addresses = frame + _NULL_AT + 8
    _store(frame + _NULL_AT, 0)
    _store(addresses, a)
    _store(addresses + 8, b)
    _store(addresses + 16, c)
    _store(addresses + 24, d)
    _store(addresses + 32, e)
    _store(addresses + 40, f)
    stream = _load(addresses + 8 * n_addresses)
    driver = _load(table)
    at = table + 16
    for _ in range(_load(table + 8)):
        function, n_pointers, n_values = _load(at), _load(at + 8), _load(at + 16)
        n_words = _CONFIG_WORDS + n_values
        at += 24
        for i in range(n_words):
            _store(frame + 8 * i, _load(at + 8 * i))
        at += 8 * n_words
        _store(frame + STREAM_AT, stream)
        if _load(frame + ATTRIBUTES_AT):
            _store(frame + ATTRIBUTES_AT, frame + ATTRIBUTE_AT)
        values = frame + VALUES_AT
        for i in range(n_pointers):
            slot, offset = _load(at + 16 * i), _load(at + 16 * i + 8)
            _store(values + 8 * i, _load(addresses + 8 * slot) + offset)
        at += 16 * n_pointers
        value_addresses = values + 8 * n_values
        for i in range(n_values):
            _store(value_addresses + 8 * i, values + 8 * i)
        status: int = _ask_driver(driver, frame, function, value_addresses, 0)
        if status != 0:
            return status
    return 0


@njit
def native_look(table: int, arrays: int) -> int:
    """Return the addresses of arrays of known kinds as a bytes object, which is empty if there are others."""
    words = _stack_words(_CALL_WORDS)
    size = 8 * _load(table + _N_OPERANDS) if _addresses(table, arrays, words) else 0
    found: int = _bytes_of(words, size)
    return found
