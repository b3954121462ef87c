"""The launches of `one_pass`, and what they and its kernel agree on."""

from collections.abc import Iterator
from typing import NamedTuple

from kernels_cpu.plan_words import Words, put_values
from kernels_cuda.device_words import MULTIPROCESSORS
from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.policy import ONE_PASS_SMALL_THREADS
from kernels_cuda.top_k.problem import Selection
from kernels_cuda.top_k.shared.kernel_keys import ONE_PASS, kernel_key
from kernels_cuda.top_k.shared.launches import UNSERVED, Sizes, begin_rows, sharing_blocks, split, variant
from kernels_cuda.top_k.shared.shapes import KIB, bits_for

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
# Rows that blocks share are few from this length on.
LONG_SEGMENT = 4096


class OnePassParameters(NamedTuple):
    """More parameters of `one_pass.one_pass_top_k`.

    A threshold is looked for among `n_maxima`, a power of two.
    """

    is_sorted: int
    n_maxima: int


def one_pass_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    if element_size in ONE_PASS_ELEMENTS:
        for n_threads in ONE_PASS_THREADS:
            yield variant("one_pass", "read_once.one_pass:one_pass_kernel", element_size, n_threads)
        factory = "read_once.one_pass:one_pass_kernel"
        yield variant("one_pass", factory, element_size, ONE_PASS_THREADS[0], 1)


def one_pass_launches(problem: Words, device: Words, selection: Selection, out: Words) -> int:
    """Give every row a block that reads it once; short rows that are left out have none."""
    element_size, k = selection.element_size, selection.k
    is_narrow = element_size == ONE_PASS_ELEMENTS[0] or element_size == ONE_PASS_ELEMENTS[1]
    if not is_narrow or selection.x_step != 1 or selection.axis_size > LONGEST_ROW or k > ONE_PASS_LARGEST_K:
        return UNSERVED
    n_threads = device[ONE_PASS_SMALL_THREADS]
    if selection.n_rows <= device[MULTIPROCESSORS] and selection.row_bytes >= LONG_BYTES:
        n_threads = ONE_PASS_THREADS[1]
    n_blocks, shares_rows = selection.n_rows, 0
    if selection.least > 0:
        n_threads, shares_rows = ONE_PASS_THREADS[0], 1
        # The shorter of these rows have a launch beside them that needs half of the registers.
        share = 1 if selection.least > LONG_SEGMENT else 2
        n_blocks = min(n_blocks, sharing_blocks(device[MULTIPROCESSORS], n_threads) // share)
    kernel = kernel_key(ONE_PASS, element_size, n_threads, shares_rows)
    begin_rows(problem, device, selection, out, kernel, Sizes(n_blocks, n_threads, 0, 1))
    n_maxima = max(FEWEST_MAXIMA, 1 << bits_for(k * MAXIMA_PER_SELECTED))
    put_values(out, OnePassParameters(1 - selection.is_by_index, n_maxima))
    return split(device, out)
