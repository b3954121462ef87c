"""The problem of `sample`, from the arrays of its call (`call_words`)."""

from kernels_cpu.call_words import (
    FITS,
    FIXED,
    MISFIT,
    RANK,
    SHAPE,
    SIZES,
    array_at,
    count_of,
    merged,
)
from kernels_cpu.call_words import STRIDES as STRIDES_AT
from kernels_cpu.plan_words import Words
from kernels_cpu.sample.problem_words import (
    AXIS_SIZE,
    DIMENSION,
    DIMS,
    FORMATS,
    MIN_P,
    N_DIMS,
    N_PARAMETERS,
    OUTPUT_STRIDE,
    SIZE,
    STRIDES,
    TEMPERATURE,
    TOP_P,
    VALUES,
    X_STEP,
    X_STRIDE,
)

HIGHEST_INDEX, MOST_ELEMENTS = FIXED, FIXED + 1
# Of float64.
_MAGNITUDE, _INFINITY, _ONE = (1 << 63) - 1, 0x7FF << 52, 0x3FF << 52


def fit(call: Words, problem: Words) -> int:
    """Write the sizes of a call into a problem; `MISFIT` where they do not go together.

    The sizes of a call are the parameters that are numbers. The arrays are x, the parameters that are arrays,
    and the output.
    """
    x, rank = array_at(0), call[array_at(0) + RANK]
    n_given = 0
    for i in range(N_PARAMETERS):
        problem[VALUES + i] = call[SIZES + i]
        if problem[FORMATS + i] != 0:
            n_given += 1
            if call[array_at(n_given) + RANK] > rank - 1:
                return MISFIT
        elif not _is_in_range(i, call[SIZES + i]):
            return MISFIT
    output = array_at(n_given + 1)
    if rank == 0 or call[output + RANK] != rank - 1 or count_of(call, x, 0, rank) < 0:
        return MISFIT
    axis_size = call[x + SHAPE + rank - 1]
    if axis_size > call[MOST_ELEMENTS] or axis_size - 1 > call[HIGHEST_INDEX]:
        return MISFIT
    problem[AXIS_SIZE] = axis_size
    problem[X_STEP] = call[x + STRIDES_AT + rank - 1]
    end = DIMS
    for d in range(rank - 1):
        size = call[x + SHAPE + d]
        if call[output + SHAPE + d] != size:
            return MISFIT
        problem[end + SIZE] = size
        problem[end + X_STRIDE] = call[x + STRIDES_AT + d]
        problem[end + OUTPUT_STRIDE] = call[output + STRIDES_AT + d]
        number = 0
        for i in range(N_PARAMETERS):
            stride = 0
            if problem[FORMATS + i] != 0:
                number += 1
                given = array_at(number)
                place = d - (rank - 1 - call[given + RANK])
                if place >= 0:
                    if call[given + SHAPE + place] != 1 and call[given + SHAPE + place] != size:
                        return MISFIT
                    if call[given + SHAPE + place] != 1:
                        stride = call[given + STRIDES_AT + place]
            problem[end + STRIDES + i] = stride
        end = merged(problem, DIMS, end, DIMENSION)
    problem[N_DIMS] = (end - DIMS) // DIMENSION
    return FITS


def _is_in_range(parameter: int, value: int) -> bool:
    """Return whether a function takes a number for a parameter; of floats, `value` has the bits."""
    if parameter == TEMPERATURE:
        return value & _MAGNITUDE <= _INFINITY
    if parameter in (TOP_P, MIN_P):
        return value & _MAGNITUDE <= _ONE and (value >= 0 or value & _MAGNITUDE == 0)
    return True
