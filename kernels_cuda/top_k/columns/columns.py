"""One lane per row, where rows are columns of neighbours in memory, as along any axis but the last.

Neighbouring lanes walk down neighbouring columns, so every load is coalesced. A lane keeps candidates of its
column in shared memory, and all lanes of a warp do the same at the same time:

1. Append what is at or above the lane's threshold, of which there is none at first.
2. Once the candidates of any lane might overflow, bisect for a higher threshold that at least k of them are
   at or above, and drop the others. Should ties leave too many, the last position to stay is bisected, too.
3. In the end exactly k are kept and sorted.

So that a trend along the axis does not make every element a candidate, a column is walked in chunks of rows
that lie far from each other. Elements are compared with the threshold by their unfolded keys (`keys`).

If there are few columns, each is split: warps of a block take parts of it and merge what they select.

Columns that end early (`lengths`) are walked down together with the longest one of the warp, and what is
selected from a part of one is filled up to k with candidates that come last.

Reads the columns once.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import device_function, dynamic_shared_array, linked_function
from kernels_cuda.top_k.columns.candidates import LAST_POSITION, NOWHERE, candidate_functions
from kernels_cuda.top_k.columns.columns_launches import (
    POSITION_BYTES,
    POSITION_STEP,
    ColumnsParameters,
    chunk_rows,
    column_key_bytes,
)
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.results import row_functions
from kernels_cuda.top_k.shared.shapes import WARP_LANES


def columns_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    restore = functions.restore
    unfolding_of = functions.unfolding_of
    unfolded_element = functions.unfolded_element
    unfold_threshold = functions.unfold_threshold
    unfold_next_above = functions.unfold_next_above
    keep_first, sort_candidates, merge_selected = candidate_functions(element_size)
    load_element = functions.load_element
    find_row, write_result, pad_results = row_functions(element_size)
    slot_bytes = column_key_bytes(element_size)
    load_key = ptx.LOAD_SHARED[slot_bytes]
    store_key = ptx.STORE_SHARED[slot_bytes]
    load_position = ptx.LOAD_SHARED[POSITION_BYTES]
    store_position = ptx.STORE_SHARED[POSITION_BYTES]
    key_step = WARP_LANES * slot_bytes
    n_rows_ahead = chunk_rows(element_size)

    @linked_function
    def walk_chunk(ahead, address, step, at, threshold, is_open, slot, position_slot, unfolding):
        """Append what is at or above the threshold in a chunk; load another chunk from `address` instead."""
        for place in range(n_rows_ahead):
            bits = ahead[place]
            ahead[place] = load_element(address)
            address += step
            # Not `and`, which would branch.
            if (unfolded_element(bits, unfolding) >= threshold) & is_open:
                store_key(slot, bits)
                store_position(position_slot, at + u32(place))
                slot += key_step
                position_slot += POSITION_STEP
        return slot, position_slot

    @linked_function
    def load_chunk(ahead, address, step):
        for place in range(n_rows_ahead):
            ahead[place] = load_element(address)
            address += step

    @device_function
    def following_chunk(chunk, cycle, n_chunks, stride):
        """Return the chunk after this one, and the round.

        Chunks follow each other some 0.618 of the column apart; a round that leads back to its first chunk is
        followed by a round from the next one.
        """
        chunk += stride
        if chunk >= n_chunks:
            chunk -= n_chunks
        if chunk == cycle:
            cycle += 1
            chunk = cycle
        return chunk, cycle

    @linked_function
    def merge_parts(first_slot, first_position, part, n_parts, warp_slots, n_selected):
        """Merge what the warps of a column have selected; return the number of the first slot of it.

        It moves between the first and the second `n_selected` slots.
        """
        own = u32(0)
        free = n_selected
        distance = u32(1)
        while distance < n_parts:
            cuda.syncthreads()
            if part & ((distance << 1) - 1) == 0:
                theirs = own + distance * warp_slots
                merge_selected(
                    first_slot + own * key_step,
                    first_position + own * POSITION_STEP,
                    first_slot + theirs * key_step,
                    first_position + theirs * POSITION_STEP,
                    first_slot + free * key_step,
                    first_position + free * POSITION_STEP,
                    n_selected,
                )
            own = n_selected - own
            free = n_selected - free
            distance <<= 1
        return own

    @linked_function
    def write_column(slot, position_slot, n_written, base, values, indices, p):
        pad_results(values, indices, n_written, 1, p.k, p)
        rank = i64(0)
        while rank < n_written:
            position = i64(load_position(position_slot))
            address = base + position * (p.strides.x * element_size)
            write_result(values, indices, rank, restore(load_key(slot), p.key_format, address), position, p)
            slot += key_step
            position_slot += POSITION_STEP
            rank += 1

    @cuda.jit
    def column_top_k(x, windows: Windows, values, indices, offsets, p: RowParameters, c: ColumnsParameters):
        ptx.grid_dependency_wait()
        shared = ptx.shared_address(dynamic_shared_array(key_type))
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        n_selected = u32(p.k)
        unfolding = unfolding_of(p.unfolded_format, False)
        n_parts = u32(c.parts_per_block)
        group = warp // n_parts
        part = warp - group * n_parts
        groups_per_block = (u32(cuda.blockDim.x) >> 5) // n_parts
        block = p.first + i64(cuda.blockIdx.x)
        column = (block * i64(groups_per_block) + i64(group)) * WARP_LANES + i64(lane)
        row = min(column, p.n_rows - 1)
        base, values, indices, length = find_row(x, windows, values, indices, offsets, row, p)
        n_written = min(p.k, length)
        step = p.strides.x * element_size
        # Of a column that ends before others of the warp, other elements are loaded again, and left out.
        last_at = p.window_format.bound - indices.start - n_rows_ahead
        size = u32(p.axis_size)
        first_row = (size * part) // n_parts
        end_row = min((size * (part + 1)) // n_parts, max(u32(length), first_row))

        # The rest that fills no chunk comes first: without a threshold, each element is a candidate.
        first_rest = end_row - (end_row - first_row) % n_rows_ahead
        n_chunks = ptx.warp_max((first_rest - first_row) // n_rows_ahead)
        warp_slots = u32(c.n_slots)
        lane_slots = warp * warp_slots * WARP_LANES + lane
        first_slot = shared + lane_slots * slot_bytes
        first_position = shared + u32(c.position_offset) + lane_slots * POSITION_BYTES
        slot = first_slot
        position_slot = first_position
        at = first_rest
        while at < end_row:
            store_key(slot, load_element(base + i64(at) * step))
            store_position(position_slot, at)
            slot += key_step
            position_slot += POSITION_STEP
            at += 1

        stride = max(u32(1), (n_chunks * 2531) >> 12)
        cycle = u32(0)
        chunk = u32(0)
        remaining = n_chunks
        evens = cuda.local.array(n_rows_ahead, key_type)
        odds = cuda.local.array(n_rows_ahead, key_type)
        is_odd = False
        at = first_row
        next_at = first_row
        if n_chunks > 0:
            if n_chunks > 1:
                chunk = stride
                next_at = first_row + chunk * n_rows_ahead
            load_chunk(evens, base + min(i64(at), last_at) * step, step)
            load_chunk(odds, base + min(i64(next_at), last_at) * step, step)

        full = first_slot + u32((c.n_slots - n_rows_ahead) * key_step)
        held = u32(0)
        low_threshold = key_type(0)
        next_above = key_type(0)
        last_tie = u32(NOWHERE)
        while True:
            if remaining > 0:
                remaining -= 1
                chunk, cycle = following_chunk(chunk, cycle, n_chunks, stride)
                if remaining < 2:
                    chunk = u32(0)
                new_at = first_row + chunk * n_rows_ahead
                address = base + min(i64(new_at), last_at) * step
                threshold = low_threshold
                is_open = at < first_rest
                if at > last_tie:
                    threshold = next_above
                    is_open = is_open and next_above != 0
                if is_odd:
                    slot, position_slot = walk_chunk(
                        odds, address, step, at, threshold, is_open, slot, position_slot, unfolding
                    )
                else:
                    slot, position_slot = walk_chunk(
                        evens, address, step, at, threshold, is_open, slot, position_slot, unfolding
                    )
                is_odd = not is_odd
                at = next_at
                next_at = new_at
            if remaining > 0 and ptx.ballot(slot > full) == 0:
                continue

            count = (slot - first_slot) // key_step
            most = n_selected
            if remaining > 0:
                most = n_selected + u32(c.n_spare)
            held, smallest, last_tie = keep_first(
                first_slot, first_position, count, held, n_selected, most, p.key_format
            )
            slot = first_slot + held * key_step
            position_slot = first_position + held * POSITION_STEP
            # Whatever comes after the last of `n_selected` candidates must have a larger key than it.
            if held >= n_selected:
                low_threshold = unfold_threshold(smallest, p.key_format)
                next_above = unfold_next_above(smallest, p.key_format)
            else:
                last_tie = u32(NOWHERE)
            if remaining == 0:
                break
        while held < n_selected:
            store_key(first_slot + held * key_step, key_type(0))
            store_position(first_position + held * POSITION_STEP, u32(LAST_POSITION))
            held += 1
        sort_candidates(first_slot, first_position, n_selected)

        own = merge_parts(first_slot, first_position, part, n_parts, warp_slots, n_selected)
        if part == 0 and column < p.n_rows:
            slot = first_slot + own * key_step
            position_slot = first_position + own * POSITION_STEP
            write_column(slot, position_slot, n_written, base, values, indices, p)

    return column_top_k
