"""Rounds that select one element each: for k <= 8 and rows of up to 512 elements, several of them per warp.

1. Load the row; each of its lanes has up to 32 keys.
2. In every round, find the largest key of each lane, then of all lanes of the row. Of equal ones, the one
   with the smallest position is selected. Lane after lane remembers one.
3. Write the k values and indices. If they are not to be sorted, they come by ascending index: each lane
   counts how many of the k positions are smaller than its own.

Keys (`aligned_keys`) of 8 and 16 bits make one number with the inverted position, which no other element has:
the next one selected is the largest number below the last one. They stay in registers.

Keys of 32 and 64 bits leave no room for the position. They move to shared memory in groups, and a lane knows
the first key of each of its groups, the head. What is selected is a head; only its group is read again, and a
mask tells which of its keys are left.

The rounds take the same time whatever the data. Reads the row once, writes k values and indices.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.cooperate import shared_vectors
from kernels_cuda.ptx import i64, u32
from kernels_cuda.runtime.compiler import linked_function
from kernels_cuda.top_k.shared.aligned_keys import register_functions
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.results import RowIndices, row_functions
from kernels_cuda.top_k.shared.rows import row_start
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES
from kernels_cuda.top_k.shared.unaligned import extent_function
from kernels_cuda.top_k.short_rows.rounds_launches import FEW_ROUNDS, ROUNDS_THREADS
from kernels_cuda.top_k.short_rows.row_lanes import extremes_of_lanes, place_functions

_NOWHERE = 0xFFFFFFFF
# The low half of a number holds the inverted position.
_POSITIONS = (1 << 16) - 1
# Selected positions that a lane compares with all others at a time.
_RANKED_TOGETHER = 4
# Keys of a group: as many as the largest k, so that no group ever runs empty.
_GROUP_KEYS = FEW_ROUNDS


def rounds_kernel(element_size: int, n_lanes: int, n_keys: int) -> Any:
    """Make the kernel for rows of up to ``n_lanes * n_keys`` elements."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    load_element = functions.load_element
    find_row, write_result, pad_results = row_functions(element_size)
    is_narrow = element_size <= 2
    keys_per_vector, load_vector, store_vector = shared_vectors(key_type)
    per_vector = VECTOR_BYTES // element_size
    n_vectors = n_keys // per_vector
    n_groups = n_keys // _GROUP_KEYS
    group_vectors = _GROUP_KEYS // per_vector
    n_kept = ROUNDS_THREADS * n_keys
    pass_elements = n_lanes * per_vector
    extent_of = extent_function(element_size)
    load_elements, make_keys = register_functions(element_size, n_keys, pass_elements, False)
    last_lane = n_lanes - 1
    lane_bits = last_lane.bit_length()
    # A lane remembers so many of the selected positions.
    n_held = -(-FEW_ROUNDS // n_lanes)
    row_max, row_min = extremes_of_lanes(key_type, n_lanes)
    position_of, live_places = place_functions(n_lanes, per_vector)

    if is_narrow:

        @linked_function
        def begin(keys, lane_first, n_before, n_live):
            """Make numbers of keys and positions; return 0, with which the first round begins."""
            for place in range(n_keys):
                keys[place] |= _POSITIONS - position_of(lane_first, u32(place))
            if lane_first < n_before:
                for place in range(per_vector - 1):
                    if u32(place) < n_before:
                        keys[place] = u32(0)
            if n_live < n_keys:
                for place in range(n_keys):
                    if n_live <= place:
                        keys[place] = u32(0)
            return u32(0)

        @linked_function
        def select_next(keys, last):
            """Return the position of the largest number below `last`, and that number."""
            # The differences of numbers below it wrap around, and so are larger than those of all others.
            best = u32(0)
            for place in range(n_keys):
                best = max(best, keys[place] - last)
            last += row_max(best)
            return _POSITIONS - (last & _POSITIONS), last

    else:

        @linked_function
        def begin(keys, heads, places, kept, thread, n_live):
            """Move the keys to shared memory, in groups, and find the heads of these.

            Places behind the row hold 0, and come after all elements.
            """
            vector = cuda.local.array(keys_per_vector, key_type)
            if n_live < n_keys:
                for place in range(n_keys):
                    if n_live <= place:
                        keys[place] = key_type(0)
            for number in range(n_vectors):
                for at in range(keys_per_vector):
                    vector[at] = keys[number * keys_per_vector + at]
                store_vector(vector, kept, thread + u32(number * ROUNDS_THREADS))
            for group in range(n_groups):
                first = group * _GROUP_KEYS
                heads[group] = keys[first]
                places[group] = u32(first)
                for place in range(first + 1, first + _GROUP_KEYS):
                    if keys[place] > heads[group]:
                        heads[group] = keys[place]
                        places[group] = u32(place)

        @linked_function
        def first_head(heads, places):
            """Return the first of the heads of a lane's groups, and its place."""
            best = heads[0]
            place = places[0]
            for group in range(1, n_groups):
                if heads[group] > best:
                    best = heads[group]
                    place = places[group]
            return best, place

        @linked_function
        def remove(heads, places, kept, thread, live, place):
            """Take a head away, and find the next one of its group; return which keys the lane has left."""
            vector = cuda.local.array(keys_per_vector, key_type)
            group_keys = cuda.local.array(_GROUP_KEYS, key_type)
            live &= ~u32(u32(1) << place)
            group = place // u32(_GROUP_KEYS)
            first = group * u32(_GROUP_KEYS)
            for number in range(group_vectors):
                group_vector = group * u32(group_vectors) + u32(number)
                load_vector(vector, kept, thread + group_vector * u32(ROUNDS_THREADS))
                for at in range(keys_per_vector):
                    group_keys[number * keys_per_vector + at] = vector[at]
            group_live = live >> first
            best = key_type(0)
            best_place = u32(0)
            for back in range(_GROUP_KEYS):
                at = _GROUP_KEYS - 1 - back
                if (group_live & u32(1 << at)) != 0 and group_keys[at] >= best:
                    best = group_keys[at]
                    best_place = u32(at)
            best_place += first
            for number in range(n_groups):
                heads[number] = best if group == u32(number) else heads[number]
                places[number] = best_place if group == u32(number) else places[number]
            return live

    @cuda.jit
    def rounds_top_k(x, windows: Windows, values, indices, offsets, p: RowParameters, is_sorted):
        ptx.grid_dependency_wait()
        lane = u32(cuda.threadIdx.x) & 31
        row_lane = lane & last_lane
        thread = (p.first + i64(cuda.blockIdx.x)) * ROUNDS_THREADS + i64(cuda.threadIdx.x)
        row = thread >> lane_bits
        # All lanes take part in all rounds, also those of rows with fewer elements; those of no row read the
        # last one.
        read_row = min(row, p.n_rows - 1)
        base, values, indices, length = find_row(x, windows, values, indices, offsets, read_row, p)
        n_before = u32(0)
        if is_narrow:
            # Positions count from the boundary before a row, if there is room for what lies between. Wider
            # keys would need to be told from the last one.
            if p.strides.x == 1:
                n_before = u32(base & (VECTOR_BYTES - 1)) // u32(element_size)
            if u32(length) + n_before > n_lanes * n_keys:
                n_before = u32(0)
            base -= i64(n_before) * element_size
        count = u32(length) + n_before
        n_rounds = u32(p.k)
        n_selected = min(n_rounds, u32(length))
        x_step = p.strides.x * element_size

        # Element e of vector v of a lane is at (n_lanes * v + row_lane) * per_vector + e.
        keys = cuda.local.array(n_keys, key_type)
        lane_first = row_lane * per_vector
        n_live = live_places(lane_first, count)
        load_elements(keys, (base, n_before, count), extent_of(x, p), lane_first, n_live, p)
        make_keys(keys, n_vectors, p.key_format)

        held = cuda.local.array(n_held, u32)
        if is_narrow:
            state = begin(keys, lane_first, n_before, n_live)
            taken = u32(0)
            while taken < n_rounds:
                position, state = select_next(keys, state)
                for number in range(n_held):
                    if taken == row_lane + u32(number * n_lanes):
                        held[number] = position
                taken += 1
        else:
            kept = cuda.shared.array(n_kept, key_type, VECTOR_BYTES)
            heads = cuda.local.array(n_groups, key_type)
            places = cuda.local.array(n_groups, u32)
            own = u32(cuda.threadIdx.x)
            begin(keys, heads, places, kept, own, n_live)
            live = u32(_NOWHERE)
            taken = u32(0)
            while True:
                best, place = first_head(heads, places)
                offered = position_of(lane_first, place)
                if best != row_max(best):
                    offered = u32(_NOWHERE)
                position = row_min(offered)
                for number in range(n_held):
                    if taken == row_lane + u32(number * n_lanes):
                        held[number] = position
                taken += 1
                if taken == n_rounds:
                    break
                if position == offered:
                    live = remove(heads, places, kept, own, live, place)

        ranks = cuda.local.array(n_held, u32)
        for number in range(n_held):
            ranks[number] = row_lane + u32(number * n_lanes)
        if is_sorted == 0:
            for number in range(n_held):
                if ranks[number] >= n_selected:
                    held[number] = u32(_NOWHERE)
                ranks[number] = u32(0)
            row_first = lane & ~u32(last_lane)
            for first in range(0, FEW_ROUNDS, _RANKED_TOGETHER):
                if n_rounds > first:
                    for taken in range(first, first + _RANKED_TOGETHER):
                        position = ptx.shuffle_from_u32(
                            held[taken // n_lanes], row_first + u32(taken % n_lanes)
                        )
                        for number in range(n_held):
                            ranks[number] += u32(position < held[number])

        # Found anew: it would cost a register while elements are selected.
        start = row_start(windows, offsets, read_row, p) - i64(n_before)
        outputs = RowIndices(indices.address, start)
        for number in range(n_held):
            if row < p.n_rows and row_lane + u32(number * n_lanes) < n_selected:
                position = i64(held[number])
                element = load_element(base + position * x_step)
                write_result(values, outputs, ranks[number], element, position, p)
        if row < p.n_rows:
            pad_results(values, outputs, n_selected + row_lane, n_lanes, p.k, p)

    return rounds_top_k
