"""The thresholds of `sampled`: a sample that is spread over each row, and an element of it."""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.cooperate import shared_vectors
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, dynamic_shared_array, linked_function
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.read_once.sampled_launches import ROW_STATE_BYTES, SAMPLED_THREADS, SampledParameters
from kernels_cuda.top_k.shared.aligned_keys import aligned_functions
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.rows import row_offsets, row_window
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES
from kernels_cuda.top_k.shared.threshold import FOUND, threshold_functions

# Offsets in a row's state: after the threshold, the counter of listed elements and the position before which
# ties are listed.
LISTED, EQUALS_END = 8, 12
# All positions are before it.
_NO_END = 0xFFFFFFFF
# Elements of a sample that lie together fill a sector of memory.
_SECTOR_BYTES = 32
# Its multiples, modulo 2^32, are spread evenly and without a period.
_GOLDEN_RATIO = 0x9E3779B1
# Vectors that a thread loads before it uses the first.
_AHEAD = 2


def sample_kernel(element_size: int) -> Any:
    """Make the kernel that chooses thresholds."""
    functions = element_functions(element_size)
    aligned = aligned_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    new_scratch, _, block_extremes, find_threshold, _ = threshold_functions(SAMPLED_THREADS, key_type)
    exclusive_sum = block_scan(SAMPLED_THREADS)
    unused, spread = aligned.unused, aligned.spread
    keys_per_vector, _, store_vector = shared_vectors(key_type)
    per_vector = VECTOR_BYTES // element_size
    # Vectors of keys that a vector of elements makes.
    parts = per_vector // keys_per_vector
    vector_bits = per_vector.bit_length() - 1
    n_ahead = _AHEAD * per_vector
    piece_bits = (_SECTOR_BYTES // element_size).bit_length() - 1

    @device_function
    def position_in_parts(number, parts_bits, n_pieces):
        part = number >> piece_bits
        first = (part * n_pieces) >> parts_bits
        width = (((part + 1) * n_pieces) >> parts_bits) - first
        piece = first + ptx.multiply_high_u32(part * _GOLDEN_RATIO, width)
        return i64((piece << piece_bits) | (number & ((1 << piece_bits) - 1)))

    @device_function
    def shape_of(base, count, sample_bits):
        prefix = (-base & (_SECTOR_BYTES - 1)) // element_size
        return prefix, u32(sample_bits - piece_bits), u32((count - prefix) >> piece_bits)

    @linked_function
    def sample_position(number, base, count, sample_bits):
        """Return where element `number` of the sample is, in a row of `count` elements.

        The pieces of the row are in ``1 << parts_bits`` parts of equal size, and each piece of the sample is
        anywhere in one.
        """
        prefix, parts_bits, n_pieces = shape_of(base, count, sample_bits)
        return prefix + position_in_parts(number, parts_bits, n_pieces)

    @linked_function
    def threshold_of_sample(keys, base, count, k, sample_bits, scratch, key_format, ids):
        """Bring the sample's keys into shared memory, and find the one that surely leaves k elements.

        Returns it, how many of the sample are above it, its rank, and whether too many are at or above it.
        """
        thread, _, _ = ids
        words = cuda.local.array(4, u32)
        elements = cuda.local.array(n_ahead, key_type)
        vector = cuda.local.array(keys_per_vector, key_type)
        sample_size = u32(1) << u32(sample_bits)
        prefix, parts_bits, n_pieces = shape_of(base, count, sample_bits)
        lowest = ~key_type(0)
        highest = key_type(0)
        n_vectors = sample_size >> vector_bits
        number = thread
        while number < n_vectors:
            for ahead in range(_AHEAD):
                other = number + u32(ahead * SAMPLED_THREADS)
                position = prefix + position_in_parts(other << vector_bits, parts_bits, n_pieces)
                words[0], words[1], words[2], words[3] = ptx.load_if_u32x4(
                    base + position * element_size, other < n_vectors
                )
                spread(words, elements, ahead * per_vector)
            for ahead in range(_AHEAD):
                if number < n_vectors:
                    for part in range(parts):
                        for at in range(keys_per_vector):
                            element = elements[ahead * per_vector + part * keys_per_vector + at] >> unused
                            vector[at] = ordered_key(element, key_format)
                            lowest = min(lowest, vector[at])
                            highest = max(highest, vector[at])
                        store_vector(vector, keys, number * parts + u32(part))
                number += SAMPLED_THREADS
        extent = block_extremes(scratch, lowest, highest, ids)
        # As `sampled_launches.sample_rank` and `most_of_sample` have it.
        expected = (sample_size * u32(k) - 1) // u32(count) + 1
        rank = expected + (expected >> 2) + 33
        most = rank + (rank >> 4)
        threshold, n_above, n_at_or_above = find_threshold(
            keys, sample_size, extent, rank, most, scratch, ids
        )
        return threshold, n_above, rank, n_at_or_above > most

    @linked_function
    def number_of_equal(keys, sample_size, key, needed, scratch, thread):
        """Return which element of the sample is the one numbered `needed`, from 1, that has this key."""
        n_each = sample_size // u32(SAMPLED_THREADS)
        own = thread * n_each
        amount = u32(0)
        for element in range(n_each):
            amount += u32(keys[own + u32(element)] == key)
        through, _ = exclusive_sum(amount, thread, scratch.sums)
        for element in range(n_each):
            if keys[own + u32(element)] == key:
                through += 1
                if through == needed:
                    scratch.counters[FOUND] = own + u32(element)
        cuda.syncthreads()
        return scratch.counters[FOUND]

    @cuda.jit
    def choose_threshold(x, windows: Windows, states, offsets, p: RowParameters, m: SampledParameters):
        ptx.grid_dependency_wait()
        keys = dynamic_shared_array(key_type)
        scratch = new_scratch()
        thread = u32(cuda.threadIdx.x)
        ids = (thread, thread & 31, thread >> 5)
        row = p.first + i64(cuda.blockIdx.x)
        x_row, _, _ = row_offsets(p.layout, offsets, row)
        start, count = row_window(windows, p.layout, offsets, row, p.axis_size, p.window_format)
        base = x + (x_row + start) * element_size
        threshold = key_type(0)
        equals_end = u32(_NO_END)
        if count > m.n_slots:
            scratch.histogram[thread] = u32(0)
            threshold, n_above, rank, is_crowded = threshold_of_sample(
                keys, base, count, p.k, m.sample_bits, scratch, p.key_format, ids
            )
            if is_crowded:
                # Of the elements that equal the threshold, those up to the last one that is needed here.
                sample_size = u32(1) << u32(m.sample_bits)
                number = number_of_equal(keys, sample_size, threshold, rank - n_above, scratch, thread)
                equals_end = u32(sample_position(number, base, count, m.sample_bits)) + 1
        if thread == 0:
            state = states + row * ROW_STATE_BYTES
            ptx.store_u64(state, u64(threshold))
            ptx.store_u32(state + LISTED, u32(0))
            ptx.store_u32(state + EQUALS_END, equals_end)

    return choose_threshold
