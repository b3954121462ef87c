"""A block a row: what a row of any length is finished by.

1. Find the maxima of groups of neighbouring elements (`groups`), in shared memory.
2. Find a threshold that at least k of them reach, and list the groups that do (`threshold`): some more than k
   or, if too many tie, the first k by (maximum, position). No other group has any of the first k elements.
3. Read the listed groups again, from cache, and keep in shared memory the elements that reach the threshold.
4. Order these by (key, position) (`rank`); the first k are the answer.

Elements that share few groups, or tie, can overflow step 3. Then the bounds of the first k by (key, position)
are narrowed, by histograms of the listed groups' elements, until those within them fit. So the order in which
elements arrive in shared memory never matters, and no data make a block read more than k groups a few times.

Of a long row, other blocks have written two levels of group maxima (`maxima`). Steps 1 and 2 are then done
with the keys of a level instead of elements, and step 3 at each level down to the elements, what it keeps
being the list of the next.

A row longer than `part_size` is `n_parts` parts, whose winners lie one after the other in the output. They
are in order, hence by ascending index where keys are equal: another launch over them, with `sources` telling
the index of each, finishes the row.
"""

from typing import NamedTuple

from numba import cuda, types

from kernels_cuda.compiler import KernelSource, linked_function
from kernels_cuda.ptx import (
    LOAD,
    ballot,
    leading_zeros_u32,
    load_if_u32x4,
    popcount_u32,
    shuffle_from_u32,
    warp_inclusive_sum,
)
from kernels_cuda.top_k.cooperate import count_digit
from kernels_cuda.top_k.groups import CHUNK_VECTORS, VECTORS_A_LANE, group_functions
from kernels_cuda.top_k.keys import N_MASKS, VECTOR_BYTES, element_functions
from kernels_cuda.top_k.locate import locate
from kernels_cuda.top_k.maxima import FINE_A_CHUNK, FINE_BITS, key_bytes
from kernels_cuda.top_k.rank import rank_functions
from kernels_cuda.top_k.rows import N_LAYOUT, store_index
from kernels_cuda.top_k.threshold import (
    FOUND,
    N_COUNTERS,
    bit_length,
    threshold_functions,
)

u16 = types.uint16
u32 = types.uint32
u64 = types.uint64
i64 = types.int64

ELEMENTS, FINE, COARSE = range(3)
# So many more than twice k candidates are still ordered, or groups read, rather than told apart first.
_SPARE = 64


