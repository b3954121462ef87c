"""The problem of a listing of non-zero elements, from the arrays of its call (`call_words`)."""

from kernels_cpu.call_words import (
    FITS,
    FIXED,
    MISFIT,
    RANK,
    SHAPE,
    SIZES,
    STRIDES,
    array_at,
    count_of,
    merged,
)
from kernels_cpu.nonzero_coordinates.problem_words import (
    CAPACITY,
    COLUMN_STEP,
    DIMENSION,
    DIMS,
    FILL,
    FILLS,
    N_DIMS,
    N_SIZES,
    ONE_FILL,
    ROW_STEP,
    STEP,
    X_OFFSET,
)
from kernels_cpu.plan_words import Words

STEP_SIZE, FILL_SIZE, ROWS_SIZE = range(SIZES, SIZES + 3)
HIGHEST_INDEX, LOWEST_INDEX, HIGHEST_COUNT, ROWS = range(FIXED, FIXED + 4)
ROWS_ASKED_FOR, ROWS_FOR_ALL = 1, 2
"""Bits of `ROWS`: whether there must be as many rows as the caller asks for, or one for each element."""


def fit(call: Words, problem: Words) -> int:
    """Write the sizes of a call into a problem; `MISFIT` where they do not go together.

    The sizes of a call are its step, the fill if there is one for all columns, and how many rows the caller
    asks for if the kind has a size.
    The arrays are x, the coordinates, and the count.
    """
    x, coordinates, count = array_at(0), array_at(1), array_at(2)
    rank = call[x + RANK]
    n_elements = count_of(call, x, 0, rank)
    highest = call[HIGHEST_INDEX]
    if n_elements < 0 or n_elements > call[HIGHEST_COUNT]:
        return MISFIT
    if call[coordinates + RANK] != 2 or call[coordinates + SHAPE + 1] != rank:
        return MISFIT
    if call[count + RANK] > 1 or (call[count + RANK] == 1 and call[count + SHAPE] != 1):
        return MISFIT
    if call[ROWS] & ROWS_FOR_ALL and call[coordinates + SHAPE] != n_elements:
        return MISFIT
    if call[ROWS] & ROWS_ASKED_FOR and call[coordinates + SHAPE] != call[ROWS_SIZE]:
        return MISFIT
    if call[FILL_SIZE] < call[LOWEST_INDEX] or call[FILL_SIZE] > highest:
        return MISFIT
    problem[STEP] = call[STEP_SIZE]
    if problem[FILLS] == ONE_FILL:
        problem[FILL] = call[FILL_SIZE]
    problem[CAPACITY] = call[coordinates + SHAPE]
    problem[ROW_STEP] = call[coordinates + STRIDES]
    problem[COLUMN_STEP] = call[coordinates + STRIDES + 1]
    below = 0
    end = DIMS
    for d in range(rank):
        size = call[x + SHAPE + d]
        if size - 1 > highest:
            return MISFIT
        below -= min((size - 1) * call[x + STRIDES + d], 0) if n_elements else 0
        problem[end] = size
        problem[end + 1] = call[x + STRIDES + d]
        end = merged(problem, DIMS, end, DIMENSION)
    problem[X_OFFSET] = below
    problem[N_DIMS] = (end - DIMS) // DIMENSION
    for d in range(rank):
        problem[end + d] = call[x + SHAPE + d]
    problem[N_SIZES] = rank
    return FITS
