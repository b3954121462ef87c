"""NONZERO_COORDINATES on the CPU: its kernels by number, from which plans choose."""

from collections.abc import Iterator
from functools import cache
from itertools import product as pairs

from kernels_cpu.kernel import (
    BYTES,
    ELEMENT_SIZES,
    INDEX_SIZES,
    INTEGER,
    INTEGERS,
    Kernel,
    plan_kernel,
    pointer,
)
from kernels_cpu.nonzero_coordinates.problem_words import DIMS, RESIDUES
from kernels_cpu.nonzero_coordinates.problem_words import problem_words as words_of_problem
from kernels_cpu.plan_words import ALGORITHM, BLOCK, LAUNCHES, Words
from kernels_cpu.problems import NonzeroProblem

__all__ = ["DIMS", "PLAN", "RESIDUES", "all_kernels", "described", "kernel_of", "words_of_problem"]

ONE_PASS, TWO_PASSES = range(2)
"""The algorithms of the whole."""
PACKED_COLUMNS = 4  # the most for which rows are written one after the other

PLAN = plan_kernel("nonzero_coordinates")
MARK, TOTAL, EXPAND_WORDS, EXPAND_ELEMENTS = range(4)


def kernel_key(name: int, columns: int, element_size: int, coordinate_size: int, count_size: int) -> int:
    """Return the number by which plans know a kernel; what it does not depend on is 0."""
    return name | columns << 4 | element_size << 8 | coordinate_size << 12 | count_size << 16


@cache
def kernel_of(key: int) -> Kernel:
    """Return a kernel by its number."""
    name = key & 15
    columns = key >> 4 & 15
    element_size = key >> 8 & 15
    coordinate_size = key >> 12 & 15
    count_size = key >> 16
    module = "kernels_cpu.nonzero_coordinates.kernels"
    if name == MARK:
        signature = (INTEGERS, INTEGER, pointer("u", element_size), BYTES)
        return Kernel("nonzero_mark", f"{module}:mark", signature)
    if name == TOTAL:
        return Kernel("nonzero_total", f"{module}:total_count", (INTEGERS, pointer("u", count_size), BYTES))
    operands = pointer("u", element_size), pointer("u", coordinate_size), pointer("u", count_size)
    return Kernel(
        "nonzero_expand",
        f"{module}:expand_kernel",
        (INTEGERS, INTEGER, *operands, BYTES),
        (name == EXPAND_ELEMENTS, columns),
    )


def all_kernels() -> Iterator[Kernel]:
    """List all kernels that a plan may need, and the plan itself."""
    yield PLAN
    for element_size in ELEMENT_SIZES:
        yield kernel_of(kernel_key(MARK, 0, element_size, 0, 0))
    for count_size in INDEX_SIZES:
        yield kernel_of(kernel_key(TOTAL, 0, 0, 0, count_size))
    names = EXPAND_WORDS, EXPAND_ELEMENTS
    for name, columns, element_size, index_size in pairs(
        names, range(PACKED_COLUMNS + 1), ELEMENT_SIZES, INDEX_SIZES
    ):
        yield kernel_of(kernel_key(name, columns, element_size, index_size, index_size))


def described(problem: NonzeroProblem, words: Words) -> str:
    """Return the text about a plan: the algorithm, and why it was chosen."""
    return "one pass" if words[ALGORITHM] == ONE_PASS else f"two passes, parts: {words[LAUNCHES + BLOCK]}"
