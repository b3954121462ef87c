"""What the plan of DIAGONAL_MATRIX1 and its kernels agree on: the table that describes a problem."""

import numpy as np

# How the columns of the output lie. Each has its own kernel.
CONTIGUOUS, STREAMED, STRIDED = range(3)
KINDS = ("contiguous", "streamed", "strided")

# Fields of the table of unsigned words (negative numbers wrap) that describes a problem to the kernel.
HEIGHT, WIDTH, TILE, BEGIN, END, INVERTED, COPIES = np.arange(7, dtype=np.uint64)
X_ROW, X_COLUMN, OUTPUT_ROW, OUTPUT_COLUMN = np.arange(7, 11, dtype=np.uint64)
VALUE, N_BATCH, BATCH = np.arange(11, 14, dtype=np.uint64)
# Then (size, x_stride, output_stride) for every batch dimension.
