"""Rounds for a k of up to 64 and rows of up to 1024 elements, several of them per warp.

What `rounds` keeps in registers lies in shared memory here, so that k may be any.

1. Load the row; each of its lanes has up to 32 keys. They move to shared memory, and the lane keeps the first
   one of each of its groups, the head.
2. In every round, find the first head of each lane, then of all lanes of the row. Of equal ones, the one with
   the smallest position is selected, and its position put down in shared memory. Each of some lanes reads one
   key of its group; the first of those that come after what was selected is the group's next head.
3. Write the k values and indices. If they are not to be sorted, they come by ascending index: each of the k
   positions sets a bit, and follows those whose bits come before its own.

Keys (`aligned_keys`) of 8 and 16 bits make one number with the inverted position, which no other element has.
Of keys of 32 and 64 bits, lanes keep the positions of their heads.

The rounds take the same time whatever the data. Reads the row once, writes k values and indices.
"""

from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.cooperate import vectors_at
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import (
    dynamic_shared_array,
    linked_function,
    target_capability,
)
from kernels_cuda.top_k.shared.aligned_keys import register_functions
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.long_rows import begin_beside_others
from kernels_cuda.top_k.shared.results import RowIndices, row_functions
from kernels_cuda.top_k.shared.rows import row_start
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES, WARP_LANES
from kernels_cuda.top_k.shared.unaligned import extent_function
from kernels_cuda.top_k.short_rows.rounds_launches import ROUNDS_THREADS
from kernels_cuda.top_k.short_rows.row_lanes import extremes_of_lanes, place_functions

_NOWHERE = 0xFFFFFFFF
# The low half of a number holds the inverted position.
_POSITIONS = (1 << 16) - 1
# By the bytes of a lane's keys: ten or eight blocks share a multiprocessor. Older devices might spill.
_REGISTERS = {64: 48, 128: 64}
# Keys of a group at most: as many lanes read one each.
_GROUP_KEYS = 8


class Areas(NamedTuple):
    """Shared memory, in which each lane has a part, and each row what its lanes have.

    Attributes
    ----------
    keys : Any
        All keys of a lane.
    selected : Any
        The positions that are selected, in order.
    marks, n_earlier : Any
        A word of bits of positions that are selected, and how many are in those of earlier lanes.
    """

    keys: Any
    selected: Any
    marks: Any
    n_earlier: Any


