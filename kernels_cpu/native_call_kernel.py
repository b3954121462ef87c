"""The kernels of native calls; `native_call` makes the table that they read."""

from typing import Any

from llvmlite import ir
from numba import types

from kernels_cpu import launch_list
from kernels_cpu.intrinsics.building import I32, I64, emitted
from kernels_cpu.intrinsics.pointers import address_of, integers_at, short_integers_at, stack_integers, tail
from kernels_cpu.jit import njit
from kernels_cpu.native_call import MAX_ARGUMENTS, MISMATCH

# Fields of the table, in words.
_CODE, _KEEPS_GIL, _TYPE, _DESCRIBE, _NAME, _N_OVERLAPS, _N_OPERANDS, _FIRST = range(8)
_N_ARGUMENTS, _TEMPLATE = 8, 9
# Fields of an operand in the table.
_KIND, _FLAGS, _N_DIMS, _SIZES = range(4)
# Fields of the structure PyArrayInterface: the first four in integers of 32 bits, the others in words.
_ARRAY_N_DIMS, _ARRAY_KIND, _ARRAY_ITEM_SIZE, _ARRAY_FLAGS = range(1, 5)
_ARRAY_SHAPE, _ARRAY_STRIDES, _ARRAY_DATA = range(3, 6)
# Fields of the structure DLTensor, as well.
_TENSOR_DEVICE_TYPE, _TENSOR_DEVICE_ID, _TENSOR_N_DIMS, _TENSOR_DATA_TYPE = range(2, 6)
_TENSOR_DATA, _TENSOR_SHAPE, _TENSOR_STRIDES, _TENSOR_OFFSET = 0, 3, 4, 5
# Words of the memory of a call: its arguments, and a DLTensor.
_CALL_WORDS = MAX_ARGUMENTS + 6
# Words of the memory of a launch: its frame, with the address of each value, the null pointer, and the
# addresses that the list is launched with, with the stream after them.
_STREAM, _ATTRIBUTES = launch_list.STREAM_AT // 8, launch_list.ATTRIBUTES_AT // 8
_ATTRIBUTE, _VALUES = launch_list.ATTRIBUTE_AT // 8, launch_list.VALUES_AT // 8
_ADDRESSES = _VALUES + 2 * launch_list.MAX_VALUES + 1
_LAUNCH_WORDS = _ADDRESSES + launch_list.MAX_ADDRESSES + 1

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


def called(builder: Any, result: ir.IntType, function: Any, *arguments: Any) -> Any:
    """Call a C function, whose arguments are integers of 64 bits."""
    kind = ir.FunctionType(result, [I64] * len(arguments))
    value = builder.call(builder.inttoptr(function, kind.as_pointer()), arguments)
    return value if result == I64 else builder.zext(value, I64)


@emitted(lambda *kinds: types.int64(*[types.int64] * 2))
def call_entry(builder: Any, code: Any, words: Any) -> Any:
    """Call the entry of a kernel."""
    return called(builder, I64, code, words)


@emitted(lambda *kinds: types.int64(*[types.int64] * 3))
def _describe(builder: Any, describe: Any, array: Any, tensor: Any) -> Any:
    """Call DLPack's description of an array, which returns 0, or sets an error."""
    return called(builder, I32, describe, array, tensor)


@emitted(lambda *kinds: types.int64(*[types.int64] * 5))
def _ask_driver(builder: Any, entry: Any, config: Any, function: Any, addresses: Any, extra: Any) -> Any:
    """Call the driver's cuLaunchKernelEx, which returns 0, or an error."""
    return called(builder, I32, entry, config, function, addresses, extra)


@njit
def _is_known(n_dims: Any, kind: int, shape: Any, strides: Any, known: Any) -> bool:
    """Return whether an interface describes an array as the table does from `known` on."""
    if n_dims != known[_N_DIMS] or kind != known[_KIND]:
        return False
    for d in range(n_dims):
        if shape[d] != known[_SIZES + d] or strides[d] != known[_SIZES + n_dims + d]:
            return False
    return True


@njit
def _numpy_address(name: int, item: int, known: Any) -> int:
    """Return where an array of the known kind has its elements; 0 for any other."""
    capsule = _attribute(item, name)
    if capsule == 0:
        _clear_error()
        return 0
    array = _capsule_pointer(capsule, 0)
    words = integers_at(array)
    numbers = short_integers_at(array)
    kind = numbers[_ARRAY_KIND] & 0xFF | numbers[_ARRAY_ITEM_SIZE] << 32
    shape, strides = integers_at(words[_ARRAY_SHAPE]), integers_at(words[_ARRAY_STRIDES])
    flags = known[_FLAGS]
    address: int = 0
    if numbers[_ARRAY_FLAGS] & flags == flags and _is_known(
        numbers[_ARRAY_N_DIMS], kind, shape, strides, known
    ):
        address = words[_ARRAY_DATA]
    _release(capsule)
    return address