class BlockShape(NamedTuple):
    """How much a block holds: candidates, group maxima in their place, listed groups."""

    n_threads: int
    n_slots: int
    n_groups: int
    n_listed: int
    key_bytes: int

    @property
    def list_offset(self) -> int:
        """Where the list lies in dynamic shared memory."""
        return max(self.n_slots * (self.key_bytes + 4), self.n_groups * self.key_bytes)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a launch; the list is also the order of the candidates, 2 bytes each."""
        return self.list_offset + max(4 * self.n_listed, 2 * self.n_slots)


def block_shape(element_size: int, n_threads: int) -> BlockShape:
    """Return the shape of blocks; those of 512 and 1024 threads need more than 48 KiB of shared memory."""
    n_bytes = key_bytes(element_size)
    if n_threads == 128:
        return BlockShape(n_threads, 1024, 2048, 1024, n_bytes)
    if n_threads == 256:
        return BlockShape(n_threads, 2048, 24576 // n_bytes, 2048, n_bytes)
    return BlockShape(n_threads, 8192 if n_bytes == 4 else 5120, 65536 // n_bytes, 6144, n_bytes)


def block_source(element_size: int, n_threads: int) -> KernelSource:
    """Make the kernel for one element width and block size."""
    shape = block_shape(element_size, n_threads)
    functions = element_functions(element_size)
    key_type = functions.key_type
    order_key = functions.order_key
    restore = functions.restore
    load_element = functions.load_element
    store_element = functions.store_element
    raw_masks = functions.raw_masks
    key_of_raw = functions.key_of_raw
    load_maxima, load_strided_maxima, reduce_maxima = group_functions(element_size)
    find_digit, block_extremes, find_threshold, list_groups = threshold_functions(n_threads, key_type)
    rank_by_counting, make_bins, fill_bins, rank_in_bin, sort_pairs = rank_functions(n_threads, key_type)
    needed_bits = bit_length(key_type)
    load_source_u32 = LOAD[4]
    load_source_u64 = LOAD[8]

    n_warps = n_threads // 32
    n_slots = shape.n_slots
    n_listed_most = shape.n_listed
    lows_at = n_slots * shape.key_bytes // 4
    list_at = shape.list_offset // 4
    n_key_bytes = shape.key_bytes
    per_vector = VECTOR_BYTES // element_size
    keys_a_vector = VECTOR_BYTES // n_key_bytes
    # Groups of a level are this many vectors of the level below, as a power of two.
    fine_list_bits = (FINE_A_CHUNK // keys_a_vector).bit_length() - 1
    digit_bits = n_threads.bit_length() - 1
    element_bits = 8 * element_size
    ones = (1 << element_bits) - 1

    @linked_function
    def fetch(listed, item, n_items, is_listed, group_bits, address, n_vectors, is_strided):
        """Load a listed group's vector, or any; return whether and where it exists, and its two halves."""
        exists = item < n_items
        vector = i64(item)
        if is_listed and exists:
            vector = i64(listed[u32(item >> group_bits)]) << i64(group_bits)
            vector += i64(u32(item & u32((u32(1) << group_bits) - u32(1))))
            exists = vector < n_vectors
        a, b, c, d = load_if_u32x4(address + vector * VECTOR_BYTES, exists and not is_strided)
        return exists, vector, u64(a) | (u64(b) << u64(32)), u64(c) | (u64(d) << u64(32))

    @linked_function
    def key_at(nearer, further, element, width, level, start, stride, masks):
        """Return a vector's key, or that of its element; elements with gaps are read, from `start` on."""
        if element_size == 8:
            bits = nearer
            if element != u32(0):
                bits = further
        else:
            shift = u32(element * width)
            bits = nearer
            if shift >= u32(64):
                bits = further
            bits = bits >> u64(shift & u32(63))
        key = key_type(bits)
        if level == ELEMENTS:
            key = key_type(key & key_type(ones))
            if start != 0:
                key = key_type(load_element(start + i64(element) * stride * element_size))
            key = key_type(order_key(key, *masks))
        return key

    @linked_function
    def reserve(counters, amount, lane):
        """Take `amount` slots; return the first. One atomic operation a warp."""
        through = warp_inclusive_sum(amount)
        base = u32(0)
        if lane == u32(31):
            base = u32(cuda.atomic.add(counters, FOUND, through))
        base = shuffle_from_u32(base, u32(31))
        return u32(base + through - u32(amount))

    @linked_function
    def count_in_range(histogram, key, low, exists, in_keys, bound, key_end, low_bound, low_end, shift, lane):
        """Count the bin of a key, or of a low that comes with the key `bound`."""
        counts = exists and bound <= key <= key_end
        digit = u32(key_type(key - bound) >> key_type(shift))
        if not in_keys:
            counts = exists and key == bound and low_bound <= low <= low_end
            digit = u32(u32(low - low_bound) >> shift)
        count_digit(histogram, counts, digit, lane)

    def block_top_k(
        x,
        values,
        indices,
        sources,
        fine,
        coarse,
        offsets,
        source_size,
        index_size,
        first_block,
        axis_size,
        part_size,
        n_parts,
        k,
        x_stride,
        value_stride,
        index_stride,
        top_level,
        lane_bits,
        enough,
        n_chunks,
        layout,
        masks,
    ):
        keys = cuda.shared.array(0, key_type)
        words = cuda.shared.array(0, u32)
        halves = cuda.shared.array(0, u16)
        lows = words[lows_at:]
        listed = words[list_at:]
        order = halves[2 * list_at :]
        histogram = cuda.shared.array(n_threads, u32)
        sums = cuda.shared.array(64, u32)
        extremes = cuda.shared.array(64, key_type)
        counters = cuda.shared.array(N_COUNTERS, u32)

        thread = u32(cuda.threadIdx.x)
        lane = u32(thread & u32(31))
        warp = u32(thread >> u32(5))
        unit = first_block + i64(cuda.blockIdx.x)
        row, part, value_row, index_row, base, first_address, head, n_row_vectors = locate(
            x, offsets, unit, axis_size, part_size, n_parts, x_stride, element_size, layout
        )
        begin = part * part_size
        count = min(part_size, axis_size - begin)
        wanted = u32(min(k, count))
        histogram[thread] = u32(0)
        if thread < u32(N_COUNTERS):
            counters[thread] = u32(0)

        # What a level's vectors are: where, how many, and how many elements or keys in each.
        level = top_level
        address = first_address
        n_vectors = n_row_vectors
        if level == FINE:
            address = fine + unit * n_chunks * FINE_A_CHUNK * n_key_bytes
            n_vectors = n_chunks * FINE_A_CHUNK // keys_a_vector
        elif level == COARSE:
            address = coarse + unit * n_chunks * n_key_bytes
            n_vectors = n_chunks // keys_a_vector

        # Elements before the first and after the last whole vector are in no group: the first threads have
        # one each.
        edge_key = key_type(0)
        edge = i64(thread)
        n_edges = count - n_row_vectors * per_vector
        if edge < n_edges:
            if edge >= head:
                edge += n_row_vectors * per_vector
            edge_key = key_type(order_key(load_element(base + edge * x_stride * element_size), *masks))

        group_bits = u32(0)
        is_listed = False
        n_inner = u32(n_vectors)
        bound = key_type(0)
        highest = key_type(ones)
        n_groups = u32((n_vectors + (i64(1) << lane_bits) - 1) >> lane_bits)
        if n_groups > wanted and (count > n_slots or i64(wanted) * 4 < count):
            are_keys = level != ELEMENTS
            in_vectors = are_keys or x_stride == 1
            raw_mask = raw_masks(masks, are_keys)
            bits = u32(lane_bits)
            apart = u32(u32(32) >> bits)
            maxima = cuda.local.array(VECTORS_A_LANE, key_type)
            vector = u32(u32(warp * u32(CHUNK_VECTORS)) + lane)
            while u32(vector - lane) < u32(n_vectors):
                n_left = u32(max(u32(n_vectors), vector) - vector)
                if in_vectors:
                    load_maxima(maxima, address + i64(vector) * VECTOR_BYTES, n_left, raw_mask)
                else:
                    start = address + i64(vector) * VECTOR_BYTES * x_stride
                    load_strided_maxima(maxima, start, x_stride, n_left, raw_mask)
                group = u32(reduce_maxima(maxima, lane, bits) + (u32(vector - lane) >> bits))
                keys[group] = maxima[0]
                if bits < u32(3):
                    keys[u32(group + apart)] = maxima[1]
                if bits < u32(2):
                    for at in range(2, 4):
                        keys[u32(group + u32(apart * u32(at)))] = maxima[at]
                if bits < u32(1):
                    for at in range(4, 8):
                        keys[u32(group + u32(apart * u32(at)))] = maxima[at]
                vector = u32(vector + u32(n_warps * CHUNK_VECTORS))
            cuda.syncthreads()
            lowest = key_type(~key_type(0))
            highest = edge_key
            group = thread
            while group < n_groups:
                key = key_type(key_of_raw(keys[group], raw_mask, are_keys, masks))
                keys[group] = key
                lowest = min(lowest, key)
                highest = max(highest, key)
                group = u32(group + u32(n_threads))
            lowest, highest = block_extremes(extremes, lowest, highest, lane, warp)
            bound, n_above, reaching = find_threshold(
                keys,
                n_groups,
                lowest,
                highest,
                wanted,
                u32(enough),
                histogram,
                sums,
                counters,
                thread,
                lane,
                warp,
            )
            n_ties = u32(0xFFFFFFFF)
            if reaching > u32(enough):
                n_ties = u32(wanted - n_above)
                reaching = wanted
            list_groups(keys, n_groups, bound, n_ties, listed, sums, lane, warp)
            group_bits = u32(lane_bits)
            is_listed = True
            n_inner = u32(reaching << group_bits)
        else:
            cuda.syncthreads()

        searching_levels = True
        while searching_levels:
            # Few more than are wanted: each is a group to read or a candidate to order.
            limit = u32(n_slots)
            if is_listed:
                limit = min(limit, u32(u32(wanted << u32(1)) + u32(_SPARE)))
            n_each = u32(per_vector)
            first_position = head
            n_positions = count
            width = u32(element_bits)
            if level != ELEMENTS:
                limit = min(limit, u32(n_listed_most))
                n_each = u32(keys_a_vector)
                first_position = i64(0)
                n_positions = n_vectors * keys_a_vector
                width = u32(8 * n_key_bytes)
            is_strided = level == ELEMENTS and x_stride != 1

            # Collecting keeps what is at least (bound, low_bound). If that is too much, a range of keys, then
            # one of positions, is narrowed until what is at least its lower end fits.
            collecting = True
            in_keys = True
            low_bound = u32(0)
            key_end = highest
            low_end = u32(0xFFFFFFFF)
            needed = wanted
            narrowing = True
            while narrowing:
                span = key_type(key_end - bound)
                if not in_keys:
                    span = key_type(u32(low_end - low_bound))
                shift = u32(max(needed_bits(span), u32(digit_bits)) - u32(digit_bits))
                first = u32(warp << u32(5))
                exists, vector, nearer, further = fetch(
                    listed, u32(first + lane), n_inner, is_listed, group_bits, address, n_vectors, is_strided
                )
                while first < n_inner and ballot(collecting and counters[FOUND] > limit) == u32(0):
                    first = u32(first + u32(n_threads))
                    next_exists, next_vector, next_nearer, next_further = fetch(
                        listed,
                        u32(first + lane),
                        n_inner,
                        is_listed,
                        group_bits,
                        address,
                        n_vectors,
                        is_strided,
                    )
                    position = vector * i64(n_each) + first_position
                    start = i64(0)
                    if is_strided and exists:
                        start = base + position * x_stride * element_size
                    kept = u32(0)
                    element = u32(0)
                    while element < n_each:
                        key = key_at(nearer, further, element, width, level, start, x_stride, masks)
                        low = u32(u32(~position) - element)
                        if collecting:
                            is_kept = exists and (key > bound or (key == bound and low >= low_bound))
                            kept = u32(kept | (u32(is_kept) << element))
                        else:
                            count_in_range(
                                histogram,
                                key,
                                low,
                                exists,
                                in_keys,
                                bound,
                                key_end,
                                low_bound,
                                low_end,
                                shift,
                                lane,
                            )
                        element = u32(element + u32(1))
                    if ballot(kept) != u32(0):
                        slot = reserve(counters, popcount_u32(kept), lane)
                        while kept != u32(0) and slot < u32(n_slots):
                            element = u32(u32(31) - leading_zeros_u32(kept))
                            kept = u32(kept ^ (u32(1) << element))
                            keys[slot] = key_at(
                                nearer, further, element, width, level, start, x_stride, masks
                            )
                            lows[slot] = u32(u32(~position) - element)
                            slot = u32(slot + u32(1))
                    exists = next_exists
                    vector = next_vector
                    nearer = next_nearer
                    further = next_further
                if level == ELEMENTS and warp == u32(0):
                    exists = i64(thread) < n_edges
                    low = u32(~edge)
                    if collecting:
                        is_kept = exists and (edge_key > bound or (edge_key == bound and low >= low_bound))
                        slot = reserve(counters, u32(is_kept), lane)
                        if is_kept and slot < u32(n_slots):
                            keys[slot] = edge_key
                            lows[slot] = low
                    else:
                        count_in_range(
                            histogram,
                            edge_key,
                            low,
                            exists,
                            in_keys,
                            bound,
                            key_end,
                            low_bound,
                            low_end,
                            shift,
                            lane,
                        )
                cuda.syncthreads()
                if collecting:
                    narrowing = counters[FOUND] > limit
                    collecting = False
                else:
                    digit, larger, amount = find_digit(histogram, sums, counters, needed, thread, lane, warp)
                    needed = u32(needed - larger)
                    collecting = u32(u32(wanted - needed) + amount) <= limit
                    if in_keys:
                        bound = key_type(bound + (key_type(digit) << key_type(shift)))
                        reach = key_type((key_type(1) << key_type(shift)) - key_type(1))
                        key_end = key_type(bound + min(key_type(key_end - bound), reach))
                        if shift == u32(0) and not collecting:
                            in_keys = False
                            low_bound = u32(~(n_positions - 1))
                    else:
                        low_bound = u32(low_bound + (digit << shift))
                        low_reach = u32((u32(1) << shift) - u32(1))
                        low_end = u32(low_bound + min(u32(low_end - low_bound), low_reach))
                if narrowing:
                    cuda.syncthreads()
                    if thread == u32(0):
                        counters[FOUND] = u32(0)
                    cuda.syncthreads()

            searching_levels = level != ELEMENTS
            if searching_levels:
                n_found = counters[FOUND]
                pair = thread
                while pair < n_found:
                    listed[pair] = u32(~lows[pair])
                    pair = u32(pair + u32(n_threads))
                is_listed = True
                level -= 1
                address = first_address
                n_vectors = n_row_vectors
                group_bits = u32(FINE_BITS)
                if level == FINE:
                    address = fine + unit * n_chunks * FINE_A_CHUNK * n_key_bytes
                    n_vectors = n_chunks * FINE_A_CHUNK // keys_a_vector
                    group_bits = u32(fine_list_bits)
                n_inner = u32(n_found << group_bits)
                cuda.syncthreads()
                if thread == u32(0):
                    counters[FOUND] = u32(0)
                cuda.syncthreads()

        n_pairs = counters[FOUND]
        value_base = values + (value_row + part * k * value_stride) * element_size
        index_base = indices + (index_row + part * k * index_stride) * index_size
        counts_ranks = n_pairs <= u32(n_threads // 4)
        is_binned = False
        rank = u32(n_pairs)
        place = thread
        bins = (key_type(0), u32(0), u32(0), u32(0), u32(0), u32(0), u32(0), u32(0))
        if counts_ranks:
            rank = rank_by_counting(keys, lows, n_pairs, thread)
            place = u32(thread >> u32(2))
            if u32(thread & u32(3)) != u32(0):
                place = n_pairs
        else:
            attempt = 0
            while attempt < 2 and not is_binned:
                bins = make_bins(keys, lows, n_pairs, count, attempt == 1, sums, extremes, thread, lane, warp)
                is_binned = not fill_bins(
                    keys, lows, order, n_pairs, bins, histogram, sums, counters, thread, lane, warp
                )
                attempt += 1
            if not is_binned:
                sort_pairs(keys, lows, n_pairs, thread)
        while place < n_pairs:
            pair = place
            if is_binned:
                pair = u32(order[place])
                rank = rank_in_bin(keys, lows, order, pair, histogram, bins)
            elif not counts_ranks:
                rank = place
            if rank < wanted:
                position = i64(u32(~lows[pair]))
                bits = restore(keys[pair], masks, base + position * x_stride * element_size)
                store_element(value_base + i64(rank) * value_stride * element_size, bits)
                source = begin + position
                if sources != 0:
                    if source_size == 4:
                        source = i64(load_source_u32(sources + (row * axis_size + source) * 4))
                    else:
                        source = i64(load_source_u64(sources + (row * axis_size + source) * 8))
                store_index(index_base + i64(rank) * index_stride * index_size, index_size, source)
            place = u32(place + u32(n_threads))

    return KernelSource(
        block_top_k,
        {"layout": N_LAYOUT, "masks": N_MASKS},
        max_registers=64 if n_threads >= 256 else None,
        dynamic_shared_bytes=shape.shared_bytes,
    )
