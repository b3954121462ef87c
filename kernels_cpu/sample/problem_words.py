"""The words of a problem of `sample`, which plans of both devices read.

The parameters are seed, step, temperature, k, top_p and min_p. Each has a format and a value. The format is 0
for a number, the same for all rows, which the value is (of floats the bits of a float64); for an array it is
twice the bytes of an integer and 1 if that has a sign, or the bits of a float's fraction.

`STAGE` is `WHOLE_ROWS`, or one of three stages by which a token is drawn from all shards of a row:

1. `SHARD_SUMS`: the output is the sum of the shard's weights.
2. `SHARD_TARGETS`: x has the sums of all shards, as integers of 64 bits. The output is the target of one of
   them, which its running sum exceeds at the token, or -1 if the token is in another shard.
3. `SHARD_TOKENS`: the output is the token, or -1 if it is in another shard.

Stages have parameters of their own, in the places of those that they do without: `LARGEST` is an array of the
largest element of each whole row (1 and 3), `SHARD` is the number of a shard (2), `TARGET` is an array of
targets, and `START` is the index of the shard's first element (3).

After `N_DIMS` comes each dimension of rows, the slowest first: its size, and the strides of x, of the output
and of each parameter along it, in elements.
"""

from kernels_cpu.integers import signed
from kernels_cpu.problems import SampleProblem

N_PARAMETERS = 6
SEED, STEP, TEMPERATURE, COUNT, TOP_P, MIN_P = range(N_PARAMETERS)
LARGEST, SHARD, TARGET, START = TOP_P, COUNT, COUNT, SEED
ELEMENT_SIZE, MANTISSA, INDEX_SIZE, AXIS_SIZE, X_STEP, STAGE, FORMATS = range(7)
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
    words += [problem.stage, *problem.formats, *map(signed, problem.values), len(problem.rows)]
    for row in problem.rows:
        words += row
    return words
