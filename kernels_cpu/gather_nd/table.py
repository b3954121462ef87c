"""What a gather's plan and its kernels agree on: the table that describes a problem."""

from typing import Any

import numpy as np

HALF: Any = np.uint64((1 << 32) - 1)  # of a word: vectors multiply such numbers fast
CHECKED_COORDINATES = 4  # of a tuple, at most, to lay out the bounds of several tuples next to each other

# A slice is a few bytes in one or two pieces, whole lines, or anything else. Each has its own kernel.
SHORT, LONG, STREAMED, STRIDED = range(4)
KINDS = ("short", "long", "streamed", "strided")

# Fields of the table of unsigned words (negative numbers wrap) that describes a problem to the kernels.
SLICE, SLICE_BYTES, CLIPS, MODULUS, HIGHEST, PACKED = np.arange(6, dtype=np.uint64)
N_BOUNDS, N_TUPLES, N_SLICES, COORDINATE = np.arange(6, 10, dtype=np.uint64)
X_OFFSET, NARROW, DIMENSIONS = np.arange(10, 13, dtype=np.uint64)
# Then (size, x_stride, index_stride, output_stride) for each batch and tuple dimension, (size, x_stride) for
# each coordinate, (size, x_stride, output_stride) for each slice dimension.
