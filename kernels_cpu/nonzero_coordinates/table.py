"""What the plan of NONZERO_COORDINATES and its kernels agree on: the table that describes a problem."""

import numpy as np

# Fields of the table of unsigned words (negative numbers wrap) that describes a problem to the kernels.
N_ELEMENTS, N_PARTS, PART_WORDS, MAGNITUDE, N_DIMS, N_SIZES = np.arange(6, dtype=np.uint64)
X_OFFSET, CAPACITY, ROW_STRIDE, COLUMN_STRIDE = np.arange(6, 10, dtype=np.uint64)
FILLS, FILL, STREAM_ROWS, COUNTS, TABLES = np.arange(10, 15, dtype=np.uint64)
# Then (size, x_stride) for each dimension of the input, then the logical sizes.
