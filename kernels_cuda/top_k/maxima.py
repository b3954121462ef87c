"""Group maxima of long rows, by as many blocks as fill the device.

A warp reads a chunk, or several of a very long row, and writes the raw keys of their groups: `fine` ones of 8
vectors (128 bytes), and one `coarse` group, all of them. The block kernel then finds the row's answer from
these, reading few elements. Reads every row once; writes a key for 128 bytes and another for 4 KiB or more.
"""

from typing import Any

from numba import cuda, types

from kernels_cuda.ptx import STORE, take_turn
from kernels_cuda.runtime.compiler import integers, linked_function
from kernels_cuda.top_k.cooperate import warp_maximum
from kernels_cuda.top_k.elements import N_NUMBERS, VECTOR_BYTES
from kernels_cuda.top_k.group_shape import CHUNK_VECTORS, FINE_A_CHUNK, FINE_BITS, VECTORS_A_LANE, key_bytes
from kernels_cuda.top_k.group_shape import MAXIMA_WARPS as WARPS_A_BLOCK
from kernels_cuda.top_k.groups import CHUNK_WORDS, group_functions
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.locate import locate
from kernels_cuda.top_k.rows import N_LAYOUT

u32 = types.uint32
i64 = types.int64


def maxima_source(element_size: int) -> Any:
    """Make the kernel for one element width."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    raw_mask = functions.raw_mask
    warp_max = warp_maximum(key_type)
    load_first, next_maxima, load_strided_maxima, reduce_maxima = group_functions(element_size)
    whole_raw_key = functions.whole_raw_key
    n_bytes = key_bytes(element_size)
    store_key = STORE[n_bytes]

    @linked_function
    def store_maxima(maxima, address, lane):
        """Store the fine maxima of a chunk; return this lane's."""
        first = reduce_maxima(maxima, lane, u32(FINE_BITS))
        key = whole_raw_key(maxima[0])
        store_key(address + i64(first) * n_bytes, key)
        return key

    @cuda.jit(max_registers=64)
    def top_k_maxima(
        x,
        fine,
        coarse,
        offsets,
        first_block,
        axis_size,
        part_size,
        n_parts,
        blocks_a_part,
        coarse_chunks,
        x_stride,
        layout: integers(N_LAYOUT),
        numbers: integers(N_NUMBERS),
    ):
        take_turn()
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        block = first_block + i64(cuda.blockIdx.x)
        unit = block // blocks_a_part
        coarse_group = (block - unit * blocks_a_part) * WARPS_A_BLOCK + i64(thread >> 5)
        _, _, _, _, _, address, _, n_vectors = locate(
            x, offsets, unit, axis_size, part_size, n_parts, x_stride, element_size, layout
        )
        words = cuda.local.array(CHUNK_WORDS, u32)
        maxima = cuda.local.array(VECTORS_A_LANE, key_type)
        mask = raw_mask(numbers, False)
        vector = coarse_group * coarse_chunks * CHUNK_VECTORS + i64(lane)
        available = u32(min(max(n_vectors - vector, 0), coarse_chunks * CHUNK_VECTORS))
        number = unit * blocks_a_part * WARPS_A_BLOCK + coarse_group
        fine_address = fine + number * coarse_chunks * (FINE_A_CHUNK * n_bytes)
        chunk = u32(0)
        best = key_type(0)
        if x_stride == 1:
            address += vector * VECTOR_BYTES
            load_first(words, address, available)
            while chunk < u32(coarse_chunks):
                beyond = max(available, u32(CHUNK_VECTORS)) - CHUNK_VECTORS
                next_maxima(words, maxima, address, available, CHUNK_VECTORS * VECTOR_BYTES, beyond, mask)
                address += CHUNK_VECTORS * VECTOR_BYTES
                best = max(best, store_maxima(maxima, fine_address, lane))
                fine_address += FINE_A_CHUNK * n_bytes
                available = beyond
                chunk += 1
        else:
            address += vector * VECTOR_BYTES * x_stride
            while chunk < u32(coarse_chunks):
                load_strided_maxima(maxima, address, x_stride, available, mask)
                best = max(best, store_maxima(maxima, fine_address, lane))
                address += CHUNK_VECTORS * VECTOR_BYTES * x_stride
                fine_address += FINE_A_CHUNK * n_bytes
                available = max(available, u32(CHUNK_VECTORS)) - CHUNK_VECTORS
                chunk += 1
        best = warp_max(best)
        if lane == 0:
            store_key(coarse + number * n_bytes, best)

    return top_k_maxima
