"""Rows that fit into the first-level cache, with few selected elements.

Keys are written once, and everything after that works on them: the groups that bound the k-th key, the list
of keys at or above the threshold, and for rows with many ties a bisection for that key. Each step handles
several rows before the next step begins. Its inputs were then written long before, and while the dependent
instructions of one row wait, the processor works on the next row.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_cpu.intrinsics import bitops, simd
from kernels_cpu.intrinsics.pointers import stack_integers, stack_words, tail
from kernels_cpu.jit import inline, njit
from kernels_cpu.keys import KeyFormula, key
from kernels_cpu.top_k.finish import write_padding, write_ranked
from kernels_cpu.top_k.records import keep_order, pad, rank
from kernels_cpu.top_k.scan import MAX_RANKED_GROUPS, Scratch, threshold_of_groups
from kernels_cpu.top_k.scratch import Row, Windows, row_of, scratch_of_column, stage_of, unpacked
from kernels_cpu.top_k.table import (
    PADDED_TO,
    RANK_LIMIT,
    ROW_STATE,
    SHORT_ROWS_MAX_ROWS,
    SHORT_WORDS,
    WORD,
    Problem,
)
from kernels_cpu.top_k.thresholds import threshold_of
from kernels_cpu.top_k.written_keys import first_bits, list_word, padded_size

Array = NDArray[Any]

USUAL_EXCESS = 16  # elements of a list beyond twice `k` that are ranked without another search
# The state of a row, `ROW_STATE` integers.
X, VALUE, INDEX, FOUND, START, LENGTH = range(ROW_STATE)
STATES = ROW_STATE * SHORT_ROWS_MAX_ROWS


@inline
def write_keys(
    x: Array, begin: int, n: int, n_groups: int, highest: int, formula: KeyFormula, keys: Array, groups: Array
) -> None:
    """Write the keys of ``x[begin:begin + n]``, padded to whole words, and the maxima of groups of them.

    The padding has the worst key and the last positions, so it is behind all elements.
    """
    lanes = simd.lanes_of(x)
    worst = simd.fill(simd.load(keys, 0), ~highest)
    whole = n & -lanes
    if lanes == 1:  # compilers make vectors of contiguous elements only
        for i in range(n):
            simd.store(keys, i, key(simd.load(x, begin + i), formula))
    for i in range(0, n_groups, lanes):
        group = worst
        j = i
        while j < whole:
            if lanes == 1:
                vector = simd.load(keys, j)
            else:
                vector = key(simd.load(x, begin + j), formula)
                simd.store(keys, j, vector)
            group = simd.maximum(group, vector)
            j += n_groups
        simd.store(groups, i, group)
    if whole == padded_size(n):
        return
    for i in range(whole, padded_size(n), lanes):
        simd.store(keys, i, worst)
    for i in range(whole, n):
        keys[i] = key(x[begin + i], formula)
    simd.store(groups, 0, simd.maximum(simd.load(groups, 0), simd.load(keys, whole)))


@njit
def find_at_least(keys: Array, n: int, threshold: int, words: Array) -> int:
    """Set the bits of the keys that are at least `threshold`; return how many there are."""
    count = 0
    for w in range(n // WORD):
        word = simd.word_at_least(keys, w * WORD, threshold)
        words[w] = word
        count += bitops.set_bits(word)
    return count


@njit
def choose_best(
    keys: Array, n: int, k: int, threshold: int, count: int, highest: int, words: Array, greater: Array
) -> int:
    """Choose the best `k` keys or few more; of those that tie with the k-th only the first.

    `words` has the bits of the `count` >= `k` keys that are at least `threshold`. The result is how many were
    chosen, and their bits in `words`; `greater` is scratch like those.
    """
    n_greater = find_at_least(keys, n, threshold + 1, greater) if threshold < highest else 0
    if n_greater >= k:
        most = min(2 * k + USUAL_EXCESS, RANK_LIMIT)
        if count <= most:
            return count
        threshold = threshold_of(keys, n, n, k, most - k)
        count = find_at_least(keys, n, threshold, words)
        if count <= most:
            return count
        n_greater = find_at_least(keys, n, threshold + 1, greater) if threshold < highest else 0
    n_ties = k - n_greater
    for w in range(n // WORD):
        word_greater = greater[w] if n_greater else np.uint64(0)
        ties = first_bits(words[w] ^ word_greater, n_ties)
        words[w] = word_greater | ties
        n_ties -= bitops.set_bits(ties)
    return k


@inline
def list_chosen(keys: Array, n: int, words: Array, count: int, wide: bool, scratch: Scratch) -> None:
    """List the `count` keys whose bits are set; fewer are only where another thread changes the keys."""
    at = 0
    w = 0
    while at < count and w < n // WORD:
        at = list_word(keys, w * WORD, words[w], wide, scratch, at)
        w += 1


@njit
def list_short_row(
    x: Array,
    begin: int,
    n: int,
    k: int,
    problem: Problem,
    formula: KeyFormula,
    keys: Array,
    words: Array,
    greater: Array,
    scratch: Scratch,
) -> int:
    """List the best `k` elements of a single short row, and few more; return how many."""
    highest = problem.highest
    lanes = simd.lanes_of(keys)
    n_groups = (groups_for(k) + lanes - 1) & -lanes
    write_keys(x, begin, n, n_groups, highest, formula, keys, scratch.groups)
    threshold = threshold_of_groups(scratch.groups, n_groups, k, highest)
    count = find_at_least(keys, padded_size(n), threshold, words)
    if count > min((2 * k + PADDED_TO - 1) & -PADDED_TO, RANK_LIMIT):
        count = choose_best(keys, padded_size(n), k, threshold, count, highest, words, greater)
    list_chosen(keys, padded_size(n), words, count, problem.wide != 0, scratch)
    return count


@inline
def groups_for(k: int) -> int:
    """Return how many groups bound the k-th key well."""
    return 2 * k if 2 * k <= MAX_RANKED_GROUPS else 4 * k


@njit
def select(
    constants: Array,
    first_row: int,
    last_row: int,
    task: int,
    windows: tuple[int, int],
    x: int,
    values: int,
    indices: int,
    workspace: int,
) -> None:
    """Search short rows whose elements are contiguous."""
    numbers, problem, formula, scratch, sorting, elements, outputs = unpacked(
        constants, task, x, values, workspace
    )
    keys = stage_of(constants, problem, workspace, task)
    states = stack_integers(STATES)  # not in the workspace, which other threads may write to
    highest, wide = problem.highest, problem.wide != 0
    words, greater = stack_words(SHORT_WORDS), stack_words(SHORT_WORDS)
    usual = min((2 * problem.k + PADDED_TO - 1) & -PADDED_TO, RANK_LIMIT)
    lanes = simd.lanes_of(keys)
    n_groups = (groups_for(problem.k) + lanes - 1) & -lanes
    for first in range(first_row, last_row, problem.columns):
        n_rows = min(problem.columns, last_row - first)
        for r in range(n_rows):
            place = row_of(numbers, problem, Windows(*windows), first + r)
            states[ROW_STATE * r + X] = place.x_at
            states[ROW_STATE * r + VALUE] = place.value_at
            states[ROW_STATE * r + INDEX] = place.index_at
            states[ROW_STATE * r + START] = place.first
            states[ROW_STATE * r + LENGTH] = place.length
            write_keys(
                elements,
                place.x_at,
                place.length,
                n_groups,
                highest,
                formula,
                tail(keys, r * problem.pitch),
                tail(scratch.groups, r * n_groups),
            )
        for r in range(n_rows):
            k = min(problem.k, states[ROW_STATE * r + LENGTH])
            threshold = threshold_of_groups(tail(scratch.groups, r * n_groups), n_groups, k, highest)
            states[ROW_STATE * r + FOUND] = threshold
        for r in range(n_rows):
            own = scratch_of_column(workspace, scratch, problem, task, r)
            keys_of_row = tail(keys, r * problem.pitch)
            threshold = states[ROW_STATE * r + FOUND]
            n = states[ROW_STATE * r + LENGTH]
            count = find_at_least(keys_of_row, padded_size(n), threshold, words)
            if count > usual:
                k = min(problem.k, n)
                count = choose_best(keys_of_row, padded_size(n), k, threshold, count, highest, words, greater)
            list_chosen(keys_of_row, padded_size(n), words, count, wide, own)
            pad(own.records, count)
            states[ROW_STATE * r + FOUND] = count
        for r in range(n_rows):
            own = scratch_of_column(workspace, scratch, problem, task, r)
            place = Row(
                states[ROW_STATE * r + X],
                states[ROW_STATE * r + VALUE],
                states[ROW_STATE * r + INDEX],
                states[ROW_STATE * r + START],
                states[ROW_STATE * r + LENGTH],
            )
            count = states[ROW_STATE * r + FOUND]
            k = min(problem.k, place.length)
            rank(own.records, wide, count, sorting.ranks, sorting.order, sorting.taken)
            if not problem.is_sorted:
                keep_order(sorting.ranks, sorting.order, count, k)
            write_ranked(elements, outputs, indices, place, problem, own, sorting.order, k)
            write_padding(outputs, indices, place, problem, k)
