"""DIAGONAL_MATRIX1 on the CPU: its kernels by number, from which plans choose."""

from collections.abc import Iterator
from functools import cache
from itertools import product as pairs

from kernels_cpu.diagonal_matrix.problem_words import DIMS, RESIDUES
from kernels_cpu.diagonal_matrix.problem_words import problem_words as words_of_problem
from kernels_cpu.kernel import ELEMENT_SIZES, INTEGER, INTEGERS, Kernel, plan_kernel, pointer
from kernels_cpu.plan_words import ALGORITHM, Words
from kernels_cpu.problems import DiagonalProblem

__all__ = ["DIMS", "PLAN", "RESIDUES", "all_kernels", "described", "kernel_of", "words_of_problem"]

# The layout of the output's columns. Each has its own kernel, and is an algorithm of the plan.
CONTIGUOUS, STREAMED, STRIDED = range(3)
KINDS = ("contiguous", "streamed", "strided")

PLAN = plan_kernel("diagonal_matrix")


def kernel_key(kind: int, x_is_contiguous: int, element_size: int) -> int:
    """Return the number by which plans know a kernel."""
    return kind | x_is_contiguous << 4 | element_size << 8


@cache
def kernel_of(key: int) -> Kernel:
    """Return a kernel by its number."""
    elements = pointer("u", key >> 8)
    return Kernel(
        "diagonal_matrix",
        "kernels_cpu.diagonal_matrix.kernels:band_kernel",
        (INTEGERS, INTEGER, INTEGER, elements, elements),
        (key & 15, bool(key >> 4 & 15)),
    )


def all_kernels() -> Iterator[Kernel]:
    """List all kernels that a plan may need, and the plan itself."""
    yield PLAN
    for kind, x_is_contiguous, element_size in pairs(range(len(KINDS)), range(2), ELEMENT_SIZES):
        yield kernel_of(kernel_key(kind, x_is_contiguous, element_size))


def described(problem: DiagonalProblem, words: Words) -> str:
    """Return the text about a plan: the algorithm, and why it was chosen."""
    return f"row segments, {KINDS[words[ALGORITHM]]}"
