"""The end of `sampled`: one block per row selects from what has been listed."""

from typing import Any

from numba import cuda, types

from kernels_cuda.ptx import (
    LOAD,
    STORE_SHARED,
    ballot,
    count_shared_if,
    grid_dependency_wait,
    lanes_below,
    load_shared_u32,
    load_shared_u32x2,
    load_shared_u64x2,
    load_u32,
    load_u64,
    popcount_u32,
    shared_address,
    shared_from,
    store_shared_if_u32x2,
    store_shared_if_u64x2,
    store_shared_u32,
    store_u64,
    warp_add,
)
from kernels_cuda.runtime.compiler import linked_function
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.lengths import pad_function
from kernels_cuda.top_k.pair_sort import pair_sort
from kernels_cuda.top_k.parameters import SampledParameters
from kernels_cuda.top_k.rank import rank_functions
from kernels_cuda.top_k.rows import row_length, row_offsets, store_index
from kernels_cuda.top_k.sampled import (
    COUNT_MASK,
    EQUAL_SHIFT,
    EQUALS_LISTED,
)
from kernels_cuda.top_k.sampled_threshold import LISTED
from kernels_cuda.top_k.shapes import (
    ROW_STATE_BYTES,
    SAMPLED_THREADS,
    SEGMENT_BYTES,
    SORTED_PAIRS,
    VECTOR_BYTES,
    group_key_bytes,
    pair_bytes,
    segment_elements,
)
from kernels_cuda.top_k.threshold import N_COUNTERS, bit_length, threshold_functions

u16 = types.uint16
u32 = types.uint32
u64 = types.uint64
i64 = types.int64

# In place of the equals that a segment gives: all that it has are listed, or none is needed.
_LISTED = 0xFFFFFFFF
# Elements that each lane loads at a time.
_N_ITEMS = 8
_N_WARPS = SAMPLED_THREADS // 32
# Two blocks share a multiprocessor.
_REGISTERS = 64