@njit
def _dlpack_address(describe: int, array: int, tensor: Any, known: Any) -> int:
    """Return where an array of the known kind has its elements; 0 for any other."""
    if _describe(describe, array, address_of(tensor)) != 0:
        _clear_error()
        return 0
    numbers = short_integers_at(tensor)
    n_dims = numbers[_TENSOR_N_DIMS]
    device = numbers[_TENSOR_DEVICE_TYPE] | numbers[_TENSOR_DEVICE_ID] << 8
    kind = numbers[_TENSOR_DATA_TYPE] | device << 32
    shape, strides = integers_at(tensor[_TENSOR_SHAPE]), integers_at(tensor[_TENSOR_STRIDES])
    if (n_dims > 0 and tensor[_TENSOR_STRIDES] == 0) or not _is_known(n_dims, kind, shape, strides, known):
        return 0
    address: int = tensor[_TENSOR_DATA] + tensor[_TENSOR_OFFSET]
    return 0 if address & known[_FLAGS] else address


@njit
def _addresses(table: Any, arrays: int, words: Any) -> bool:
    """Write the template with the arrays' addresses; return whether all are of known kinds and apart."""
    tensor = tail(words, MAX_ARGUMENTS)
    n_words = table[_N_ARGUMENTS]
    for i in range(n_words):
        words[i] = table[_TEMPLATE + i]
    expected, describe, name = table[_TYPE], table[_DESCRIBE], table[_NAME]
    overlaps = tail(table, _TEMPLATE + n_words)
    n_overlaps = table[_N_OVERLAPS]
    known = tail(overlaps, 4 * n_overlaps)
    addresses = tail(words, table[_FIRST])
    for i in range(table[_N_OPERANDS]):
        item = _tuple_item(arrays, i)
        kind = _type_of(item)
        _release(kind)
        if kind != expected:
            return False
        address = (
            _dlpack_address(describe, item, tensor, known) if describe else _numpy_address(name, item, known)
        )
        if address == 0:
            return False
        addresses[i] = address
        known = tail(known, _SIZES + 2 * known[_N_DIMS])
    for i in range(n_overlaps):
        pair = tail(overlaps, 4 * i)
        distance = addresses[pair[1]] - addresses[pair[0]]
        if pair[2] < distance < pair[3]:
            return False
    return True


@njit
def native_call(table: Any, arrays: int, workspace: int, stream: int) -> int:
    """Launch a kernel on arrays of known kinds; its last arguments are the workspace and the stream."""
    words = stack_integers(_CALL_WORDS)
    if not _addresses(table, arrays, words):
        return MISMATCH
    last = table[_N_ARGUMENTS] - 1
    words[last] = workspace
    words[last + 1] = stream
    keeps_gil = table[_KEEPS_GIL]
    thread = 0 if keeps_gil else _save_thread()
    result: int = call_entry(table[_CODE], address_of(words))
    if not keeps_gil:
        _restore_thread(thread)
    return result


@njit
def native_launch(table: Any, n_addresses: int, a: int, b: int, c: int, d: int, e: int, f: int) -> int:
    """Launch a list (`launch_list`) on a GPU; return 0, or the driver's error.

    The stream comes after `n_addresses` addresses.
    """
    frame = stack_integers(_LAUNCH_WORDS)
    values = tail(frame, _VALUES)
    addresses = tail(frame, _ADDRESSES)
    addresses[-1] = 0  # slot -1 is the null pointer
    addresses[0] = a
    addresses[1] = b
    addresses[2] = c
    addresses[3] = d
    addresses[4] = e
    addresses[5] = f
    stream = addresses[n_addresses]
    at = tail(table, 2)
    for _ in range(table[1]):
        function, n_pointers, n_values = at[0], at[1], at[2]
        n_words = _VALUES + n_values
        at = tail(at, 3)
        for i in range(n_words):
            frame[i] = at[i]
        at = tail(at, n_words)
        frame[_STREAM] = stream
        if frame[_ATTRIBUTES]:
            frame[_ATTRIBUTES] = address_of(tail(frame, _ATTRIBUTE))
        for i in range(n_pointers):
            values[i] = addresses[at[2 * i]] + at[2 * i + 1]
        at = tail(at, 2 * n_pointers)
        value_addresses = tail(values, n_values)
        for i in range(n_values):
            value_addresses[i] = address_of(tail(values, i))
        status: int = _ask_driver(table[0], address_of(frame), function, address_of(value_addresses), 0)
        if status != 0:
            return status
    return 0


@njit
def native_look(table: Any, arrays: int) -> int:
    """Return the addresses of arrays of known kinds as a bytes object, which is empty if there are others."""
    words = stack_integers(_CALL_WORDS)
    size = 8 * table[_N_OPERANDS] if _addresses(table, arrays, words) else 0
    found: int = _bytes_of(address_of(words), size)
    return found
