"""Filter passes: a block reads the vectors of listed groups, or all vectors of a row, and keeps candidates.

A vector holds elements, or unfolded keys of a stage of group maxima. Its number in the pass is an item; items
are in order of position.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.scan import block_scan
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES, VECTORS_AHEAD, group_key_bytes
from kernels_cuda.top_k.shared.threshold import FOUND, bit_length, threshold_functions

# Stands for: there is no unaligned element.
NOT_UNALIGNED = 1 << 31
_NO_VECTOR = 0xFFFFFFFF
# A step that no row has: elements are contiguous. (0 is the step of broadcast rows.)
CONTIGUOUS = 1 << 62
_WORDS = 4 * VECTORS_AHEAD


class Items(NamedTuple):
    """The vectors of a pass.

    Attributes
    ----------
    candidate_groups : shared array
        The list of groups.
    n_items : uint32
        How many vectors there are.
    has_candidate_groups : bool
        Whether they are of listed groups, of ``1 << group_bits`` vectors each, or of all groups.
    n_vectors : uint32
        How many vectors exist.
    """

    candidate_groups: Any
    n_items: Any
    has_candidate_groups: Any
    group_bits: Any
    n_vectors: Any


class Source(NamedTuple):
    """Where the vectors of a pass lie.

    Attributes
    ----------
    address : int64
        That of the first vector.
    step : int64
        Bytes from an element to the next, or `CONTIGUOUS`.
    first_position : int64
        The position of the first element.
    are_unfolded : bool
        Whether the vectors hold unfolded keys.
    in_order : bool
        Whether what is kept of them is to be in order of position.
    """

    address: Any
    step: Any
    first_position: Any
    are_unfolded: Any
    in_order: Any


class Unaligned(NamedTuple):
    """A thread's element outside all vectors, if there is one.

    Attributes
    ----------
    exists : bool
        Whether there is one.
    bits, key : key
        The element and its ordered key.
    position, prefix : uint32
        Its position; those before `prefix` come before all vectors, the others after them.
    """

    exists: Any
    bits: Any
    key: Any
    position: Any
    prefix: Any


class FilterFunctions(NamedTuple):
    """Device functions for one element width and block size.

    `candidates` are `rank.Candidates`, `items` are `Items`, `source` is a `Source`, `scratch` a
    `threshold.Scratch`; and `ids` are ``(thread, lane, warp)``.
    """

    collect: Any
    collect_ties: Any
    reserve: Any
    forget_found: Any
    narrow: Any


@functools.cache
def filter_functions(element_size: int, n_threads: int) -> FilterFunctions:
    """Make the device functions."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key = functions.ordered_key
    load_element = functions.load_element
    at_or_above = functions.at_or_above
    fold = functions.fold
    per_vector = VECTOR_BYTES // element_size
    keys_per_vector = VECTOR_BYTES // group_key_bytes(element_size)
    # Vectors whose elements have a bit each in a mask of 32 bits.
    per_mask = min(VECTORS_AHEAD, 32 // per_vector)
    n_masks = VECTORS_AHEAD // per_mask
    vector_mask = (1 << per_vector) - 1
    element_bits = 8 * element_size
    ones = (1 << element_bits) - 1
    exclusive_sum = block_scan(n_threads)
    find_digit = threshold_functions(n_threads, key_type).find_digit
    needed_bits = bit_length(key_type)
    digit_bits = n_threads.bit_length() - 1

    @device_function
    def vector_of(item, items):
        """Return the vector of an item, or `_NO_VECTOR`."""
        vector = item
        if item >= items.n_items:
            vector = u32(_NO_VECTOR)
        elif items.has_candidate_groups:
            within = item & ((1 << items.group_bits) - 1)
            vector = (items.candidate_groups[item >> items.group_bits] << items.group_bits) + within
        if vector >= items.n_vectors:
            vector = u32(_NO_VECTOR)
        return vector

    @linked_function
    def gather_vector(address, step, exists):
        """Put a vector together from elements that have gaps between them."""
        nearer = u64(0)
        further = u64(0)
        if exists:
            for element in range(per_vector):
                bits = u64(load_element(address + element * step))
                place = u64(element * element_bits)
                if place < 64:
                    nearer = nearer | (bits << place)
                else:
                    further = further | (bits << (place & 63))
        return nearer, further

    @device_function
    def load_vector(words, at, vector, source):
        words[at], words[at + 1], words[at + 2], words[at + 3] = ptx.load_if_u32x4(
            source.address + i64(vector) * VECTOR_BYTES, vector != _NO_VECTOR and source.step == CONTIGUOUS
        )

    @device_function
    def gather(words, at, vector, source):
        address = source.address + i64(vector) * per_vector * source.step
        nearer, further = gather_vector(address, source.step, vector != _NO_VECTOR)
        words[at] = u32(nearer)
        words[at + 1] = u32(nearer >> 32)
        words[at + 2] = u32(further)
        words[at + 3] = u32(further >> 32)

    @device_function
    def key_at(nearer, further, element, are_unfolded, key_format):
        """Return the ordered key of an element of a vector, or of one of its unfolded keys."""
        if element_size == 8:
            key = nearer
            if element != 0:
                key = further
        else:
            shift = element * element_bits
            if are_unfolded:
                shift = element << 5
            bits = nearer
            if shift >= 64:
                bits = further
            key = u32(bits >> u64(shift & 63))
        return fold(key, key_format) if are_unfolded else ordered_key(key & ones, key_format)

    @device_function
    def low_of(vector, element, source):
        n_each = u32(keys_per_vector) if source.are_unfolded else u32(per_vector)
        return ~(vector * n_each + u32(source.first_position) + element)

    @linked_function
    def reserve(counters, amount, lane):
        """Take `amount` slots; return the first. One atomic operation per warp."""
        through = ptx.warp_inclusive_sum(amount)
        base = u32(0)
        if lane == 31:
            base = ptx.atomic_add_shared_u32(ptx.shared_address(counters) + u32(4 * FOUND), through)
        base = ptx.shuffle_from_u32(base, u32(31))
        return base + through - amount

    @linked_function
    def forget_found(counters, thread):
        """Give all slots back, once every thread has read how many were taken."""
        cuda.syncthreads()
        if thread == 0:
            counters[FOUND] = u32(0)
        cuda.syncthreads()

    @device_function
    def load_one(vector, element, source):
        """Load an element again; a vector that was just read is still in the L1 cache."""
        offset = i64(vector) * VECTOR_BYTES + i64(element) * element_size
        if source.step != CONTIGUOUS:
            offset = i64(vector * per_vector + element) * source.step
        return load_element(source.address + offset)

    @device_function
    def bits_of(kept, ahead):
        return (kept[ahead // per_mask] >> u32(ahead % per_mask * per_vector)) & u32(vector_mask)

    @device_function
    def bits_before(kept, ahead):
        return kept[ahead // per_mask] & u32((1 << ahead % per_mask * per_vector) - 1)

    @device_function
    def keep(candidates, n_slots, slots, kept, vectors, at, source):
        """Store the elements whose bits are set, of some vectors from number `at` on, and their positions."""
        n_kept = u32(0)
        while kept != 0:
            lowest = kept & (0 - kept)
            kept ^= lowest
            bit = 31 - ptx.leading_zeros_u32(lowest)
            which = bit // per_vector
            vector = vectors[at]
            slot = slots[at]
            for other in range(1, per_mask):
                if which == u32(other):
                    vector = vectors[at + other]
                    slot = slots[at + other]
            slot += n_kept
            n_kept += 1
            element = bit % per_vector
            if slot < n_slots:
                if not source.are_unfolded:
                    candidates.keys[slot] = load_one(vector, element, source)
                candidates.lows[slot] = low_of(vector, element, source)

    @linked_function
    def collect(candidates, n_found, limits, items, source, unfolded_threshold, unfolding, scratch, ids):
        """Keep what is at or above a threshold, and count it.

        Elements are kept as they are, not as keys; of a stage, only their positions. What is in order follows
        the `n_found` candidates that there are already. `limits` are the number of slots, and that of
        candidates beyond which a warp stops, or the block. The count is left in ``counters[FOUND]``.
        """
        n_slots, limit = limits
        thread, lane, _ = ids
        words = cuda.local.array(_WORDS, u32)
        vectors = cuda.local.array(VECTORS_AHEAD, u32)
        # One bit per element; each of these holds those of some vectors.
        kept = cuda.local.array(n_masks, u32)
        # A bit goes to the slot of its vector, or as many further on as bits of its mask come before.
        slots = cuda.local.array(VECTORS_AHEAD, u32)
        n_items = items.n_items
        is_strided = source.step != CONTIGUOUS
        are_unfolded = source.are_unfolded
        # The first item of the warp: it skips together what none of its lanes has.
        warp_item = ptx.shuffle_from_u32(thread, u32(0))
        first = u32(0)
        while first < n_items and n_found <= limit:
            vectors[0] = vector_of(first + thread, items)
            for ahead in range(1, VECTORS_AHEAD):
                vectors[ahead] = u32(_NO_VECTOR)
            if warp_item + n_threads < n_items:
                for ahead in range(1, VECTORS_AHEAD):
                    vectors[ahead] = vector_of(first + thread + u32(ahead * n_threads), items)
            for ahead in range(VECTORS_AHEAD):
                load_vector(words, 4 * ahead, vectors[ahead], source)
            if is_strided:
                for ahead in range(VECTORS_AHEAD):
                    gather(words, 4 * ahead, vectors[ahead], source)
            for part in range(n_masks):
                kept[part] = u32(0)
            for ahead in range(VECTORS_AHEAD):
                if warp_item + u32(ahead * n_threads) < n_items:
                    found = at_or_above(words, 4 * ahead, unfolded_threshold, unfolding, are_unfolded)
                    if vectors[ahead] != _NO_VECTOR:
                        kept[ahead // per_mask] |= found << u32(ahead % per_mask * per_vector)
            if source.in_order:
                for at in range(0, VECTORS_AHEAD, 2):
                    if first + u32(at * n_threads) < n_items:
                        # Two counts in a word: both are of less than 2^16 elements.
                        one = ptx.popcount_u32(bits_of(kept, at))
                        both = one | (ptx.popcount_u32(bits_of(kept, at + 1)) << 16)
                        sums = ptx.shared_from(scratch.sums, u32(at * 16))
                        before, total = exclusive_sum(both, thread, sums)
                        earlier = ptx.popcount_u32(bits_before(kept, at))
                        slots[at] = n_found + (before & 0xFFFF) - earlier
                        n_found += total & 0xFFFF
                        earlier = ptx.popcount_u32(bits_before(kept, at + 1))
                        slots[at + 1] = n_found + (before >> 16) - earlier
                        n_found += total >> 16
            else:
                amount = u32(0)
                for part in range(n_masks):
                    amount += ptx.popcount_u32(kept[part])
                if ptx.ballot(amount) != 0:
                    slot = reserve(scratch.counters, amount, lane)
                    if ptx.ballot(slot > limit) != 0:
                        n_found = limit + 1
                    for ahead in range(VECTORS_AHEAD):
                        slots[ahead] = slot
                        if ahead % per_mask == per_mask - 1:
                            slot += ptx.popcount_u32(kept[ahead // per_mask])
            for part in range(n_masks):
                keep(candidates, n_slots, slots, kept[part], vectors, part * per_mask, source)
            first += u32(VECTORS_AHEAD * n_threads)
            warp_item += u32(VECTORS_AHEAD * n_threads)
        if source.in_order and thread == 0:
            scratch.counters[FOUND] = n_found

    @linked_function
    def count_keys(bins, items, source, extent, shift, key_format, ids):
        """Count the keys in `extent` by ``(key - threshold) >> shift``, in bins at an address."""
        thread, _, _ = ids
        threshold, end = extent
        words = cuda.local.array(4, u32)
        are_unfolded = source.are_unfolded
        n_each = u32(keys_per_vector) if are_unfolded else u32(per_vector)
        width = end - threshold
        item = thread
        while item < items.n_items:
            vector = vector_of(item, items)
            load_vector(words, 0, vector, source)
            if source.step != CONTIGUOUS:
                gather(words, 0, vector, source)
            nearer = u64(words[0]) | (u64(words[1]) << 32)
            further = u64(words[2]) | (u64(words[3]) << 32)
            element = u32(0)
            while element < n_each:
                above_threshold = key_at(nearer, further, element, are_unfolded, key_format) - threshold
                digit = u32(above_threshold >> key_type(shift))
                counts = vector != _NO_VECTOR and above_threshold <= width
                ptx.count_shared_if(bins + (digit << 2), counts)
                element += 1
            item += n_threads

    @linked_function
    def collect_ties(candidates, n_found, n_kept, items, source, unaligned, tied, unfolding, sums, thread):
        """Keep the first `n_kept` elements with a certain key; there are `n_found` candidates already.

        `tied` are that key, the least unfolded key of such elements, and the least of those above.

        `unaligned` are the position of the thread's element outside all vectors if that has the key, or
        `NOT_UNALIGNED`, and the position up to which such elements come before all vectors.
        """
        key, unfolded_threshold, next_above = tied
        unaligned_position, prefix = unaligned
        words = cuda.local.array(4, u32)
        n_ties = u32(0)
        half = u32(0)
        first = u32(0)
        steps = u32(0)
        while n_ties < n_kept and first < items.n_items + n_threads:
            # The first step is for what comes before the vectors, the last one for what comes after them.
            ties = u32(0)
            low = ~unaligned_position
            if steps == 0:
                ties = u32(unaligned_position < prefix)
            elif first >= items.n_items:
                ties = u32(prefix <= unaligned_position < NOT_UNALIGNED)
                first += n_threads
            else:
                vector = vector_of(first + thread, items)
                load_vector(words, 0, vector, source)
                if source.step != CONTIGUOUS:
                    gather(words, 0, vector, source)
                if vector != _NO_VECTOR:
                    ties = at_or_above(words, 0, unfolded_threshold, unfolding, source.are_unfolded)
                    if next_above != 0:
                        ties &= ~at_or_above(words, 0, next_above, unfolding, source.are_unfolded)
                low = low_of(vector, u32(0), source)
                first += n_threads
            steps = u32(1)
            before, total = exclusive_sum(ptx.popcount_u32(ties), thread, ptx.shared_from(sums, half))
            half = 32 - half
            rank = n_ties + before
            while ties != 0 and rank < n_kept:
                # The lowest bit is the first element.
                lowest = ties & (0 - ties)
                ties ^= lowest
                candidates.keys[n_found + rank] = key
                candidates.lows[n_found + rank] = low - (31 - ptx.leading_zeros_u32(lowest))
                rank += 1
            n_ties += total
        return min(n_ties, n_kept)

    @linked_function
    def narrow(items, source, unaligned, extent, n_selected, limit, key_format, scratch, ids):
        """Return a higher threshold, and whether `limit` holds all keys at or above it: if not, the k-th key.

        At least `n_selected` keys must lie in `extent`, and none above it. `unaligned` is ``(exists, key)``.
        """
        has_unaligned, unaligned_key = unaligned
        threshold, end = extent
        bins = ptx.shared_address(scratch.histogram)
        needed = n_selected
        fits = False
        narrowing = True
        while narrowing:
            shift = max(needed_bits(end - threshold), u32(digit_bits)) - digit_bits
            count_keys(bins, items, source, (threshold, end), shift, key_format, ids)
            digit = u32((unaligned_key - threshold) >> key_type(shift))
            ptx.count_shared_if(bins + (digit << 2), has_unaligned and threshold <= unaligned_key <= end)
            digit, larger, amount = find_digit(scratch, needed, ids)
            needed -= larger
            fits = n_selected - needed + amount <= limit
            threshold += key_type(digit) << key_type(shift)
            widest = (1 << key_type(shift)) - 1
            end = threshold + min(end - threshold, widest)
            narrowing = shift > 0 and not fits
        return threshold, fits

    return FilterFunctions(collect, collect_ties, reserve, forget_found, narrow)
