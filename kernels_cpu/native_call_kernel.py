"""The kernels of native calls; `native_call` makes the table that they read.

The tuple that a native call takes has the arrays, in the order in which kernels take them; then, if the table
has limits, for each array how many bytes its memory has from its first element on; then the sizes; and on a
GPU the address and the size of the workspace, and the stream. If arrays are described in words, a call takes
the same as consecutive words, with the address, the sizes and the strides of each array.
"""

from kernels_cpu import native_call as table_of
from kernels_cpu.call_words import (
    ADDRESS,
    CALL_WORDS,
    MAX_ARRAYS,
    PROBLEM_WORDS,
    RANK,
    SHAPE,
    SIZES,
    STRIDES,
    array_at,
)
from kernels_cpu.foreign import (
    address_of,
    attribute,
    call_describe,
    call_entry,
    capsule_pointer,
    clear_error,
    drop_reference,
    integer_of,
    integers_at,
    pending_error,
    release_gil,
    short_integer,
    stack_integers,
    tail,
    take_gil,
    tuple_item,
    type_of,
)
from kernels_cpu.kind_kernel import (
    extent_from,
    find_kernels,
    is_small,
    plan_call,
    run_on_host,
    run_with_scratch,
    shift_of,
    workspace_of,
)
from kernels_cpu.native_call import MISMATCH, NEEDS_PYTHON
from kernels_cpu.plan_words import END, MAX_WORDS, WORKSPACE, Words

# Addresses of arrays, of a workspace, and a stream.
MAX_ADDRESSES = MAX_ARRAYS + 2
# Fields of the structure PyArrayInterface: the first four in integers of 32 bits, the others in words.
_ARRAY_N_DIMS, _ARRAY_KIND, _ARRAY_ITEM_SIZE, _ARRAY_FLAGS = range(1, 5)
_ARRAY_SHAPE, _ARRAY_STRIDES, _ARRAY_DATA = range(3, 6)
# Fields of the structure DLTensor, as well.
_TENSOR_DEVICE_TYPE, _TENSOR_DEVICE_ID, _TENSOR_N_DIMS, _TENSOR_DATA_TYPE = range(2, 6)
_TENSOR_DATA, _TENSOR_SHAPE, _TENSOR_STRIDES, _TENSOR_OFFSET = 0, 3, 4, 5
_TENSOR_WORDS = 6


def _read_array_interface(name: int, item: int, known: Words, array: Words) -> bool:
    """Read an array by NumPy's interface into the words of a call; return whether it is of the known kind."""
    capsule = attribute(item, name)
    if capsule == 0:
        clear_error()
        return False
    words = integers_at(capsule_pointer(capsule, 0))
    kind = short_integer(words, _ARRAY_KIND) & 0xFF | short_integer(words, _ARRAY_ITEM_SIZE) << 32
    flags, rank = known[table_of.FLAGS], known[table_of.N_DIMS]
    is_known = kind == known[table_of.KIND] and short_integer(words, _ARRAY_FLAGS) & flags == flags
    if is_known and short_integer(words, _ARRAY_N_DIMS) == rank:
        shape, strides = integers_at(words[_ARRAY_SHAPE]), integers_at(words[_ARRAY_STRIDES])
        shift = known[table_of.ITEM_SHIFT]
        array[ADDRESS] = words[_ARRAY_DATA]
        array[RANK] = rank
        for d in range(rank):
            size = shape[d]
            array[SHAPE + d] = size
            stride = strides[d] if size > 1 else 0
            array[STRIDES + d] = stride >> shift
            if stride & ((1 << shift) - 1):
                is_known = False
    else:
        is_known = False
    drop_reference(capsule)
    return is_known


def _read_dlpack(describe: int, item: int, tensor: Words, known: Words, array: Words) -> bool:
    """Read an array by DLPack into the words of a call; return whether it is of the known kind."""
    if call_describe(describe, item, address_of(tensor)) != 0:
        clear_error()
        return False
    rank = known[table_of.N_DIMS]
    device = short_integer(tensor, _TENSOR_DEVICE_TYPE) | short_integer(tensor, _TENSOR_DEVICE_ID) << 8
    kind = short_integer(tensor, _TENSOR_DATA_TYPE) | device << 32
    if kind != known[table_of.KIND] or short_integer(tensor, _TENSOR_N_DIMS) != rank:
        return False
    if rank > 0 and tensor[_TENSOR_STRIDES] == 0:
        return False
    shape, strides = integers_at(tensor[_TENSOR_SHAPE]), integers_at(tensor[_TENSOR_STRIDES])
    array[ADDRESS] = tensor[_TENSOR_DATA] + tensor[_TENSOR_OFFSET]
    array[RANK] = rank
    for d in range(rank):
        array[SHAPE + d] = shape[d]
        array[STRIDES + d] = strides[d] if shape[d] > 1 else 0
    return array[ADDRESS] & known[table_of.FLAGS] == 0


def _read_integer(arguments: int, number: int, word: Words) -> bool:
    """Read an integer of the tuple; return whether it has at most 64 bits."""
    word[0] = integer_of(tuple_item(arguments, number))
    if word[0] == -1 and pending_error() != 0:
        clear_error()
        return False
    return True


