"""The words of a gather's problem, which plans of both devices read.

After the header come the dimensions, the slowest first, with strides in elements: those of batches and then
those of tuples (size, strides of x, indices and output), the bounds of coordinates (size, stride of x), and
the dimensions of slices (size, strides of x and output). A residue is that of an address modulo 16.
"""

ELEMENT_SIZE, INDEX_SIZE, INDEX_SIGNED, CLIPS, COORDINATE_STEP, X_OFFSET, CHECKS = range(7)
X_RESIDUE, INDEX_RESIDUE, OUTPUT_RESIDUE = range(7, 10)
N_BATCH_DIMS, N_TUPLE_DIMS, N_BOUNDS, N_SLICE_DIMS = range(10, 14)
DIMS = 14
TUPLE_DIMENSION, BOUND, SLICE_DIMENSION = 4, 2, 3
