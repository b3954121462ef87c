"""The words of a call: the arrays and the sizes that it is made with, from which its problem follows.

A *kind* of calls fixes which code runs: types, numbers of dimensions, devices, and all arguments that are
no sizes. A call of a kind brings sizes, and its arrays. Each operator has a function ``fit(call, problem)``,
a plain Python function of integers that is compiled as plans are (`plan_words`). It checks that sizes and
shapes go together, and writes them into the words of a problem, which already has what the kind fixes.

========== ======================================================================================
words      content
========== ======================================================================================
`SIZES`    the arguments that are sizes, such as the k of a top-k, in an order of the operator's own
`FIXED`    numbers that the kind fixes, and that `fit` needs; in an order of the operator's own
`ARRAYS`   the arrays, in the order in which kernels take them, each in `ARRAY` words
========== ======================================================================================

An array has its address, its number of dimensions, and from `SHAPE` on its sizes, from `STRIDES` on its
strides in elements. The stride of a dimension of size 1 is 0.
"""

from kernels_cpu.plan_words import Words

MAX_SIZES = 6
MAX_ARRAYS = 8
MAX_DIMS = 64
SIZES, FIXED = 0, MAX_SIZES
ARRAYS = 2 * MAX_SIZES
ADDRESS, RANK, SHAPE, STRIDES = 0, 1, 2, 2 + MAX_DIMS
ARRAY = 2 + 2 * MAX_DIMS
CALL_WORDS = ARRAYS + MAX_ARRAYS * ARRAY

PROBLEM_WORDS = 640
"""The most words of a problem: a dimension of a top-k's rows has 7, and there are up to `MAX_DIMS`."""

FITS, MISFIT = 0, 1
"""The results of `fit`. After a misfit, the descriptor checks the call, and may find nothing wrong."""

MAX_COUNT = (1 << 63) - 1


def array_at(number: int) -> int:
    """Return where the words of an array begin."""
    return ARRAYS + number * ARRAY


def count_of(call: Words, at: int, first: int, last: int) -> int:
    """Return the product of an array's sizes from one dimension up to another; -1 if it exceeds 63 bits."""
    count = 1
    has_zero = False
    for d in range(first, last):
        size = call[at + SHAPE + d]
        if size == 0:
            has_zero = True
        elif size > 1:
            if count > MAX_COUNT // size:
                return -1
            count *= size
    return 0 if has_zero else count


def merged(words: Words, first: int, end: int, width: int) -> int:
    """Merge the dimension at `end` with the one before it where strides allow; return the new end.

    Dimensions begin at `first`. Each has `width` words: its size, and the strides of all tensors that are
    walked along. One of size 1 is dropped.
    """
    size = words[end]
    if size == 1:
        return end
    if end == first:
        return end + width
    before = end - width
    for i in range(1, width):
        if words[before + i] != words[end + i] * size:
            return end + width
    words[before] *= size
    for i in range(1, width):
        words[before + i] = words[end + i]
    return end


def overlaps_itself(call: Words, at: int) -> bool:
    """Return whether two elements of an array may share an address, so that it cannot be written to.

    Interleaved dimensions count as overlapping, even if no two elements meet.
    """
    reach = 0
    stride_below = 0
    for _ in range(call[at + RANK]):
        # The dimensions in the order of their strides; those of one stride overlap.
        stride = MAX_COUNT
        size = 0
        n_equal = 0
        for d in range(call[at + RANK]):
            found = abs(call[at + STRIDES + d])
            if call[at + SHAPE + d] > 1 and stride_below < found <= stride:
                n_equal = n_equal + 1 if found == stride else 1
                stride = found
                size = call[at + SHAPE + d]
            elif call[at + SHAPE + d] > 1 and found == 0:
                return True
        if n_equal == 0:
            return False
        if n_equal > 1 or stride <= reach:
            return True
        reach += (size - 1) * stride
        stride_below = stride
    return False
