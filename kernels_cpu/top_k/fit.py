"""From the arrays of a top-k to its problem (`call_words`)."""

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
from kernels_cpu.kernel import INTEGERS, Kernel
from kernels_cpu.plan_words import Words
from kernels_cpu.top_k.problem_words import (
    AXIS_SIZE,
    DIMENSION,
    DIMS,
    INDEX_STEP,
    INDEX_STRIDE,
    LENGTH_SIZE,
    LENGTH_STRIDE,
    N_DIMS,
    SIZE,
    VALUE_STEP,
    VALUE_STRIDE,
    X_STEP,
    X_STRIDE,
    K,
)

FIT = Kernel("top_k_fit", "kernels_cpu.top_k.fit:fit", (INTEGERS, INTEGERS))
AXIS, LEAST_K, HIGHEST_INDEX = range(FIXED, FIXED + 3)


def fit(call: Words, problem: Words) -> int:
    """Write the sizes of a call into a problem; `MISFIT` where they do not go together.

    The size of a call is its k. The arrays are x, the lengths if there are any, values and indices.
    """
    x, k, axis = array_at(0), call[SIZES], call[AXIS]
    has_lengths = problem[LENGTH_SIZE] > 0
    values = array_at(2) if has_lengths else array_at(1)
    indices = array_at(3) if has_lengths else array_at(2)
    rank = call[x + RANK]
    axis_size = call[x + SHAPE + axis] if rank else 1
    if k < call[LEAST_K] or k > axis_size or (k > 0 and axis_size - 1 > call[HIGHEST_INDEX]):
        return MISFIT
    if call[values + RANK] != max(rank, 1) or call[indices + RANK] != max(rank, 1):
        return MISFIT
    if has_lengths and call[array_at(1) + RANK] != max(rank, 1) - 1:
        return MISFIT
    if (
        count_of(call, x, 0, rank) < 0
        or call[values + SHAPE + axis] != k
        or call[indices + SHAPE + axis] != k
    ):
        return MISFIT
    problem[K] = k
    problem[AXIS_SIZE] = axis_size
    problem[X_STEP] = call[x + STRIDES + axis] if rank else 0
    problem[VALUE_STEP] = call[values + STRIDES + axis]
    problem[INDEX_STEP] = call[indices + STRIDES + axis]
    return _fit_rows(call, problem, axis, has_lengths)


def _fit_rows(call: Words, problem: Words, axis: int, has_lengths: bool) -> int:
    """Write the dimensions of rows."""
    x, lengths = array_at(0), array_at(1)
    values = array_at(2) if has_lengths else array_at(1)
    indices = array_at(3) if has_lengths else array_at(2)
    end = DIMS
    for d in range(call[x + RANK]):
        if d == axis:
            continue
        size = call[x + SHAPE + d]
        if call[values + SHAPE + d] != size or call[indices + SHAPE + d] != size:
            return MISFIT
        problem[end + SIZE] = size
        problem[end + X_STRIDE] = call[x + STRIDES + d]
        problem[end + VALUE_STRIDE] = call[values + STRIDES + d]
        problem[end + INDEX_STRIDE] = call[indices + STRIDES + d]
        problem[end + LENGTH_STRIDE] = 0
        if has_lengths:
            row_dimension = d - 1 if d > axis else d
            if call[lengths + SHAPE + row_dimension] != size:
                return MISFIT
            problem[end + LENGTH_STRIDE] = call[lengths + STRIDES + row_dimension]
        end = merged(problem, DIMS, end, DIMENSION)
    problem[N_DIMS] = (end - DIMS) // DIMENSION
    return FITS
