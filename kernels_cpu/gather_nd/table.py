"""The table by which a plan describes its problem to the kernels."""

HALF = (1 << 32) - 1  # the low half of a word: vectors multiply such numbers fast
# The most coordinates per tuple for which the bounds of several tuples are laid out next to each other.
CHECKED_COORDINATES = 4

# A slice is a few bytes in one or two pieces, whole lines, or anything else. Each has its own kernel.
SHORT, LONG, STREAMED, STRIDED = range(4)
KINDS = ("short", "long", "streamed", "strided")

# Fields of the table of integers that describes a problem to the kernels.
SLICE, SLICE_BYTES, CLIPS, MODULUS, HIGHEST, PACKED = range(6)
N_BOUNDS, N_TUPLES, N_SLICES, COORDINATE = range(6, 10)
X_OFFSET, NARROW, FAR, DIMENSIONS = range(10, 14)
# Then (size, x_stride, index_stride, output_stride) for each batch and tuple dimension, (size, x_stride) for
# each coordinate, (size, x_stride, output_stride) for each slice dimension.
