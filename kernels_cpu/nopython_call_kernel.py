"""The kernel of calls from nopython functions; `nopython_call` describes the words that it reads."""

from typing import Any

from numba import types

from kernels_cpu import nopython_call as words_of
from kernels_cpu.intrinsics.building import I64, emitted
from kernels_cpu.intrinsics.memory import copy
from kernels_cpu.intrinsics.pointers import address_of, stack_integers, tail
from kernels_cpu.jit import int64, njit, uint64
from kernels_cpu.native_call_kernel import call_entry, called
from kernels_cpu.nopython_call import SLOT_WORDS
from kernels_cpu.processor import LINE_BYTES

_MULTIPLIER, _STEP = 0x9E3779B97F4A7C15, 0x3C6EF372FE94F82A  # of Fibonacci hashing, and twice as much
# Workspaces up to this size are on the stack: to allocate one takes a fifth of the time of a small top-k.
_SCRATCH_BYTES = 1 << 14
_SCRATCH_WORDS = (_SCRATCH_BYTES + LINE_BYTES) // 8
_external: Any = types.ExternalFunction
# These need no GIL.
_allocate = _external("PyMem_RawMalloc", types.intp(types.intp))
_free = _external("PyMem_RawFree", types.void(types.intp))


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
def _keep(slot: Any, key: Any, n_key: int, plan: Any) -> int:
    """Write a plan, whose words follow their number, to a slot, unless another thread does."""
    version, n_plan = _load(slot, words_of.VERSION), plan[0]
    if version & 1 == 0 and _exchange(slot, version, version + 1):
        _store(slot, words_of.N_SLOT_KEY, n_key)
        _store(slot, words_of.N_PLAN, n_plan)
        for i in range(n_key):
            _store(slot, words_of.CONTENT + i, key[i])
        for i in range(n_plan):
            _store(slot, words_of.CONTENT + n_key + i, plan[1 + i])
        _store(slot, words_of.VERSION, version + 2)
    return 0


@njit
def _find(slot: Any, key: Any, n_key: int, words: Any) -> Any:
    """Copy the plan for a key from a slot, and return how many words it has; 0 if the slot has another."""
    version = _load(slot, words_of.VERSION)
    if version & 1 or _load(slot, words_of.N_SLOT_KEY) != n_key:
        return 0
    for i in range(n_key):
        if _load(slot, words_of.CONTENT + i) != key[i]:
            return 0
    n_plan = _load(slot, words_of.N_PLAN)
    copy(slot, words_of.CONTENT + n_key, words, 0, n_plan)
    _fence()
    return n_plan if _load(slot, words_of.VERSION) == version else int64(0)


@njit
def _run(block: Any, words: Any, n_words: int, scratch: int) -> bool:
    """Run a plan; return whether it has succeeded."""
    if words[words_of.CODE] == 0:  # there is nothing to do
        return True
    if block[words_of.CAPACITY] < 0:
        return False
    addresses = tail(block, words_of.ADDRESSES)
    overlaps = tail(words, n_words - 4 * words[words_of.N_OVERLAPS])
    for i in range(words[words_of.N_OVERLAPS]):
        pair = tail(overlaps, 4 * i)
        if pair[2] < addresses[pair[1]] - addresses[pair[0]] < pair[3]:
            return False
    size = words[words_of.WORKSPACE]
    is_large = size > _SCRATCH_BYTES
    memory = int64(_allocate(size + LINE_BYTES)) if is_large else scratch
    if memory == 0:
        return False
    arguments, operands = tail(words, words_of.N_OVERLAPS + 1), tail(words, words[words_of.FIRST_ADDRESS])
    arguments[0] = address_of(tail(words, words[words_of.TABLE]))
    for i in range(words_of.MAX_ARRAYS):
        operands[i] = addresses[i]
    operands[words[words_of.N_ADDRESSES]] = (memory + LINE_BYTES - 1) & -LINE_BYTES
    words[words[words_of.CAPACITY_AT]] = block[words_of.CAPACITY]
    result = call_entry(words[words_of.CODE], address_of(arguments))
    if is_large:
        _free(memory)
    expected: int = words[words_of.EXPECTED]
    return expected in (result, words_of.ANYTHING)


@njit
def nopython_call(block: Any, cell: Any, plan: Any) -> int:
    """Make the call of a block, or keep a plan for its kind."""
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
    if address_of(plan) != 0:
        is_older = _load(slot, words_of.VERSION) <= _load(other, words_of.VERSION)
        return _keep(slot if is_older else other, key, n_key, plan)
    words = stack_integers(SLOT_WORDS)
    n_words = _find(slot, key, n_key, words) or _find(other, key, n_key, words)
    if n_words and _run(block, words, n_words, address_of(stack_integers(_SCRATCH_WORDS))):
        block[words_of.N_KEY] = 0
    else:
        _ask(cell[words_of.CALLBACK], address_of(block), address_of(cell), 0)
    return 0