def select_function(element_size: int, n_lanes: int, n_keys: int) -> Any:
    """Make the device function for rows of up to ``n_lanes * n_keys`` elements; whole warps call it."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    load_element = functions.load_element
    find_row, write_result, pad_results = row_functions(element_size)
    is_narrow = element_size <= 2
    key_bytes = max(4, element_size)
    load_key = ptx.LOAD_SHARED[key_bytes]
    keys_per_vector, _, store_vector = vectors_at(key_type)
    per_vector = VECTOR_BYTES // element_size
    n_vectors = n_keys // per_vector
    pass_elements = n_lanes * per_vector
    # A group has the keys of some elements of a lane that follow each other. Its first one's position is that
    # of any of them without some bits.
    group_keys = min(_GROUP_KEYS, n_lanes)
    n_groups = n_keys // group_keys
    group_elements = min(group_keys, per_vector)
    group_vectors = group_keys // group_elements
    group_mask = (n_lanes * n_keys - 1) & ~((group_elements - 1) | (group_vectors - 1) * pass_elements)
    extent_of = extent_function(element_size)
    load_elements, make_keys = register_functions(element_size, n_keys, pass_elements, False)
    last_lane = n_lanes - 1
    row_max, row_min = extremes_of_lanes(key_type, n_lanes)
    group_max, group_min = row_max, row_min
    if n_lanes < WARP_LANES:
        group_max, group_min = extremes_of_lanes(key_type, group_keys)
    position_of, live_places = place_functions(n_lanes, per_vector)

    @linked_function
    def clear_others(keys, lane_first, n_before, n_live):
        """Clear the keys of places outside the row; narrow ones make numbers with their positions."""
        if is_narrow:
            for place in range(n_keys):
                keys[place] |= _POSITIONS - position_of(lane_first, u32(place))
        if lane_first < n_before:
            for place in range(per_vector - 1):
                if u32(place) < n_before:
                    keys[place] = key_type(0)
        if n_live < n_keys:
            for place in range(n_keys):
                if n_live <= place:
                    keys[place] = key_type(0)

    @linked_function
    def begin(keys, heads, positions, row_address, lane_first, n_before):
        """Move the keys to shared memory, each to its position in the row, and find the heads of groups."""
        vector = cuda.local.array(keys_per_vector, key_type)
        for number in range(n_keys // keys_per_vector):
            for at in range(keys_per_vector):
                vector[at] = keys[number * keys_per_vector + at]
            position = position_of(lane_first, u32(number * keys_per_vector))
            store_vector(vector, row_address + position * u32(key_bytes))
        for group in range(n_groups):
            first = group * group_keys
            heads[group] = keys[first]
            head_place = u32(first)
            for place in range(first + 1, first + group_keys):
                # The least key is also that of places before the row.
                is_first = not is_narrow and place < per_vector and lane_first + u32(place) <= n_before
                if keys[place] > heads[group] or is_first:
                    heads[group] = keys[place]
                    head_place = u32(place)
            if not is_narrow:
                positions[group] = position_of(lane_first, head_place)
        cuda.syncwarp()

    @linked_function
    def first_head(heads, positions):
        """Return the first of the heads of a lane's groups, and its position unless it is in the number."""
        best = heads[0]
        position = positions[0]
        for group in range(1, n_groups):
            if is_narrow:
                best = max(best, heads[group])
            elif heads[group] > best or position == _NOWHERE:
                best = heads[group]
                position = positions[group]
        return best, position

    @linked_function
    def remove(heads, positions, row_address, lane_first, n_before, last):
        """Find the next head of the group whose head was selected last: ``(key, position)``."""
        selected_key, selected = last
        at = u32(cuda.threadIdx.x) & u32(group_keys - 1)
        group_first = selected & u32(group_mask)
        position = group_first + at // u32(group_elements) * u32(pass_elements) + at % u32(group_elements)
        key = load_key(row_address + position * u32(key_bytes))
        is_left = key < selected_key
        if not is_narrow:
            is_left = (is_left or (key == selected_key and position > selected)) and position >= n_before
        if not is_left:
            key = key_type(0)
        best = group_max(key)
        best_position = u32(_NOWHERE)
        if not is_narrow:
            if is_left and key == best:
                best_position = position
            best_position = group_min(best_position)
        for group in range(n_groups):
            is_next = group_first == position_of(lane_first, u32(group * group_keys))
            heads[group] = best if is_next else heads[group]
            if not is_narrow:
                positions[group] = best_position if is_next else positions[group]

    @linked_function
    def select_all(keys, row, n_rounds, row_address, selected):
        """Put down the positions of the first `n_rounds` elements of a row.

        `row` is ``(first position of the lane, positions before the row)``.
        """
        lane_first, n_before = row
        heads = cuda.local.array(n_groups, key_type)
        positions = cuda.local.array(n_groups, u32)
        begin(keys, heads, positions, row_address, lane_first, n_before)
        taken = u32(0)
        while True:
            best, position = first_head(heads, positions)
            selected_key = row_max(best)
            if is_narrow:
                position = _POSITIONS - (selected_key & _POSITIONS)
            else:
                if best != selected_key:
                    position = u32(_NOWHERE)
                position = row_min(position)
            ptx.store_shared_if_u32(selected, position, lane_first == 0)
            selected += u32(4)
            taken += 1
            if taken == n_rounds:
                break
            remove(heads, positions, row_address, lane_first, n_before, (selected_key, position))
        cuda.syncwarp()

    @linked_function
    def mark_selected(areas, selected, n_selected, row_first, row_lane):
        """Set a bit for each position that is selected; lanes have at most 32 keys, and a word each."""
        own = (row_first + row_lane) << 2
        ptx.store_shared_u32(areas.marks + own, u32(0))
        cuda.syncwarp()
        rank = row_lane
        while rank < n_selected:
            position = ptx.load_shared_u32(selected + (rank << 2))
            word = row_first + (position >> 5)
            ptx.reduce_or_shared_u32(areas.marks + (word << 2), u32(1) << (position & 31))
            rank += n_lanes
        cuda.syncwarp()
        amount = ptx.popcount_u32(ptx.load_shared_u32(areas.marks + own))
        ptx.store_shared_u32(areas.n_earlier + own, ptx.warp_inclusive_sum(amount) - amount)
        cuda.syncwarp()

    @linked_function
    def select_row(operands, areas, row, p, is_sorted):
        """Select from the row of some lanes, unless there is none, or it is longer than the launch's rows."""
        x, windows, values, indices, offsets = operands
        own = u32(cuda.threadIdx.x)
        row_lane = own & last_lane
        row_first = own - row_lane
        # All lanes take part in all rounds, also those of rows with fewer elements; those of no row read the
        # last one.
        read_row = min(row, p.n_rows - 1)
        base, values, indices, length = find_row(x, windows, values, indices, offsets, read_row, p)
        is_served = row < p.n_rows and length <= p.window_format.most
        if not is_served:
            length = i64(0)
        # Positions count from the boundary before a row, if there is room for what lies between.
        n_before = u32(0)
        if p.strides.x == 1:
            n_before = u32(base & (VECTOR_BYTES - 1)) // u32(element_size)
        if u32(length) + n_before > n_lanes * n_keys:
            n_before = u32(0)
        base -= i64(n_before) * element_size
        count = u32(length) + n_before
        n_selected = min(u32(p.k), u32(length))
        n_rounds = max(ptx.warp_max(n_selected), u32(1))

        # Element e of vector v of a lane is at (n_lanes * v + row_lane) * per_vector + e.
        keys = cuda.local.array(n_keys, key_type)
        lane_first = row_lane * per_vector
        n_live = live_places(lane_first, count)
        load_elements(keys, (base, n_before, count), extent_of(x, p), lane_first, n_live, p)
        make_keys(keys, n_vectors, p.key_format)
        clear_others(keys, lane_first, n_before, n_live)
        row_address = areas.keys + row_first * u32(n_keys * key_bytes)
        select_all(keys, (lane_first, n_before), n_rounds, row_address, areas.selected)
        if is_sorted == 0:
            mark_selected(areas, areas.selected, n_selected, row_first, row_lane)

        # Found anew: it would cost a register while elements are selected.
        start = row_start(windows, offsets, read_row, p) - i64(n_before)
        outputs = RowIndices(indices.address, start)
        rank = row_lane
        while rank < n_selected:
            position = ptx.load_shared_u32(areas.selected + (rank << 2))
            place = rank
            if is_sorted == 0:
                word = row_first + (position >> 5)
                before = ptx.load_shared_u32(areas.marks + (word << 2)) & ((u32(1) << (position & 31)) - 1)
                place = ptx.load_shared_u32(areas.n_earlier + (word << 2)) + ptx.popcount_u32(before)
                place -= ptx.load_shared_u32(areas.n_earlier + (row_first << 2))
            element = load_element(base + i64(position) * p.strides.x * element_size)
            write_result(values, outputs, place, element, i64(position), p)
            rank += n_lanes
        if is_served:
            pad_results(values, outputs, n_selected + row_lane, n_lanes, p.k, p)

    return select_row


