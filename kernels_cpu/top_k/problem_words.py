"""The words of a top-k problem, which plans of both devices read.

After `N_DIMS` comes each dimension of rows, the slowest first: its size, and the strides of x, values,
indices and lengths along it, in elements. Masks and padding are bits, as signed integers.
"""

ELEMENT_SIZE, INDEX_SIZE, SIGN, FLIP, INFINITY, LARGEST, K, AXIS_SIZE = range(8)
X_STEP, VALUE_STEP, INDEX_STEP, IS_SORTED, LENGTH_SIZE, LENGTH_SIGNED, PADDING, N_DIMS = range(8, 16)
DIMS, DIMENSION = 16, 5
SIZE, X_STRIDE, VALUE_STRIDE, INDEX_STRIDE, LENGTH_STRIDE = range(DIMENSION)
