"""The plan of `sample` on a GPU: one block per row, or one cluster of blocks where there are few rows.

The slots of its launch are x, the parameters that are arrays, the output and the workspace, which only holds
the dimensions of rows if there are more than `NARROW_DEPTH`.
"""

from typing import NamedTuple

from kernels_cpu.integers import ceil_div, product
from kernels_cpu.plan_words import (
    NULL_SLOT,
    Words,
    begin_launch,
    begin_plan,
    put_last_pointer,
    put_pointer,
    put_value,
    put_values,
)
from kernels_cpu.sample.problem_words import (
    AXIS_SIZE,
    DIMENSION,
    DIMS,
    ELEMENT_SIZE,
    FORMATS,
    INDEX_SIZE,
    MANTISSA,
    N_DIMS,
    N_PARAMETERS,
    OUTPUT_STRIDE,
    SIZE,
    STRIDES,
    VALUES,
    X_STEP,
    X_STRIDE,
)
from kernels_cuda.device_words import ARCH, MULTIPROCESSORS, OWN_WORDS, PLANNED, ROOM, TOO_LONG
from kernels_cuda.kernel_keys import kernel_key
from kernels_cuda.layout import LAUNCH_WORDS, place, wide_table, wide_table_words
from kernels_cuda.runtime.variant import CLUSTERS_FROM, PORTABLE_CLUSTER
from kernels_cuda.sample.parameters import NARROW_DEPTH, ROWS_KERNEL, THREADS, VECTOR, WARPS, Parameters

NOTHING, BLOCKS, CLUSTERS_OF_BLOCKS = range(3)
"""The algorithms."""
_CLUSTER_ARCH = 10 * CLUSTERS_FROM[0] + CLUSTERS_FROM[1]


class Policy(NamedTuple):
    """Thresholds, which follow the words of the device; tests plan with others to force an algorithm."""

    # A cluster of blocks shares a row of at least so many elements.
    cluster_elements: int = 16384
    # The most blocks that are launched; each takes one row after the other.
    most_blocks: int = 1 << 20
    # With a small k, a row of at least so many elements is read once, if a part of it gives the threshold.
    guessed_elements: int = 65536


def _bytes_of(format_word: int) -> int:
    """Return the bytes of an element of a parameter."""
    if format_word >= 52 or 16 <= format_word <= 17:
        return 8
    return 2 if format_word in (7, 10) else 4


def plan(problem: Words, device: Words, out: Words) -> int:
    """Plan the tokens of all rows; `TOO_LONG` if there is no room for the words."""
    n_dims, n, element_size = problem[N_DIMS], problem[AXIS_SIZE], problem[ELEMENT_SIZE]
    n_rows = 1
    for d in range(n_dims):
        n_rows = product(n_rows, problem[DIMS + DIMENSION * d])
    n_far = n_dims * DIMENSION if n_dims > NARROW_DEPTH else 0
    if LAUNCH_WORDS + wide_table_words(n_far) > device[ROOM]:
        begin_plan(out, NOTHING)
        return TOO_LONG
    if n_rows == 0:
        begin_plan(out, NOTHING)
        return PLANNED
    is_shared = (
        device[ARCH] >= _CLUSTER_ARCH
        and n >= device[OWN_WORDS]
        and product(n_rows, PORTABLE_CLUSTER) <= 2 * device[MULTIPROCESSORS]
    )
    cluster = PORTABLE_CLUSTER if is_shared else 1
    begin_plan(out, CLUSTERS_OF_BLOCKS if is_shared else BLOCKS)
    n_given = 0
    for i in range(N_PARAMETERS):
        if problem[FORMATS + i] != 0:
            n_given += 1
    workspace = n_given + 2
    far_at = 0
    if n_far > 0:
        table = wide_table(out, workspace, n_far)
        far_at = table.workspace_at
        for i in range(n_far):
            out[place(table, i)] = _dimension_word(problem, n_dims, i)
    n_blocks = min(product(n_rows, cluster), device[OWN_WORDS + 1] // cluster * cluster)
    begin_launch(out, kernel_key(ROWS_KERNEL, element_size, cluster), n_blocks, THREADS, 0, cluster)
    put_pointer(out, 0, 0)
    slot = 1
    for i in range(N_PARAMETERS):
        if problem[FORMATS + i] != 0:
            put_pointer(out, slot, 0)
            slot += 1
        else:
            put_pointer(out, NULL_SLOT, 0)
    put_pointer(out, slot, 0)
    mantissa = problem[MANTISSA]
    # A row may begin behind the first element of a vector.
    segment = ceil_div(ceil_div(n + VECTOR // element_size, WARPS * cluster), 32) * 32
    infinity = ((1 << (8 * element_size - 1 - mantissa)) - 1) << mantissa
    put_values(
        out,
        Parameters(
            n_rows,
            n,
            problem[X_STEP] * element_size,
            segment,
            mantissa,
            infinity,
            problem[INDEX_SIZE],
            device[OWN_WORDS + 2],
            n_dims,
        ),
    )
    for at in range(FORMATS, VALUES + N_PARAMETERS):
        put_value(out, problem[at])
    for i in range(NARROW_DEPTH * DIMENSION):
        put_value(out, _dimension_word(problem, n_dims, i) if n_far == 0 and i < n_dims * DIMENSION else 0)
    put_last_pointer(out, workspace if n_far > 0 else NULL_SLOT, far_at)
    return PLANNED


def _dimension_word(problem: Words, n_dims: int, i: int) -> int:
    """Return an integer of the dimensions, the fastest first, with strides in bytes."""
    number = i // DIMENSION
    field = i - number * DIMENSION
    word = problem[DIMS + DIMENSION * (n_dims - 1 - number) + field]
    if field == SIZE:
        return word
    if field == X_STRIDE:
        return word * problem[ELEMENT_SIZE]
    if field == OUTPUT_STRIDE:
        return word * problem[INDEX_SIZE]
    return word * _bytes_of(problem[FORMATS + field - STRIDES])
