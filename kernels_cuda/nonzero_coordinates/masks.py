"""Step 1: one bit per element, and the number of non-zeros of each granule."""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.nonzero_coordinates.parameters import (
    CHUNK,
    FILLED_WORDS,
    GRANULE,
    MASK_THREADS,
    TRANSPOSED_THREADS,
    Dims,
    MaskParameters,
    TransposedMaskParameters,
    block_elements,
)
from kernels_cuda.offsets import dims_type, offset_functions
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.scan import block_add

_WARPS = MASK_THREADS // 32


def _non_zero_bits(element_size: int) -> Any:
    """Make the function that tells which elements inside a 32-bit word are non-zero, a bit each."""

    @device_function
    def of_bytes(word, magnitude):
        kept = word & magnitude
        marked = (kept | ((kept & 0x7F7F7F7F) + 0x7F7F7F7F)) & 0x80808080
        # The multiplication moves bits 0, 8, 16, 24 to 28 ... 31; no two products meet in a bit.
        return ((marked >> 7) * 0x10204080) >> 28

    @device_function
    def of_halves(word, magnitude):
        kept = word & magnitude
        marked = kept | ((kept & 0x7FFF7FFF) + 0x7FFF7FFF)
        return ((marked >> 15) & 1) | ((marked >> 30) & 2)

    @device_function
    def of_word(word, magnitude):
        return u32(word & magnitude != 0)

    return {1: of_bytes, 2: of_halves, 4: of_word}[element_size]


@device_function
def _exchange(word, lane, distance, width, kept_fields):
    """Swap fields with the lane `distance` away: one step of a transposition of lanes and fields."""
    other = ptx.shuffle_xor_u32(word, u32(distance))
    low = (word & u32(kept_fields)) | ((other & u32(kept_fields)) << u32(width))
    high = (word & u32(~kept_fields)) | ((other & u32(~kept_fields)) >> u32(width))
    return high if u32(lane & u32(distance)) != 0 else low


def _low_fields(width: int) -> int:
    """Return the mask of every second field of `width` bits, from the lowest."""
    return sum(((1 << width) - 1) << i for i in range(0, 32, 2 * width))


