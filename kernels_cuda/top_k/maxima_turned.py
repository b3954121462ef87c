"""Group maxima of rows that lie side by side in memory, as along any axis but the last.

It writes what `maxima` does, of smaller fine groups, 32 of which are a chunk and a coarse group. A block has
a chunk of each of 32 rows: a lane walks down a row of its own, so that neighbouring lanes load neighbouring
elements, and the warps share the fine groups. Keys go through shared memory, from where a warp stores those
of a row together. Reads every row once.
"""

from typing import Any

from numba import cuda, types

from kernels_cuda.ptx import LOAD, STORE, take_turn
from kernels_cuda.runtime.compiler import integers, linked_function
from kernels_cuda.top_k.cooperate import warp_maximum
from kernels_cuda.top_k.elements import N_NUMBERS, VECTOR_BYTES
from kernels_cuda.top_k.group_shape import FINE_A_CHUNK, TURNED_ROWS, fine_bits, key_bytes
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
# Elements that a lane loads before it looks at the first: a fine group or several.
IN_FLIGHT = {1: 32, 2: 16, 4: 32, 8: 8}


def maxima_turned_source(element_size: int) -> Any:
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
    group_elements = per_vector << fine_bits(element_size, is_turned=True)
    in_flight = IN_FLIGHT[element_size]
    groups_a_batch = in_flight // group_elements
    n_batches = FINE_A_CHUNK // groups_a_batch // WARPS_A_BLOCK

    @linked_function
    def load_batch(elements, address, step, n_left):
        """Load a lane's next elements; the last of `n_left` stands for those beyond."""
        if n_left >= in_flight:
            for at in range(in_flight):
                elements[at] = load_element(address)
                address += step
        elif n_left > 0:
            for at in range(in_flight):
                elements[at] = load_element(address)
                if u32(at + 1) < n_left:
                    address += step

    @linked_function
    def group_key(elements, at, mask):
        """Return the largest raw key of a group of elements."""
        best = key_type(0)
        for element in range(group_elements):
            best = max(best, raw_element(elements[at * group_elements + element], mask))
        return whole_raw_key(best)

    @cuda.jit(max_registers=64)
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
        layout: integers(N_LAYOUT),
        numbers: integers(N_NUMBERS),
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
        elements = cuda.local.array(in_flight, key_type)
        group = warp * u32(n_batches * groups_a_batch)
        first = (chunk * FINE_A_CHUNK + i64(group)) * group_elements
        address += first * step
        n_left = u32(max(n_vectors * per_vector - first, 0))
        for _ in range(n_batches):
            load_batch(elements, address, step, n_left)
            address += in_flight * step
            for at in range(groups_a_batch):
                key = group_key(elements, at, mask)
                if n_left <= u32(at * group_elements):
                    key = key_type(0)
                tile[lane * TILE_PITCH + group] = key
                group += 1
            n_left = max(n_left, u32(in_flight)) - in_flight
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

    return top_k_maxima_turned
