"""The problem of a gather, from the arrays of its call (`call_words`)."""

from kernels_cpu.call_words import FITS, FIXED, MISFIT, RANK, SHAPE, STRIDES, array_at, count_of, merged
from kernels_cpu.gather_nd.problem_words import (
    BOUND,
    COORDINATE_STEP,
    DIMS,
    N_BATCH_DIMS,
    N_BOUNDS,
    N_SLICE_DIMS,
    N_TUPLE_DIMS,
    SLICE_DIMENSION,
    TUPLE_DIMENSION,
    X_OFFSET,
)
from kernels_cpu.plan_words import Words

BATCH_DIMS, FILLS_OUTSIDE = range(FIXED, FIXED + 2)


def fit(call: Words, problem: Words) -> int:
    """Write the sizes of a call into a problem; `MISFIT` where they do not go together.

    The arrays are x, indices and the output.
    """
    x, indices, output = array_at(0), array_at(1), array_at(2)
    x_rank = call[x + RANK]
    index_rank = call[indices + RANK]
    batch = call[BATCH_DIMS]
    if index_rank < 1 or batch > index_rank - 1:
        return MISFIT
    n_coordinates = call[indices + SHAPE + index_rank - 1]
    sliced = batch + n_coordinates
    if sliced > x_rank or call[output + RANK] != index_rank - 1 + x_rank - sliced:
        return MISFIT
    n_tuples = count_of(call, indices, 0, index_rank - 1)
    if n_tuples < 0 or count_of(call, x, 0, x_rank) < 0 or count_of(call, output, 0, call[output + RANK]) < 0:
        return MISFIT
    if n_tuples > 0 and not call[FILLS_OUTSIDE]:
        for d in range(batch, sliced):
            if call[x + SHAPE + d] == 0:
                return MISFIT
    problem[COORDINATE_STEP] = call[indices + STRIDES + index_rank - 1]
    problem[X_OFFSET] = _elements_below(call, x)
    return _fit_dims(call, problem, batch, sliced)


def _elements_below(call: Words, x: int) -> int:
    """Return how many elements an array has below its first one in memory."""
    below = 0
    for d in range(call[x + RANK]):
        if call[x + SHAPE + d] == 0:
            return 0
        below -= min((call[x + SHAPE + d] - 1) * call[x + STRIDES + d], 0)
    return below


def _fit_dims(call: Words, problem: Words, batch: int, sliced: int) -> int:
    """Write the dimensions of batches and tuples, the bounds of coordinates, and the dimensions of slices."""
    x, indices, output = array_at(0), array_at(1), array_at(2)
    tuple_rank = call[indices + RANK] - 1
    first = end = DIMS
    n_batch_dims = 0
    for d in range(tuple_rank):
        if d == batch:
            n_batch_dims = (end - first) // TUPLE_DIMENSION
            first = end
        size = call[indices + SHAPE + d]
        if call[output + SHAPE + d] != size or (d < batch and call[x + SHAPE + d] != size):
            return MISFIT
        problem[end] = size
        problem[end + 1] = call[x + STRIDES + d] if d < batch else 0
        problem[end + 2] = call[indices + STRIDES + d]
        problem[end + 3] = call[output + STRIDES + d]
        end = merged(problem, first, end, TUPLE_DIMENSION)
    if tuple_rank == batch:
        n_batch_dims = (end - first) // TUPLE_DIMENSION
        first = end
    problem[N_BATCH_DIMS] = n_batch_dims
    problem[N_TUPLE_DIMS] = (end - first) // TUPLE_DIMENSION
    for d in range(batch, sliced):
        problem[end] = call[x + SHAPE + d]
        problem[end + 1] = call[x + STRIDES + d]
        end += BOUND
    problem[N_BOUNDS] = sliced - batch
    first = end
    for d in range(sliced, call[x + RANK]):
        out_dimension = tuple_rank + d - sliced
        size = call[x + SHAPE + d]
        if call[output + SHAPE + out_dimension] != size:
            return MISFIT
        problem[end] = size
        problem[end + 1] = call[x + STRIDES + d]
        problem[end + 2] = call[output + STRIDES + out_dimension]
        end = merged(problem, first, end, SLICE_DIMENSION)
    problem[N_SLICE_DIMS] = (end - first) // SLICE_DIMENSION
    return FITS
