"""The keys of a row, written next to each other, and lists of the keys that words of bits select.

A word has one bit for each of 64 keys.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_cpu.intrinsics import bitops, simd
from kernels_cpu.jit import inline, int64, njit
from kernels_cpu.keys import KeyFormula, key
from kernels_cpu.top_k.records import put_record
from kernels_cpu.top_k.scan import Scratch
from kernels_cpu.top_k.table import WORD

Array = NDArray[Any]

UNCONDITIONAL = 5  # so many elements of a word are listed always: no branch depends on their number


@inline
def padded_size(n: int) -> int:
    """Return how many keys a row of `n` elements has, padded to whole words."""
    return (n + WORD - 1) & -WORD


@njit
def write_all_keys(x: Array, begin: int, n: int, highest: int, formula: KeyFormula, keys: Array) -> None:
    """Write the keys of ``x[begin:begin + n]``, padded to whole words.

    The padding has the worst key and the last positions, so it is behind all elements.
    """
    lanes = simd.lanes_of(x)
    worst = simd.fill(simd.load(keys, 0), ~highest)
    whole = n & -lanes
    for i in range(0, whole, lanes):
        simd.store(keys, i, key(simd.load(x, begin + i), formula))
    for i in range(whole, n):
        keys[i] = key(x[begin + i], formula)
    for i in range(n, (n + lanes - 1) & -lanes):
        keys[i] = ~highest
    for i in range((n + lanes - 1) & -lanes, padded_size(n), lanes):
        simd.store(keys, i, worst)


@inline
def first_bits(word: Any, n: int) -> Any:
    """Return the lowest `n` set bits of a word, or all where it has less."""
    if n >= bitops.set_bits(word):
        return word
    rest = word
    for _ in range(n):
        rest &= rest - np.uint64(1)
    return word ^ rest


@inline
def list_word(keys: Array, at: int, word: Any, wide: bool, scratch: Scratch, to: int) -> int:
    """List the keys that a word chooses from those at `at`, from the record `to` on; return where it ends."""
    end: int = to + bitops.set_bits(word)
    for i in range(to, to + UNCONDITIONAL):
        # Where no bit is left, this lists the first element of the word.
        at_key = at + (bitops.trailing_zeros(word) & (WORD - 1))
        put_record(scratch.records, scratch.positions, i, int64(keys[at_key]), at_key, wide)
        word &= word - np.uint64(1)
    for i in range(to + UNCONDITIONAL, end):
        at_key = at + bitops.trailing_zeros(word)
        put_record(scratch.records, scratch.positions, i, int64(keys[at_key]), at_key, wide)
        word &= word - np.uint64(1)
    return end
