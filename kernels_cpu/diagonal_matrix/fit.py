"""The problem of a diagonal matrix, from the arrays of its call (`call_words`)."""

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
from kernels_cpu.diagonal_matrix.problem_words import (
    BEGIN,
    DIMENSION,
    DIMS,
    END,
    HAS_INPUT,
    HEIGHT,
    INVERTED,
    N_BATCH_DIMS,
    OUTPUT_COLUMN,
    OUTPUT_ROW,
    VALUE,
    WIDTH,
    X_COLUMN,
    X_ROW,
)
from kernels_cpu.plan_words import Words

FIRST, LAST, BITS = range(SIZES, SIZES + 3)
HAS_OWN_VALUE = FIXED
"""Whether all calls of the kind have the same value; otherwise its `BITS` are among the sizes."""


def fit(call: Words, problem: Words) -> int:
    """Write the sizes of a call into a problem; `MISFIT` where they do not go together.

    The sizes of a call are the bounds of the band, which fit in 62 bits, and the bits of the value. The
    arrays are x, if there is one, and the output.
    """
    has_input = problem[HAS_INPUT] != 0
    output = array_at(1)
    x = array_at(0) if has_input else output
    rank = call[output + RANK]
    if rank < 2 or call[x + RANK] != rank or count_of(call, output, 0, rank) < 0:
        return MISFIT
    end = DIMS
    for d in range(rank):
        size = call[output + SHAPE + d]
        if call[x + SHAPE + d] != size:
            return MISFIT
        if d < rank - 2:
            problem[end] = size
            problem[end + 1] = call[x + STRIDES + d]
            problem[end + 2] = call[output + STRIDES + d]
            end = merged(problem, DIMS, end, DIMENSION)
    height, width = call[output + SHAPE + rank - 2], call[output + SHAPE + rank - 1]
    first, last = min(call[FIRST], call[LAST]), max(call[FIRST], call[LAST])
    if call[HAS_OWN_VALUE] == 0:
        problem[VALUE] = call[BITS]
    problem[HEIGHT] = height
    problem[WIDTH] = width
    # All bounds beyond the matrix mean the same. Close to it, none can overflow.
    problem[BEGIN] = min(max(first, -height), width)
    problem[END] = min(max(last, -height), width)
    problem[INVERTED] = 1 if call[FIRST] > call[LAST] else 0
    problem[X_ROW] = call[x + STRIDES + rank - 2]
    problem[X_COLUMN] = call[x + STRIDES + rank - 1]
    problem[OUTPUT_ROW] = call[output + STRIDES + rank - 2]
    problem[OUTPUT_COLUMN] = call[output + STRIDES + rank - 1]
    problem[N_BATCH_DIMS] = (end - DIMS) // DIMENSION
    return FITS
