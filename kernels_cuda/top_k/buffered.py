"""One block per row, which reads the row once and keeps what may be selected: for large k of tens of rows.

1. Of a sample spread over the row, the block takes an element of a rank so low that surely at least k
   elements of the row are at or above it, and not many more (`sampled_threshold`).
2. It reads the row step by step, a few vectors a thread, and appends the elements at or above that to a
   buffer in shared memory, by ascending position. The vectors of the next step are on their way meanwhile.
3. If a step does not fit, the block selects the first k elements of the buffer. Others are dropped, and from
   then on only elements above the last one of these are appended: equal ones come after it.
4. Select the first k of what is in the buffer (`sampled_finish`).

The result is exact for any data. If the sample has misled and fewer than k elements are in the buffer, the
row is read again, and everything is appended. One launch, no workspace.
"""

from typing import Any

from numba import cuda, types

from kernels_cuda.ptx import (
    COPY_ASYNC_WAIT_BUT,
    LOAD_SHARED,
    STORE_SHARED,
    copy_async_end_group,
    copy_async_first_bytes,
    copy_async_wait,
    grid_dependency_wait,
    load_shared_u32,
    popcount_u32,
    shared_address,
    shared_from,
    store_shared_u32,
    trailing_zeros_u32,
    warp_add,
    warp_inclusive_sum,
)
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.keys import element_functions
from kernels_cuda.top_k.lengths import pad_function
from kernels_cuda.top_k.marks import mark_functions
from kernels_cuda.top_k.parameters import BufferedParameters
from kernels_cuda.top_k.rows import locate, row_length
from kernels_cuda.top_k.sampled_finish import FinishMemory, write_first_function
from kernels_cuda.top_k.sampled_threshold import sample_functions
from kernels_cuda.top_k.shapes import (
    SAMPLED_THREADS,
    STAGE_ALIGNMENT,
    VECTOR_BYTES,
    WARP_LANES,
    buffered_stages,
    buffered_vectors,
    group_key_bytes,
)
from kernels_cuda.top_k.threshold import N_COUNTERS, threshold_functions

u16 = types.uint16
u32 = types.uint32
i64 = types.int64

# Two blocks share a multiprocessor: one reads while the other one computes.
_REGISTERS = 64
_N_WARPS = SAMPLED_THREADS // WARP_LANES
_N_COUNTS = 2 * _N_WARPS
_COUNTS_BYTES = 4 * _N_WARPS
_COUNTS_ALIGNMENT = 2 * _COUNTS_BYTES


