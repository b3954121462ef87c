"""Group maxima of rows that lie side by side in memory, as along any axis but the last.

It writes what `maxima` does, of coarse groups of one chunk. A block has a chunk of each of 32 rows: a lane
walks down a row of its own, so that neighbouring lanes load neighbouring elements, and the warps share the
fine groups. Keys go through shared memory, from where a warp stores those of a row together. Reads every row
once.
"""

from numba import cuda, types

from kernels_cuda.compiler import KernelSource, linked_function
from kernels_cuda.ptx import LOAD, STORE, take_turn
from kernels_cuda.top_k.cooperate import warp_maximum
from kernels_cuda.top_k.elements import N_NUMBERS, VECTOR_BYTES
from kernels_cuda.top_k.group_shape import FINE_A_CHUNK, FINE_BITS, TURNED_ROWS, key_bytes
from kernels_cuda.top_k.group_shape import MAXIMA_WARPS as WARPS_A_BLOCK
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.locate import locate
from kernels_cuda.top_k.rows import N_LAYOUT

u32 = types.uint32
i64 = types.int64

ROWS_A_WARP = TURNED_ROWS // WARPS_A_BLOCK
# From row to row of the tile, so that lanes which each write to a row of their own meet no bank twice.
TILE_PITCH = FINE_A_CHUNK + 1
TILE_KEYS = TURNED_ROWS * TILE_PITCH


def maxima_turned_source(element_size: int) -> KernelSource:
    """Make the kernel for one element width."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    raw_mask = functions.raw_mask
    raw_element = functions.raw_element
    whole_raw_key = functions.whole_raw_key
    warp_max = warp_maximum(key_type)
    n_bytes = key_bytes(element_size)
    store_key = STORE[n_bytes]
    load_element = LOAD[element_size]
    per_vector = VECTOR_BYTES // element_size
    group_elements = per_vector << FINE_BITS
    # Elements that a lane loads before it looks at the first.
    in_flight = min(group_elements, 32)

    @linked_function
    def group_maximum(address, step, n_left, mask):
        """Return the largest raw key of a fine group, of which there are no more than `n_left` elements."""
        elements = cuda.local.array(in_flight, key_type)
        best = key_type(0)
        batch = u32(0)
        while batch < min(n_left, u32(group_elements)):
            if n_left - batch >= in_flight:
                for at in range(in_flight):
                    elements[at] = load_element(address)
                    address += step
            else:
                # The last element stands for those beyond.
                for at in range(in_flight):
                    elements[at] = load_element(address)
                    if batch + u32(at + 1) < n_left:
                        address += step
            for at in range(in_flight):
                best = max(best, raw_element(elements[at], mask))
            batch += in_flight
        return whole_raw_key(best)

    def top_k_maxima_turned(
        x,
        fine,
        coarse,
        offsets,
        first_block,
        axis_size,
        part_size,
        n_parts,
        n_rows,
        n_coarse,
        x_stride,
        layout,
        numbers,
    ):
        take_turn()
        tile = cuda.shared.array(TILE_KEYS, key_type)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        # Blocks that run together have neighbouring rows, for these share lines of memory.
        block = first_block + i64(cuda.blockIdx.x)
        n_row_groups = (n_rows + (TURNED_ROWS - 1)) // TURNED_ROWS
        above = block // n_row_groups
        first_row = (block - above * n_row_groups) * TURNED_ROWS
        part = above // n_coarse
        chunk = above - part * n_coarse
        # Lanes beyond the last row read that, too, and what they find is not stored.
        row = min(first_row + i64(lane), n_rows - 1)
        _, _, _, _, _, address, _, n_vectors = locate(
            x, offsets, row * n_parts + part, axis_size, part_size, n_parts, x_stride, element_size, layout
        )
        mask = raw_mask(numbers, False)
        step = x_stride * element_size
        first = (chunk * FINE_A_CHUNK + i64(warp)) * group_elements
        address += first * step
        n_left = u32(max(n_vectors * per_vector - first, 0))
        n_taken = u32(WARPS_A_BLOCK * group_elements)
        group = warp
        while group < FINE_A_CHUNK:
            tile[lane * TILE_PITCH + group] = group_maximum(address, step, n_left, mask)
            address += n_taken * step
            n_left = max(n_left, n_taken) - n_taken
            group += WARPS_A_BLOCK
        cuda.syncthreads()
        for at in range(ROWS_A_WARP):
            tile_row = warp * ROWS_A_WARP + u32(at)
            row = first_row + i64(tile_row)
            if row < n_rows:
                number = (row * n_parts + part) * n_coarse + chunk
                key = tile[tile_row * TILE_PITCH + lane]
                store_key(fine + (number * FINE_A_CHUNK + i64(lane)) * n_bytes, key)
                best = warp_max(key)
                if lane == 0:
                    store_key(coarse + number * n_bytes, best)

    return KernelSource(top_k_maxima_turned, {"layout": N_LAYOUT, "numbers": N_NUMBERS}, max_registers=64)
