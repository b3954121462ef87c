"""TOP_K1 on the CPU, sorted and stable along any axis: its kernels by number, from which plans choose."""

from collections.abc import Iterator
from functools import cache

from kernels_cpu.kernel import BYTES, ELEMENT_SIZES, INTEGER, Kernel, plan_kernel, pointer
from kernels_cpu.plan_words import ALGORITHM, CONTENT, GRID, LAUNCHES, N_POINTERS, Words
from kernels_cpu.problems import TopKProblem
from kernels_cpu.top_k.problem_words import DIMS, RESIDUES
from kernels_cpu.top_k.problem_words import problem_words as words_of_problem

__all__ = ["DIMS", "PLAN", "RESIDUES", "all_kernels", "described", "kernel_of", "words_of_problem"]

ALGORITHMS = ("rows", "columns", "sort", "short_rows", "side_by_side", "numbered")
"""The algorithms of a single kernel: `select` in the module of that name."""
ROWS, COLUMNS, SORT, SHORT_ROWS, SIDE_BY_SIDE, NUMBERED, NOTHING = range(7)
# The kernels of second launches, and of the first launch whose segments `MERGE_SORTED` merges.
MERGE, MERGE_SORTED, SORT_SEGMENTS = 15, 14, 13
OF_TWO_KERNELS = (ROWS, COLUMNS, MERGE)
"""They have a kernel for lists to be ranked, and one for lists to be sorted."""
# The addresses of lengths and starts, in a tuple; x, values, indices and workspace.
_OPERANDS = ("2i64", BYTES, BYTES, BYTES, INTEGER)

PLAN = plan_kernel("top_k")


def kernel_key(name: int, element_size: int, sorts: int) -> int:
    """Return the number by which plans know the kernel of an algorithm, or of a merge."""
    return name | element_size << 4 | sorts << 8


@cache
def kernel_of(key: int) -> Kernel:
    """Return a kernel by its number."""
    name, keys, sorts = key & 15, pointer("i", key >> 4 & 15), bool(key >> 8)
    if name == MERGE:
        return Kernel("top_k_merge", "kernels_cpu.top_k.rows:merge", (keys, *_OPERANDS), (sorts,))
    segments, signature = "kernels_cpu.top_k.sorted_segments", (keys, INTEGER, INTEGER, INTEGER, *_OPERANDS)
    if name == MERGE_SORTED:
        return Kernel("top_k_merge_sorted", f"{segments}:merge", signature)
    if name == SORT_SEGMENTS:
        return Kernel("top_k_sort_segments", f"{segments}:select", signature)
    algorithm = ALGORITHMS[name]
    parameters = (sorts,) if name in OF_TWO_KERNELS else ()
    numbers = (INTEGER,) if name == NUMBERED else ()
    signature = (keys, INTEGER, INTEGER, INTEGER, _OPERANDS[0], *numbers, *_OPERANDS[1:])
    return Kernel(f"top_k_{algorithm}", f"kernels_cpu.top_k.{algorithm}:select", signature, parameters)


def all_kernels() -> Iterator[Kernel]:
    """List all kernels that a plan may need, and the plan itself."""
    yield PLAN
    for element_size in ELEMENT_SIZES:
        for name in (*range(len(ALGORITHMS)), MERGE, MERGE_SORTED, SORT_SEGMENTS):
            yield kernel_of(kernel_key(name, element_size, 0))
        for name in OF_TWO_KERNELS:
            yield kernel_of(kernel_key(name, element_size, 1))


def described(problem: TopKProblem, words: Words) -> str:
    """Return the text about a plan: the algorithm, and why it was chosen."""
    from kernels_cpu.top_k.table import COLUMNS_WORD  # noqa: PLC0415 - few calls are described

    algorithm = words[ALGORITHM]
    if algorithm == NOTHING:
        return "nothing to do"
    table = LAUNCHES + CONTENT + 2 * words[LAUNCHES + N_POINTERS]
    how = "sorted" if algorithm == SORT else "searched"
    share = problem.axis_size // problem.k or 1
    why = f"{8 * problem.element_size} bits, {how}: k is 1/{share} of the axis"
    columns = words[table + COLUMNS_WORD]
    where = "in place" if problem.axis_strides[0] == 1 else f"{columns} columns at a time"
    return f"{ALGORITHMS[algorithm]}, {where}, {why}; tasks: {words[LAUNCHES + GRID]}"