def buffered_kernel(element_size: int) -> Any:
    """Make the kernel for one element width."""
    functions = element_functions(element_size)
    key_type = functions.key_type
    ordered_key, load_element = functions.ordered_key, functions.load_element
    unfolding_of, unfolded_element = functions.unfolding_of, functions.unfolded_element
    finding = threshold_functions(SAMPLED_THREADS, key_type)
    block_extremes = finding.block_extremes
    find_threshold, list_groups = finding.find_threshold, finding.list_groups
    threshold_of_sample = sample_functions(element_size).threshold_of_sample
    write_first = write_first_function(element_size)
    pad_row = pad_function(element_size)
    key_bytes = group_key_bytes(element_size)
    per_vector = VECTOR_BYTES // element_size
    n_vectors, n_stages = buffered_vectors(element_size), buffered_stages(element_size)
    wait_for_step = COPY_ASYNC_WAIT_BUT[n_stages - 2]
    load_shared, store_shared = LOAD_SHARED[element_size], STORE_SHARED[element_size]
    step_vectors = n_vectors * SAMPLED_THREADS
    stage_bytes = step_vectors * VECTOR_BYTES
    marking = mark_functions(element_size, n_vectors)
    bound_of, bound_above = marking.bound_of, marking.bound_above
    marks_at_or_above, marks_before = marking.marks_at_or_above, marking.marks_before
    swizzled, element_address = marking.swizzled, marking.element_address

    @device_function
    def start_step(stage, address, first, n_row_vectors, thread):
        """Have vectors of a step copied, which begins with vector `first`; zeros for those behind the row.

        Warps copy their own, a lane one of 32 neighbours at a time.
        """
        lane = thread & u32(WARP_LANES - 1)
        number = (thread - lane) * u32(n_vectors) + lane
        for at in range(n_vectors):
            in_step = number + u32(at * WARP_LANES)
            vector = first + in_step
            copy_async_first_bytes(
                stage + swizzled(in_step * u32(VECTOR_BYTES)),
                address + i64(vector) * VECTOR_BYTES,
                u32(vector < n_row_vectors) * VECTOR_BYTES,
            )
        copy_async_end_group()

    @linked_function
    def start_row(stages, address, n_row_vectors, thread):
        """Have the first steps copied."""
        for ahead in range(n_stages - 1):
            first = u32(ahead * step_vectors)
            start_step(stages + u32(ahead * stage_bytes), address, first, n_row_vectors, thread)

    @linked_function
    def mark_part(own, base, position, n_elements, least, unfolding, thread):
        """Return the marks of elements that are in no vector: the first thread brings them all."""
        marks = u32(0)
        if thread == 0:
            for at in range(per_vector):
                if u32(at) < n_elements:
                    bits = load_element(base + i64(position + u32(at)) * element_size)
                    store_shared(own + u32(at * element_size), bits)
                    marks |= u32(unfolded_element(bits, unfolding) >= least) << u32(at)
        return marks

    @linked_function
    def keep_marks(own, marks, least, unfolding):
        """Return those of the marks whose elements are at or above a key that is larger now."""
        kept = u32(0)
        while marks != 0:
            number = trailing_zeros_u32(marks)
            marks &= marks - 1
            kept |= (
                u32(unfolded_element(load_shared(element_address(own, number)), unfolding) >= least) << number
            )
        return kept

    @linked_function
    def count_marks(marks, counts, lane, warp):
        """Return how many marked elements other threads have before a thread's, and how many there are.

        `counts` is the address of a number for each warp; it alternates between two, from call to call, so
        that one barrier per call suffices.
        """
        amount = popcount_u32(marks)
        through = warp_inclusive_sum(amount)
        if lane == 31:
            store_shared_u32(counts + (warp << 2), through)
        cuda.syncthreads()
        of_warp = u32(0)
        if lane < _N_WARPS:
            of_warp = load_shared_u32(counts + (lane << 2))
        total = warp_add(of_warp)
        if lane >= warp:
            of_warp = u32(0)
        return warp_add(of_warp) + through - amount, total

    @linked_function
    def append(memory, own, marks, position, slot, key_format):
        """Put a thread's marked elements into the buffer."""
        keys, lows = memory.keys, memory.lows
        while marks != 0:
            number = trailing_zeros_u32(marks)
            marks &= marks - 1
            keys[slot] = ordered_key(load_shared(element_address(own, number)), key_format)
            lows[slot] = ~(position + number)
            slot += 1

    @linked_function
    def extent_of(memory, n_pairs, ids):
        """Return the smallest and the largest key of the buffer, all of which is seen from now on."""
        keys, extremes = memory.keys, memory.extremes
        thread, lane, warp = ids
        lowest = ~key_type(0)
        highest = key_type(0)
        cuda.syncthreads()
        own = thread
        while own < n_pairs:
            lowest = min(lowest, keys[own])
            highest = max(highest, keys[own])
            own += SAMPLED_THREADS
        return block_extremes(extremes, lowest, highest, lane, warp)

    @linked_function
    def drop_others(memory, n_pairs, n_selected, ids):
        """Leave about `n_selected` elements in the buffer, the first ones.

        Returns how many, and the smallest of their keys. Elements of this key that come later are not
        selected.
        """
        keys, lows, _, selected, _, histogram, sums, extremes, counters = memory
        thread, lane, warp = ids
        lowest, highest = extent_of(memory, n_pairs, ids)
        most = n_selected + (n_selected >> 4)
        key, larger, n_left = find_threshold(
            keys,
            n_pairs,
            lowest,
            highest,
            n_selected,
            most,
            histogram,
            sums,
            extremes,
            counters,
            thread,
            lane,
            warp,
        )
        n_ties = n_pairs
        if n_left > most:
            n_ties = n_selected - larger
            n_left = n_selected
        list_groups(keys, n_pairs, key, n_ties, selected, sums, thread, lane, warp)
        own = thread
        while own - thread < n_left:
            kept = key_type(0)
            low = u32(0)
            if own < n_left:
                place = u32(selected[own])
                kept = keys[place]
                low = lows[place]
            cuda.syncthreads()
            if own < n_left:
                keys[own] = kept
                lows[own] = low
            own += SAMPLED_THREADS
        cuda.syncthreads()
        return n_left, key

    @cuda.jit(max_registers=_REGISTERS)
    def buffered_top_k(x, lengths, values, indices, offsets, p: BufferedParameters):
        grid_dependency_wait()
        # All dynamic arrays are the same memory: with another alignment, one would begin elsewhere.
        keys = cuda.shared.array(0, key_type, STAGE_ALIGNMENT)
        words_of_memory = cuda.shared.array(0, u32, STAGE_ALIGNMENT)
        lows = shared_from(words_of_memory, p.n_slots * (key_bytes // 4))
        # What sorts takes the place of steps.
        bin_ends = shared_from(words_of_memory, p.stages_word)
        selected = shared_from(cuda.shared.array(0, u16, STAGE_ALIGNMENT), 2 * p.selected_word)
        part = cuda.shared.array(4, u32, VECTOR_BYTES)
        histogram = cuda.shared.array(SAMPLED_THREADS, u32)
        sums = cuda.shared.array(64, u32)
        extremes = cuda.shared.array(64, key_type)
        counters = cuda.shared.array(N_COUNTERS, u32)
        counts = shared_address(cuda.shared.array(_N_COUNTS, u32, _COUNTS_ALIGNMENT))
        memory = FinishMemory(
            keys, lows, words_of_memory, selected, bin_ends, histogram, sums, extremes, counters
        )
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        ids = (thread, lane, warp)
        histogram[thread] = u32(0)

        row = p.first_row + i64(cuda.blockIdx.x)
        length = row_length(lengths, p.layout, offsets, row, p.axis_size, p.length_format)
        value_row, index_row, count, base, address, n_before, n_whole = locate(
            x, offsets, row, i64(0), length, p.axis_size, i64(1), element_size, p.layout
        )
        n_selected = u32(min(p.k, count))
        # Copies have such addresses, even those of nothing in rows without a whole vector.
        address &= -VECTOR_BYTES
        prefix = u32(n_before)
        n_row_vectors = u32(n_whole)
        unfolding = unfolding_of(p.unfolded_format, False)
        threshold = key_type(0)
        stages = shared_address(words_of_memory) + (u32(p.stages_word) << 2)
        stages_end = stages + u32(n_stages * stage_bytes)
        own_offset = swizzled(thread * u32(n_vectors * VECTOR_BYTES))
        if n_selected > 0:
            start_row(stages, address, n_row_vectors, thread)
        if count > p.n_slots:
            threshold, _, _, _ = threshold_of_sample(
                keys,
                base,
                count,
                p.k,
                p.sample_bits,
                (histogram, sums, extremes, counters),
                p.key_format,
                ids,
            )

        bound = bound_of(threshold, p.key_format)
        n_steps = (n_row_vectors + u32(step_vectors - 1)) // u32(step_vectors)
        n_pairs = u32(0)
        reading = n_selected > 0
        while reading:
            # The first one has what comes before all vectors, and the last one what comes after them.
            step = u32(0)
            stage, previous_stage = stages, stages_end - u32(stage_bytes)
            while step < n_steps + 2:
                number = u32(step - u32(1))
                if number < n_steps:
                    first = number * u32(step_vectors)
                    wait_for_step()
                    cuda.syncwarp()
                    start_step(
                        previous_stage,
                        address,
                        first + u32((n_stages - 1) * step_vectors),
                        n_row_vectors,
                        thread,
                    )
                    first += thread * u32(n_vectors)
                    position = prefix + first * u32(per_vector)
                    own = stage + own_offset
                    previous_stage = stage
                    stage += u32(stage_bytes)
                    if stage == stages_end:
                        stage = stages
                    marks = marks_at_or_above(own, bound, p.key_format, unfolding)
                    if number + 1 == n_steps:
                        marks &= marks_before((i64(n_row_vectors) - i64(first)) * per_vector)
                else:
                    own = shared_address(part)
                    position = u32(0)
                    n_elements = prefix
                    if step > 0:
                        position = prefix + n_row_vectors * u32(per_vector)
                        n_elements = u32(count) - position
                    marks = mark_part(own, base, position, n_elements, bound.unfolded, unfolding, thread)
                before, n_marked = count_marks(marks, counts, lane, warp)
                counts ^= _COUNTS_BYTES
                if n_pairs + n_marked > p.n_slots:
                    n_pairs, key = drop_others(memory, n_pairs, n_selected, ids)
                    bound = bound_above(key, p.key_format)
                    if bound.unfolded == 0:
                        # Nothing comes before these.
                        marks = u32(0)
                        step = n_steps + 2
                    marks = keep_marks(own, marks, bound.unfolded, unfolding)
                    before, n_marked = count_marks(marks, counts, lane, warp)
                    counts ^= _COUNTS_BYTES
                append(memory, own, marks, position, n_pairs + before, p.key_format)
                n_pairs += n_marked
                step += 1
            # Also for those of steps behind the row.
            copy_async_wait()
            reading = n_pairs < n_selected
            bound = bound_of(key_type(0), p.key_format)
            if reading:
                n_pairs = u32(0)
                start_row(stages, address, n_row_vectors, thread)
                # All have been appended before any is again.
                cuda.syncthreads()

        values += value_row * element_size
        indices += index_row * p.index_size
        if n_selected > 0:
            extent = extent_of(memory, n_pairs, ids)
            listed = shared_from(cuda.shared.array(0, u16, STAGE_ALIGNMENT), 2 * p.listed_word)
            memory = FinishMemory(
                keys, lows, words_of_memory, listed, bin_ends, histogram, sums, extremes, counters
            )
            write_first(
                memory,
                n_pairs,
                n_selected,
                extent,
                (base, i64(element_size), count),
                (values, indices, p.strides, p.index_size),
                p,
                ids,
            )
        pad_row(
            values,
            indices,
            p.strides,
            p.index_size,
            p.length_format.padding,
            i64(n_selected) + i64(thread),
            i64(SAMPLED_THREADS),
            p.k,
        )

    return buffered_top_k
