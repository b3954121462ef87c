"""The plan of a top-k: an algorithm, its workspace and its tasks."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from kernels_cpu import threads as pool
from kernels_cpu.kernel import (
    BYTES,
    ELEMENT_SIZES,
    INTEGER,
    Arguments,
    Kernel,
    LoadedKernel,
    Table,
    packed,
    pointer,
)
from kernels_cpu.key_constants import key_constants
from kernels_cpu.plan import Plan, Target
from kernels_cpu.top_k.dispatch import choose
from kernels_cpu.top_k.problem import RANK_LIMIT, Shape, describe

ALGORITHMS = ("rows", "columns", "sort", "short_rows", "side_by_side")
"""The algorithms of a single kernel: `select` in the module of that name."""
_TWO_KERNELS = ("rows", "columns")  # one for lists to be ranked, and one for lists to be sorted
_OPERANDS = (INTEGER, BYTES, BYTES, BYTES, INTEGER)  # lengths, x, values, indices, workspace
_SHARED_SORT = {
    "list_part": 6 * (INTEGER,),
    "plan_passes": 2 * (INTEGER,),
    "count_part": 6 * (INTEGER,),
    "find_offsets": 5 * (INTEGER,),
    "scatter_part": 6 * (INTEGER,),
    "write_part": (*5 * (INTEGER,), INTEGER, INTEGER, BYTES, INTEGER),
}
"""The arguments of the kernels of `shared_sort` behind the constants of keys."""


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


def _shared_sort_kernels(element_size: int) -> dict[str, Kernel]:
    """Return the kernels, by the names of their functions."""
    keys = pointer("i", element_size)
    return {
        name: Kernel(f"top_k_sort_{name}", f"kernels_cpu.top_k.shared_sort:{name}", (keys, *arguments))
        for name, arguments in _SHARED_SORT.items()
    }


def all_kernels() -> Iterator[Kernel]:
    """List all kernels that a plan may need."""
    for element_size in ELEMENT_SIZES:
        for sorts in (False, True):
            algorithms = _TWO_KERNELS if sorts else ALGORITHMS
            yield from (_kernel(algorithm, element_size, sorts) for algorithm in algorithms)
            yield _merge_kernel(element_size, sorts)
        yield from _shared_sort_kernels(element_size).values()


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
    if choice.algorithm == "shared_sort":
        launch = _shared_sort_launcher(table, element_size, n_rows, axis_size, k, choice.segments, target)
        variant = f"shared_sort, {why}; parts: {choice.segments}"
        return Plan(variant, described.task_size, {"launch": lambda: launch})
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


def _shared_sort_launcher(
    table: Table, element_size: int, n_rows: int, axis_size: int, k: int, n_parts: int, target: Target
) -> Callable[[int, int, int, int], None]:
    """Return a function that sorts one row after the other, each in `n_parts` parts."""
    kernels = {name: target.load(kernel) for name, kernel in _shared_sort_kernels(element_size).items()}
    parts = _parts(axis_size, n_parts)
    results = _parts(k, n_parts)

    def run(name: str, blocks: list[Arguments]) -> None:
        pool.run(kernels[name].call, [packed(block) for block in blocks])

    def ask(name: str, *arguments: int) -> int:
        kernel: LoadedKernel = kernels[name]
        return kernel(table.address, *arguments)

    def launch(x: int, values: int, indices: int, workspace: int) -> None:
        for row in range(n_rows):
            run("list_part", [(table, row, *part, x, workspace) for part in parts])
            n_passes = ask("plan_passes", len(parts), workspace)
            is_moved = 0
            for number in range(n_passes):
                numbered: list[Arguments] = [(table, number, is_moved, *part, workspace) for part in parts]
                run("count_part", numbered)
                if ask("find_offsets", len(parts), axis_size, is_moved, number == n_passes - 1, workspace):
                    run("scatter_part", numbered)
                    is_moved ^= 1
            addresses = x, values, indices, workspace
            run("write_part", [(table, row, is_moved, *part, *addresses) for part in results])

    return launch


def _parts(n: int, n_parts: int) -> list[tuple[int, int, int]]:
    return [(first, last, part) for part, (first, last) in enumerate(pool.split(n, n_parts))]
