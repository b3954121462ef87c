"""The plan of a top-k: an algorithm, its workspace and its tasks."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from kernels_cpu import threads as pool
from kernels_cpu.kernel import BYTES, ELEMENT_SIZES, INTEGER, Kernel, Table, pointer
from kernels_cpu.key_constants import key_constants
from kernels_cpu.plan import Plan, Target
from kernels_cpu.top_k.dispatch import choose
from kernels_cpu.top_k.problem import RANK_LIMIT, Shape, describe

ALGORITHMS = ("rows", "columns", "sort", "short_rows", "side_by_side")
"""The algorithms of a single kernel: `select` in the module of that name."""
_TWO_KERNELS = ("rows", "columns")  # one for lists to be ranked, and one for lists to be sorted
_OPERANDS = (INTEGER, BYTES, BYTES, BYTES, INTEGER)  # lengths, x, values, indices, workspace


@cache
def _kernel(algorithm: str, element_size: int, sorts: bool) -> Kernel:
    parameters = (sorts,) if algorithm in _TWO_KERNELS else ()
    signature = (pointer("i", element_size), INTEGER, INTEGER, INTEGER, *_OPERANDS)
    source = f"kernels_cpu.top_k.{algorithm}:select"
    return Kernel(f"top_k_{algorithm}", source, signature, parameters)


@cache
def _merge_kernel(element_size: int, sorts: bool) -> Kernel:
    signature = (pointer("i", element_size), *_OPERANDS)
    return Kernel("top_k_merge", "kernels_cpu.top_k.rows:merge", signature, (sorts,))


def all_kernels() -> Iterator[Kernel]:
    """List all kernels that a plan may need."""
    for element_size in ELEMENT_SIZES:
        for sorts in (False, True):
            algorithms = _TWO_KERNELS if sorts else ALGORITHMS
            yield from (_kernel(algorithm, element_size, sorts) for algorithm in algorithms)
            yield _merge_kernel(element_size, sorts)


def plan(problem: Any, target: Target) -> Plan:
    """Plan a top-k; of equal elements those at the lowest positions are selected.

    The workspace takes some 200 KB per thread, and 64 bytes for each of k elements; where more than 1/32 of a
    row is selected, up to 36 bytes per element.
    """
    element_size, k, axis_size = problem.element_size, problem.k, problem.axis_size
    dims: list[tuple[int, ...]] = []
    n_rows = 1
    length_strides = problem.length_strides or (0,) * len(problem.rows)
    for dim, length_stride in zip(problem.rows, length_strides, strict=True):
        n_rows *= dim[0]
        if dim[0] != 1:
            dims.append((*dim, length_stride))
    if k == 0 or n_rows == 0:
        return Plan("nothing to do", 0, {"launch": lambda: lambda *addresses: None})
    dims.sort(key=lambda dim: abs(dim[1]), reverse=True)
    are_contiguous = problem.axis_strides[0] == 1
    n_columns = dims[-1][0] if dims and dims[-1][1] == 1 and not are_contiguous else 0
    are_whole = not problem.length_size
    shape = Shape(
        *(element_size, k, axis_size, n_rows, n_columns, are_contiguous, are_whole),
        *(problem.is_sorted, target.threads),
    )
    choice = choose(shape)
    described = describe(
        shape,
        choice,
        steps=problem.axis_strides,
        index_size=problem.index_size,
        lengths=(problem.length_size, int(problem.length_signed), problem.padding),
        dims=dims,
    )
    words = [*key_constants(element_size, *problem.masks, problem.largest), *described]
    for dim in dims:
        words += dim
    table = Table(words)
    how = "searched" if choice.is_search else "sorted"
    why = f"{8 * element_size} bits, {how}: k is 1/{axis_size // k} of the axis"
    launch: Callable[..., int | None]
    n_units = n_rows * choice.segments
    if choice.is_search and not are_contiguous and dims:
        n_units = n_rows // dims[-1][0] * -(-dims[-1][0] // choice.columns)
    # Each segment keeps its list until they are merged.
    ranges = pool.split(n_units, choice.n_tasks if choice.segments == 1 else n_units)
    # Kernels take the address of the lengths before the others, 0 where all rows are whole.
    whole, n_operands = ((0,), 4) if are_whole else ((), 5)
    tasks = [(table, first, last, task, *whole) for task, (first, last) in enumerate(ranges)]
    sorts = k > RANK_LIMIT
    kernel = target.load(_kernel(choice.algorithm, element_size, sorts))
    launch = pool.launcher(kernel, tasks, n_operands)
    if choice.segments > 1:
        merge = target.load(_merge_kernel(element_size, sorts)).bind((table, *whole), n_operands)
        launch = _one_after_the_other(launch, merge)
    if not are_whole:
        launch = _lengths_first(launch)
    where = "in place" if are_contiguous else f"{choice.columns} columns at a time"
    variant = f"{choice.algorithm}, {where}, {why}; tasks: {len(tasks)}"
    return Plan(variant, len(tasks) * described.task_size, {"launch": lambda: launch})


def _one_after_the_other(
    first: Callable[..., int | None], second: Callable[..., int]
) -> Callable[..., int | None]:
    def launch(*addresses: int) -> None:
        first(*addresses)
        second(*addresses)

    return launch


def _lengths_first(launch: Callable[..., int | None]) -> Callable[..., int | None]:
    def launch_rows(x: int, lengths: int, *others: int) -> int | None:
        return launch(lengths, x, *others)

    vars(launch_rows)["lengths_first"] = launch
    return launch_rows
