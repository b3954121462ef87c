"""Many blocks per row: group maxima of long rows, by as many blocks as fill the device.

One block per row (`block`) then finds the answer from these, reading few elements.

`group_maxima`: a warp reads a chunk and writes the unfolded keys of its groups: fine ones of 8 vectors (128
bytes), and one coarse group, all of them. It reads every row once, and writes a key for 128 bytes and another
for 4 KiB.

`transposed_group_maxima` does the same for rows that lie side by side in memory, as along any axis but the
last. Its fine groups are smaller, and 32 of them are a chunk and a coarse group. A block has a chunk of each
of 32 rows: a lane walks down a row of its own, so that neighbouring lanes load neighbouring elements, and the
warps share the fine groups. Keys go through shared memory, from where a warp stores those of a row together.

Coarse groups exist by eights (`coarse_groups`): blocks leave early where all of theirs lie beyond the end of
the row.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.cooperate import warp_maximum
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import linked_function
from kernels_cuda.top_k.many_blocks.grid_launches import (
    FINE_PER_CHUNK,
    TRANSPOSED_ROWS,
    MaximaParameters,
    fine_bits,
)
from kernels_cuda.top_k.shared.groups import CHUNK_WORDS, group_functions
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.rows import locate, part_of, row_window
from kernels_cuda.top_k.shared.shapes import (
    CHUNK_VECTORS,
    FINE_BITS,
    MAXIMA_WARPS,
    VECTOR_BYTES,
    VECTORS_PER_LANE,
    group_key_bytes,
)

ROWS_PER_WARP = TRANSPOSED_ROWS // MAXIMA_WARPS
# From row to row of the tile, so that lanes which each write to a row of their own meet no bank twice.
TILE_PITCH = FINE_PER_CHUNK + 1
TILE_KEYS = TRANSPOSED_ROWS * TILE_PITCH
# Elements that a lane loads before it uses the first: a fine group or several.
IN_FLIGHT = {1: 32, 2: 16, 4: 32, 8: 8}


def maxima_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    unfolding_of = functions.unfolding_of
    warp_max = warp_maximum(key_type)
    load_first, next_maxima, load_strided_maxima, reduce_maxima = group_functions(element_size)
    whole_key = functions.whole_key
    n_bytes = group_key_bytes(element_size)
    store_key = ptx.STORE[n_bytes]

    @cuda.jit(max_registers=64)
    def group_maxima(x, windows: Windows, fine, coarse, offsets, p: RowParameters, m: MaximaParameters):
        ptx.grid_dependency_wait()
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        block = p.first + i64(cuda.blockIdx.x)
        blocks_per_part = m.n_coarse // MAXIMA_WARPS
        unit = block // blocks_per_part
        first_group = (block - unit * blocks_per_part) * MAXIMA_WARPS
        coarse_group = first_group + i64(thread >> 5)
        row, part = part_of(unit, m.n_parts)
        start, length = row_window(windows, p.layout, offsets, row, p.axis_size, p.window_format)
        x += start * p.strides.x * element_size
        _, _, _, _, address, _, n_vectors = locate(
            x, offsets, row, part, length, m.part_size, p.strides.x, element_size, p.layout
        )
        if first_group * CHUNK_VECTORS >= n_vectors:
            return
        words = cuda.local.array(CHUNK_WORDS, u32)
        maxima = cuda.local.array(VECTORS_PER_LANE, key_type)
        unfolding = unfolding_of(p.unfolded_format, False)
        vector = coarse_group * CHUNK_VECTORS + i64(lane)
        available = u32(min(max(n_vectors - vector, 0), CHUNK_VECTORS))
        address += vector * VECTOR_BYTES * p.strides.x
        if p.strides.x == 1:
            load_first(words, address, available)
            next_maxima(words, maxima, address, available, 0, u32(0), unfolding)
        else:
            load_strided_maxima(maxima, address, p.strides.x, available, unfolding)
        number = unit * m.n_coarse + coarse_group
        first = reduce_maxima(maxima, lane, u32(FINE_BITS))
        key = whole_key(maxima[0])
        store_key(fine + (number * FINE_PER_CHUNK + i64(first)) * n_bytes, key)
        best = warp_max(key)
        if lane == 0:
            store_key(coarse + number * n_bytes, best)

    return group_maxima


def transposed_maxima_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    unfolding_of = functions.unfolding_of
    unfolded_element = functions.unfolded_element
    whole_key = functions.whole_key
    warp_max = warp_maximum(key_type)
    n_bytes = group_key_bytes(element_size)
    store_key = ptx.STORE[n_bytes]
    load_element = ptx.LOAD[element_size]
    per_vector = VECTOR_BYTES // element_size
    group_elements = per_vector << fine_bits(element_size, is_transposed=True)
    chunk_vectors = FINE_PER_CHUNK << fine_bits(element_size, is_transposed=True)
    in_flight = IN_FLIGHT[element_size]
    groups_per_batch = in_flight // group_elements
    n_batches = FINE_PER_CHUNK // groups_per_batch // MAXIMA_WARPS

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
    def group_key(elements, at, unfolding):
        """Return the largest unfolded key of a group of elements."""
        best = key_type(0)
        for element in range(group_elements):
            best = max(best, unfolded_element(elements[at * group_elements + element], unfolding))
        return whole_key(best)

    @cuda.jit(max_registers=64)
    def transposed_group_maxima(
        x, windows: Windows, fine, coarse, offsets, p: RowParameters, m: MaximaParameters
    ):
        ptx.grid_dependency_wait()
        tile = cuda.shared.array(TILE_KEYS, key_type)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        # Blocks that run together have neighbouring rows, for these share lines of memory.
        block = p.first + i64(cuda.blockIdx.x)
        n_row_groups = (p.n_rows + (TRANSPOSED_ROWS - 1)) // TRANSPOSED_ROWS
        above = block // n_row_groups
        first_row = (block - above * n_row_groups) * TRANSPOSED_ROWS
        part = above // m.n_coarse
        chunk = above - part * m.n_coarse
        # Lanes beyond the last row read that, too, and what they find is not stored.
        row = min(first_row + i64(lane), p.n_rows - 1)
        start, length = row_window(windows, p.layout, offsets, row, p.axis_size, p.window_format)
        x += start * p.strides.x * element_size
        _, _, _, _, address, _, n_vectors = locate(
            x, offsets, row, part, length, m.part_size, p.strides.x, element_size, p.layout
        )
        if ptx.ballot((chunk & ~(MAXIMA_WARPS - 1)) * chunk_vectors < n_vectors) == 0:
            return
        unfolding = unfolding_of(p.unfolded_format, False)
        step = p.strides.x * element_size
        elements = cuda.local.array(in_flight, key_type)
        group = warp * u32(n_batches * groups_per_batch)
        first = (chunk * FINE_PER_CHUNK + i64(group)) * group_elements
        address += first * step
        n_left = u32(max(n_vectors * per_vector - first, 0))
        for _ in range(n_batches):
            load_batch(elements, address, step, n_left)
            address += in_flight * step
            for at in range(groups_per_batch):
                key = group_key(elements, at, unfolding)
                if n_left <= u32(at * group_elements):
                    key = key_type(0)
                tile[lane * TILE_PITCH + group] = key
                group += 1
            n_left = max(n_left, u32(in_flight)) - in_flight
        cuda.syncthreads()
        for at in range(ROWS_PER_WARP):
            tile_row = warp * ROWS_PER_WARP + u32(at)
            row = first_row + i64(tile_row)
            if row < p.n_rows:
                number = (row * m.n_parts + part) * m.n_coarse + chunk
                key = tile[tile_row * TILE_PITCH + lane]
                store_key(fine + (number * FINE_PER_CHUNK + i64(lane)) * n_bytes, key)
                best = warp_max(key)
                if lane == 0:
                    store_key(coarse + number * n_bytes, best)

    return transposed_group_maxima
