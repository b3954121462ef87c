"""The words of a problem of `sample`, which plans of both devices read.

The parameters are seed, step, temperature, k, top_p and min_p. Each has a format and a value. The format is 0
for a number, the same for all rows, which the value is (of floats the bits of a float64); for an array it is
twice the bytes of an integer and 1 if that has a sign, or the bits of a float's fraction.

If `IS_SHARD` is set, x has shards of rows, and the call is one of three steps by which a token is drawn from
all elements. k and top_p have other meanings then; which of them are arrays says which step it is:

1. Only top_p is an array, the largest element of each whole row. The output is the sum of the shard's
   weights.
2. Neither is an array. k is the number of a shard, and x has the sums of all shards, as integers of 64 bits.
   The output is the target: the token is where the running sum in the shard exceeds it. It is -1 if the token
   is in another shard.
3. Both are arrays, and k is the target. The output is the token, or -1. seed is the index of the shard's
   first element.

After `N_DIMS` comes each dimension of rows, the slowest first: its size, and the strides of x, of the output
and of each parameter along it, in elements.
"""

from kernels_cpu.integers import signed
from kernels_cpu.problems import SampleProblem

N_PARAMETERS = 6
SEED, STEP, TEMPERATURE, COUNT, TOP_P, MIN_P = range(N_PARAMETERS)
ELEMENT_SIZE, MANTISSA, INDEX_SIZE, AXIS_SIZE, X_STEP, IS_SHARD, FORMATS = range(7)
VALUES = FORMATS + N_PARAMETERS
N_DIMS = VALUES + N_PARAMETERS
DIMS = N_DIMS + 1
SIZE, X_STRIDE, OUTPUT_STRIDE, STRIDES = range(4)
DIMENSION = STRIDES + N_PARAMETERS
RESIDUES: tuple[int, ...] = ()
"""For each array, the word of its residue."""


def problem_words(problem: SampleProblem) -> list[int]:
    """Return the words of a problem."""
    words = [problem.element_size, problem.mantissa, problem.index_size, problem.axis_size, problem.x_step]
    words += [int(problem.is_shard), *problem.formats, *map(signed, problem.values), len(problem.rows)]
    for row in problem.rows:
        words += row
    return words