def mask_kernel(element_size: int) -> Any:
    """Make the kernel for contiguous input, whose vectors start on 16-byte boundaries."""
    per_vector = 16 // element_size
    per_word = 4 // element_size if element_size < 8 else 1
    loads = 32 // per_vector  # vectors a lane loads for one mask word
    chunks = max(1, 8 // loads)  # chunks in flight: at least eight vectors a lane
    warp_elements = block_elements(element_size) // _WARPS
    n_batches = warp_elements // (chunks * CHUNK)
    granules = block_elements(element_size) // GRANULE
    warps_per_granule = _WARPS // granules
    n_registers = 4 * chunks * loads
    n_steps = (loads - 1).bit_length()
    steps = tuple((1 << k, per_vector << k, _low_fields(per_vector << k)) for k in range(n_steps))
    read = ptx.READ[element_size]
    register = ptx.REGISTER[element_size]
    is_wide_element = element_size == 8
    bits_of = _non_zero_bits(min(element_size, 4))

    # A lane's word holds one field of its own elements for each load; afterwards lane i of each group of
    # `loads` lanes holds load i of the whole group, which is 32 elements in a row.
    @device_function
    def in_element_order(word, lane):
        for distance, width, kept_fields in steps:
            word = _exchange(word, lane, distance, width, kept_fields)
        return word

    @device_function
    def partial_word(base, chunk, skipped, end, magnitude, lane):
        """Read a chunk that the input does not fill, one element per lane and load."""
        elements = cuda.local.array(16, register)
        word = u32(0)
        for half in range(2):
            for k in range(16):
                position = chunk + (half * 16 + k) * 32 + lane
                elements[k] = register(0)
                if position >= skipped and position < end:
                    elements[k] = read(base + position * element_size)
            for k in range(16):
                holds = ptx.ballot(elements[k] & register(magnitude) != 0)
                if lane == half * 16 + k:
                    word = holds
        return word

    @cuda.jit
    def nonzero_mask(base, mask, counts, p: MaskParameters):
        ptx.grid_dependency_wait()
        warp_counts = cuda.shared.array(_WARPS, u32)
        vectors = cuda.local.array(n_registers, u32)
        thread = i64(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        low_magnitude = u32(p.magnitude)
        high_magnitude = u32(p.magnitude >> 32)
        slot = (lane % loads) * per_vector + lane // loads
        count = u32(0)
        warp_first = (i64(cuda.blockIdx.x) * _WARPS + warp) * warp_elements
        for batch in range(n_batches):
            first = warp_first + batch * (chunks * CHUNK)
            words = mask + (first >> 3)
            if first >= p.skipped and first + chunks * CHUNK <= p.end:
                address = base + first * element_size + lane * 16
                for k in range(chunks * loads):
                    (vectors[4 * k], vectors[4 * k + 1], vectors[4 * k + 2], vectors[4 * k + 3]) = (
                        ptx.stream_u32x4(address + k * 512)
                    )
                for chunk in range(chunks):
                    word = u32(0)
                    for k in range(loads):
                        at = 4 * (chunk * loads + k)
                        if is_wide_element:
                            for e in range(2):
                                kept = (vectors[at + 2 * e] & low_magnitude) | (
                                    vectors[at + 2 * e + 1] & high_magnitude
                                )
                                word |= u32(kept != 0) << u32(2 * k + e)
                        else:
                            for q in range(4):
                                bits = bits_of(vectors[at + q], low_magnitude)
                                word |= bits << u32(k * per_vector + q * per_word)
                    word = in_element_order(word, lane)
                    ptx.store_u32(words + chunk * (CHUNK // 8) + slot * 4, word)
                    count += ptx.popcount_u32(word)
            else:
                for chunk in range(chunks):
                    word = u32(0)
                    if first + chunk * CHUNK < p.end:
                        word = partial_word(base, first + chunk * CHUNK, p.skipped, p.end, p.magnitude, lane)
                    ptx.store_u32(words + chunk * (CHUNK // 8) + lane * 4, word)
                    count += ptx.popcount_u32(word)
        count = ptx.warp_add(count)
        if lane == 0:
            warp_counts[warp] = count
        cuda.syncthreads()
        if thread < granules:
            total = u32(0)
            for k in range(warps_per_granule):
                total += warp_counts[thread * warps_per_granule + k]
            ptx.store_u32(counts + (i64(cuda.blockIdx.x) * granules + thread) * 4, total)

    return nonzero_mask


def strided_mask_kernel(element_size: int, wide: bool) -> Any:
    """Make the kernel for input of any layout, one granule per block."""
    warp_elements = GRANULE // _WARPS
    in_flight = 1 if wide else 8
    read = ptx.READ[element_size]
    register = ptx.REGISTER[element_size]
    one_offset, _, _ = offset_functions(wide)

    @cuda.jit
    def nonzero_mask_strided(x, mask, counts, p: MaskParameters, dims: dims_type(Dims, wide)):
        ptx.grid_dependency_wait()
        totals = cuda.shared.array(_WARPS, u32)
        elements = cuda.local.array(in_flight, register)
        thread = u32(cuda.threadIdx.x)
        lane = i64(thread & 31)
        warp = i64(thread >> 5)
        last = p.end - 1
        count = u32(0)
        for part in range(warp_elements // CHUNK):
            chunk = i64(cuda.blockIdx.x) * GRANULE + warp * warp_elements + part * CHUNK
            word = u32(0)
            for batch in range(32 // in_flight):
                for k in range(in_flight):
                    position = min(chunk + (batch * in_flight + k) * 32 + lane, last)
                    elements[k] = read(x + one_offset(position, dims, dims.strides))
                for k in range(in_flight):
                    index = batch * in_flight + k
                    inside = chunk + index * 32 + lane < p.end
                    holds = ptx.ballot(inside and elements[k] & register(p.magnitude) != 0)
                    if lane == index:
                        word = holds
            ptx.store_u32(mask + (chunk >> 3) + lane * 4, word)
            count += ptx.popcount_u32(word)
        total = block_add(count, thread, totals, _WARPS)
        if thread == 0:
            ptx.store_u32(counts + i64(cuda.blockIdx.x) * 4, total)

    return nonzero_mask_strided


_TRANSPOSED_WARPS = TRANSPOSED_THREADS // 32
_COUNTED_WORDS = GRANULE // 32 // TRANSPOSED_THREADS  # of a thread


def transposed_mask_kernel(element_size: int) -> Any:
    """Make the kernel for matrices whose columns, not their rows, are contiguous.

    These are x.T, or arrays in Fortran order. A lane has a row, so that a warp's loads are of neighbours, and
    fills words of the mask bit by bit. The bits of granules are counted by `count_kernel`.
    """
    in_flight = 16 if element_size == 8 else 32
    read = ptx.READ[element_size]
    register = ptx.REGISTER[element_size]

    @cuda.jit
    def nonzero_mask_transposed(x, mask, p: TransposedMaskParameters):
        ptx.grid_dependency_wait()
        elements = cuda.local.array(in_flight, register)
        thread = i64(cuda.threadIdx.x)
        unit = i64(cuda.blockIdx.x) * _TRANSPOSED_WARPS + (thread >> 5)
        if unit >= p.n_units:
            return
        above = unit // p.n_word_tiles
        first_word = (unit - above * p.n_word_tiles) * FILLED_WORDS
        matrix = above // p.n_row_tiles
        row = (above - matrix * p.n_row_tiles) * 32 + (thread & 31)
        if row >= p.height:
            return
        address = x + matrix * p.batch_bytes + row * element_size + first_word * 32 * p.column_bytes
        word_address = mask + ((matrix * p.height + row) * p.row_words + first_word) * 4
        for _ in range(min(FILLED_WORDS, p.row_words - first_word)):
            word = u32(0)
            for batch in range(32 // in_flight):
                for k in range(in_flight):
                    elements[k] = read(address + k * p.column_bytes)
                for k in range(in_flight):
                    is_set = elements[k] & register(p.magnitude) != 0
                    word |= u32(is_set) << u32(batch * in_flight + k)
                address += in_flight * p.column_bytes
            ptx.store_u32(word_address, word)
            word_address += 4

    return nonzero_mask_transposed


def count_kernel() -> Any:
    """Make the kernel that counts the bits of granules, one per block."""

    @cuda.jit
    def nonzero_count(mask, counts, n_words):
        ptx.grid_dependency_wait()
        totals = cuda.shared.array(_TRANSPOSED_WARPS, u32)
        thread = u32(cuda.threadIdx.x)
        first = i64(cuda.blockIdx.x) * (GRANULE // 32) + i64(thread) * _COUNTED_WORDS
        count = u32(0)
        for k in range(_COUNTED_WORDS):
            # The last granule goes on after the last element, and must be empty there.
            if first + k < n_words:
                count += ptx.popcount_u32(ptx.load_u32(mask + (first + k) * 4))
            else:
                ptx.store_u32(mask + (first + k) * 4, u32(0))
        total = block_add(count, thread, totals, _TRANSPOSED_WARPS)
        if thread == 0:
            ptx.store_u32(counts + i64(cuda.blockIdx.x) * 4, total)

    return nonzero_count
