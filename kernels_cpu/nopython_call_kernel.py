"""The kernel of calls from nopython functions; `nopython_call` describes the words that it reads."""

from typing import Any

from numba import types

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
from kernels_cpu.intrinsics.building import I64, emitted
from kernels_cpu.intrinsics.pointers import address_of, integers_at, stack_integers, tail
from kernels_cpu.jit import int64, njit, uint64
from kernels_cpu.kind_kernel import called, find_kernels, plan_call, run_with_scratch, shift_of
from kernels_cpu.native_call import NEEDS_PYTHON
from kernels_cpu.nopython_call import MAX_KEY, SLOT_WORDS
from kernels_cpu.plan_words import MAX_WORDS

_MULTIPLIER, _STEP = 0x9E3779B97F4A7C15, 0x3C6EF372FE94F82A  # of Fibonacci hashing, and twice as much


@emitted(lambda *kinds: types.int64(*[types.int64] * 4))
def _ask(builder: Any, callback: Any, block: Any, cell: Any, plan: Any) -> Any:
    """Call the callback."""
    return called(builder, I64, callback, block, cell, plan)


@emitted(lambda words, i: types.int64(words, types.int64))
def _load(builder: Any, words: Any, i: Any) -> Any:
    return builder.load_atomic(builder.gep(words, [i]), "acquire", 8)


@emitted(lambda words, i, word: types.void(words, types.int64, types.int64))
def _store(builder: Any, words: Any, i: Any, word: Any) -> None:
    builder.store_atomic(word, builder.gep(words, [i]), "release", 8)


@emitted(types.void)
def _fence(builder: Any) -> None:
    """Keep what was read before from being read later."""
    builder.fence("acquire")


@emitted(lambda words, old, new: types.boolean(words, types.int64, types.int64))
def _exchange(builder: Any, words: Any, old: Any, new: Any) -> Any:
    """Replace the first word if it is `old`; return whether it was."""
    return builder.extract_value(builder.cmpxchg(words, old, new, "acq_rel", "monotonic"), 1)


@njit
def _keep(slot: Any, key: Any, n_key: int, kind: Any) -> int:
    """Write the table of a kind, and the result that is expected, to a slot, unless another thread does."""
    version = _load(slot, words_of.VERSION)
    if version & 1 == 0 and _exchange(slot, version, version + 1):
        _store(slot, words_of.N_SLOT_KEY, n_key)
        _store(slot, words_of.TABLE, kind[0])
        _store(slot, words_of.EXPECTED, kind[1])
        for i in range(n_key):
            _store(slot, words_of.CONTENT + i, key[i])
        _store(slot, words_of.VERSION, version + 2)
    return 0


@njit
def _find(slot: Any, key: Any, n_key: int, found: Any) -> bool:
    """Read the table for a key from a slot, and the result that is expected; return whether it is there."""
    version = _load(slot, words_of.VERSION)
    if version & 1 or _load(slot, words_of.N_SLOT_KEY) != n_key:
        return False
    for i in range(n_key):
        if _load(slot, words_of.CONTENT + i) != key[i]:
            return False
    found[0] = _load(slot, words_of.TABLE)
    found[1] = _load(slot, words_of.EXPECTED)
    _fence()
    return _load(slot, words_of.VERSION) == version


@njit
def _read_call(block: Any, table: Any, call: Any) -> bool:
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
        stride = int64(1)
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


@njit
def _run(block: Any, table: Any, expected: int) -> bool:
    """Make the call of a block by the table of its kind; return whether it is made, and has succeeded."""
    call, problem, out = stack_integers(CALL_WORDS), stack_integers(PROBLEM_WORDS), stack_integers(MAX_WORDS)
    if not _read_call(block, table, call) or not plan_call(table, call, problem, out):
        return False
    if not find_kernels(table, out, False):
        return False
    result = run_with_scratch(table, call, out)
    return result != NEEDS_PYTHON and expected in (result, words_of.ANYTHING)


@njit
def nopython_call(block: Any, cell: Any, kind: Any) -> int:
    """Make the call of a block, or keep the table of its kind."""
    key, n_key = tail(block, words_of.KEY), block[words_of.N_KEY]
    code, multiplier = uint64(n_key), uint64(_MULTIPLIER)
    # The products of the sum do not wait for each other; a vector of words would wait until all are stored.
    for i in range(n_key):
        code += (uint64(_load(key, i)) ^ multiplier) * multiplier
        multiplier += uint64(_STEP)
    code = (code ^ code >> uint64(32)) * uint64(_MULTIPLIER)
    number = int64(code >> uint64(64 - words_of.SLOT_BITS))
    slot = tail(cell, words_of.SLOTS + number * SLOT_WORDS)
    other = tail(cell, words_of.SLOTS + (number ^ 1) * SLOT_WORDS)
    if address_of(kind) != 0:
        is_older = _load(slot, words_of.VERSION) <= _load(other, words_of.VERSION)
        return _keep(slot if is_older else other, key, n_key, kind)
    found = stack_integers(2)
    is_known = n_key <= MAX_KEY and (_find(slot, key, n_key, found) or _find(other, key, n_key, found))
    if is_known and _run(block, integers_at(found[0]), found[1]):
        block[words_of.N_KEY] = 0
    else:
        _ask(cell[words_of.CALLBACK], address_of(block), address_of(cell), 0)
    return 0
