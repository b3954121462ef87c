"""Rows that stay in the first-level cache, and of which few elements are wanted.

Their keys are written down once, and everything after works on those: the groups that bound the k-th key, the
list of the keys within the bound, and for rows of many ties the bisection that finds that key itself.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_cpu import simd
from kernels_cpu.jit import kernel, part
from kernels_cpu.keys import KeyMasks, key, unpack_masks
from kernels_cpu.memory import elements_at
from kernels_cpu.top_k.output import write_ranked
from kernels_cpu.top_k.problem import (
    RANK_LIMIT,
    numbers_of,
    offsets_of,
    scratch_of,
    sorting_of,
    unpack,
)
from kernels_cpu.top_k.records import bound_of, rank
from kernels_cpu.top_k.scan import FEW, FEW_GROUPS, WORD, Scratch, bound_of_groups

Array = NDArray[Any]

MOST_WANTED = 96
"""Of a row; the list of a random one then stays below `RANK_LIMIT`."""


@part
def write_keys(x: Array, begin: int, n: int, lowest: int, masks: KeyMasks, keys: Array) -> int:
    """Write the keys of ``x[begin:begin + n]``, padded to whole words; return how many there are with those.

    The padding has the worst key and the last positions, so it is behind all elements.
    """
    lanes = simd.lanes_of(x)
    whole = n & -lanes
    padded = (n + WORD - 1) & -WORD
    for i in range(whole, padded, lanes):
        simd.store(keys, i, simd.fill(simd.load(keys, 0), ~lowest))
    for i in range(0, whole, lanes):
        simd.store(keys, i, key(simd.load(x, begin + i), masks))
    for i in range(whole, n):
        simd.put(keys, i, key(simd.get(x, begin + i), masks))
    return padded


@part
def bound_of_keys_in_groups(keys: Array, n: int, k: int, lowest: int, groups: Array) -> int:
    """Return a bound that at least `k` keys, and only few more unless they tie, do not exceed."""
    lanes = simd.lanes_of(keys)
    wanted = 2 * k if 2 * k <= FEW_GROUPS else 4 * k
    n_groups = (wanted + lanes - 1) & -lanes
    for i in range(0, n_groups, lanes):
        group = simd.load(keys, i)
        for j in range(i + n_groups, n, n_groups):
            group = simd.minimum(group, simd.load(keys, j))
        simd.store(groups, i, group)
    return bound_of_groups(groups, n_groups, k, lowest)


@part
def list_keys(keys: Array, n: int, bound: int, wide: bool, scratch: Scratch) -> int:
    """List the keys that are at most `bound`, up to a word more than `RANK_LIMIT`; return how many."""
    count = 0
    at = 0
    lanes = simd.lanes_of(keys)
    limit = simd.fill(simd.load(keys, 0), bound)
    while at < n and count <= RANK_LIMIT:
        mask = np.uint64(0)
        for i in range(0, WORD, lanes):
            mask |= simd.mask_at_most(simd.load(keys, at + i), limit) << np.uint64(i)
        total = count + simd.population(mask)
        for to in range(count, max(total, count + FEW)):
            # Where no bit is left this is the first element, listed beyond the end.
            i = at + (simd.trailing_zeros(mask) & (WORD - 1))
            mask &= mask - np.uint64(1)
            list_key(keys, i, wide, scratch, to)
        count = total
        at += WORD
    return count


@part
def list_key(keys: Array, i: int, wide: bool, scratch: Scratch, to: int) -> None:
    """Make the record `to` of a key."""
    value = simd.int64(simd.get(keys, i))
    if wide:
        simd.put(scratch.records, to, value)
        simd.put(scratch.positions, to, i)
    else:
        simd.put(scratch.records, to, (value << 32) | i)


@part
def list_best(keys: Array, n: int, padded: int, k: int, lowest: int, wide: bool, scratch: Scratch) -> int:
    """List the best `k` keys, or a few more; of those that tie with the k-th only the first ones."""
    bound = bound_of(keys, n, padded, k, RANK_LIMIT - k)
    count = list_keys(keys, padded, bound, wide, scratch)
    if count <= RANK_LIMIT:
        return count
    count = list_keys(keys, padded, bound - 1, wide, scratch) if bound > lowest else 0
    i = 0
    while count < k:
        if simd.int64(simd.get(keys, i)) == bound:
            list_key(keys, i, wide, scratch, count)
            count += 1
        i += 1
    return count


@kernel
def select_short_rows(
    constants: Array, first_row: int, last_row: int, task: int,
    x: int, values: int, indices: int, workspace: int,
) -> None:  # fmt: skip
    """Search short rows whose elements are contiguous."""
    numbers = numbers_of(constants)
    problem = unpack(numbers)
    masks = unpack_masks(constants)
    scratch = scratch_of(workspace, constants, problem, task)
    sorting = sorting_of(workspace, problem, task)
    keys = elements_at(workspace + task * problem.task_size + problem.stage, constants)
    elements, outputs = elements_at(x, constants), elements_at(values, constants)
    n, k, lowest, wide = problem.axis_size, problem.k, problem.lowest, problem.wide != 0
    for row in range(first_row, last_row):
        at = offsets_of(numbers, problem.n_dims, row)
        padded = write_keys(elements, at[0], n, lowest, masks, keys)
        bound = bound_of_keys_in_groups(keys, padded, k, lowest, scratch.groups)
        count = list_keys(keys, padded, bound, wide, scratch)
        if count > RANK_LIMIT:
            count = list_best(keys, n, padded, k, lowest, wide, scratch)
        rank(scratch.records, count, sorting.ranks, sorting.order, sorting.taken)
        write_ranked(
            elements, outputs, indices, at, problem, scratch.records, scratch.positions, sorting.order
        )
