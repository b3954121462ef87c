"""The words of a diagonal matrix's problem, which plans of both devices read.

After `N_BATCH_DIMS` comes each dimension of matrices, the slowest first: its size, and the strides of x and
output along it, in elements. A residue is that of an address modulo 16.
"""

ELEMENT_SIZE, HAS_INPUT, VALUE, HEIGHT, WIDTH, BEGIN, END, INVERTED = range(8)
X_ROW, X_COLUMN, OUTPUT_ROW, OUTPUT_COLUMN, X_RESIDUE, OUTPUT_RESIDUE, N_BATCH_DIMS = range(8, 15)
DIMS, DIMENSION = 15, 3
