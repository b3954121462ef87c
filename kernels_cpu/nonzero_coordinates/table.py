"""The table by which a plan describes its problem to the kernels."""

# Fields of the table of integers that describes a problem to the kernels.
N_ELEMENTS, N_PARTS, PART_WORDS, MAGNITUDE, N_DIMS, N_SIZES = range(6)
X_OFFSET, CAPACITY, ROW_STRIDE, COLUMN_STRIDE = range(6, 10)
FILLS, FILL, STREAM_ROWS, COUNTS, TABLES = range(10, 15)
# Then (size, x_stride) for each dimension of the input, then the logical sizes.
