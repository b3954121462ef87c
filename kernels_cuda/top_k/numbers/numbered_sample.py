"""A sample of a row's numbers, which tells a threshold that some more than k elements reach."""

import functools
from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.numbers.numbered_rows import number_functions
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.threshold import threshold_functions

# Elements of a sample for each thread, and those that it loads before it uses the first.
_SAMPLED = 16
_AHEAD = 8
# Elements of a sample that follow each other in the row: numbers of 8 bytes in 32, which are read at once.
_NEIGHBOURS = 4
# Its multiples, modulo 2^32, are spread evenly and without a period.
_GOLDEN_RATIO = 0x9E3779B1
# A sample is used only if at least so many of its elements are expected among the first k.
_FEWEST_SAMPLED = 16


@functools.cache
def sample_function(element_size: int, n_threads: int) -> Any:
    """Make the device function for one element width and block size."""
    functions = element_functions(element_size)
    key_type, ordered_key, read_if = functions.key_type, functions.ordered_key, ptx.READ_IF[element_size]
    load_number, number_key, _, _ = number_functions(element_size)
    finding = threshold_functions(n_threads, u64)
    block_extremes, find_threshold = finding.block_extremes, finding.find_threshold
    n_sampled = _SAMPLED * n_threads
    n_groups = n_sampled // _NEIGHBOURS

    @device_function
    def sampled_position(number, row):
        """Return where an element of a sample is: neighbours lie anywhere in one of parts of equal size."""
        group, length = u64(number // _NEIGHBOURS), u64(u32(row.length))
        first = u32((group * length) // n_groups)
        width = u32(((group + 1) * length) // n_groups) - first
        first += ptx.multiply_high_u32(u32(group) * u32(_GOLDEN_RATIO), width)
        return first // _NEIGHBOURS * _NEIGHBOURS + number % _NEIGHBOURS

    @linked_function
    def sampled_number(room, key, n_elements, row, scratch, p, m, ids):
        """Return the key of a number that about `n_elements` of the row's elements with a key reach.

        It is 0 if all do, as far as the sample tells. Also returns whether it tells enough. `room` is for all
        of the sample.
        """
        thread, _, _ = ids
        rank = u32(i64(n_elements) * n_sampled // row.length)
        number = u64(0)
        if rank >= _FEWEST_SAMPLED:
            elements = cuda.local.array(_AHEAD, key_type)
            most = u64(0)
            for first in range(0, _SAMPLED, _AHEAD):
                for item in range(_AHEAD):
                    position = sampled_position(u32((first + item) * n_threads) + thread, row)
                    address = row.base + i64(position) * (p.strides.x * element_size)
                    elements[item] = read_if(address, u32(position < u32(row.length)))
                for item in range(_AHEAD):
                    at = u32((first + item) * n_threads) + thread
                    position = sampled_position(at, row)
                    has_key = ordered_key(elements[item], p.key_format) == key
                    bits = load_number(row, i64(position), has_key and position < u32(row.length), m)
                    sampled = u64(0)
                    if bits != u64(m.excluded):
                        sampled = number_key(bits, m)
                    room[at] = sampled
                    most = max(most, sampled)
            _, most = block_extremes(scratch, most, most, ids)
            enough = rank + (rank >> 4)
            number, _, _ = find_threshold(room, u32(n_sampled), (u64(0), most), rank, enough, scratch, ids)
            cuda.syncthreads()
        return number, rank >= _FEWEST_SAMPLED

    return sampled_number
