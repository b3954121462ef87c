"""The kernel of `sample`: each row is read in place, from its first element to its last.

If k is small, the first k elements are listed in one pass, unless that takes too many moves. Otherwise the
first pass finds the largest element. Without k and top_p, a second pass adds up the weights of each `CHUNK`
of elements, and the one that the token is in is read again. Otherwise elements are selected by their
distance from the largest, digit by digit: a histogram has the number of elements (for k) or the sum of their
weights (for top_p) for each value of a digit, and the next pass counts those that have the digits found so
far. All elements nearer than some distance stay, and the first ones of those at that distance.
"""

from typing import Any, NamedTuple

import numpy as np

from kernels_cpu.exact import sampling
from kernels_cpu.exact.sampling import FULL, MASK
from kernels_cpu.intrinsics.pointers import (
    half_integers_at,
    integers_at,
    put_index,
    short_integers_at,
    stack_integers,
    structure,
    tail,
)
from kernels_cpu.jit import inline, int64, njit, uint64
from kernels_cpu.sample.plan import BINS, CHUNK, DIMS_AT, FORMATS_AT, VALUES_AT, Table
from kernels_cpu.sample.problem_words import (
    COUNT,
    DIMENSION,
    MIN_P,
    N_PARAMETERS,
    OUTPUT_STRIDE,
    SEED,
    STEP,
    STRIDES,
    TEMPERATURE,
    TOP_P,
    X_STRIDE,
)

_DIGIT_BITS = BINS.bit_length() - 1
_GROUP = 8  # bins that are skipped at a time
_POWERS = np.array(sampling.POWERS, np.int64)
_MOST_LISTED = 128  # elements that are listed in order: the first k of a row
_LIST_WORK = 1 << 14  # moves in a list beyond one per element of the row, at most
unpack = structure(Table)


@njit
def _product(a: Any, b: Any) -> Any:
    """Return the product of two integers of 32 bits without a sign."""
    return int64(uint64(a) * uint64(b))


ARITHMETIC = sampling.arithmetic(njit, _product, njit(sampling.power_of))
_key_of, _weight, _scale_of = ARITHMETIC.key_of, ARITHMETIC.weight, ARITHMETIC.scale_of
_factor_of, _temperature_of = ARITHMETIC.factor_of, ARITHMETIC.temperature_of
_share_of, _share = ARITHMETIC.share_of, ARITHMETIC.share
_random_word, _part = ARITHMETIC.random_word, ARITHMETIC.part


class Row(NamedTuple):
    """Where the elements of a row are, and the keys of infinity and of NaN."""

    at: int
    step: int
    size: int
    infinity: int
    lowest: int


class Cut(NamedTuple):
    """The elements that stay: those nearer than the distance, and the first `ties` of those at it."""

    distance: int
    ties: int


class Goal(NamedTuple):
    """A number of elements, or a share of `total`, which if negative stands for the sum of all weights."""

    is_weight: int
    n_elements: int
    digits: int
    exponent: int
    total: int


class Given(NamedTuple):
    """The parameters (`problem_words`), and where those of a row are in the arrays."""

    addresses: tuple[int, ...]
    formats: Any
    values: Any
    offsets: Any


@njit
def given_in(constants: Any, addresses: tuple[int, ...], offsets: Any) -> Given:
    """Return the parameters of the rows that `row_at` finds."""
    of_parameters = tail(offsets, STRIDES - X_STRIDE)
    return Given(addresses, tail(constants, FORMATS_AT), tail(constants, VALUES_AT), of_parameters)


@njit
def integer_of(given: Given, i: int) -> Any:
    """Return a parameter that is an integer."""
    address, kind, at = given.addresses[i], given.formats[i], given.offsets[i]
    if kind == 0:
        return given.values[i]
    if kind >= 16:
        return integers_at(address)[at]
    found = int64(short_integers_at(address)[at])
    return found if kind & 1 else found & MASK


