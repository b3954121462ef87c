"""Rows that end early: each has its first ``lengths[row]`` elements only.

No length is known before the kernels run: each asks for its row's (`rows.row_length`) when it begins, selects
from so many elements, and fills the results up where these are fewer than k. Where an algorithm selects from
parts of a row first, the results of a part are filled up with elements that come last, so that they are as
many for each part.
"""

import functools
from typing import Any

from kernels_cuda import ptx
from kernels_cuda.runtime.compiler import linked_function
from kernels_cuda.top_k.shared.rows import NO_INDEX, store_index


@functools.cache
def pad_function(element_size: int) -> Any:
    """Make the device function that fills up the results of a row."""
    element_type, store_element = ptx.REGISTER[element_size], ptx.STORE[element_size]

    @linked_function
    def pad_row(values, indices, strides, index_size, padding, rank, step, end):
        """Write the padding to the ranks `rank`, ``rank + step``, ... below `end`.

        `values` and `indices` are the addresses of those of the row.
        """
        while rank < end:
            at = values + rank * strides.values * element_size
            store_element(at, element_type(padding))
            store_index(indices + rank * strides.indices * index_size, index_size, NO_INDEX)
            rank += step

    return pad_row
