"""Group maxima of long rows, by as many blocks as fill the device.

A warp reads a chunk and writes the keys of its groups: `fine` ones of 8 vectors (128 bytes), and one
`coarse` group, the chunk. The block kernel then finds the row's answer from these, reading few elements.
Reads every row once; writes a key for 128 bytes and another for 4 KiB.
"""

from numba import cuda, types

from kernels_cuda.compiler import KernelSource
from kernels_cuda.ptx import STORE
from kernels_cuda.top_k.cooperate import warp_maximum
from kernels_cuda.top_k.groups import CHUNK_VECTORS, VECTORS_A_LANE, group_functions
from kernels_cuda.top_k.keys import N_MASKS, VECTOR_BYTES, element_functions
from kernels_cuda.top_k.locate import locate
from kernels_cuda.top_k.rows import N_LAYOUT

u32 = types.uint32
i64 = types.int64

N_THREADS = 256
CHUNKS_A_BLOCK = N_THREADS // 32
FINE_A_CHUNK = 32
# Vectors of a fine group are 1 << FINE_BITS.
FINE_BITS = 3


def key_bytes(element_size: int) -> int:
    """Return the bytes of a key in the workspace."""
    return max(4, element_size)


def maxima_source(element_size: int) -> KernelSource:
    """Make the kernel for one element width."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    raw_masks = functions.raw_masks
    warp_max = warp_maximum(key_type)
    load_maxima, load_strided_maxima, reduce_maxima = group_functions(element_size)
    key_of_raw = functions.key_of_raw
    n_bytes = key_bytes(element_size)
    store_key = STORE[n_bytes]

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
        x_stride,
        layout,
        masks,
    ):
        thread = u32(cuda.threadIdx.x)
        lane = u32(thread & u32(31))
        block = first_block + i64(cuda.blockIdx.x)
        unit = block // blocks_a_part
        chunk = (block - unit * blocks_a_part) * CHUNKS_A_BLOCK + i64(thread >> u32(5))
        _, _, _, _, _, address, _, n_vectors = locate(
            x, offsets, unit, axis_size, part_size, n_parts, x_stride, element_size, layout
        )
        maxima = cuda.local.array(VECTORS_A_LANE, key_type)
        raw_mask = raw_masks(masks, False)
        vector = chunk * CHUNK_VECTORS + i64(lane)
        n_left = u32(min(max(n_vectors - vector, 0), CHUNK_VECTORS))
        if x_stride == 1:
            load_maxima(maxima, address + vector * VECTOR_BYTES, n_left, raw_mask)
        else:
            start = address + vector * VECTOR_BYTES * x_stride
            load_strided_maxima(maxima, start, x_stride, n_left, raw_mask)
        first = reduce_maxima(maxima, lane, u32(FINE_BITS))
        key = key_type(key_of_raw(maxima[0], raw_mask, False, masks))
        number = unit * blocks_a_part * CHUNKS_A_BLOCK + chunk
        store_key(fine + (number * FINE_A_CHUNK + i64(first)) * n_bytes, key)
        best = warp_max(key)
        if lane == u32(0):
            store_key(coarse + number * n_bytes, best)

    return KernelSource(top_k_maxima, {"layout": N_LAYOUT, "masks": N_MASKS}, max_registers=64)