def shared_rounds_kernel(element_size: int, n_lanes: int, n_keys: int) -> Any:
    """Make the kernel for rows of up to ``n_lanes * n_keys`` elements."""
    key_type = element_functions(element_size).key_type
    select_row = select_function(element_size, n_lanes, n_keys)
    n_kept = ROUNDS_THREADS * n_keys
    lane_bits = n_lanes.bit_length() - 1
    registers = _REGISTERS[n_keys * max(4, element_size)] if target_capability() >= (9, 0) else None

    @cuda.jit(max_registers=registers)
    def shared_rounds_top_k(x, windows: Windows, values, indices, offsets, p: RowParameters, is_sorted):
        if p.window_format.most < p.axis_size:
            begin_beside_others()
        else:
            ptx.grid_dependency_wait()
        own = u32(cuda.threadIdx.x)
        row = ((p.first + i64(cuda.blockIdx.x)) * ROUNDS_THREADS + i64(own)) >> lane_bits
        # The positions of several rows lie in different banks.
        selected = ptx.shared_address(dynamic_shared_array(u32))
        selected += (own >> lane_bits) * (u32(p.k) | 1) << 2
        keys = ptx.shared_address(cuda.shared.array(n_kept, key_type, VECTOR_BYTES))
        marks = ptx.shared_address(cuda.shared.array(ROUNDS_THREADS, u32))
        n_earlier = ptx.shared_address(cuda.shared.array(ROUNDS_THREADS, u32))
        operands = x, windows, values, indices, offsets
        select_row(operands, Areas(keys, selected, marks, n_earlier), row, p, is_sorted)

    return shared_rounds_top_k