def _read_arrays(table: Words, arguments: int, call: Words) -> bool:
    """Read the arrays of a call; return whether all are of known kinds."""
    tensor = stack_integers(_TENSOR_WORDS)
    expected, describe, name = table[table_of.TYPE], table[table_of.DESCRIBE], table[table_of.NAME]
    first = table[table_of.FIRST]
    for i in range(first, table[table_of.N_OPERANDS] + table[table_of.HAS_WORKSPACE]):
        item = tuple_item(arguments, i - first)
        kind = type_of(item)
        drop_reference(kind)
        if kind not in (expected, table[table_of.OTHER_TYPE]):
            return False
        known, array = tail(table, table_of.OPERANDS + i * table_of.OPERAND), tail(call, array_at(i))
        if describe:
            if not _read_dlpack(describe, item, tensor, known, array):
                return False
        elif not _read_array_interface(name, item, known, array):
            return False
    return True


def _read_call(table: Words, arguments: int, call: Words, rest: Words) -> bool:
    """Read the tuple of a call; `rest` gets workspace, its size and the stream on a GPU."""
    if not _read_arrays(table, arguments, call):
        return False
    first, n_arrays = table[table_of.FIRST], table[table_of.N_OPERANDS] + table[table_of.HAS_WORKSPACE]
    number = n_arrays - first
    if table[table_of.HAS_LIMITS]:
        for i in range(first, n_arrays):
            if not _read_integer(arguments, number, rest):
                return False
            number += 1
            if extent_from(call, array_at(i), shift_of(table, i)) > rest[0]:
                return False
    for i in range(table[table_of.N_SIZES]):
        if not _read_integer(arguments, number, tail(call, SIZES + i)):
            return False
        number += 1
    for i in range(3 if table[table_of.DRIVER] else 0):
        if not _read_integer(arguments, number + i, tail(rest, i)):
            return False
    return True


def _take_words(table: Words, given: Words, call: Words, rest: Words) -> bool:
    """Copy the words of a call whose arrays are described by words, as `_read_call` reads a tuple."""
    at = 0
    for i in range(table[table_of.FIRST], table[table_of.N_OPERANDS] + table[table_of.HAS_WORKSPACE]):
        rank, array = table[table_of.OPERANDS + i * table_of.OPERAND + table_of.N_DIMS], array_at(i)
        call[array + ADDRESS] = given[at]
        call[array + RANK] = rank
        for d in range(rank):
            size = given[at + 1 + d]
            call[array + SHAPE + d] = size
            call[array + STRIDES + d] = given[at + 1 + rank + d] if size > 1 else 0
        at += 1 + 2 * rank
    for i in range(table[table_of.N_SIZES]):
        call[SIZES + i] = given[at + i]
    at += table[table_of.N_SIZES]
    for i in range(3 if table[table_of.DRIVER] else 0):
        rest[i] = given[at + i]
    return True


def native_call(table: Words, reply: int, arguments: int) -> int:
    """Make a call, or do nothing and return a negative number (`native_call`).

    With a `reply`, write the addresses of all arrays and the plan there instead; return how many words these
    are.
    """
    call, problem, out = stack_integers(CALL_WORDS), stack_integers(PROBLEM_WORDS), stack_integers(MAX_WORDS)
    rest = stack_integers(3)
    if table[table_of.TYPE] == 0:
        is_read = _take_words(table, integers_at(arguments), call, rest)
    else:
        is_read = _read_call(table, arguments, call, rest)
    if not is_read or not plan_call(table, call, problem, out):
        return MISMATCH
    if reply != 0:
        return _write_reply(table, call, out, integers_at(reply))
    workspace = 0
    if table[table_of.HAS_WORKSPACE]:
        workspace = workspace_of(table, call, out[WORKSPACE])
        if workspace == 0:
            return MISMATCH
        rest[0] = workspace
        rest[1] = out[WORKSPACE]
    is_on_device = table[table_of.DRIVER] != 0
    if not find_kernels(table, out, is_on_device):
        return NEEDS_PYTHON
    if is_on_device:
        return _launch(table, call, out, rest)
    keeps_gil = is_small(table, call)
    thread = 0 if keeps_gil else release_gil()
    result = run_on_host(table, call, out, workspace) if workspace else run_with_scratch(table, call, out)
    if not keeps_gil:
        take_gil(thread)
    return result


def _launch(table: Words, call: Words, out: Words, rest: Words) -> int:
    """Launch a plan on a GPU; `rest` are the workspace, its size and the stream.

    Return the driver's error or 0, and above it the bytes of the workspace that the plan needs.
    """
    if rest[1] < out[WORKSPACE]:
        return NEEDS_PYTHON
    addresses, arguments = stack_integers(MAX_ADDRESSES), stack_integers(3)
    n_operands = table[table_of.N_OPERANDS]
    addresses[0] = 0
    for i in range(table[table_of.FIRST], n_operands):
        addresses[i] = call[array_at(i) + ADDRESS]
    addresses[n_operands] = rest[0]
    addresses[n_operands + 1] = rest[2]
    arguments[0] = address_of(table)
    arguments[1] = address_of(addresses)
    arguments[2] = address_of(out)
    thread = release_gil()
    status = call_entry(table[table_of.LAUNCH_ENTRY], address_of(arguments))
    take_gil(thread)
    return status | out[WORKSPACE] << table_of.STATUS_BITS


def _write_reply(table: Words, call: Words, out: Words, words: Words) -> int:
    """Write the addresses of all arrays, and the plan; return how many words these are."""
    n_operands = table[table_of.N_OPERANDS] + table[table_of.HAS_WORKSPACE]
    words[0] = 0
    for i in range(table[table_of.FIRST], n_operands):
        words[i] = call[array_at(i) + ADDRESS]
    for i in range(out[END]):
        words[n_operands + i] = out[i]
    return int(n_operands + out[END])