@njit
def real_of(given: Given, i: int) -> tuple[int, int, int]:
    """Return the bits of a parameter that is a float, their number, and that of its fraction."""
    address, kind, at = given.addresses[i], given.formats[i], given.offsets[i]
    if kind == 0:
        return given.values[i], 64, 52
    if kind == 52:  # the fraction of a float64
        return integers_at(address)[at], 64, kind
    if kind == 23:  # of a float32
        return int64(short_integers_at(address)[at]), 32, kind
    return int64(half_integers_at(address)[at]), 16, kind


@inline
def _key_at(x: Any, row: Row, i: int) -> Any:
    return _key_of(int64(x[row.at + i * row.step]), row.infinity, row.lowest)


@njit
def _largest_key(x: Any, row: Row) -> Any:
    best = int64(row.lowest)
    if row.step == 1:
        for i in range(row.size):
            best = max(best, _key_of(int64(x[row.at + i]), row.infinity, row.lowest))
    else:
        for i in range(row.size):
            best = max(best, _key_at(x, row, i))
    return best


@njit
def weigh(x: Any, row: Row, first: int, n: int, scale: Any, keys: Any, weights: Any) -> Any:
    """Write the keys and the weights of a chunk, and return the sum of these."""
    if row.step == 1:
        for j in range(n):
            keys[j] = _key_of(int64(x[row.at + first + j]), row.infinity, row.lowest)
    else:
        for j in range(n):
            keys[j] = _key_at(x, row, first + j)
    total = int64(0)
    for j in range(n):
        weights[j] = _weight(keys[j], scale, _POWERS)
        total += weights[j]
    return total


@inline
def _is_less(a: Any, b: Any) -> Any:
    """Compare distances, which have 64 bits without a sign."""
    return uint64(a) < uint64(b)


@inline
def _minus(a: Any, b: Any) -> Any:
    """Return a key minus a distance or a key; a signed difference could overflow."""
    return int64(uint64(a) - uint64(b))


@njit
def _select(x: Any, row: Row, scale: Any, goal: Goal, width: int, scratch: Any) -> Any:
    """Return the distance at which the count or the sum reaches the goal, its value before, and the goal."""
    keys, weights, bins = scratch, tail(scratch, CHUNK), tail(scratch, 2 * CHUNK)
    distance, before, reached = int64(0), int64(0), int64(goal.n_elements)
    above = int64(width)
    while above > 0:
        shift = max(above - _DIGIT_BITS, 0)
        for digit in range(BINS):
            bins[digit] = 0
        is_first = above == width
        for first in range(0, row.size, CHUNK):
            n = min(CHUNK, row.size - first)
            if goal.is_weight and is_first:
                weigh(x, row, first, n, scale, keys, weights)
            for j in range(n):
                key = _key_at(x, row, first + j)
                found = _minus(scale.largest, key)
                amount = int64(1)
                if is_first:
                    if goal.is_weight:
                        amount = weights[j]
                elif (found ^ distance) >> above != 0:
                    continue
                elif goal.is_weight:
                    amount = _weight(key, scale, _POWERS)
                bins[(found >> shift) & ((1 << (above - shift)) - 1)] += amount
        if is_first and goal.is_weight:
            total = int64(goal.total)
            if total < 0:
                total = int64(0)
                for digit in range(BINS):
                    total += bins[digit]
            reached = _share(goal.digits, goal.exponent, total)
        digit = int64(0)
        while digit < BINS - _GROUP:
            group = int64(0)
            for i in range(_GROUP):
                group += bins[digit + i]
            if before + group >= reached:
                break
            before += group
            digit += _GROUP
        while before + bins[digit] < reached and digit < BINS - 1:
            before += bins[digit]
            digit += 1
        distance |= digit << shift
        above = shift
    return distance, before, reached


