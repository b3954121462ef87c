"""A block a row, or a block a part of a long row.

1. Read the row once, keeping the largest order key of every group of a thread's vectors.
2. Bisect, by block-wide counts of these maxima, for a threshold that at least k groups reach. Then at least k
   elements reach it, and none that does not can be among the first k.
3. Read the groups that reach it again, from cache, and keep in shared memory the elements that do.
4. Order these by (key, position); the first k are the answer.

Many equal keys at the threshold can overflow step 3. Then the exact k-th (key, position) is found by radix
select over the row, most significant digit first, the bits of the position following those of the key.
Exactly k elements are at or before it, and steps 3 and 4 are done with these. So the order in which elements
arrive in shared memory never matters.

Reads the row once, and what step 3 needs again; the radix select reads it once a digit.

A row longer than `part_size` is `n_parts` parts, whose winners lie one after the other in the output. They
are in order, hence by ascending index where keys are equal: another launch over them, with `sources` telling
the index of each, finishes the row.
"""

from numba import cuda, types

from kernels_cuda.compiler import KernelSource, device_function
from kernels_cuda.ptx import LOAD, ballot, leading_zeros_u32, load_u32x4, popcount_u32
from kernels_cuda.top_k.cooperate import (
    block_functions,
    count_digit,
    rank_functions,
    reserve,
    warp_maximum,
)
from kernels_cuda.top_k.keys import N_MASKS, VECTOR_BYTES, element_functions
from kernels_cuda.top_k.rows import N_LAYOUT, row_offsets, store_index

u16 = types.uint16
u32 = types.uint32
u64 = types.uint64
i64 = types.int64

# Vectors that a thread loads before it looks at the first.
VECTORS_IN_FLIGHT = 4
# A first guess of how far below the largest key the threshold lies, in bits: a small factor for floats.
_FIRST_REACH_BITS = {1: 2, 2: 6, 4: 22, 8: 50}

# Places of the shared counters.
_FOUND = 0
_LISTED = 1
_DIGIT = 2
_NEEDED = 3
_EQUAL = 4


def capacity(element_size: int, n_threads: int) -> int:
    """Return how many candidates a block holds: what fits, with the rest, into 48 KiB of shared memory."""
    if n_threads == 128:
        return 1024
    return 3072 if element_size == 8 else 4096


