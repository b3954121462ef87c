"""The plan of a top-k: an algorithm, its workspace and its tasks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from kernels_cpu import threads as pool
from kernels_cpu.kernel import BYTES, ELEMENT_SIZES, INTEGER, Kernel, Table, pointer
from kernels_cpu.key_constants import key_constants
from kernels_cpu.target import Target
from kernels_cpu.top_k.dispatch import choose
from kernels_cpu.top_k.plan_shared_sort import shared_sort_kernels, shared_sort_launcher
from kernels_cpu.top_k.problem import RANK_LIMIT, Shape, describe


@dataclass(frozen=True, slots=True)
class Plan:
    """How to answer one top-k problem.

    Attributes
    ----------
    variant : str
        The algorithm, and why it was chosen.
    workspace_size : int
        Bytes of scratch that a launch needs.
    """

    variant: str
    workspace_size: int
    launch: Callable[..., int | None]
    """Writes the values and positions of the selected elements of each row.

    Called as ``launch(x, values, indices, workspace)``, or ``launch(x, lengths, values, indices, workspace)``
    where rows have lengths, all by address; the workspace is aligned to 64 bytes.
    """


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
        yield from shared_sort_kernels(element_size).values()


def plan(
    *,
    element_size: int,
    index_size: int,
    sign: int,
    flip: int,
    infinity: int,
    largest: bool,
    k: int,
    axis_size: int,
    rows: Sequence[tuple[int, ...]],
    axis_strides: tuple[int, int, int],
    is_sorted: bool = True,
    length_size: int = 0,
    length_signed: bool = True,
    length_strides: Sequence[int] = (),
    padding: int = 0,
    target: Target,
) -> Plan:
    """Plan a top-k; of equal elements those at the lowest positions are selected.

    Parameters
    ----------
    element_size, index_size : int
        Bytes of an element and of an index.
    sign, flip, infinity : int
        The constants that make bits comparable: see `kernels_cpu.key_constants.key_constants`.
    largest : bool
        Whether the greatest elements come first; NaN is the greatest.
    k, axis_size : int
        Elements selected of each row, and how many it has.
    rows : sequence of tuple of int
        Size, x, value and index stride of every other dimension, the slowest first.
    axis_strides : tuple of int
        Strides of x, values and indices along the axis.
    is_sorted : bool
        Whether the selected elements are written in the order of their keys, equal ones by ascending
        position; else all are written by ascending position.
    length_size : int
        Bytes of the length of a row (4 or 8): only so many of its elements count, from 0 to `axis_size`.
        0 where all rows are whole.
    length_signed : bool
        Whether lengths are signed integers.
    length_strides : sequence of int
        The stride of the lengths in each dimension of `rows`.
    padding : int
        The bits of the values behind a row that has less than `k` elements; the indices there are -1.
    target : Target
        How many threads may take part, and where kernels come from.

    Returns
    -------
    Plan
        Immutable; may be launched from any thread.

    Notes
    -----
    Workspace: some 200 KB a thread, and 64 bytes for each of k elements; where more than 1/32 of a row is
    selected, up to 36 bytes an element.
    """
    dims: list[tuple[int, ...]] = []
    n_rows = 1
    for dim, length_stride in zip(rows, length_strides or (0,) * len(rows), strict=True):
        n_rows *= dim[0]
        if dim[0] != 1:
            dims.append((*dim, length_stride))
    if k == 0 or n_rows == 0:
        return Plan("nothing to do", 0, lambda *addresses: None)
    dims.sort(key=_x_stride, reverse=True)
    are_contiguous = axis_strides[0] == 1
    n_columns = dims[-1][0] if dims and dims[-1][1] == 1 and not are_contiguous else 0
    are_whole = not length_size
    shape = Shape(
        element_size, k, axis_size, n_rows, n_columns, are_contiguous, are_whole, is_sorted, target.threads
    )
    choice = choose(shape)
    lengths = length_size, int(length_signed), padding
    problem = describe(shape, choice, steps=axis_strides, index_size=index_size, lengths=lengths, dims=dims)
    words = [*key_constants(element_size, sign, flip, infinity, largest), *problem]
    for dim in dims:
        words += dim
    table = Table(words)
    how = "searched" if choice.is_search else "sorted"
    why = f"{8 * element_size} bits, {how}: k is 1/{axis_size // k} of the axis"
    launch: Callable[..., int | None]
    if choice.algorithm == "shared_sort":
        launch = shared_sort_launcher(table, element_size, n_rows, axis_size, k, choice.segments, target)
        return Plan(f"shared_sort, {why}; parts: {choice.segments}", problem.task_size, launch)
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
    return Plan(variant, len(tasks) * problem.task_size, launch)


def _x_stride(dim: Sequence[int]) -> int:
    return abs(dim[1])


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

    return launch_rows
