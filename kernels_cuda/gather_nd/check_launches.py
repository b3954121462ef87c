"""The launches that look for index tuples out of range."""

from typing import NamedTuple

from kernels_cpu.gather_nd.problem_words import (
    COORDINATE_STEP,
    INDEX_SIZE,
    N_BATCH_DIMS,
    N_BOUNDS,
    N_TUPLE_DIMS,
)
from kernels_cpu.integers import ceil_div, product
from kernels_cpu.plan_words import (
    ALGORITHM,
    END,
    Words,
    begin_launch,
    put_pointer,
    put_value,
    put_values,
    take_workspace,
)
from kernels_cuda.device_words import MULTIPROCESSORS, PLANNED, ROOM, TOO_LONG, WORKSPACE_ALIGNMENT
from kernels_cuda.gather_nd.parameters import (
    CHECK_KERNEL,
    CHECKED_TUPLES,
    CLEAR_KERNEL,
    THREADS,
    CheckDims,
    CheckParameters,
)
from kernels_cuda.gather_nd.problem import (
    Policy,
    bound_of,
    dimension_of,
    has_long_indices,
    runs_along,
    tuples_of,
)
from kernels_cuda.kernel_keys import kernel_key
from kernels_cuda.layout import LAUNCH_WORDS, NARROW_DEPTH, fill_dimension, is_wide, narrow_table, place

CHECKED, ANSWER = 1, 3
"""The slots of the indices and of the workspace, where the answer is."""
ANSWER_BYTES = 8
CHECK = 4
"""The algorithm, beside those of gathers."""

_N_COLUMNS = len(CheckDims._fields) - 1


class Group(NamedTuple):
    """Dimensions of tuples, from `first` on, whose indices lie evenly, as if they were one."""

    first: int
    size: int
    step: int


def _group(problem: Words, end: int) -> Group:
    """Return the group of dimensions that ends before dimension `end`."""
    first = end - 1
    last = dimension_of(problem, first)
    size = last.size
    while first > 0:
        dimension = dimension_of(problem, first - 1)
        if dimension.indices != size * last.indices:
            break
        size *= dimension.size
        first -= 1
    return Group(first, size, last.indices)


class Checked(NamedTuple):
    """Tuples that launches check: those of the dimensions from `first` on, `step` of them by each launch."""

    first: int
    number: int
    step: int


def _checked(problem: Words, policy: Policy) -> Checked:
    """Return the most dimensions, of the fastest ones, that the check's kernel can count.

    Where the fastest ones lie evenly and are too many, launches check ranges of them.
    """
    n_dims = problem[N_BATCH_DIMS] + problem[N_TUPLE_DIMS]
    first, number, n_groups = n_dims, 1, 0
    while first > 0:
        group = _group(problem, first)
        n_groups += 1
        if is_wide(product(number, group.size), n_groups, policy.narrow_elements):
            if n_groups == 1:
                return Checked(group.first, group.size, policy.narrow_elements)
            break
        first = group.first
        number *= group.size
    return Checked(first, number, number)


def put_check(problem: Words, device: Words, policy: Policy, out: Words) -> int:
    """Put what looks for index tuples out of range: up to `NARROW_DEPTH` coordinates of tuples a launch."""
    out[ALGORITHM] = CHECK
    take_workspace(out, ANSWER_BYTES, WORKSPACE_ALIGNMENT)
    begin_launch(out, kernel_key(CLEAR_KERNEL, 0, 0, 0), 1, 1, 0, 1)
    put_pointer(out, ANSWER, 0)
    tuples = runs_along(problem, problem[N_BATCH_DIMS] + problem[N_TUPLE_DIMS], 1)
    if tuples.number == 0:
        return PLANNED
    checked = _checked(problem, policy)
    for first_bound in range(0, problem[N_BOUNDS], NARROW_DEPTH):
        for outer in range(tuples.number // checked.number):
            for start in range(0, checked.number, checked.step):
                if out[END] + LAUNCH_WORDS > device[ROOM]:
                    return TOO_LONG
                _put_check_launch(problem, device, policy, out, checked, first_bound, outer, start)
    return PLANNED


def _put_check_launch(
    problem: Words,
    device: Words,
    policy: Policy,
    out: Words,
    checked: Checked,
    first_bound: int,
    outer: int,
    start: int,
) -> None:
    """Put the launch for tuples from `start` on, of combination `outer` of the dimensions before these."""
    is_long = has_long_indices(problem, policy)
    n_tuples = min(checked.step, checked.number - start)
    most_blocks = policy.check_blocks_per_multiprocessor * device[MULTIPROCESSORS]
    n_blocks = min(ceil_div(n_tuples, THREADS * CHECKED_TUPLES), most_blocks)
    kernel = kernel_key(CHECK_KERNEL, problem[INDEX_SIZE], 1 if is_long else 0, 0)
    begin_launch(out, kernel, n_blocks, THREADS, 0, 1)
    n_dims = problem[N_BATCH_DIMS] + problem[N_TUPLE_DIMS]
    offset = first_bound * problem[COORDINATE_STEP] * problem[INDEX_SIZE]
    if start:
        offset += start * dimension_of(problem, n_dims - 1).indices
    rest = outer
    for i in range(checked.first - 1, -1, -1):
        dimension = dimension_of(problem, i)
        offset += rest % dimension.size * dimension.indices
        rest //= dimension.size
    put_pointer(out, CHECKED, offset)
    put_pointer(out, ANSWER, 0)
    n_coordinates = min(NARROW_DEPTH, problem[N_BOUNDS] - first_bound)
    parameters = CheckParameters(
        first_position=outer * checked.number + start,
        n_tuples=n_tuples,
        tuples=tuples_of(problem, n_coordinates, is_long),
    )
    put_values(out, parameters)
    _put_check_table(problem, out, checked, n_tuples, first_bound)


def _put_check_table(problem: Words, out: Words, checked: Checked, n_tuples: int, first_bound: int) -> None:
    """Put the dimensions of some tuples, and the sizes that their coordinates are compared with."""
    n_dims_at = out[END]
    put_value(out, 1)
    table = narrow_table(out, _N_COLUMNS)
    end, d = problem[N_BATCH_DIMS] + problem[N_TUPLE_DIMS], 0
    if end == checked.first:
        fill_dimension(out, table, NARROW_DEPTH, 0, 1, wide=False)
    while end > checked.first:
        group = _group(problem, end)
        size = group.size if checked.step == checked.number else n_tuples
        fill_dimension(out, table, NARROW_DEPTH, d, size, wide=False)
        out[place(table, 3 * NARROW_DEPTH + d)] = group.step
        end = group.first
        d += 1
    out[n_dims_at] = max(d, 1)
    for c in range(min(NARROW_DEPTH, problem[N_BOUNDS] - first_bound)):
        out[place(table, 4 * NARROW_DEPTH + c)] = bound_of(problem, first_bound + c).size
