"""The kernel of calls from nopython functions; `nopython_call` describes the words that it reads."""

from kernels_cpu import native_call as table_of
from kernels_cpu import nopython_call as words_of
from kernels_cpu.call_words import (
    ADDRESS,
    CALL_WORDS,
    MAX_SIZES,
    PROBLEM_WORDS,
    RANK,
    SHAPE,
    SIZES,
    STRIDES,
    array_at,
)
from kernels_cpu.foreign import (
    acquire_fence,
    address_of,
    call_callback,
    integers_at,
    load_acquire,
    replace_if,
    stack_integers,
    store_release,
    tail,
)
from kernels_cpu.kind_kernel import find_kernels, plan_call, run_with_scratch, shift_of
from kernels_cpu.native_call import NEEDS_PYTHON
from kernels_cpu.nopython_call import MAX_KEY, SLOT_BITS, SLOT_WORDS
from kernels_cpu.plan_words import MAX_WORDS, Words

_MULTIPLIER, _STEP = 0x9E3779B97F4A7C15, 0x3C6EF372FE94F82A  # of Fibonacci hashing, and twice as much
_LOW_HALF = (1 << 32) - 1


def _keep(slot: Words, key: Words, n_key: int, kind: Words) -> int:
    """Write the table of a kind, and the result that is expected, to a slot, unless another thread does."""
    version = load_acquire(slot, words_of.VERSION)
    if version & 1 == 0 and replace_if(slot, version, version + 1):
        store_release(slot, words_of.N_SLOT_KEY, n_key)
        store_release(slot, words_of.TABLE, kind[0])
        store_release(slot, words_of.EXPECTED, kind[1])
        for i in range(n_key):
            store_release(slot, words_of.CONTENT + i, key[i])
        store_release(slot, words_of.VERSION, version + 2)
    return 0


def _find(slot: Words, key: Words, n_key: int, found: Words) -> bool:
    """Read the table for a key from a slot, and the result that is expected; return whether it is there."""
    version = load_acquire(slot, words_of.VERSION)
    if version & 1 or load_acquire(slot, words_of.N_SLOT_KEY) != n_key:
        return False
    for i in range(n_key):
        if load_acquire(slot, words_of.CONTENT + i) != key[i]:
            return False
    found[0] = load_acquire(slot, words_of.TABLE)
    found[1] = load_acquire(slot, words_of.EXPECTED)
    acquire_fence()
    return load_acquire(slot, words_of.VERSION) == version


def _read_call(block: Words, table: Words, call: Words) -> bool:
    """Read sizes and arrays of a block; return whether all elements lie where kernels can use them."""
    key = tail(block, words_of.KEY)
    first = key[0]
    n_sizes = first >> words_of.N_SIZES & 0xFF
    n_key = block[words_of.N_KEY]
    rest = tail(key, n_key)
    described_at = n_key - (first >> words_of.N_ARRAYS & 0xF)
    for i in range(min(n_sizes, MAX_SIZES)):
        call[SIZES + i] = rest[i]
    rest = tail(rest, n_sizes)
    n_missing = table[table_of.FIRST]
    for number in range(n_missing, table[table_of.N_OPERANDS]):
        described = key[described_at + number - n_missing]
        array, shift = tail(call, array_at(number)), shift_of(table, number)
        rank = described >> words_of.N_DIMS & 0x7F
        mask = (1 << shift) - 1
        array[ADDRESS] = rest[0]
        array[RANK] = rank
        is_packed = described >> words_of.IS_PACKED & 1
        unaligned = rest[0] & mask
        stride = 1
        for d in range(rank - 1, -1, -1):
            size = rest[1 + d]
            array[SHAPE + d] = size
            if not is_packed:
                unaligned |= rest[1 + rank + d] & mask if size > 1 else 0
                array[STRIDES + d] = rest[1 + rank + d] >> shift if size > 1 else 0
            else:
                array[STRIDES + d] = stride if size > 1 else 0
                stride *= size
        if unaligned:
            return False
        rest = tail(rest, 1 + rank if is_packed else 1 + 2 * rank)
    return True


def _run(block: Words, table: Words, expected: int) -> bool:
    """Make the call of a block by the table of its kind; return whether it is made, and has succeeded."""
    call, problem, out = stack_integers(CALL_WORDS), stack_integers(PROBLEM_WORDS), stack_integers(MAX_WORDS)
    if not _read_call(block, table, call) or not plan_call(table, call, problem, out):
        return False
    if not find_kernels(table, out, False):
        return False
    result = run_with_scratch(table, call, out)
    return result != NEEDS_PYTHON and expected in (result, words_of.ANYTHING)


def nopython_call(block: Words, cell: Words, kind: Words) -> int:
    """Make the call of a block, or keep the table of its kind."""
    key, n_key = tail(block, words_of.KEY), block[words_of.N_KEY]
    code, multiplier = n_key, _MULTIPLIER
    # The products of the sum do not wait for each other; a vector of words would wait until all are stored.
    for i in range(n_key):
        code += (load_acquire(key, i) ^ multiplier) * multiplier
        multiplier += _STEP
    code = (code ^ (code >> 32 & _LOW_HALF)) * _MULTIPLIER
    number = code >> 64 - SLOT_BITS & (1 << SLOT_BITS) - 1
    slot = tail(cell, words_of.SLOTS + number * SLOT_WORDS)
    other = tail(cell, words_of.SLOTS + (number ^ 1) * SLOT_WORDS)
    if address_of(kind) != 0:
        is_older = load_acquire(slot, words_of.VERSION) <= load_acquire(other, words_of.VERSION)
        return _keep(slot if is_older else other, key, n_key, kind)
    found = stack_integers(2)
    is_known = n_key <= MAX_KEY and (_find(slot, key, n_key, found) or _find(other, key, n_key, found))
    if is_known and _run(block, integers_at(found[0]), found[1]):
        block[words_of.N_KEY] = 0
    else:
        call_callback(cell[words_of.CALLBACK], address_of(block), address_of(cell), 0)
    return 0
