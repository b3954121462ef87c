"""The kernels of a row that several threads sort: a radix sort whose passes count and scatter in parts.

A part is a range of the list. In every pass, each part counts its digits. The counts of all parts determine
where the records of each digit of each part go, in the order of the parts, so that equal keys keep their
order.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_cpu.intrinsics.pointers import elements_at, integers_at
from kernels_cpu.jit import inline, int64, njit
from kernels_cpu.keys import key, unpack_masks
from kernels_cpu.top_k.finish import write_listed
from kernels_cpu.top_k.problem import BINS, BITS, DIGIT_BITS, EXTENTS, GAP, LEAST, Problem
from kernels_cpu.top_k.scratch import numbers_of, offsets_of, unpack

Array = NDArray[Any]


@inline
def lists_of(problem: Problem, is_moved: bool, workspace: int) -> tuple[Array, Array, Array, Array]:
    """Return the records and positions as they are, and those that a pass writes."""
    records, positions = problem.records, problem.positions
    to_records, to_positions = problem.spare_records, problem.spare_positions
    if is_moved:
        records, to_records = to_records, records
        positions, to_positions = to_positions, positions
    return (
        integers_at(workspace + records),
        integers_at(workspace + positions),
        integers_at(workspace + to_records),
        integers_at(workspace + to_positions),
    )


@njit
def list_part(constants: Array, row: int, first: int, last: int, part: int, x: int, workspace: int) -> None:
    """Make a record of every element of a part, and write the least and the greatest to the state."""
    problem = unpack(numbers_of(constants))
    masks = unpack_masks(constants)
    records, positions, _, _ = lists_of(problem, False, workspace)
    state = integers_at(workspace + problem.counters)
    elements = elements_at(x, constants)
    at, _, _ = offsets_of(numbers_of(constants), problem.n_dims, row)
    low, high = int64((1 << 63) - 1), int64(-1 << 63)
    for i in range(first, last):
        record = int64(key(elements[at + i * problem.x_step], masks))
        if problem.wide:
            positions[i] = i
        else:
            record = (record << 32) | i
        records[i] = record
        low, high = min(low, record), max(high, record)
    state[EXTENTS + 2 * part] = low
    state[EXTENTS + 2 * part + 1] = high


@njit
def plan_passes(constants: Array, n_parts: int, workspace: int) -> int:
    """Return how many passes the keys need, and write the state that all passes read."""
    problem = unpack(numbers_of(constants))
    state = integers_at(workspace + problem.counters)
    low, high = state[EXTENTS], state[EXTENTS + 1]
    for part in range(1, n_parts):
        low = min(low, state[EXTENTS + 2 * part])
        high = max(high, state[EXTENTS + 2 * part + 1])
    shift = key_shift_of(problem)
    least = (low >> shift) << shift
    key_range = np.uint64(high - least) >> np.uint64(shift)
    key_bits = 0
    while key_bits < 64 and key_range >> np.uint64(key_bits):
        key_bits += 1
    n_passes = (key_bits + DIGIT_BITS - 1) // DIGIT_BITS
    ends = ends_of(problem, False)
    for i in range(BINS):
        state[ends + i] = problem.axis_size  # all records are in the first bin
    state[LEAST] = least
    state[BITS] = (key_bits + n_passes - 1) // max(n_passes, 1)
    return n_passes


@inline
def ends_of(problem: Problem, is_moved: bool) -> int:
    """Return where the ends of the bins are in which the records lie, gaps between bins not counted."""
    ends: int = EXTENTS + (2 + BINS) * int64(problem.segments)
    return ends + BINS if is_moved else ends


@inline
def key_shift_of(problem: Problem) -> int:
    """Return how many bits below its key a record has."""
    return 0 if problem.wide else 32


@njit
def count_part(
    constants: Array, number: int, is_moved: bool, first: int, last: int, part: int, workspace: int
) -> None:
    """Count the digits of a part."""
    problem = unpack(numbers_of(constants))
    state = integers_at(workspace + problem.counters)
    records, _, _, _ = lists_of(problem, is_moved, workspace)
    n_parts = int64(problem.segments)
    least, bits = state[LEAST], state[BITS]
    shift = np.uint64(key_shift_of(problem) + number * bits)
    mask = (1 << bits) - 1
    counts = EXTENTS + 2 * n_parts + part * BINS
    for i in range(BINS):
        state[counts + i] = 0
    begin, ends = 0, ends_of(problem, is_moved)
    for j in range(BINS):
        end = state[ends + j]
        for i in range(max(first, begin) + j * GAP, min(last, end) + j * GAP):
            at = counts + (int64(np.uint64(records[i] - least) >> shift) & mask)
            state[at] = state[at] + 1
        begin = end


@njit
def find_offsets(
    constants: Array, n_parts: int, n: int, is_moved: bool, is_last: bool, workspace: int
) -> bool:
    """Turn counts into offsets, which leave gaps in all passes but the last.

    Return whether there is more than one digit.
    """
    problem = unpack(numbers_of(constants))
    state = integers_at(workspace + problem.counters)
    counts = EXTENTS + 2 * int64(problem.segments)
    ends = ends_of(problem, not is_moved)
    gap = 0 if is_last else GAP
    total = 0
    for digit in range(BINS):
        before = total
        for part in range(n_parts):
            at = counts + part * BINS + digit
            size = state[at]
            state[at] = total + digit * gap
            total += size
        if total - before == n:
            return False
        state[ends + digit] = total
    return True


@njit
def scatter_part(
    constants: Array, number: int, is_moved: bool, first: int, last: int, part: int, workspace: int
) -> None:
    """Move the records of a part to where they belong."""
    problem = unpack(numbers_of(constants))
    state = integers_at(workspace + problem.counters)
    records, positions, to_records, to_positions = lists_of(problem, is_moved, workspace)
    least, bits = state[LEAST], state[BITS]
    shift = np.uint64(key_shift_of(problem) + number * bits)
    mask = (1 << bits) - 1
    counts = EXTENTS + 2 * int64(problem.segments) + part * BINS
    begin, ends = 0, ends_of(problem, is_moved)
    for j in range(BINS):
        end = state[ends + j]
        for i in range(max(first, begin) + j * GAP, min(last, end) + j * GAP):
            record = records[i]
            at = counts + (int64(np.uint64(record - least) >> shift) & mask)
            to = state[at]
            state[at] = to + 1
            to_records[to] = record
            if problem.wide:
                to_positions[to] = positions[i]
        begin = end


@njit
def write_part(
    constants: Array, row: int, is_moved: bool, first: int, last: int, part: int,
    x: int, values: int, indices: int, workspace: int,
) -> None:  # fmt: skip
    """Write a range of the sorted row's results."""
    problem = unpack(numbers_of(constants))
    records, positions, _, _ = lists_of(problem, is_moved, workspace)
    at = offsets_of(numbers_of(constants), problem.n_dims, row)
    write_listed(
        elements_at(x, constants), elements_at(values, constants), indices, at, problem,
        unpack_masks(constants), records, positions, first, last,
    )  # fmt: skip
