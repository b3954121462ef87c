"""The problem of a top-k, from the arrays of its call (`call_words`)."""

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
from kernels_cpu.plan_words import Words
from kernels_cpu.top_k.problem_words import (
    AXIS_SIZE,
    DIMENSION,
    DIMS,
    INDEX_STEP,
    INDEX_STRIDE,
    LENGTH_SIZE,
    LENGTH_STRIDE,
    MAX_LENGTH,
    N_DIMS,
    NUMBER_SIZE,
    NUMBER_STEP,
    NUMBER_STRIDE,
    SIZE,
    START_SIZE,
    START_STRIDE,
    VALUE_STEP,
    VALUE_STRIDE,
    X_STEP,
    X_STRIDE,
    K,
)

K_SIZE, LONGEST = SIZES, SIZES + 1
AXIS, LEAST_K, HIGHEST_INDEX = range(FIXED, FIXED + 3)
_NONE = -1


def fit(call: Words, problem: Words) -> int:
    """Write the sizes of a call into a problem; `MISFIT` where they do not go together.

    The sizes of a call are its k and the most elements of a row that take part. The arrays are x; lengths,
    starts and numbers, as far as there are any; values and indices. `AXIS` is the dimension of the results.
    """
    values = array_at(1 + _count_of_others(problem))
    indices = array_at(2 + _count_of_others(problem))
    x, k, axis, rank = array_at(0), call[K_SIZE], call[AXIS], call[values + RANK]
    if call[indices + RANK] != rank or call[indices + SHAPE + axis] != k or call[values + SHAPE + axis] != k:
        return MISFIT
    # The axis of x: if it has fewer dimensions than the results, it is the last one.
    at = x + call[x + RANK] - rank + axis
    if call[x + RANK] > rank or (call[x + RANK] < rank and axis != rank - 1):
        return MISFIT
    axis_size = call[at + SHAPE] if call[x + RANK] > 0 else 1
    longest = min(call[LONGEST], axis_size)
    if k < call[LEAST_K] or count_of(call, x, 0, call[x + RANK]) < 0:
        return MISFIT
    if k > axis_size and _count_of_others(problem) == 0:
        return MISFIT
    if k > 0 and axis_size - 1 > call[HIGHEST_INDEX] and problem[NUMBER_SIZE] == 0:
        return MISFIT
    problem[K] = k
    problem[AXIS_SIZE] = axis_size if problem[START_SIZE] > 0 else longest
    problem[MAX_LENGTH] = longest
    problem[X_STEP] = call[at + STRIDES] if call[x + RANK] > 0 else 0
    problem[VALUE_STEP] = call[values + STRIDES + axis]
    problem[INDEX_STEP] = call[indices + STRIDES + axis]
    if problem[NUMBER_SIZE] > 0 and not _fit_numbers(call, problem, axis_size):
        return MISFIT
    return _fit_rows(call, problem)


def _count_of_others(problem: Words) -> int:
    """Return how many inputs there are beside x."""
    return _number_of(problem, NUMBER_SIZE) + (1 if problem[NUMBER_SIZE] > 0 else 0) - 1


def _number_of(problem: Words, which: int) -> int:
    """Return the number of the array that has the lengths, the starts or the numbers, if there are any."""
    number = 1
    if which != LENGTH_SIZE and problem[LENGTH_SIZE] > 0:
        number += 1
    if which == NUMBER_SIZE and problem[START_SIZE] > 0:
        number += 1
    return number


def _fit_numbers(call: Words, problem: Words, axis_size: int) -> bool:
    """Write the stride of the numbers along the axis; return whether they have its size, or one for all."""
    numbers = array_at(_number_of(problem, NUMBER_SIZE))
    rank = call[array_at(1 + _count_of_others(problem)) + RANK]
    n_dims = call[numbers + RANK]
    if n_dims > rank:
        return False
    # A single dimension is the axis; several are the last ones of the results.
    d = 0 if n_dims == 1 else n_dims - rank + call[AXIS]
    problem[NUMBER_STEP] = 0
    if n_dims == 0 or d < 0:
        return True
    problem[NUMBER_STEP] = call[numbers + STRIDES + d]
    size = call[numbers + SHAPE + d]
    return bool(size in (1, axis_size))


def _fit_rows(call: Words, problem: Words) -> int:
    """Write the dimensions of rows."""
    n_others, axis = _count_of_others(problem), call[AXIS]
    values, indices = array_at(1 + n_others), array_at(2 + n_others)
    numbers = array_at(_number_of(problem, NUMBER_SIZE))
    rank = call[values + RANK]
    end = DIMS
    for d in range(rank):
        if d == axis:
            continue
        size = call[values + SHAPE + d]
        if call[indices + SHAPE + d] != size:
            return MISFIT
        row_d = d - 1 if d > axis else d
        problem[end + SIZE] = 1
        problem[end + VALUE_STRIDE] = call[values + STRIDES + d]
        problem[end + INDEX_STRIDE] = call[indices + STRIDES + d]
        problem[end + X_STRIDE] = _stride(call, problem, array_at(0), d, rank, end)
        problem[end + LENGTH_STRIDE] = 0
        problem[end + START_STRIDE] = 0
        problem[end + NUMBER_STRIDE] = 0
        if problem[LENGTH_SIZE] > 0:
            lengths = array_at(_number_of(problem, LENGTH_SIZE))
            problem[end + LENGTH_STRIDE] = _stride(call, problem, lengths, row_d, rank - 1, end)
        if problem[START_SIZE] > 0:
            starts = array_at(_number_of(problem, START_SIZE))
            problem[end + START_STRIDE] = _stride(call, problem, starts, row_d, rank - 1, end)
        if problem[end + SIZE] != size:
            return MISFIT
        if problem[NUMBER_SIZE] > 0 and call[numbers + RANK] != 1:
            problem[end + NUMBER_STRIDE] = _stride(call, problem, numbers, d, rank, end)
            if problem[end + SIZE] != size:
                return MISFIT
        end = merged(problem, DIMS, end, DIMENSION)
    problem[N_DIMS] = (end - DIMS) // DIMENSION
    return FITS


def _stride(call: Words, problem: Words, array: int, d: int, rank: int, dimension: int) -> int:
    """Return the stride of an array along a dimension of `rank`, and broadcast the size of the problem's.

    Sizes that do not broadcast leave a size that no result has.
    """
    at = d - rank + call[array + RANK]
    if call[array + RANK] > rank:
        problem[dimension + SIZE] = _NONE
        return 0
    if at < 0:
        return 0
    size = call[array + SHAPE + at]
    if problem[dimension + SIZE] == 1:
        problem[dimension + SIZE] = size
    elif size != 1 and size != problem[dimension + SIZE]:
        problem[dimension + SIZE] = _NONE
    stride: int = call[array + STRIDES + at]
    return stride
