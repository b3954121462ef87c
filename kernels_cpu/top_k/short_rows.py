"""Rows that stay in the first-level cache, and of which few elements are selected.

Their keys are written down once, and everything after works on those: the groups that bound the k-th key, the
list of the keys at most the threshold, and for rows of many ties the bisection that finds that key. Each
step is done for some rows before the next step: what it reads was written long before, and while one row's
chain of dependent instructions is waited for, the processor works on the next row's.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_cpu.intrinsics import bitops, simd
from kernels_cpu.intrinsics.pointers import elements_at, integers_at, tail
from kernels_cpu.jit import inline, int64, njit
from kernels_cpu.keys import KeyMasks, key, unpack_masks
from kernels_cpu.top_k.finish import finish_unsorted
from kernels_cpu.top_k.output import write_padding, write_ranked
from kernels_cpu.top_k.problem import RANK_LIMIT, ROW_STATE, WORD
from kernels_cpu.top_k.records import count_at_most, pad, rank, threshold_of
from kernels_cpu.top_k.scan import FEW_GROUPS, Scratch, threshold_of_groups
from kernels_cpu.top_k.scratch import (
    length_of,
    numbers_of,
    offsets_of,
    scratch_of,
    scratch_of_column,
    sorting_of,
    unpack,
)

Array = NDArray[Any]

MOSTLY = 5  # elements of a word that are listed without a branch that depends on how many there are
# The state of a row, `ROW_STATE` integers.
X, VALUE, INDEX, FOUND, LENGTH = range(5)


@inline
def padded_size(n: int) -> int:
    """Return how many keys a row of `n` elements has, padded to whole words."""
    return (n + WORD - 1) & -WORD


@inline
def write_keys(
    x: Array, begin: int, n: int, n_groups: int, lowest: int, masks: KeyMasks, keys: Array, groups: Array
) -> None:
    """Write the keys of ``x[begin:begin + n]``, padded to whole words, and the minima of groups of them.

    The padding has the worst key and the last positions, so it is behind all elements.
    """
    lanes = simd.lanes_of(x)
    worst = simd.fill(simd.load(keys, 0), ~lowest)
    whole = n & -lanes
    if lanes == 1:  # compilers make vectors of contiguous elements only
        for i in range(n):
            simd.store(keys, i, key(simd.load(x, begin + i), masks))
    for i in range(0, n_groups, lanes):
        group = worst
        j = i
        while j < whole:
            if lanes == 1:
                vector = simd.load(keys, j)
            else:
                vector = key(simd.load(x, begin + j), masks)
                simd.store(keys, j, vector)
            group = simd.minimum(group, vector)
            j += n_groups
        simd.store(groups, i, group)
    if whole == padded_size(n):
        return
    for i in range(whole, padded_size(n), lanes):
        simd.store(keys, i, worst)
    for i in range(whole, n):
        keys[i] = key(x[begin + i], masks)
    simd.store(groups, 0, simd.minimum(simd.load(groups, 0), simd.load(keys, whole)))


@inline
def list_key(keys: Array, i: int, wide: bool, scratch: Scratch, to: int) -> None:
    """Make the record `to` of a key."""
    value = int64(keys[i])
    if wide:
        scratch.records[to] = value
        scratch.positions[to] = i
    else:
        scratch.records[to] = (value << 32) | i


@njit
def list_keys(keys: Array, n: int, threshold: int, wide: bool, scratch: Scratch) -> int:
    """List the keys that are at most `threshold`, up to a word more than `RANK_LIMIT`; return how many."""
    count = 0
    at = 0
    while at < n and count <= RANK_LIMIT:
        mask = simd.word_at_most(keys, at, threshold)
        total = count + bitops.set_bits(mask)
        for to in range(count, count + MOSTLY):
            # Where no bit is left, this lists the first element behind the end.
            list_key(keys, at + (bitops.trailing_zeros(mask) & (WORD - 1)), wide, scratch, to)
            mask &= mask - np.uint64(1)
        for to in range(count + MOSTLY, total):
            list_key(keys, at + bitops.trailing_zeros(mask), wide, scratch, to)
            mask &= mask - np.uint64(1)
        count = total
        at += WORD
    return count


@njit
def list_best(keys: Array, n: int, k: int, lowest: int, wide: bool, scratch: Scratch) -> int:
    """List the best `k` keys, or few more, in their order; of those that tie with the k-th the first ones."""
    padded = padded_size(n)
    threshold = threshold_of(keys, n, padded, k, RANK_LIMIT - k)
    count = list_keys(keys, padded, threshold, wide, scratch)
    if count <= RANK_LIMIT:
        return count
    n_ties = k - (count_at_most(keys, padded, threshold - 1) if threshold > lowest else 0)
    count = at = 0
    while count < k:
        mask = simd.word_at_most(keys, at, threshold)
        ties = mask & ~simd.word_at_most(keys, at, threshold - 1) if threshold > lowest else mask
        n_ties -= bitops.set_bits(ties)
        while n_ties < 0:  # the last ones are too many
            last_tie = np.uint64(1) << np.uint64(63 - bitops.leading_zeros(ties))
            ties ^= last_tie
            mask ^= last_tie
            n_ties += 1
        while mask:
            list_key(keys, at + bitops.trailing_zeros(mask), wide, scratch, count)
            mask &= mask - np.uint64(1)
            count += 1
        at += WORD
    return count


@njit
def select(
    constants: Array, first_row: int, last_row: int, task: int,
    lengths: int, x: int, values: int, indices: int, workspace: int,
) -> None:  # fmt: skip
    """Search short rows whose elements are contiguous."""
    numbers = numbers_of(constants)
    problem = unpack(numbers)
    masks = unpack_masks(constants)
    scratch = scratch_of(workspace, constants, problem, task)
    sorting = sorting_of(workspace, problem, task)
    start = workspace + task * problem.task_size
    keys = elements_at(start + problem.stage, constants)
    states = integers_at(start + problem.row_states)
    elements, outputs = elements_at(x, constants), elements_at(values, constants)
    lowest, wide = problem.lowest, problem.wide != 0
    at_least = 2 * problem.k if 2 * problem.k <= FEW_GROUPS else 4 * problem.k
    lanes = simd.lanes_of(keys)
    n_groups = (at_least + lanes - 1) & -lanes
    for first in range(first_row, last_row, problem.columns):
        n_rows = min(problem.columns, last_row - first)
        for r in range(n_rows):
            at = offsets_of(numbers, problem.n_dims, first + r)
            n = length_of(numbers, problem, lengths, first + r)
            states[ROW_STATE * r + X] = at[0]
            states[ROW_STATE * r + VALUE] = at[1]
            states[ROW_STATE * r + INDEX] = at[2]
            states[ROW_STATE * r + LENGTH] = n
            write_keys(
                elements, at[0], n, n_groups, lowest, masks,
                tail(keys, r * problem.pitch), tail(scratch.groups, r * n_groups),
            )  # fmt: skip
        for r in range(n_rows):
            k = min(problem.k, states[ROW_STATE * r + LENGTH])
            threshold = threshold_of_groups(tail(scratch.groups, r * n_groups), n_groups, k, lowest)
            states[ROW_STATE * r + FOUND] = threshold
        for r in range(n_rows):
            own = scratch_of_column(workspace, scratch, problem, task, r)
            keys_of_row = tail(keys, r * problem.pitch)
            threshold = states[ROW_STATE * r + FOUND]
            n = states[ROW_STATE * r + LENGTH]
            count = list_keys(keys_of_row, padded_size(n), threshold, wide, own)
            if count > RANK_LIMIT:
                count = list_best(keys_of_row, n, min(problem.k, n), lowest, wide, own)
            pad(own.records, count)
            states[ROW_STATE * r + FOUND] = count
        for r in range(n_rows):
            own = scratch_of_column(workspace, scratch, problem, task, r)
            at = (
                states[ROW_STATE * r + X],
                states[ROW_STATE * r + VALUE],
                states[ROW_STATE * r + INDEX],
            )
            records, positions, count = own.records, own.positions, states[ROW_STATE * r + FOUND]
            k = min(problem.k, states[ROW_STATE * r + LENGTH])
            if problem.is_sorted:
                rank(records, wide, count, sorting.ranks, sorting.order, sorting.taken)
                write_ranked(elements, outputs, indices, at, problem, records, positions, sorting.order, k)
            else:
                finish_unsorted(elements, outputs, indices, at, problem, masks, records, positions, count, k)
            write_padding(outputs, indices, at, problem, k)
