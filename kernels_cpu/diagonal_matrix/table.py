"""The table by which a plan describes its problem to the kernels."""

# The layout of the output's columns. Each has its own kernel.
CONTIGUOUS, STREAMED, STRIDED = range(3)
KINDS = ("contiguous", "streamed", "strided")

# Fields of the table of integers that describes a problem to the kernel.
HEIGHT, WIDTH, TILE, BEGIN, END, INVERTED, COPIES = range(7)
X_ROW, X_COLUMN, OUTPUT_ROW, OUTPUT_COLUMN = range(7, 11)
VALUE, N_BATCH, BATCH = range(11, 14)
# Then (size, x_stride, output_stride) for every batch dimension.
