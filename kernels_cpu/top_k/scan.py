"""The search for candidates: which elements of a contiguous run may be among the best k.

The minimum of every *group* of elements bounds the k-th key from above: k groups whose minimum is at most T
hold k keys that are. So a first pass takes minima, a search among them finds T, and a second pass lists what
is at most T. Of elements equal to T only the first k count: after k elements were listed, T drops by one.
Without this rule constant rows would list everything.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels_cpu import simd
from kernels_cpu.jit import inlined, kernel
from kernels_cpu.keys import KeyMasks, key
from kernels_cpu.top_k.records import bound_of, count_at_most, shrink

Array = NDArray[Any]

LINES = 16  # lines of 64 bytes a tile; a group is a column of a tile
LONG_RUN = 16  # tiles from which the minimum of each tile is kept, to skip tiles in the second pass
WORD = 64  # elements whose comparisons make one mask
FEW_GROUPS = 64  # up to here ranking all groups beats bisection
NEVER = np.iinfo(np.int64).max


class Scratch(NamedTuple):
    """What a search needs besides its input; arrays in the workspace."""

    records: Any
    """The candidates so far, `capacity` of them and room for padding."""
    positions: Any
    """Their positions, where records have no room for them."""
    groups: Any
    """Minima of the groups of a run."""
    minima: Any
    """Minima of the tiles of a run."""


class Limits(NamedTuple):
    """The numbers that a search keeps to."""

    k: int
    capacity: int
    fold: int
    """Tiles whose groups are kept apart; beyond, groups span tiles."""
    lowest: int
    """The least key that the element type has."""
    wide: bool
    """Whether positions are kept beside the records."""


class Search(NamedTuple):
    """Where a search stands between two runs of its row."""

    listed: int
    """Candidates so far."""
    bound: int
    """Greater keys are not among the best k."""
    until_strict: int
    """Elements to list before those equal to `bound` no longer count, and it drops by one."""
    closed: bool
    """No element of what follows can be among the best k."""


@inlined
def chosen(x: Array, at: int, n: int, bound: int, masks: KeyMasks) -> Any:
    """Return a mask of the elements whose key is at most `bound` among the `n` (<= 64) from `at`."""
    lanes = simd.lanes_of(x)
    mask = np.uint64(0)
    vectors_end = n - lanes + 1
    for i in range(0, vectors_end, lanes):
        keys = key(simd.load(x, at + i), masks)
        mask |= simd.mask_at_most(keys, simd.fill(keys, bound)) << np.uint64(i)
    return mask


@kernel
def chosen_at_end(x: Array, at: int, n: int, bound: int, masks: KeyMasks) -> Any:
    """Do what `chosen` does for an `n` that vectors do not divide."""
    mask = chosen(x, at, n, bound, masks)
    for i in range(n & -simd.lanes_of(x), n):
        is_chosen = simd.int64(key(simd.get(x, at + i), masks)) <= bound
        mask |= np.uint64(is_chosen) << np.uint64(i)
    return mask


@inlined
def scan(
    x: Array,
    begin: int,
    end: int,
    first_position: int,
    masks: KeyMasks,
    limits: Limits,
    scratch: Scratch,
    search: Search,
) -> Search:
    """List the elements of ``x[begin:end]`` that the bound allows."""
    count, bound, until_strict, closed = search
    at = begin
    while at < end and not closed:
        size = min(end - at, WORD)
        mask = chosen(x, at, WORD, bound, masks) if size == WORD else chosen_at_end(x, at, size, bound, masks)
        while mask:
            i = at + simd.trailing_zeros(mask)
            mask &= mask - np.uint64(1)
            value = simd.int64(key(simd.get(x, i), masks))
            if limits.wide:
                simd.put(scratch.records, count, value)
                simd.put(scratch.positions, count, first_position + i)
            else:
                simd.put(scratch.records, count, (value << 32) | (first_position + i))
            count += 1
            until_strict -= 1
            if until_strict == 0:
                if bound == limits.lowest:
                    closed = True
                    break
                bound -= 1
                mask &= chosen_at_end(x, at, size, bound, masks)
        if count > limits.capacity - WORD:
            count, last = shrink(
                scratch.records, scratch.positions, limits.wide, count, limits.k, limits.k >> 2
            )
            last_key = last if limits.wide else last >> 32
            until_strict = NEVER
            if last_key == limits.lowest:
                closed = True
            else:
                bound = min(bound, last_key - 1)
        at += size
    return Search(count, bound, until_strict, closed)


@kernel
def minimum_of_lines(x: Array, at: int, end: int, step: int, masks: KeyMasks) -> Any:
    """Return the minimum, lane by lane, of the keys at `at`, ``at + step`` and so on before `end`."""
    result = key(simd.load(x, at), masks)
    for i in range(at + step, end, step):
        result = simd.minimum(result, key(simd.load(x, i), masks))
    return result


@kernel
def kth_of_few(groups: Array, n: int, k: int, lowest: int) -> int:
    """Return the k-th least of the first `n` elements, a multiple of the lanes and at most `FEW_GROUPS`."""
    lanes = simd.lanes_of(groups)
    any_vector = simd.load(groups, 0)
    result = simd.fill(any_vector, lowest)
    for i in range(0, n, lanes):
        group = simd.load(groups, i)
        beyond = simd.fill(any_vector, -k)
        for j in range(n):
            beyond = simd.count_less(beyond, simd.fill(group, simd.get(groups, j)), group)
        result = simd.maximum(result, simd.where_negative(beyond, group, simd.fill(any_vector, lowest)))
    kth: int = simd.int64(simd.greatest(result))
    return kth


@kernel
def bound_of_groups(groups: Array, n: int, k: int, lowest: int) -> int:
    """Return a bound that `k` groups, and only few more, do not exceed."""
    if n <= FEW_GROUPS:
        return kth_of_few(groups, n, k, lowest)
    return bound_of(groups, n, n, k, k >> 3)


@inlined
def tighten(n_groups: int, limits: Limits, scratch: Scratch, search: Search) -> Search:
    """Lower the bound to what the first `n_groups` groups tell, if enough of them are within it."""
    k = limits.k
    if n_groups < k or (search.listed and count_at_most(scratch.groups, n_groups, search.bound) <= k):
        return search
    bound = bound_of_groups(scratch.groups, n_groups, k, limits.lowest)
    if bound >= search.bound:
        return search
    return Search(search.listed, bound, k, search.closed)


@inlined
def bound_short_run(
    x: Array, begin: int, n: int, masks: KeyMasks, limits: Limits, scratch: Scratch, search: Search
) -> Search:
    """Lower the bound for a run that stays in the first-level cache, with groups made to measure."""
    line = simd.lanes_of_line(x)
    lanes = simd.lanes_of(x)
    n_lines = n // line
    slots = min((2 * limits.k + line - 1) // line, n_lines >> 2)
    if slots * line < limits.k:
        slots = n_lines >> 1
    step = slots * line
    if slots == 0 or step < limits.k:
        return search
    end = begin + n_lines * line
    for i in range(0, step, lanes):
        simd.store(scratch.groups, i, minimum_of_lines(x, begin + i, end, step, masks))
    return tighten(step, limits, scratch, search)


@inlined
def bound_long_run(
    x: Array, begin: int, n_tiles: int, masks: KeyMasks, limits: Limits, scratch: Scratch, search: Search
) -> Search:
    """Lower the bound for a run of many tiles, and keep the minimum of each tile."""
    line = simd.lanes_of_line(x)
    lanes = simd.lanes_of(x)
    tile = LINES * line
    n_groups = min(limits.fold, n_tiles) * line
    greatest = simd.fill(simd.load(x, begin), ~limits.lowest)
    for i in range(0, n_groups, lanes):
        simd.store(scratch.groups, i, greatest)
    slot = 0
    for t in range(n_tiles):
        at = begin + t * tile
        least = greatest
        for i in range(0, line, lanes):
            group = minimum_of_lines(x, at + i, at + i + tile, line, masks)
            simd.store(scratch.groups, slot + i, simd.minimum(simd.load(scratch.groups, slot + i), group))
            least = simd.minimum(least, group)
        simd.put(scratch.minima, t, simd.least(least))
        slot = slot + line if slot + line < n_groups else 0
    return tighten(n_groups, limits, scratch, search)


@inlined
def search_run(
    x: Array,
    begin: int,
    n: int,
    first_position: int,
    masks: KeyMasks,
    limits: Limits,
    scratch: Scratch,
    search: Search,
) -> Search:
    """Search ``x[begin:begin + n]``; the position of ``x[i]`` is ``first_position + i``."""
    tile = LINES * simd.lanes_of_line(x)
    n_tiles = n // tile if n >= LONG_RUN * tile else 0
    if not search.closed:
        if n_tiles:
            search = bound_long_run(x, begin, n_tiles, masks, limits, scratch, search)
        else:
            search = bound_short_run(x, begin, n, masks, limits, scratch, search)
    for t in range(n_tiles + 1):
        at = begin + t * tile
        end = at + tile
        if t == n_tiles:
            end = begin + n
        elif simd.int64(simd.get(scratch.minima, t)) > search.bound:
            continue
        if search.closed:
            break
        search = scan(x, at, end, first_position, masks, limits, scratch, search)
    return search