@njit
def _sum_of(x: Any, row: Row, scale: Any, cut: Cut) -> Any:
    """Return the sum of the weights of the elements that stay."""
    total = cut.ties * _weight(_minus(scale.largest, cut.distance), scale, _POWERS)
    for i in range(row.size):
        key = _key_at(x, row, i)
        if _is_less(_minus(scale.largest, key), cut.distance):
            total += _weight(key, scale, _POWERS)
    return int64(total)


@njit
def _draw_all(x: Any, row: Row, scale: Any, word: tuple[int, int], scratch: Any) -> Any:
    """Return the token of a row whose elements all stay."""
    keys, weights, sums = scratch, tail(scratch, CHUNK), tail(scratch, 2 * CHUNK)
    total = int64(0)
    for first in range(0, row.size, CHUNK):
        found = weigh(x, row, first, min(CHUNK, row.size - first), scale, keys, weights)
        sums[first // CHUNK] = found
        total += found
    target = _part(word[0], word[1], total)
    first = int64(0)
    # Another thread may change elements meanwhile, so that the weights add up to less.
    while first + CHUNK < row.size and sums[first // CHUNK] <= target:
        target -= sums[first // CHUNK]
        first += CHUNK
    n = min(CHUNK, row.size - first)
    weigh(x, row, first, n, scale, keys, weights)
    token = int64(0)
    while token < n - 1 and weights[token] <= target:
        target -= weights[token]
        token += 1
    return first + token


@njit
def _draw(x: Any, row: Row, scale: Any, cut: Cut, total: int, word: tuple[int, int]) -> Any:
    """Return the token of a row, of which some elements stay; `total` is the sum of their weights."""
    target = _part(word[0], word[1], total)
    ties = int64(cut.ties)
    token = int64(0)
    for i in range(row.size):
        key = _key_at(x, row, i)
        distance = _minus(scale.largest, key)
        if _is_less(cut.distance, distance):
            continue
        if distance == cut.distance:
            if ties == 0:
                continue
            ties -= 1
        target -= _weight(key, scale, _POWERS)
        token = int64(i)
        if target < 0:
            return token
    return token


@njit
def _first_of(x: Any, row: Row, key: int) -> Any:
    for i in range(row.size):
        if _key_at(x, row, i) == key:
            return i
    return 0


@njit
def _list_first(x: Any, row: Row, count: int, keys: Any, indices: Any) -> Any:
    """List the first elements in order; return how many, or -1 if too many move, as in ascending rows."""
    n, work = int64(0), int64(0)
    threshold = int64(row.lowest)
    for i in range(row.size):
        key = _key_at(x, row, i)
        if n == count and key <= threshold:
            continue
        place = n if n < count else count - 1
        n = place + 1
        while place > 0 and keys[place - 1] < key:
            keys[place] = keys[place - 1]
            indices[place] = indices[place - 1]
            place -= 1
            work += 1
        keys[place] = key
        indices[place] = i
        threshold = keys[n - 1]
        if work > row.size + _LIST_WORK:
            return -1
    return n


@njit
def _draw_listed(
    count: int, table: Table, reals: Any, word: tuple[int, int], keys: Any, indices: Any, weights: Any
) -> Any:
    """Return the token of a row of which only the first elements take part."""
    if keys[0] <= -table.infinity:
        return -1
    if reals[0] < 0:
        return indices[0]
    least = _share(reals[4], reals[5], FULL)
    factor = _factor_of(reals[0], reals[1])
    scale = _scale_of(keys[0], factor, reals[1], table.element_bits, table.mantissa, least)
    total = int64(0)
    for i in range(count):
        weights[i] = _weight(keys[i], scale, _POWERS)
        total += weights[i]
    goal = _share(reals[2], reals[3], total)
    n, total = int64(0), int64(0)
    while n < count and total < goal:
        total += weights[n]
        n += 1
    for i in range(1, n):
        index, weight, place = indices[i], weights[i], i
        while place > 0 and indices[place - 1] > index:
            indices[place] = indices[place - 1]
            weights[place] = weights[place - 1]
            place -= 1
        indices[place] = index
        weights[place] = weight
    target = _part(word[0], word[1], total)
    place = int64(0)
    while place < n - 1 and weights[place] <= target:
        target -= weights[place]
        place += 1
    return indices[place]


@njit
def _token(
    x: Any, row: Row, table: Table, count: int, reals: Any, word: tuple[int, int], scratch: Any
) -> Any:
    """Return the token of a row; `reals` has m and e of temperature, top_p and min_p."""
    is_counted = 0 < count < row.size
    if is_counted and count <= _MOST_LISTED:
        indices, weights = tail(scratch, _MOST_LISTED), tail(scratch, 2 * _MOST_LISTED)
        if _list_first(x, row, count, scratch, indices) == count:
            return _draw_listed(count, table, reals, word, scratch, indices, weights)
    largest = _largest_key(x, row)
    if largest <= -row.infinity:
        return -1
    if reals[0] < 0:
        return _first_of(x, row, largest)
    least = _share(reals[4], reals[5], FULL)
    factor = _factor_of(reals[0], reals[1])
    scale = _scale_of(largest, factor, reals[1], table.element_bits, table.mantissa, least)
    if not is_counted and reals[2] < 0:
        return _draw_all(x, row, scale, word, scratch)
    cut = Cut(int64(0), int64(0))
    total = int64(-1)
    if is_counted:
        goal = Goal(0, count, 0, 0, 0)
        distance, before, _ = _select(x, row, scale, goal, table.element_bits, scratch)
        cut = Cut(distance, count - before)
        total = _sum_of(x, row, scale, cut)
    if reals[2] >= 0:
        goal = Goal(1, 0, reals[2], reals[3], total)
        distance, before, reached = _select(x, row, scale, goal, table.element_bits, scratch)
        weight = max(_weight(_minus(largest, distance), scale, _POWERS), 1)
        ties = (reached - before + weight - 1) // weight
        cut = Cut(distance, ties)
        total = before + ties * weight
    return _draw(x, row, scale, cut, total, word)


@njit
def row_at(number: int, table: Table, dimensions: Any, offsets: Any) -> Row:
    """Return where a row is in x; write where it is in x, in the output and in the parameters."""
    for i in range(N_PARAMETERS + 2):
        offsets[i] = 0
    rest = number
    for d in range(table.n_dims - 1, -1, -1):
        dimension = tail(dimensions, DIMENSION * d)
        coordinate = rest
        if d > 0:
            rest = rest // dimension[0]
            coordinate -= rest * dimension[0]
        for i in range(N_PARAMETERS + 2):
            offsets[i] += coordinate * dimension[X_STRIDE + i]
    return Row(offsets[0], table.x_step, table.axis_size, table.infinity, table.lowest)


@njit
def sample_rows(
    constants: Any,
    first_row: int,
    last_row: int,
    task: int,
    x: Any,
    addresses: tuple[int, ...],
    output: Any,
    workspace: int,
) -> None:
    """Draw the tokens of rows `first_row` to `last_row`; `addresses` are those of the parameters."""
    table = unpack(constants)
    scratch = integers_at(workspace + task * table.task_bytes)
    offsets, reals = stack_integers(8), stack_integers(6)
    given = given_in(constants, addresses, offsets)
    for number in range(first_row, last_row):
        row = row_at(number, table, tail(constants, DIMS_AT), offsets)
        reals[0], reals[1] = _temperature_of(*real_of(given, TEMPERATURE))
        reals[2], reals[3] = _share_of(*real_of(given, TOP_P), -1)
        reals[4], reals[5] = _share_of(*real_of(given, MIN_P), 0)
        word = _random_word(integer_of(given, SEED), integer_of(given, STEP))
        token = _token(x, row, table, integer_of(given, COUNT), reals, word, scratch)
        put_index(output, table.index_size, offsets[OUTPUT_STRIDE - X_STRIDE], token)
