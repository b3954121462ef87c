"""Counts of digits and of marks: how blocks count, and the kernels that clear and fill histograms of rows."""

from collections.abc import Callable
from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.results import row_functions
from kernels_cuda.top_k.sort.sort_launches import (
    CLEARING_THREADS,
    COUNTED_ELEMENTS,
    COUNTED_PER_THREAD,
    COUNTING_THREADS,
    ClearParameters,
)
from kernels_cuda.top_k.sort.sort_shape import COUNT_BYTES


def clear_kernel() -> Any:
    """Make `clear_words`, which sets vectors of 16 bytes to zero."""

    @cuda.jit
    def clear_words(first, p: ClearParameters):
        ptx.grid_dependency_wait()
        vector = i64(cuda.blockIdx.x) * CLEARING_THREADS + i64(cuda.threadIdx.x)
        if vector < p.n_vectors:
            ptx.store_u32x4(first + vector * 16, u32(0), u32(0), u32(0), u32(0))

    return clear_words


def clearing_function(n_counters: int, n_threads: int) -> Any:
    """Make what sets the shared counters of a block to zero."""

    @device_function
    def clear_counts(counters, thread):
        counter = thread
        while counter < n_counters:
            counters[counter] = u32(0)
            counter += n_threads

    return clear_counts


def counting_functions(
    key_type: Any, shape: tuple[int, int, int], n_threads: int, count_bytes: int = COUNT_BYTES
) -> tuple[Any, Any, Any]:
    """Make what counts digits of keys in a block, and adds its counts to those of a row.

    `shape` is how many digits there are, their bits, and the lowest bit of them all.
    """
    n_digits, digit_bits, lowest = shape
    n_counters = n_digits << digit_bits
    count_type = ptx.REGISTER[count_bytes]
    reduce_add = ptx.reduce_add_u32 if count_bytes == 4 else ptx.reduce_add_u64

    @device_function
    def count_digits(counters, key):
        for digit in range(n_digits):
            value = u32(key >> key_type(lowest + digit * digit_bits)) & u32((1 << digit_bits) - 1)
            ptx.count_shared(counters + ((u32(digit << digit_bits) + value) << 2))

    @device_function
    def add_counts(histogram, histograms, row, thread):
        counter = thread
        while counter < n_counters:
            if histogram[counter] != 0:
                at = histograms + (row * n_counters + i64(counter)) * count_bytes
                reduce_add(at, count_type(histogram[counter]))
            counter += n_threads

    return clearing_function(n_counters, n_threads), count_digits, add_counts


def loading_function(element_size: int) -> Any:
    """Make what loads a thread's elements of a part of a row, which begins at an address and has `n_left`."""
    functions = element_functions(element_size)
    key_type, load_element = functions.key_type, functions.load_element

    @device_function
    def load_share(elements, address, step, n_left):
        for item in range(COUNTED_PER_THREAD):
            elements[item] = key_type(0)
            if u32(item * COUNTING_THREADS) < n_left:
                elements[item] = load_element(address)
            address += COUNTING_THREADS * step

    return load_share


def marks_function(n_threads: int, link: Callable[[Any], Any]) -> Any:
    """Make what counts the bits before each word of an array, and returns how many there are in all.

    `link` is `device_function`, or `linked_function` in kernels that call it more than once.
    """
    exclusive_sum = block_scan(n_threads)

    @link
    def count_marks(words, places, n_words, totals):
        thread = u32(cuda.threadIdx.x)
        words_each = (n_words + u32(n_threads - 1)) // u32(n_threads)
        amount = u32(0)
        number = thread * words_each
        end = min(number + words_each, n_words)
        while number < end:
            amount += ptx.popcount_u32(words[number])
            number += 1
        place, total = exclusive_sum(amount, thread, totals)
        number = thread * words_each
        while number < end:
            places[number] = place
            place += ptx.popcount_u32(words[number])
            number += 1
        return total

    return count_marks


def histogram_kernel(element_size: int, digit_bits: int, n_digits: int) -> Any:
    """Make `digit_histograms` for one width of elements, and its `n_digits` highest digits."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    load_share = loading_function(element_size)
    find_row, _, _ = row_functions(element_size)
    n_counters = n_digits << digit_bits
    shape = (n_digits, digit_bits, 8 * element_size - n_digits * digit_bits)
    clear_counts, count_digits, add_counts = counting_functions(key_type, shape, COUNTING_THREADS)

    @cuda.jit(max_registers=32)
    def digit_histograms(x, windows: Windows, histograms, offsets, p: RowParameters, blocks_per_row):
        ptx.grid_dependency_wait()
        histogram = cuda.shared.array(n_counters, u32)
        counters = ptx.shared_address(histogram)
        thread = u32(cuda.threadIdx.x)
        block = i64(cuda.blockIdx.x)
        row = block // blocks_per_row
        base, _, _, length = find_row(x, windows, i64(0), i64(0), offsets, p.first + row, p)
        step = p.strides.x * element_size
        clear_counts(histogram, thread)
        cuda.syncthreads()
        keys = cuda.local.array(COUNTED_PER_THREAD, key_type)
        first = (block - row * blocks_per_row) * COUNTED_ELEMENTS + i64(thread)
        while first < length:
            address = base + first * step
            n_left = u32(min(length - first, i64(COUNTED_ELEMENTS)))
            load_share(keys, address, step, n_left)
            for item in range(COUNTED_PER_THREAD):
                if u32(item * COUNTING_THREADS) < n_left:
                    count_digits(counters, ~ordered_key(keys[item], p.key_format))
            first += blocks_per_row * COUNTED_ELEMENTS
        cuda.syncthreads()
        add_counts(histogram, histograms, row, thread)

    return digit_histograms