def finish_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    restore = functions.restore
    load_element = functions.load_element
    store_element = functions.store_element
    find_digit, block_extremes, find_threshold, list_groups = threshold_functions(SAMPLED_THREADS, key_type)
    ranking = rank_functions(SAMPLED_THREADS, key_type)
    make_bins, fill_bins, rank_in_bin = ranking.make_bins, ranking.fill_bins, ranking.rank_in_bin
    sort_pairs = pair_sort(element_size, SAMPLED_THREADS)
    load_pair = load_shared_u64x2 if element_size == 8 else load_shared_u32x2
    store_pair_if = store_shared_if_u64x2 if element_size == 8 else store_shared_if_u32x2
    n_pair_bytes = pair_bytes(element_size)
    # What a thread has of the selected elements.
    n_most = SORTED_PAIRS // SAMPLED_THREADS
    unused = max(0, 32 - 8 * element_size)
    pad_row = pad_function(element_size)
    exclusive_sum = block_scan(SAMPLED_THREADS)
    needed_bits = bit_length(key_type)
    key_bytes = group_key_bytes(element_size)
    load_key = LOAD[key_bytes]
    store_shared_key = STORE_SHARED[key_bytes]
    digit_bits = SAMPLED_THREADS.bit_length() - 1
    n_elements = segment_elements(element_size)
    ones = (1 << 8 * element_size) - 1

    @linked_function
    def load_segments(places, counts, segments, n_segments, sums, thread):
        """Bring what is known of segments into shared memory; return how many are above, or equal."""
        n_above = u32(0)
        n_equal = u32(0)
        segment = thread
        while segment < n_segments:
            known = load_u64(segments + i64(segment) * SEGMENT_BYTES)
            count = u32(known >> 32)
            places[segment] = u32(known)
            counts[segment] = count
            n_above += count & COUNT_MASK
            n_equal += (count >> EQUAL_SHIFT) & COUNT_MASK
            segment += SAMPLED_THREADS
        n_above = warp_add(n_above)
        n_equal = warp_add(n_equal)
        lane = thread & 31
        if lane == 0:
            sums[thread >> 5] = n_above
            sums[32 + (thread >> 5)] = n_equal
        cuda.syncthreads()
        n_above = u32(0)
        n_equal = u32(0)
        if lane < _N_WARPS:
            n_above = sums[lane]
            n_equal = sums[32 + lane]
        n_above = warp_add(n_above)
        n_equal = warp_add(n_equal)
        cuda.syncthreads()
        return n_above, n_equal

    @linked_function
    def row_threshold(row, low, high, above, n_selected, most, histogram, sums, counters, key_format, ids):
        """Return a key from `low` to `high` that at least `n_selected` elements of the row are at or above.

        They are at most `most`, or it is the key of element number `n_selected`. `above` elements are above
        `high`.
        """
        base, step, count = row
        thread, lane, warp = ids
        elements = cuda.local.array(_N_ITEMS, key_type)
        bins = shared_address(histogram)
        searching = True
        while searching:
            width = high - low
            shift = max(needed_bits(width), u32(digit_bits)) - digit_bits
            position = i64(thread)
            while position < count:
                for item in range(_N_ITEMS):
                    at = position + item * SAMPLED_THREADS
                    elements[item] = key_type(0)
                    if at < count:
                        elements[item] = load_element(base + at * step)
                for item in range(_N_ITEMS):
                    above_low = ordered_key(elements[item], key_format) - low
                    exists = position + item * SAMPLED_THREADS < count
                    digit = u32(above_low >> key_type(shift))
                    count_shared_if(bins + (digit << 2), above_low <= width and exists)
                position += _N_ITEMS * SAMPLED_THREADS
            digit, larger, amount = find_digit(
                histogram, sums, counters, n_selected - above, thread, lane, warp
            )
            low += key_type(digit) << key_type(shift)
            # The end of the last bin may lie beyond what a key can be.
            width = min(high - low, (1 << key_type(shift)) - 1)
            high = low + width
            above += larger
            searching = shift > 0 and above + amount > most
        return low

    @linked_function
    def read_segment(keys, lows, row, first, threshold, place, n_equals, is_counting, key_format, lane):
        """Bring a segment's elements above the threshold, and the first that equal it, into shared memory.

        The segment begins at position `first`, perhaps before the row does. Returns how many elements are
        above the threshold, and how many equal it.
        """
        base, step, count = row
        elements = cuda.local.array(_N_ITEMS, key_type)
        n_above = u32(0)
        n_equal = u32(0)
        position = first + i64(lane)
        end = min(first + n_elements, count)
        while first < end:
            for item in range(_N_ITEMS):
                at = position + item * 32
                elements[item] = key_type(0)
                if 0 <= at < end:
                    elements[item] = load_element(base + at * step)
            for item in range(_N_ITEMS):
                at = position + item * 32
                key = ordered_key(elements[item], key_format)
                exists = 0 <= at < end
                above = ballot(exists and key > threshold)
                equal = ballot(exists and key == threshold)
                equals_before = n_equal + popcount_u32(equal & lanes_below())
                slot = place + n_above + popcount_u32(above & lanes_below()) + min(equals_before, n_equals)
                is_listed = key > threshold or (key == threshold and equals_before < n_equals)
                if exists and is_listed and not is_counting:
                    keys[slot] = key
                    lows[slot] = ~u32(at)
                n_above += popcount_u32(above)
                n_equal += popcount_u32(equal)
            position += _N_ITEMS * 32
            first += _N_ITEMS * 32
        return n_above, n_equal

    @linked_function
    def count_below(memory, row, prefix, key, n_missing, n_segments, totals, key_format, ids):
        """Count the elements equal to the key below the threshold, in segments until there are enough.

        What was at or above the threshold is above this key, and all of it is listed.
        """
        keys, lows, counts = memory
        thread, lane, warp = ids
        segment = thread
        while segment < n_segments:
            count = counts[segment]
            counts[segment] = (count & COUNT_MASK) + ((count >> EQUAL_SHIFT) & COUNT_MASK)
            segment += SAMPLED_THREADS
        cuda.syncthreads()
        n_found = u32(0)
        first = u32(0)
        while n_found < n_missing and first < n_segments:
            segment = first + warp
            n_equal = u32(0)
            if segment < n_segments:
                position = i64(segment) * n_elements - prefix
                _, n_equal = read_segment(
                    keys, lows, row, position, key, u32(0), u32(0), True, key_format, lane
                )
                if lane == 0:
                    counts[segment] += n_equal << EQUAL_SHIFT
            if lane != 0:
                n_equal = u32(0)
            _, of_block = exclusive_sum(n_equal, thread, totals)
            cuda.syncthreads()
            n_found += of_block
            first += _N_WARPS
        return n_found

    @linked_function
    def place_segments(places, counts, n_segments, n_equals, is_listed, totals, thread):
        """Find where in shared memory the candidates of each segment go; return how many there are.

        Of those that equal the threshold, `n_equals` are needed. `places` then lead from a place in the list
        to that in shared memory. If a segment is to be read again, `counts` tell how many of its equals it
        gives, and `places` where its candidates go; if not, its count is `_LISTED`.
        """
        n_placed = u32(0)
        equals_before = u32(0)
        first = u32(0)
        while first < n_segments:
            segment = first + thread
            count = u32(0)
            if segment < n_segments:
                count = counts[segment]
            n_above = count & COUNT_MASK
            n_equal = (count >> EQUAL_SHIFT) & COUNT_MASK
            given = u32(0)
            if n_equals > 0:
                before, of_all = exclusive_sum(n_equal, thread, totals)
                cuda.syncthreads()
                given = min(n_equals - min(n_equals, equals_before + before), n_equal)
                equals_before += of_all
            lists_equals = is_listed and (count & EQUALS_LISTED) != 0
            is_read_again = not is_listed or (given > 0 and not lists_equals)
            amount = n_above
            if lists_equals:
                amount += n_equal
            elif is_read_again:
                amount += given
            place, placed = exclusive_sum(amount, thread, totals)
            cuda.syncthreads()
            if segment < n_segments:
                place += n_placed
                if is_read_again:
                    counts[segment] = given
                else:
                    counts[segment] = u32(_LISTED)
                    place -= places[segment]
                places[segment] = place
            n_placed += placed
            first += SAMPLED_THREADS
        cuda.syncthreads()
        return n_placed

    @linked_function
    def write(outputs, rank, key, position, base, step, key_format):
        value_address, index_address, strides, index_size = outputs
        bits = restore(key, key_format, base + position * step)
        store_element(value_address + rank * strides.values * element_size, bits)
        store_index(index_address + rank * strides.indices * index_size, index_size, position)

    @cuda.jit(max_registers=_REGISTERS)
    def finish_row(
        x, lengths, values, indices, states, segments, listed_keys, listed_lows, offsets, p: SampledParameters
    ):
        grid_dependency_wait()
        keys = cuda.shared.array(0, key_type, VECTOR_BYTES)
        words = cuda.shared.array(0, u32)
        lows = shared_from(words, p.n_slots * (key_bytes // 4))
        places = shared_from(words, p.candidate_words)
        counts = shared_from(places, p.n_segments)
        list_words = p.candidate_words + 2 * p.n_segments
        bin_ends = shared_from(words, list_words)
        selected = shared_from(cuda.shared.array(0, u16), 2 * p.selected_word)
        histogram = cuda.shared.array(SAMPLED_THREADS, u32)
        sums = cuda.shared.array(64, u32)
        extremes = cuda.shared.array(64, key_type)
        counters = cuda.shared.array(N_COUNTERS, u32)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        ids = (thread, lane, warp)
        histogram[thread] = u32(0)

        row = p.first_block + i64(cuda.blockIdx.x)
        x_row, value_row, index_row = row_offsets(p.layout, offsets, row)
        count = row_length(lengths, p.layout, offsets, row, p.axis_size, p.length_format)
        base = x + x_row * element_size
        step = p.strides.x * element_size
        located = (base, step, count)
        value_address = values + value_row * element_size
        index_address = indices + index_row * p.index_size
        outputs = (value_address, index_address, p.strides, p.index_size)
        n_selected = u32(min(p.k, count))
        prefix = i64(0)
        if p.strides.x == 1:
            prefix = (base & (VECTOR_BYTES - 1)) // element_size
        n_segments = u32((prefix + count + (n_elements - 1)) // n_elements)
        if n_selected == 0:
            n_segments = u32(0)

        # What has been listed, or what a threshold of the row itself leaves, where the sample has misled.
        row_segments = segments + row * p.n_segments * SEGMENT_BYTES
        state = states + row * ROW_STATE_BYTES
        threshold = key_type(load_u64(state))
        n_listed = load_u32(state + LISTED)
        n_above, n_equal = load_segments(places, counts, row_segments, n_segments, sums, thread)
        is_listed = n_listed <= u32(p.n_slots)
        are_all_listed = is_listed and n_listed == n_above + n_equal
        if are_all_listed and n_listed < n_selected and threshold != 0:
            # Perhaps many elements are just below the threshold, enough of them in the first segments.
            n_missing = n_selected - n_listed
            n_found = count_below(
                (keys, lows, counts),
                located,
                prefix,
                threshold - 1,
                n_missing,
                n_segments,
                sums,
                p.key_format,
                ids,
            )
            if n_found >= n_missing:
                threshold -= 1
                n_above = n_listed
                n_equal = n_found
        is_listed = is_listed and n_above + n_equal >= n_selected
        if not is_listed:
            low = key_type(0)
            high = key_type(ones)
            larger = u32(0)
            if n_above + n_equal < n_selected:
                high = threshold - 1
                larger = n_above + n_equal
            else:
                low = threshold
            threshold = row_threshold(
                located,
                low,
                high,
                larger,
                n_selected,
                u32(p.n_slots),
                histogram,
                sums,
                counters,
                p.key_format,
                ids,
            )
            segment = warp
            while segment < n_segments:
                first = i64(segment) * n_elements - prefix
                of_above, of_equal = read_segment(
                    keys, lows, located, first, threshold, u32(0), u32(0), True, p.key_format, lane
                )
                if lane == 0:
                    known = u64(of_above | (of_equal << EQUAL_SHIFT)) << 32
                    store_u64(row_segments + i64(segment) * SEGMENT_BYTES, known)
                segment += _N_WARPS
            cuda.syncthreads()
            n_listed = u32(0)
            n_above, n_equal = load_segments(places, counts, row_segments, n_segments, sums, thread)
        n_equals = n_selected - min(n_selected, n_above)
        n_pairs = place_segments(places, counts, n_segments, n_equals, is_listed, sums, thread)

        first_key = listed_keys + (row * p.n_slots + i64(thread)) * key_bytes
        first_low = listed_lows + (row * p.n_slots + i64(thread)) * 4
        listed = cuda.local.array(_N_ITEMS, key_type)
        listed_low = cuda.local.array(_N_ITEMS, u32)
        keys_at, lows_at = shared_address(keys), shared_address(lows)
        places_at, counts_at = shared_address(places), shared_address(counts)
        highest = key_type(0)
        slot = thread
        while slot < n_listed:
            for item in range(_N_ITEMS):
                if slot + u32(item * SAMPLED_THREADS) < n_listed:
                    listed[item] = key_type(load_key(first_key + item * SAMPLED_THREADS * key_bytes))
                    listed_low[item] = load_u32(first_low + item * SAMPLED_THREADS * 4)
            for item in range(_N_ITEMS):
                if slot < n_listed:
                    at = ((u32(prefix) + ~listed_low[item]) // n_elements) << 2
                    if n_equals == 0 or load_shared_u32(counts_at + at) == u32(_LISTED):
                        place = slot + load_shared_u32(places_at + at)
                        store_shared_key(keys_at + place * key_bytes, listed[item])
                        store_shared_u32(lows_at + (place << 2), listed_low[item])
                        highest = max(highest, listed[item])
                slot += SAMPLED_THREADS
            first_key += _N_ITEMS * SAMPLED_THREADS * key_bytes
            first_low += _N_ITEMS * SAMPLED_THREADS * 4
        if not is_listed or n_equals > 0:
            segment = warp
            while segment < n_segments:
                given = counts[segment]
                if given != u32(_LISTED):
                    first = i64(segment) * n_elements - prefix
                    read_segment(
                        keys,
                        lows,
                        located,
                        first,
                        threshold,
                        places[segment],
                        given,
                        False,
                        p.key_format,
                        lane,
                    )
                segment += _N_WARPS
            highest = key_type(ones)
        # The barrier inside lets all of them be seen.
        _, highest = block_extremes(extremes, threshold, highest, lane, warp)

        # Few candidates share a bin of their keys, unless many are equal.
        n_placed = u32(0)
        if p.is_sorted != 0 and n_selected > 0:
            bins = make_bins(keys, lows, n_pairs, count, threshold, highest, False, sums, thread, lane, warp)
            n_placed = fill_bins(
                keys, lows, selected, n_pairs, n_selected, bins, bin_ends, sums, counters, thread
            )
            place = thread
            while place < n_placed:
                pair = u32(selected[place])
                rank = rank_in_bin(keys, lows, selected, pair, bin_ends, bins)
                if rank < n_selected:
                    write(outputs, i64(rank), keys[pair], i64(~lows[pair]), base, step, p.key_format)
                place += SAMPLED_THREADS
        if n_placed == 0 and n_selected > 0:
            cut, larger, n_at_or_above = find_threshold(
                keys,
                n_pairs,
                threshold,
                highest,
                n_selected,
                n_selected,
                histogram,
                sums,
                counters,
                thread,
                lane,
                warp,
            )
            n_ties = n_pairs
            if n_at_or_above > n_selected:
                n_ties = n_selected - larger
            list_groups(keys, n_pairs, cut, n_ties, selected, sums, thread, lane, warp)

            pairs = shared_address(words)
            if p.is_sorted != 0:
                # The selected pairs take the candidates' place.
                pair_keys = cuda.local.array(n_most, key_type)
                pair_positions = cuda.local.array(n_most, u32)
                for item in range(n_most):
                    rank = thread + u32(item * SAMPLED_THREADS)
                    if rank < n_selected:
                        place = u32(selected[rank])
                        pair_keys[item] = keys[place] << unused
                        pair_positions[item] = ~lows[place]
                cuda.syncthreads()
                for item in range(n_most):
                    rank = thread + u32(item * SAMPLED_THREADS)
                    at = pairs + rank * n_pair_bytes
                    store_pair_if(at, pair_keys[item], pair_positions[item], rank < n_selected)
                cuda.syncthreads()
                sort_pairs(
                    pairs,
                    pairs + u32(p.counters_offset),
                    n_selected,
                    cut << unused,
                    extremes,
                    sums,
                    thread,
                )
            rank = thread
            while rank < n_selected:
                if p.is_sorted != 0:
                    key, low = load_pair(pairs + rank * n_pair_bytes)
                    key >>= unused
                    position = i64(low)
                else:
                    place = u32(selected[rank])
                    key = keys[place]
                    position = i64(~lows[place])
                write(outputs, i64(rank), key, position, base, step, p.key_format)
                rank += SAMPLED_THREADS
        pad_row(
            value_address,
            index_address,
            p.strides,
            p.index_size,
            p.length_format.padding,
            i64(n_selected) + i64(thread),
            i64(SAMPLED_THREADS),
            p.k,
        )

    return finish_row
