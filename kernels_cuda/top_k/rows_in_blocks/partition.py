"""Rows of some thousand elements: a block holds one in registers, and selects by histograms of its keys.

1. Each warp loads a part of the row, its lanes a vector each at a time, and makes codes of the elements.
2. A histogram of the codes' top bits tells which bin the k-th code is in; another one, of this bin, divides
   it by the next bits; and so on, until a bin ends with the k-th code, or all codes in it are equal. Of equal
   ones the first in the row are selected.
3. Sums over lanes and warps tell where each selected element goes. The block brings them together in shared
   memory, and writes them side by side.

Codes are the complements of aligned keys (`aligned_keys`), so that the first elements have the smallest. Most
data take two histograms, and none take more than the bits of an element ask for. Results that are to be in
order are sorted in shared memory (`pair_sort`). Where that would be most of a row, all of it is sorted, and
nothing is selected first. Reads the row once, writes k values and indices.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, dynamic_shared_array, linked_function
from kernels_cuda.scan import block_scan, scan_of_warps
from kernels_cuda.top_k.rows_in_blocks.partition_launches import (
    OrderOfRows,
    PartitionShape,
    most_sorted,
    partition_bins,
)
from kernels_cuda.top_k.shared.aligned_keys import aligned_functions, register_functions
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.long_rows import begin_beside_others, share_of_rows
from kernels_cuda.top_k.shared.pair_sort import digit_sort, pair_sort
from kernels_cuda.top_k.shared.results import RowIndices, row_functions
from kernels_cuda.top_k.shared.shapes import VECTOR_BYTES, WARP_LANES, pair_bytes
from kernels_cuda.top_k.shared.unaligned import extent_function

# Several blocks share a multiprocessor.
REGISTERS = 64
# Facts about the bin that the k-th key is in: its number, how many of its keys are selected, and how many it
# has.
BIN, SELECTED, AMOUNT = range(3)


def partition_kernel(element_size: int, n_threads: int, n_keys: int, shares_rows: int = 0) -> Any:
    """Make the kernel for rows of up to ``n_threads * n_keys`` elements, which blocks may share."""
    key_type = ptx.REGISTER[element_size]
    find_row, write_result, pad_results = row_functions(element_size)
    n_bins = partition_bins(n_threads)
    bin_bits = n_bins.bit_length() - 1
    most = most_sorted(PartitionShape(n_threads, n_keys))
    sort_pairs = pair_sort(element_size, n_threads, most, has_short_positions=True)
    sort_digits = digit_sort(element_size, n_threads, most, has_short_positions=True)
    n_items = most // n_threads
    n_pair_bytes = pair_bytes(element_size)
    load_pair, store_pair_if = ptx.LOAD_SHARED_PAIR[n_pair_bytes], ptx.STORE_SHARED_PAIR_IF[n_pair_bytes]
    block_exclusive_sum = block_scan(n_threads)
    exclusive_sum_of_warps = scan_of_warps(n_threads)
    unused = aligned_functions(element_size).unused
    restore = element_functions(element_size).restore
    ordered_key = element_functions(element_size).ordered_key
    read_if = ptx.READ_IF[element_size]
    register_bits = max(32, 8 * element_size)
    key_mask = ((1 << register_bits) - 1) >> unused << unused
    n_warps = n_threads // WARP_LANES
    per_vector = VECTOR_BYTES // element_size
    n_vectors = n_keys // per_vector
    warp_vector = WARP_LANES * per_vector
    extent_of = extent_function(element_size)
    load_elements, make_codes = register_functions(
        element_size, n_keys, warp_vector, element_size <= 2, are_codes=True
    )
    # Codes of 16 bits lie in registers by twos, which have a bit each in the halves of a mask.
    is_paired = element_size == 2
    per_register = 2 if is_paired else 1
    n_registers, vector_registers = n_keys // per_register, per_vector // per_register
    vector_mask = 0xF000F if is_paired else (1 << per_vector) - 1
    # A warp's counts of selected elements are fields of a word, one for each of several vectors.
    field_bits = 8 if warp_vector < 1 << 8 else 16
    field_mask = (1 << field_bits) - 1
    fields_per_word = 32 // field_bits
    n_words = -(-n_vectors // fields_per_word)
    # Threads add up four bins, or none.
    n_adding = n_bins // 4
    block_vector = n_threads * per_vector

    @device_function
    def code_of(codes, number):
        """Return a code; the low bits are undefined if it has less than 32."""
        code = codes[number // per_register]
        if is_paired and number % 2 == 0:
            code <<= 16
        return code

    @device_function
    def bit_of(number):
        return u32(1) << u32(number // per_register + number % per_register * 16)

    @linked_function
    def live_bits(n_live):
        """Return the bits of a lane's first codes."""
        if is_paired:
            lower, upper = (n_live + 1) >> 1, n_live >> 1
            return ((u32(1) << lower) - 1) | (((u32(1) << upper) - 1) << 16)
        return u32((u64(1) << u64(n_live)) - 1)

    @device_function
    def minus_half(code):
        """Return the two's complement of a code of 16 bits, in both halves of a word."""
        return (0 - (code >> 16) & 0xFFFF) * 0x10001

    @linked_function
    def count(codes, n_used, bins, first, shift, is_first):
        """Count codes from `first` on in bins of ``1 << shift``; the others in one bin behind them."""
        for vector in range(n_vectors):
            if u32(vector) < n_used:
                if is_first:
                    for number in range(vector * per_vector, (vector + 1) * per_vector):
                        into = u32(code_of(codes, number) >> key_type(shift))
                        ptx.count_shared(bins + (into << 2))
                elif is_paired:
                    # Now each code has a bin of its own.
                    for register in range(vector * vector_registers, (vector + 1) * vector_registers):
                        into = ptx.add_u16x2(codes[register], minus_half(first))
                        into = ptx.min_u16x2(into, n_bins * 0x10001)
                        ptx.count_shared(bins + ((into & 0xFFFF) << 2))
                        ptx.count_shared(bins + (into >> 16 << 2))
                else:
                    for number in range(vector * per_vector, (vector + 1) * per_vector):
                        within = (code_of(codes, number) - first) >> key_type(shift)
                        ptx.count_shared(bins + (u32(min(within, key_type(n_bins))) << 2))

    @linked_function
    def find_cut(codes, n_used, bins, totals, cut, n_selected, thread):
        """Return the last selected code, how many codes in its bin are selected, and how many there are.

        If all in the bin are selected, it is the end of the bin, which need not be a code. Unused low bits
        are set.
        """
        first = key_type(0)
        last_shift = u32(unused)
        shift = max(u32(register_bits - bin_bits), last_shift)
        searching = True
        amount = n_selected
        count(codes, n_used, bins, first, shift, True)
        while searching:
            cuda.syncthreads()
            amounts = cuda.local.array(4, u32)
            own = u32(0)
            if thread < n_adding:
                at = bins + thread * VECTOR_BYTES
                amounts[0], amounts[1], amounts[2], amounts[3] = ptx.load_shared_u32x4(at)
                ptx.store_shared_u32x4(at, u32(0), u32(0), u32(0), u32(0))
                own = amounts[0] + amounts[1] + amounts[2] + amounts[3]
            before, _ = block_exclusive_sum(own, thread, totals)
            if before < n_selected <= before + own:
                for bin in range(4):
                    if before < n_selected <= before + amounts[bin]:
                        cut[BIN] = thread * 4 + u32(bin)
                        cut[SELECTED] = n_selected - before
                        cut[AMOUNT] = amounts[bin]
                    before += amounts[bin]
            cuda.syncthreads()
            first += key_type(cut[BIN]) << key_type(shift)
            n_selected = cut[SELECTED]
            amount = cut[AMOUNT]
            searching = n_selected < amount and shift > last_shift
            if searching:
                shift = max(shift, last_shift + bin_bits) - bin_bits
                count(codes, n_used, bins, first, shift, False)
        return first + ((key_type(1) << key_type(shift)) - 1), n_selected, amount

    @linked_function
    def bits_up_to(codes, n_used, last):
        """Return the bits of a lane's codes up to `last`, and of vectors that are not used."""
        beyond = u32(0)
        for vector in range(n_vectors):
            if u32(vector) < n_used:
                for register in range(vector * vector_registers, (vector + 1) * vector_registers):
                    exceeds = u32(codes[register] > last)
                    if is_paired:
                        most = ptx.max_u16x2(codes[register], (last >> 16) * 0x10001)
                        exceeds = ptx.min_u16x2(ptx.add_u16x2(most, minus_half(last)), 0x10001)
                    beyond |= exceeds << u32(register)
        return ~beyond

    @device_function
    def bits_of(chosen, vector):
        return (chosen >> u32(vector * vector_registers)) & u32(vector_mask)

    @linked_function
    def rank_in_warp(chosen, ranks):
        """Write to `ranks` how many codes of the warp are chosen before each vector of the lane.

        A bit of `chosen` stands for each code of the lane.
        """
        total = u32(0)
        for word in range(n_words):
            own = u32(0)
            for field in range(fields_per_word):
                vector = word * fields_per_word + field
                if vector < n_vectors:
                    own |= ptx.popcount_u32(bits_of(chosen, vector)) << u32(field * field_bits)
            through = ptx.warp_inclusive_sum(own)
            before = through - own
            of_warp = ptx.shuffle_from_u32(through, u32(WARP_LANES - 1))
            for field in range(fields_per_word):
                vector = word * fields_per_word + field
                if vector < n_vectors:
                    ranks[vector] = total + ((before >> u32(field * field_bits)) & u32(field_mask))
                    total += (of_warp >> u32(field * field_bits)) & u32(field_mask)

    @linked_function
    def first_ties(ties, n_kept, of_warp, ranks):
        """Return the bits of a lane's ties that are among the first `n_kept` ties of the warp."""
        kept = u32(0)
        if n_kept >= of_warp:
            kept = ties
        elif n_kept > 0:
            rank_in_warp(ties, ranks)
            for vector in range(n_vectors):
                rank = ranks[vector]
                for number in range(vector * per_vector, (vector + 1) * per_vector):
                    tie = ties & bit_of(number)
                    if rank < n_kept:
                        kept |= tie
                    if tie != 0:
                        rank += 1
        return kept

    @linked_function
    def sort_row(base, length, areas, counters_offset, p, thread):
        """Sort all elements of a row: each warp loads neighbouring ones, as `sort_digits` takes them."""
        memory, totals, _, _, _ = areas
        n_used = (length + u32(n_threads - 1)) // u32(n_threads)
        first = (thread >> 5) * n_used * u32(WARP_LANES) + (thread & 31)
        step = p.strides.x * element_size
        distances = cuda.local.array(n_items, key_type)
        positions = cuda.local.array(n_items, u32)
        for item in range(n_items):
            if u32(item) < n_used:
                position = first + u32(item * WARP_LANES)
                distances[item] = read_if(base + i64(position) * step, position < length)
                positions[item] = position
        for item in range(n_items):
            if u32(item) < n_used:
                # Slots behind the row come last.
                distance = ~key_type(0)
                if positions[item] < length:
                    distance -= ordered_key(distances[item], p.key_format) << key_type(unused)
                distances[item] = distance
        counters = memory + u32(counters_offset)
        bits = u32(unused), u32(register_bits)
        sort_digits(memory, counters, distances, positions, n_used, bits, ~key_type(0), totals, thread)

    @device_function
    def select_pairs(base, length, n_selected, areas, extent, p, thread):
        """Store the selected pairs; return the address from which positions count, and the last code.

        Positions count from the boundary before a row, if there is room for what lies between.
        """
        memory, totals, cut, kept, _ = areas
        lane = thread & 31
        warp = thread >> 5
        n_before = u32(0)
        if p.strides.x == 1:
            n_before = u32(base & (VECTOR_BYTES - 1)) // u32(element_size)
        if length + n_before > n_threads * n_keys:
            n_before = u32(0)
        count = length + n_before
        base -= i64(n_before) * element_size
        if thread == 0:
            kept[2] -= i64(n_before)

        # Element e of vector v of a lane is at first + v * warp_vector + e.
        n_used = (count + u32(block_vector - 1)) // u32(block_vector)
        warp_first = warp * n_used * warp_vector
        first = warp_first + lane * per_vector
        # So many of the lane's codes, the first ones, are of elements of the row.
        of_warp = min(max(count, warp_first) - warp_first, n_used * warp_vector)
        whole = of_warp // warp_vector
        rest = max(of_warp - whole * warp_vector, lane * per_vector) - lane * per_vector
        n_live = whole * per_vector + min(rest, u32(per_vector))
        codes = cuda.local.array(n_registers, key_type)
        load_elements(codes, (base, n_before, count), extent, first, n_live, p)

        if thread < n_adding:
            ptx.store_shared_u32x4(memory + thread * VECTOR_BYTES, u32(0), u32(0), u32(0), u32(0))
        cuda.syncthreads()

        make_codes(codes, n_used, p.key_format)
        # Codes before and beyond the row come last, and are not selected.
        last_code = key_type(0xFFFF) if is_paired else ~key_type(0)
        if first < n_before:
            for number in range(per_vector - 1):
                if u32(number) < n_before:
                    codes[number // per_register] |= last_code << key_type(number % per_register * 16)
        for vector in range(n_vectors):
            if u32(vector) < n_used and n_live < (vector + 1) * per_vector:
                for number in range(vector * per_vector, (vector + 1) * per_vector):
                    if n_live <= number:
                        codes[number // per_register] |= last_code << key_type(number % per_register * 16)

        last = ~key_type(0)
        n_ties = u32(0)
        n_equal = u32(0)
        if n_selected < length:
            last, n_ties, n_equal = find_cut(codes, n_used, memory, totals, cut, n_selected, thread)
        live = live_bits(n_live)
        if first < n_before:
            live &= ~live_bits(n_before)
        chosen = bits_up_to(codes, n_used, last) & live
        ties = u32(0)
        if n_ties < n_equal:
            ties = chosen
            if last >> unused != 0:
                ties = chosen & ~bits_up_to(codes, n_used, last - (key_type(1) << unused))
            chosen ^= ties
        # Two counts in a word: both are of less than 2^16 elements.
        of_warp = ptx.warp_add(ptx.popcount_u32(chosen) | (ptx.popcount_u32(ties) << 16))
        before, _ = exclusive_sum_of_warps(of_warp, thread, totals)
        ranks = cuda.local.array(n_vectors, u32)
        start = before & 0xFFFF
        if n_ties < n_equal:
            kept_before = min(before >> 16, n_ties)
            start += kept_before
            chosen |= first_ties(ties, n_ties - kept_before, of_warp >> 16, ranks)
        rank_in_warp(chosen, ranks)
        for vector in range(n_vectors):
            if bits_of(chosen, vector) != 0:
                at = memory + (start + ranks[vector]) * n_pair_bytes
                for number in range(vector * per_vector, (vector + 1) * per_vector):
                    is_chosen = chosen & bit_of(number)
                    position = first + u32(vector * warp_vector + number % per_vector)
                    key = ~code_of(codes, number) & key_type(key_mask)
                    store_pair_if(at, key, position, is_chosen)
                    if is_chosen != 0:
                        at += n_pair_bytes
        cuda.syncthreads()
        return base, last

    @linked_function
    def select_row(operands, areas, row, p, o):
        """Select from a row; `areas` are shared memory."""
        x, windows, values, indices, offsets = operands
        memory, totals, _, kept, maxima = areas
        thread = u32(cuda.threadIdx.x)
        base, values, indices, length = find_row(x, windows, values, indices, offsets, row, p)
        if thread == 0:
            kept[0], kept[1], kept[2] = values, indices.address, indices.start
        n_selected = min(u32(p.k), u32(length))
        x_step = p.strides.x * element_size
        if o.sorts_rows != 0:
            sort_row(base, u32(length), areas, o.counters_offset, p, thread)
        else:
            extent = extent_of(x, p)
            base, last = select_pairs(base, u32(length), n_selected, areas, extent, p, thread)
            if o.counters_offset != 0:
                counters = memory + u32(o.counters_offset)
                sort_pairs(memory, counters, n_selected, ~last, maxima, totals, thread)

        values, outputs = kept[0], RowIndices(kept[1], kept[2])
        rank = thread
        while rank < n_selected:
            key, low = load_pair(memory + rank * n_pair_bytes)
            position = i64(low)
            element = restore(key >> unused, p.key_format, base + position * x_step)
            write_result(values, outputs, rank, element, position, p)
            rank += n_threads
        pad_results(values, outputs, n_selected + thread, n_threads, p.k, p)

    share = share_of_rows(n_threads, select_row)

    @device_function
    def shared_areas():
        # First the histograms, then (key, position) pairs of what is selected.
        # An opaque copy of the address, which compilers would compute anew at each use.
        memory = ptx.shuffle_from_u32(ptx.shared_address(dynamic_shared_array(u32)), u32(0))
        totals = cuda.shared.array(n_warps, u32)
        cut = cuda.shared.array(3, u32)
        # The results' addresses and the row's start, which would cost registers during the selection.
        kept = cuda.shared.array(3, i64)
        maxima = cuda.shared.array(n_warps, key_type)
        return memory, totals, cut, kept, maxima

    if shares_rows:

        @cuda.jit(max_registers=REGISTERS)
        def partition_rows(x, windows: Windows, values, indices, offsets, p: RowParameters, o: OrderOfRows):
            begin_beside_others()
            marks = ptx.shared_address(cuda.shared.array(n_warps, u32))
            share((x, windows, values, indices, offsets), shared_areas(), marks, p, o)

        return partition_rows

    @cuda.jit(max_registers=REGISTERS)
    def partition_row(x, windows: Windows, values, indices, offsets, p: RowParameters, o: OrderOfRows):
        ptx.grid_dependency_wait()
        operands = x, windows, values, indices, offsets
        select_row(operands, shared_areas(), p.first + i64(cuda.blockIdx.x), p, o)

    return partition_row
