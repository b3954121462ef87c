"""The words of a gather's problem, which plans of both devices read.

After the header come the dimensions, the slowest first, with strides in elements: those of batches and then
those of tuples (size, strides of x, indices and output), the bounds of coordinates (size, stride of x), and
the dimensions of slices (size, strides of x and output). `FILL` has the bits of the element that fills the
slices of tuples out of range, as often as they fit into a word. A residue is that of an address modulo 16.
With `CHECKS`, what is planned is the search for the first tuple that is out of range, and not the gather.
"""

from kernels_cpu.integers import signed
from kernels_cpu.problems import GatherProblem

ELEMENT_SIZE, INDEX_SIZE, INDEX_SIGNED, CLIPS, COORDINATE_STEP, X_OFFSET, CHECKS = range(7)
X_RESIDUE, INDEX_RESIDUE, OUTPUT_RESIDUE, FILL, WRAPS = range(7, 12)
N_BATCH_DIMS, N_TUPLE_DIMS, N_BOUNDS, N_SLICE_DIMS = range(12, 16)
DIMS = 16
TUPLE_DIMENSION, BOUND, SLICE_DIMENSION = 4, 2, 3
RESIDUES: tuple[int, ...] = (X_RESIDUE, INDEX_RESIDUE, OUTPUT_RESIDUE)
"""For each array, the word of its residue."""


def problem_words(problem: GatherProblem, *, checks: bool = False) -> list[int]:
    """Return the words of a problem, whose arrays are aligned."""
    words = [problem.element_size, problem.index_size, problem.index_signed, problem.mode == "clip"]
    repeated = problem.fill * (((1 << 64) - 1) // ((1 << 8 * problem.element_size) - 1))
    words += [problem.coordinate_stride, problem.x_offset, checks, 0, 0, 0]
    words += [signed(repeated), problem.wraps]
    words += [len(problem.batch), len(problem.tuples), len(problem.bounds), len(problem.slices)]
    for dimension in problem.batch:
        words += dimension
    for size, index_stride, output_stride in problem.tuples:
        words += [size, 0, index_stride, output_stride]
    for dimension in (*problem.bounds, *problem.slices):
        words += dimension
    return words