def block_source(element_size: int, n_threads: int) -> KernelSource:
    """Make the kernel for one element width and block size."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    order_key = functions.order_key
    restore = functions.restore
    load_element = functions.load_element
    store_element = functions.store_element
    vector_maximum = functions.vector_maximum
    spread_vector = functions.spread_vector
    block_sum, block_inclusive_sum = block_functions(n_threads)
    rank_by_counting, sort_pairs = rank_functions(n_threads, key_type)
    warp_max = warp_maximum(key_type)
    load_source_u32 = LOAD[4]
    load_source_u64 = LOAD[8]

    n_warps = n_threads // 32
    per_vector = VECTOR_BYTES // element_size
    key_bits = 8 * element_size
    digit_bits = n_threads.bit_length() - 1
    n_slots = capacity(element_size, n_threads)
    n_groups_each = n_slots // n_threads
    n_groups = n_threads * n_groups_each
    first_reach = 1 << _FIRST_REACH_BITS[element_size]
    furthest_reach = 1 << (key_bits - 2)
    all_ones = (1 << key_bits) - 1
    in_flight_words = 4 * VECTORS_IN_FLIGHT

    @device_function
    def load_vector(keys, base, stride, skipped, count, vector, masks):
        """Load the keys of a vector; return a bit for each element that is inside the row."""
        words = cuda.local.array(4, u32)
        position = vector * per_vector - skipped
        inside = u32(0)
        if stride == 1 and position >= 0 and position + per_vector <= count:
            words[0], words[1], words[2], words[3] = load_u32x4(base + position * element_size)
            spread_vector(words, keys, 0, masks)
            inside = u32((1 << per_vector) - 1)
        else:
            for element in range(per_vector):
                at = position + element
                keys[element] = key_type(0)
                if at >= 0 and at < count:
                    keys[element] = order_key(load_element(base + at * stride * element_size), *masks)
                    inside = u32(inside | (u32(1) << u32(element)))
        return inside

    def block_top_k(
        x,
        values,
        indices,
        sources,
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
        group_shift,
        enough,
        layout,
        masks,
    ):
        keys = cuda.shared.array(n_slots, key_type)
        lows = cuda.shared.array(n_slots, u32)
        listed_groups = cuda.shared.array(n_groups, u16)
        histogram = cuda.shared.array(n_threads, u32)
        sums = cuda.shared.array(64, u32)
        warp_maxima = cuda.shared.array(32, key_type)
        counters = cuda.shared.array(8, u32)

        thread = u32(cuda.threadIdx.x)
        lane = u32(thread & u32(31))
        warp = u32(thread >> u32(5))
        block = first_block + i64(cuda.blockIdx.x)
        row = block // n_parts
        part = block - row * n_parts
        begin = part * part_size
        count = min(part_size, axis_size - begin)
        wanted = u32(min(k, count))
        x_row, value_row, index_row = row_offsets(layout, offsets, row)
        base = x + (x_row + begin * x_stride) * element_size
        # Vectors start on a 16-byte boundary at or below the first element; what lies before it is skipped.
        skipped = i64(0)
        if x_stride == 1:
            skipped = (base & (VECTOR_BYTES - 1)) // element_size
        n_vectors = (count + skipped + per_vector - 1) // per_vector
        if thread < u32(8):
            counters[thread] = u32(0)

        # A group is 2^group_shift vectors of one thread, a block apart. The candidates' place holds the
        # maxima on their way to registers, which only a loop that the compiler unrolls can fill.
        for group in range(n_groups_each):
            keys[u32(group * n_threads) + thread] = key_type(0)
        words = cuda.local.array(in_flight_words, u32)
        bests = cuda.local.array(VECTORS_IN_FLIGHT, key_type)
        step = i64(0)
        while step * n_threads < n_vectors:
            vector = step * n_threads + i64(thread)
            first = vector * per_vector - skipped
            apart = n_threads * per_vector
            slot = u32(u32(step >> group_shift) * u32(n_threads) + thread)
            n_whole = u32(0)
            for ahead in range(VECTORS_IN_FLIGHT):
                at = first + ahead * apart
                bests[ahead] = key_type(0)
                if x_stride == 1 and at >= 0 and at + per_vector <= count:
                    address = base + at * element_size
                    word = 4 * ahead
                    words[word], words[word + 1], words[word + 2], words[word + 3] = load_u32x4(address)
                    n_whole = u32(n_whole + u32(1))
            for ahead in range(VECTORS_IN_FLIGHT):
                at = first + ahead * apart
                if x_stride == 1 and at >= 0 and at + per_vector <= count:
                    bests[ahead] = vector_maximum(words, 4 * ahead, masks)
                    if group_shift < 2:
                        slot = u32(u32((step + ahead) >> group_shift) * u32(n_threads) + thread)
                        keys[slot] = max(keys[slot], bests[ahead])
            if group_shift >= 2:
                best = keys[slot]
                for ahead in range(VECTORS_IN_FLIGHT):
                    best = max(best, bests[ahead])
                keys[slot] = best
            # A row's first and last vectors may lie partly outside; those of a strided row are none.
            ahead = i64(0)
            while n_whole < u32(VECTORS_IN_FLIGHT) and ahead < VECTORS_IN_FLIGHT:
                at = first + ahead * apart
                if x_stride != 1 or at < 0 or at + per_vector > count:
                    best = key_type(0)
                    for element in range(per_vector):
                        if at + element >= 0 and at + element < count:
                            address = base + (at + element) * x_stride * element_size
                            best = max(best, order_key(load_element(address), *masks))
                    if at < count:
                        slot = u32(u32((step + ahead) >> group_shift) * u32(n_threads) + thread)
                        keys[slot] = max(keys[slot], best)
                ahead += 1
            step += VECTORS_IN_FLIGHT
        maxima = cuda.local.array(n_groups_each, key_type)
        best = key_type(0)
        for group in range(n_groups_each):
            maxima[group] = keys[u32(group * n_threads) + thread]
            best = max(best, maxima[group])
        best = warp_max(best)
        if lane == u32(0):
            warp_maxima[warp] = best
        cuda.syncthreads()
        best = key_type(0)
        if lane < u32(n_warps):
            best = warp_maxima[lane]
        high = warp_max(best)

        # At least `wanted` groups reach `low`, or it is 0, which all reach. All threads see the same counts.
        low = key_type(0)
        if count > n_slots or i64(wanted) * 4 < count:
            reach = key_type(first_reach)
            growing = True
            half = u32(0)
            while low < high:
                middle = key_type(high - (key_type(high - low) >> key_type(1)))
                if growing and key_type(high - low) > reach:
                    middle = key_type(high - reach)
                reaching = u32(0)
                for group in range(n_groups_each):
                    if maxima[group] >= middle:
                        reaching = u32(reaching + u32(1))
                total = block_sum(sums, half, reaching, lane, warp)
                half = u32(u32(32) - half)
                if total >= wanted:
                    low = middle
                    growing = False
                    if i64(total) <= enough:
                        break
                else:
                    high = key_type(middle - key_type(1))
                    growing = growing and reach < key_type(furthest_reach)
                    reach = key_type(reach << key_type(2))

        reaching = u32(0)
        for group in range(n_groups_each):
            if maxima[group] >= low:
                reaching = u32(reaching + u32(1))
        slot = reserve(counters, _LISTED, reaching, lane)
        for group in range(n_groups_each):
            if maxima[group] >= low:
                listed_groups[slot] = u16(u32(group * n_threads) + thread)
                slot = u32(slot + u32(1))
        cuda.syncthreads()

        # Collecting keeps the elements whose (key & key_mask, ~position & low_mask) is at least
        # (key_prefix, low_prefix). If too many are, the digits of the k-th element are found one after the
        # other, by counting those of the elements that are equal to these so far, and collecting is done
        # once more.
        collecting = True
        key_mask = key_type(all_ones)
        key_prefix = low
        low_mask = u32(0)
        low_prefix = u32(0)
        key_shift = i64(key_bits)
        low_shift = i64(u32(32) - leading_zeros_u32(u32(count - 1)))
        digit_mask = u32(0)
        in_key = True
        needed = wanted
        half = u32(0)
        is_listed = True
        n_items = i64(counters[_LISTED]) << group_shift
        element_keys = cuda.local.array(per_vector, key_type)
        while True:
            item = i64(warp) * 32
            while item < n_items and ballot(counters[_FOUND] > u32(n_slots)) == u32(0):
                vector = item + i64(lane)
                exists = vector < n_items
                if is_listed and exists:
                    place = vector >> group_shift
                    listed = u32(listed_groups[place])
                    step = (i64(listed >> u32(digit_bits)) << group_shift) + vector - (place << group_shift)
                    vector = step * n_threads + i64(listed & u32(n_threads - 1))
                    exists = vector < n_vectors
                first = vector * per_vector - skipped
                inside = u32(0)
                if exists:
                    inside = load_vector(element_keys, base, x_stride, skipped, count, vector, masks)
                if collecting:
                    kept = u32(0)
                    for element in range(per_vector):
                        top = key_type(element_keys[element] & key_mask)
                        bottom = u32(u32(~(first + element)) & low_mask)
                        if top > key_prefix or (top == key_prefix and bottom >= low_prefix):
                            kept = u32(kept | (u32(1) << u32(element)))
                    kept = u32(kept & inside)
                    if ballot(kept) != u32(0):
                        slot = reserve(counters, _FOUND, popcount_u32(kept), lane)
                        for element in range(per_vector):
                            if (kept >> u32(element)) & u32(1):
                                if slot < u32(n_slots):
                                    keys[slot] = element_keys[element]
                                    lows[slot] = u32(~(first + element))
                                slot = u32(slot + u32(1))
                else:
                    for element in range(per_vector):
                        bottom = u32(~(first + element))
                        equal = key_type(element_keys[element] & key_mask) == key_prefix
                        equal = equal and u32(bottom & low_mask) == low_prefix
                        equal = equal and (inside >> u32(element)) & u32(1) != u32(0)
                        digit = u32(bottom >> u32(low_shift))
                        if in_key:
                            digit = u32(element_keys[element] >> key_type(key_shift))
                        count_digit(histogram, equal, u32(digit & digit_mask), lane)
                item += n_threads
            cuda.syncthreads()
            if collecting:
                if counters[_FOUND] <= u32(n_slots):
                    break
                collecting = False
                is_listed = False
                n_items = n_vectors
                key_mask = key_type(0)
                key_prefix = key_type(0)
            else:
                # Thread 0 has the largest digit.
                mine = u32(u32(n_threads - 1) - thread)
                amount = histogram[mine]
                total = block_inclusive_sum(sums, half, amount, lane, warp)
                half = u32(u32(32) - half)
                before = u32(total - amount)
                if before < needed <= total:
                    counters[_DIGIT] = mine
                    counters[_NEEDED] = u32(needed - before)
                    counters[_EQUAL] = amount
                cuda.syncthreads()
                digit = counters[_DIGIT]
                needed = counters[_NEEDED]
                if in_key:
                    key_prefix = key_type(key_prefix | (key_type(digit) << key_type(key_shift)))
                    key_mask = key_type(key_mask | (key_type(digit_mask) << key_type(key_shift)))
                else:
                    low_prefix = u32(low_prefix | (digit << u32(low_shift)))
                    low_mask = u32(low_mask | (digit_mask << u32(low_shift)))
                collecting = counters[_EQUAL] == needed
            in_key = key_shift > 0
            width = min(key_shift if in_key else low_shift, digit_bits)
            digit_mask = u32((u32(1) << u32(width)) - u32(1))
            if in_key:
                key_shift -= width
            else:
                low_shift -= width
            histogram[thread] = u32(0)
            cuda.syncthreads()
            if thread == u32(0):
                counters[_FOUND] = u32(0)
            cuda.syncthreads()

        n_pairs = counters[_FOUND]
        value_base = values + (value_row + part * k * value_stride) * element_size
        index_base = indices + (index_row + part * k * index_stride) * index_size
        counts_ranks = n_pairs <= u32(n_threads // 4)
        rank = u32(n_pairs)
        pair = thread
        if counts_ranks:
            rank = rank_by_counting(keys, lows, n_pairs, thread)
            pair = u32(thread >> u32(2))
            if u32(thread & u32(3)) != u32(0) or pair >= n_pairs:
                rank = wanted
        else:
            sort_pairs(keys, lows, n_pairs, thread)
            rank = thread
        while rank < wanted:
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
            if counts_ranks:
                break
            rank = u32(rank + u32(n_threads))
            pair = rank

    return KernelSource(
        block_top_k,
        {"layout": N_LAYOUT, "masks": N_MASKS},
        max_registers=64 if n_threads == 512 else None,
    )
