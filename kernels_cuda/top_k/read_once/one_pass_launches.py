"""The launches of `one_pass`, and what they and its kernel agree on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.shared.launches import (
    Algorithm,
    Launch,
    Policy,
    UnservedError,
    Workspace,
    launch_rows,
    row_parameters,
    variant,
)
from kernels_cuda.top_k.shared.shapes import KIB

# The kernel has blocks of either size, and room for so many candidates: at most one for each thread.
ONE_PASS_ELEMENTS = (2, 4)
ONE_PASS_THREADS = (512, 1024)
ONE_PASS_LARGEST_K = 128
ONE_PASS_CANDIDATES = 512
# It looks for a threshold among at least so many maxima, and so many for each selected element.
FEWEST_MAXIMA = 256
MAXIMA_PER_SELECTED = 4
# It counts positions in 32 bits.
LONGEST_ROW = 1 << 29
# Rows of at least this size have larger blocks where no two blocks share a multiprocessor.
LONG_BYTES = 256 * KIB


@dataclass(frozen=True, kw_only=True)
class OnePassPolicy(Policy):
    """Limits of `one_pass`."""

    # Threads of a block where several share a multiprocessor, or rows are short.
    n_threads: int = min(ONE_PASS_THREADS)


class OnePassParameters(NamedTuple):
    """More parameters of `one_pass.one_pass_top_k`.

    A threshold is looked for among `n_maxima`, a power of two.
    """

    is_sorted: int
    n_maxima: int


def _variant(element_size: int, n_threads: int) -> Variant:
    return variant("one_pass", "read_once.one_pass:one_pass_kernel", element_size, n_threads)


def one_pass_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    if element_size in ONE_PASS_ELEMENTS:
        for n_threads in ONE_PASS_THREADS:
            yield _variant(element_size, n_threads)


def one_pass_launches(problem: Problem, policy: OnePassPolicy, workspace: Workspace) -> list[Launch]:
    """Give every row a block that reads it once."""
    if (
        problem.element_size not in ONE_PASS_ELEMENTS
        or problem.strides.x != 1
        or problem.axis_size > LONGEST_ROW
        or problem.k > ONE_PASS_LARGEST_K
    ):
        raise UnservedError(problem, "one_pass")
    n_threads = policy.n_threads
    if problem.n_rows <= problem.target.multiprocessors and problem.row_bytes >= LONG_BYTES:
        n_threads = max(ONE_PASS_THREADS)
    n_maxima = max(FEWEST_MAXIMA, 1 << (problem.k * MAXIMA_PER_SELECTED - 1).bit_length())
    more = OnePassParameters(int(not problem.is_by_index), n_maxima)
    kernel, parameters = _variant(problem.element_size, n_threads), row_parameters(problem)
    launch = Launch(kernel, problem.n_rows, n_threads, (), parameters, more=(more,))
    return launch_rows(launch, problem, policy, workspace)


ONE_PASS = Algorithm(one_pass_launches, one_pass_variants, OnePassPolicy())
