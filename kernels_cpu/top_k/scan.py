"""The search for candidates: which elements of a contiguous run may be among the best k.

The maxima of *groups* of elements bound the k-th key from below: if the maxima of k groups are at least T,
then at least k keys are. A first pass therefore computes maxima, a search among them finds T, and a second
pass lists the elements that are at least T. Of the elements equal to T, only the first k count: once k
elements are listed, T rises by one. Without this rule, constant rows would list everything. If a few tiles
hold all k elements, as in sorted rows, groups are too coarse, and T is found again from pairs of elements of
those tiles.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels_cpu.intrinsics import bitops, simd
from kernels_cpu.jit import inline, int64, njit
from kernels_cpu.keys import KeyFormula, key
from kernels_cpu.top_k.records import put_record, shrink
from kernels_cpu.top_k.table import GROUP, MAX_REFINED, MIN_REFINED, STREAMS, WORD
from kernels_cpu.top_k.thresholds import count_at_least, threshold_of

Array = NDArray[Any]

UNCONDITIONAL = 4  # so many elements of a word are listed always: no branch depends on their number
MAX_RANKED_GROUPS = 64  # up to here ranking all groups beats bisection
NEVER = np.iinfo(np.int64).max
ALL_TILES = (1 << WORD) - 1


class Scratch(NamedTuple):
    """The arrays in the workspace that a search needs."""

    records: Any
    """The candidates so far, `capacity` of them and room for padding."""
    positions: Any
    """Their positions, where records have no room for them."""
    groups: Any
    """Maxima of the groups of a run."""
    maxima: Any
    """Maxima of the tiles of a run."""


class Limits(NamedTuple):
    """The constants of a search."""

    k: int
    capacity: int
    fold: int
    """Tiles whose groups are kept apart; where there are more, groups span tiles."""
    highest: int
    """The greatest key that the element type has; the complement is the least."""
    wide: bool
    """Whether positions are kept beside the records."""


class Search(NamedTuple):
    """Where a search stands between two runs of its row."""

    n_candidates: int
    """Candidates so far."""
    threshold: int
    """Lesser keys are not among the best k."""
    until_strict: int
    """Elements to be listed until ties with `threshold` no longer count, and it rises by one."""
    closed: bool
    """No later element can be among the best k."""


@inline
def within(x: Array, at: int, n: int, threshold: int, formula: KeyFormula) -> Any:
    """Return a mask of the elements whose key is at least `threshold` among the `n` (<= 64) from `at`."""
    lanes = simd.lanes_of(x)
    mask = np.uint64(0)
    vectors_end = n - lanes + 1
    for i in range(0, vectors_end, lanes):
        keys = key(simd.load(x, at + i), formula)
        mask |= simd.mask_at_most(simd.fill(keys, threshold), keys) << np.uint64(i)
    return mask


@njit
def within_at_end(x: Array, at: int, n: int, threshold: int, formula: KeyFormula) -> Any:
    """Do what `within` does for an `n` that vectors do not divide."""
    mask = within(x, at, n, threshold, formula)
    for i in range(n & -simd.lanes_of(x), n):
        is_within = int64(key(x[at + i], formula)) >= threshold
        mask |= np.uint64(is_within) << np.uint64(i)
    return mask


@inline
def list_element(
    x: Array, i: int, first_position: int, formula: KeyFormula, scratch: Scratch, to: int, wide: bool
) -> None:
    """Make the record `to` of an element."""
    put_record(scratch.records, scratch.positions, to, int64(key(x[i], formula)), first_position + i, wide)


@njit
def list_all(
    x: Array, begin: int, step: int, first: int, n: int, formula: KeyFormula, scratch: Scratch, wide: bool
) -> None:
    """Make a record of each of `n` elements, the first of which has a position in its row."""
    for i in range(n):
        value = int64(key(x[begin + i * step], formula))
        put_record(scratch.records, scratch.positions, i, value, first + i, wide)


@njit
def list_within(
    x: Array,
    at: int,
    mask: Any,
    first_position: int,
    formula: KeyFormula,
    scratch: Scratch,
    wide: bool,
    count: int,
) -> int:
    """Append the elements that `mask` chooses from those at `at` to the list; return how long it then is."""
    total: int = count + bitops.set_bits(mask)
    if wide:
        for to in range(count, total):
            i = at + bitops.trailing_zeros(mask)
            list_element(x, i, first_position, formula, scratch, to, True)
            mask &= mask - np.uint64(1)
        return total
    for to in range(count, count + UNCONDITIONAL):
        # Where no bit is left, this lists the first element behind the end.
        i = at + (bitops.trailing_zeros(mask) & (WORD - 1))
        list_element(x, i, first_position, formula, scratch, to, False)
        mask &= mask - np.uint64(1)
    for to in range(count + UNCONDITIONAL, total):
        list_element(x, at + bitops.trailing_zeros(mask), first_position, formula, scratch, to, False)
        mask &= mask - np.uint64(1)
    return total


@inline
def scan(
    x: Array,
    begin: int,
    end: int,
    first_position: int,
    formula: KeyFormula,
    limits: Limits,
    scratch: Scratch,
    search: Search,
) -> Search:
    """List the elements of ``x[begin:end]`` that the threshold allows."""
    count, threshold, until_strict, closed = search
    at = begin
    while at < end and not closed:
        size = min(end - at, WORD)
        mask = (
            within(x, at, WORD, threshold, formula)
            if size == WORD
            else within_at_end(x, at, size, threshold, formula)
        )
        if mask:
            before = count
            count = list_within(x, at, mask, first_position, formula, scratch, limits.wide, count)
            until_strict -= count - before
            is_strict = until_strict <= 0
            worst = threshold
            if count > limits.capacity - WORD:
                count, last = shrink(
                    scratch.records, scratch.positions, limits.wide, count, limits.k, limits.k >> 2
                )
                worst = last if limits.wide else last >> 32
                is_strict = worst >= threshold
            if is_strict:
                # A later element that equals the worst loses to `k` earlier ones.
                until_strict = NEVER
                closed = worst == limits.highest
                threshold = min(worst, limits.highest - 1) + 1
        at += size
    return Search(count, threshold, until_strict, closed)


@njit
def maximum_of_vectors(x: Array, at: int, end: int, step: int, formula: KeyFormula) -> Any:
    """Return the maximum, lane by lane, of the keys at `at`, ``at + step`` and so on before `end`."""
    result = key(simd.load(x, at), formula)
    for i in range(at + step, end, step):
        result = simd.maximum(result, key(simd.load(x, i), formula))
    return result


@njit
def kth_by_ranking(groups: Array, n: int, k: int, highest: int) -> int:
    """Return the k-th greatest of the first `n` elements, at most `MAX_RANKED_GROUPS`, in whole vectors."""
    lanes = simd.lanes_of(groups)
    any_vector = simd.load(groups, 0)
    result = simd.fill(any_vector, highest)
    for i in range(0, n, lanes):
        group = simd.load(groups, i)
        n_greater = simd.fill(any_vector, -k)
        for j in range(n):
            n_greater = simd.count_less(n_greater, group, simd.fill(group, groups[j]))
        result = simd.minimum(result, simd.where_negative(n_greater, group, simd.fill(any_vector, highest)))
    kth: int = int64(simd.least(result))
    return kth


@njit
def threshold_of_groups(groups: Array, n: int, k: int, highest: int) -> int:
    """Return a threshold that at least `k` groups reach, and few more."""
    if n <= MAX_RANKED_GROUPS:
        return kth_by_ranking(groups, n, k, highest)
    return threshold_of(groups, n, n, k, k >> 3)


@njit
def tighten(groups: Array, n_groups: int, limits: Limits, n_candidates: int, threshold: int) -> int:
    """Return `threshold`, or a higher one that `k` of the first groups reach."""
    k = limits.k
    if n_groups < k or (n_candidates and count_at_least(groups, n_groups, threshold) <= k):
        return threshold
    return max(threshold, threshold_of_groups(groups, n_groups, k, limits.highest))


@inline
def fold(groups: Array, slot: int, maxima: Any) -> Any:
    """Raise the groups from `slot` on to `maxima`; return the greatest of those."""
    simd.store(groups, slot, simd.maximum(simd.load(groups, slot), maxima))
    return simd.greatest(maxima)


@njit
def fold_tiles(
    x: Array,
    begin: int,
    n_tiles: int,
    n_groups: int,
    highest: int,
    formula: KeyFormula,
    groups: Array,
    maxima: Array,
) -> None:
    """Set the maxima of tiles, and of groups; if there are many tiles, a group spans several of them."""
    lanes = simd.lanes_of(x)
    tile = GROUP * lanes
    worst = simd.fill(simd.load(x, begin), ~highest)
    for i in range(0, n_groups, lanes):
        simd.store(groups, i, worst)
    n_steps = n_tiles // STREAMS
    apart = n_steps * tile
    slot = 0
    for t in range(n_steps):
        at = begin + t * tile
        first = key(simd.load(x, at), formula)
        second = key(simd.load(x, at + apart), formula)
        third = key(simd.load(x, at + 2 * apart), formula)
        fourth = key(simd.load(x, at + 3 * apart), formula)
        for i in range(at + lanes, at + tile, lanes):
            first = simd.maximum(first, key(simd.load(x, i), formula))
            second = simd.maximum(second, key(simd.load(x, i + apart), formula))
            third = simd.maximum(third, key(simd.load(x, i + 2 * apart), formula))
            fourth = simd.maximum(fourth, key(simd.load(x, i + 3 * apart), formula))
        maxima[t] = fold(groups, slot, first)
        maxima[t + n_steps] = fold(groups, slot + lanes, second)
        maxima[t + 2 * n_steps] = fold(groups, slot + 2 * lanes, third)
        maxima[t + 3 * n_steps] = fold(groups, slot + 3 * lanes, fourth)
        slot += STREAMS * lanes
        if slot == n_groups:
            slot = 0
    for t in range(STREAMS * n_steps, n_tiles):
        at = begin + t * tile
        maxima[t] = fold(groups, 0, maximum_of_vectors(x, at, at + tile, lanes, formula))


@inline
def tiles_within(maxima: Array, t: int, n_tiles: int, threshold: int) -> Any:
    """Return a mask of the tiles from `t` on, up to a word of them, whose maximum is at least `threshold`."""
    mask = np.uint64(0)
    limit = simd.fill(simd.load(maxima, t), threshold)
    for i in range(0, WORD, simd.lanes_of(maxima)):
        mask |= simd.mask_at_most(limit, simd.load(maxima, t + i)) << np.uint64(i)
    return mask & (np.uint64(ALL_TILES) >> np.uint64(max(t + WORD - n_tiles, 0)))


@njit
def pair_up(
    x: Array,
    begin: int,
    n_tiles: int,
    most: int,
    threshold: int,
    formula: KeyFormula,
    groups: Array,
    maxima: Array,
) -> int:
    """Make groups of the pairs in tiles within `threshold`; return how many, or 0 for over `most` tiles."""
    n = 0
    for first in range(0, n_tiles, WORD):
        n += bitops.set_bits(tiles_within(maxima, first, n_tiles, threshold))
    if n > most:
        return 0
    lanes = simd.lanes_of(x)
    tile = GROUP * lanes
    slot = 0
    for first in range(0, n_tiles, WORD):
        mask = tiles_within(maxima, first, n_tiles, threshold)
        while mask and slot < most * (tile >> 1):  # another thread may change the maxima
            at = begin + (first + bitops.trailing_zeros(mask)) * tile
            mask &= mask - np.uint64(1)
            for i in range(at, at + tile, 2 * lanes):
                simd.store(groups, slot, maximum_of_vectors(x, i, i + 2 * lanes, lanes, formula))
                slot += lanes
    return slot


@inline
def threshold_of_run(
    x: Array,
    begin: int,
    n_tiles: int,
    formula: KeyFormula,
    limits: Limits,
    scratch: Scratch,
    n_candidates: int,
    threshold: int,
) -> int:
    """Return a higher threshold for a run, if there is one, and keep the maximum of each tile."""
    groups, maxima = scratch.groups, scratch.maxima
    lanes = simd.lanes_of(x)
    n_groups = max(min(limits.fold, n_tiles) & -STREAMS, 1) * lanes
    fold_tiles(x, begin, n_tiles, n_groups, limits.highest, formula, groups, maxima)
    threshold = tighten(groups, n_groups, limits, n_candidates, threshold)
    most = max(MIN_REFINED, min((limits.k + (limits.k >> 1)) // lanes, MAX_REFINED))
    n_groups = pair_up(x, begin, n_tiles, most, threshold, formula, groups, maxima)
    return tighten(groups, n_groups, limits, n_candidates, threshold)


@inline
def search_run(
    x: Array,
    begin: int,
    n: int,
    first_position: int,
    formula: KeyFormula,
    limits: Limits,
    scratch: Scratch,
    search: Search,
) -> Search:
    """Search ``x[begin:begin + n]``; the position of ``x[i]`` is ``first_position + i``."""
    if search.closed:
        return search
    tile = GROUP * simd.lanes_of(x)
    n_tiles = n // tile
    if n_tiles:
        threshold = threshold_of_run(
            x, begin, n_tiles, formula, limits, scratch, search.n_candidates, search.threshold
        )
        if threshold > search.threshold:
            search = Search(search.n_candidates, threshold, limits.k, False)
    for first in range(0, n_tiles + 1, WORD):
        mask = np.uint64(0)
        if first < n_tiles:
            mask = tiles_within(scratch.maxima, first, n_tiles, search.threshold)
        if n_tiles - first < WORD:
            mask |= np.uint64(1) << np.uint64(n_tiles - first)  # the rest behind all whole tiles
        while mask and not search.closed:
            t = first + bitops.trailing_zeros(mask)
            mask &= mask - np.uint64(1)
            at = begin + t * tile
            end = at + tile
            if t == n_tiles:
                end = begin + n
            elif int64(scratch.maxima[t]) < search.threshold:
                continue
            search = scan(x, at, end, first_position, formula, limits, scratch, search)
    return search
