"""The plan of `sample` on the CPU: each task draws the tokens of some rows.

The addresses of a run are those of x, the parameters that are arrays, the output and the workspace. Its units
are rows; it has no result.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from kernels_cpu.host_words import THREADS
from kernels_cpu.integers import ceil_div, product
from kernels_cpu.kernel import BYTES, INTEGER, INTEGERS, Kernel, plan_kernel, pointer
from kernels_cpu.plan_words import (
    NULL_SLOT,
    Words,
    begin_plan,
    begin_tasks,
    put_pointer,
    put_value,
    put_values,
    take_workspace,
)
from kernels_cpu.problems import WHOLE_ROWS
from kernels_cpu.processor import LINE_BYTES
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
    STAGE,
    VALUES,
    X_STEP,
)

NOTHING, ROWS = range(2)
"""The algorithms."""
FLOAT_SIZES = 2, 4, 8
SHARDS = 16
"""Added to the size of elements, the number of the kernel for shards."""
CHUNK = 1024
"""Elements whose weights are in the first-level cache at a time."""
BINS = 2048
"""Bins of a histogram of weights or of elements: 16 KiB."""
TASK_TIME = 150_000  # ns; a shorter task is not worth waking a thread

PLAN = plan_kernel("sample")


class Table(NamedTuple):
    """The integers of a problem, as kernels read them; the dimensions of rows follow."""

    element_bits: int
    mantissa: int
    infinity: int
    lowest: int
    """The keys of infinity and of NaN."""
    index_size: int
    axis_size: int
    x_step: int
    task_bytes: int
    n_dims: int
    stage: int


FORMATS_AT = len(Table._fields)
VALUES_AT = FORMATS_AT + N_PARAMETERS
DIMS_AT = VALUES_AT + N_PARAMETERS


@cache
def kernel_of(key: int) -> Kernel:
    """Return a kernel by its number."""
    operands = pointer("i", key & ~SHARDS), f"{N_PARAMETERS}{INTEGER}", BYTES, INTEGER
    signature = (INTEGERS, INTEGER, INTEGER, INTEGER, *operands)
    if key & SHARDS:
        return Kernel("sample_shards", "kernels_cpu.sample.shards:sample_shards", signature)
    return Kernel("sample_rows", "kernels_cpu.sample.kernels:sample_rows", signature)


def all_kernels() -> Iterator[Kernel]:
    """List all kernels that a plan may need, and the plan itself."""
    yield PLAN
    for size in FLOAT_SIZES:
        yield kernel_of(size)
        yield kernel_of(SHARDS + size)


def plan(problem: Words, host: Words, out: Words) -> int:
    """Plan the tokens of all rows."""
    n_rows = 1
    for d in range(problem[N_DIMS]):
        n_rows = product(n_rows, problem[DIMS + DIMENSION * d])
    if n_rows == 0:
        begin_plan(out, NOTHING)
        return 0
    begin_plan(out, ROWS)
    n = problem[AXIS_SIZE]
    n_tasks = min(host[THREADS], max(product(n_rows, 200 + 4 * n) // TASK_TIME, 1), n_rows)
    n_integers = 2 * CHUNK + max(BINS, ceil_div(n, CHUNK))
    task_bytes = ceil_div(8 * n_integers, LINE_BYTES) * LINE_BYTES
    take_workspace(out, task_bytes * n_tasks, LINE_BYTES)
    kernel = problem[ELEMENT_SIZE] + (0 if problem[STAGE] == WHOLE_ROWS else SHARDS)
    begin_tasks(out, kernel, n_rows, n_tasks, 3)
    put_pointer(out, 0, 0)
    slot = 1
    for i in range(N_PARAMETERS):
        if problem[FORMATS + i] != 0:
            put_pointer(out, slot, 0)
            slot += 1
        else:
            put_pointer(out, NULL_SLOT, 0)
    put_pointer(out, slot, 0)
    put_pointer(out, slot + 1, 0)
    element_bits, mantissa = 8 * problem[ELEMENT_SIZE], problem[MANTISSA]
    table = Table(
        element_bits,
        mantissa,
        ((1 << (element_bits - 1 - mantissa)) - 1) << mantissa,
        -1 << (element_bits - 1),
        problem[INDEX_SIZE],
        n,
        problem[X_STEP],
        task_bytes,
        problem[N_DIMS],
        problem[STAGE],
    )
    put_values(out, table)
    for at in range(FORMATS, VALUES + N_PARAMETERS):
        put_value(out, problem[at])
    for at in range(DIMS, DIMS + DIMENSION * problem[N_DIMS]):
        put_value(out, problem[at])
    return 0
