"""GATHER_ND1 on the CPU: its kernels by number, from which plans choose."""

from collections.abc import Iterator
from functools import cache
from itertools import product as pairs

from kernels_cpu.gather_nd.problem_words import DIMS, RESIDUES
from kernels_cpu.gather_nd.problem_words import problem_words as words_of_problem
from kernels_cpu.kernel import (
    ELEMENT_SIZES,
    INDEX_SIZES,
    INTEGER,
    INTEGERS,
    Kernel,
    plan_kernel,
    pointer,
)
from kernels_cpu.plan_words import ALGORITHM, Words
from kernels_cpu.problems import GatherProblem

__all__ = ["DIMS", "PLAN", "RESIDUES", "all_kernels", "described", "kernel_of", "words_of_problem"]

# A slice is a few bytes in one or two pieces, whole lines, or anything else. Each has its own kernel, and is
# an algorithm of the plan.
SHORT, LONG, STREAMED, STRIDED = range(4)
KINDS = ("short", "long", "streamed", "strided")
CHECK = 15  # a number that no kind has

PLAN = plan_kernel("gather_nd")


def kernel_key(kind: int, element_size: int, index_size: int) -> int:
    """Return the number by which plans know a kernel."""
    return kind | element_size << 4 | index_size << 8


@cache
def kernel_of(key: int) -> Kernel:
    """Return a kernel by its number."""
    kind = key & 15
    element_size = key >> 4 & 15
    index_size = key >> 8
    indices = pointer("u", index_size)
    if kind == CHECK:
        source = "kernels_cpu.gather_nd.index_tuples:find_outside"
        return Kernel("gather_nd_check", source, (INTEGERS, INTEGER, INTEGER, indices))
    elements = pointer("u", element_size)
    return Kernel(
        "gather_nd",
        "kernels_cpu.gather_nd.kernels:gather_kernel",
        (INTEGERS, INTEGER, INTEGER, elements, indices, elements),
        (kind,),
    )


def all_kernels() -> Iterator[Kernel]:
    """List all kernels that a plan may need, and the plan itself."""
    yield PLAN
    for index_size in INDEX_SIZES:
        yield kernel_of(kernel_key(CHECK, 0, index_size))
        for kind, element_size in pairs(range(len(KINDS)), ELEMENT_SIZES):
            yield kernel_of(kernel_key(kind, element_size, index_size))


def described(problem: GatherProblem, words: Words) -> str:
    """Return the text about a plan: the algorithm, and why it was chosen."""
    return f"{KINDS[words[ALGORITHM]]} slices"
