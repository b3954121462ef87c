"""One block per row, which reads the row once: for few elements of many long rows.

1. Each thread goes over its vectors of the row, a few at a time, which are of different groups. It keeps the
   best vector of each group (the first one with the largest key), and the largest key of all other vectors.
2. The block finds a threshold, a (key, position) pair that elements of at least k of the best vectors reach
   (`small_k`). So all that is selected reaches it.
3. Each thread reads those of its best vectors again that may have elements which reach it, the candidates,
   and lists these. It reads others again if their largest key asks for it. That is rare: what is selected is
   mostly spread over groups.
4. If there are more candidates than there is room for, the k-th of those that are listed is the next
   threshold. Each round leaves fewer. If there is room, but far more than k are left, because elements of a
   vector are equal, one of them is a closer threshold.
5. Order the candidates, and write the first k.

Of elements that are equal, only the first ones in the row are candidates. So where many are, threads read no
more vectors again than those up to the position of the threshold.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.top_k.read_once.one_pass_launches import ONE_PASS_CANDIDATES, OnePassParameters
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.long_rows import share_of_rows
from kernels_cuda.top_k.shared.results import RowIndices, row_functions
from kernels_cuda.top_k.shared.rows import locate, row_window
from kernels_cuda.top_k.shared.shapes import SPARE_CANDIDATES, VECTOR_BYTES, VECTORS_AHEAD, WARP_LANES
from kernels_cuda.top_k.shared.small_k import (
    PAIR_BYTES,
    PLACES_BYTES,
    add_candidate,
    pair_of,
    small_k_functions,
    threshold_of_maxima,
)

# Groups per thread; one load of each is in flight.
_GROUPS = VECTORS_AHEAD
_WORDS = 4 * _GROUPS
# Up to so many vectors a thread reads again alone; more are shared by its warp.
_READ_ALONE = 2 * _GROUPS


def one_pass_kernel(element_size: int, n_threads: int, shares_rows: int = 0) -> Any:
    """Make the kernel for elements of 2 or 4 bytes, and one block size.

    Blocks may share rows, of which they leave out short ones: then there are as many as run at a time.
    """
    functions = element_functions(element_size)
    ordered_key, load_element = functions.ordered_key, functions.load_element
    unfolding_of, fold, whole_key = functions.unfolding_of, functions.fold, functions.whole_key
    unfolded_maximum = functions.unfolded_maximum
    unfold_threshold, unfold_next_above = functions.unfold_threshold, functions.unfold_next_above
    per_vector = VECTOR_BYTES // element_size
    find_threshold = threshold_of_maxima(n_threads)
    list_vector, pair_at, write_first = small_k_functions(element_size, n_threads)
    _, _, pad_results = row_functions(element_size)
    n_warps = n_threads // WARP_LANES
    step_elements = n_threads * per_vector
    # The areas of shared memory begin at these bytes. They hold: what each warp finds of each group (rows are
    # padded, because each warp then reads columns), the maxima, what the search for a threshold needs, the
    # number of candidates (a whole vector), a bit for each of them, and one for the row of each thread. The
    # number of candidates and their bits are cleared together.
    warp_stride = (WARP_LANES + 1) * PAIR_BYTES
    maxima_at = n_warps * warp_stride
    places_at = maxima_at + n_threads * PAIR_BYTES
    count_at = places_at + PLACES_BYTES
    bits_at = count_at + VECTOR_BYTES
    marks_at = bits_at + ONE_PASS_CANDIDATES // 8
    n_pairs_of_memory = (marks_at + n_warps * 4) // PAIR_BYTES

    @device_function
    def load(words, at, address, vector, exists):
        word = 4 * at
        words[word], words[word + 1], words[word + 2], words[word + 3] = ptx.load_if_u32x4(
            address + i64(vector) * VECTOR_BYTES, exists
        )

    @device_function
    def keep_first(best, steps, group, key, step, exists):
        """Keep the first vector with the largest key; return the smaller of both keys."""
        if not exists:
            key = u32(0)
        smaller = min(key, best[group])
        if key > best[group]:
            best[group] = key
            steps[group] = step
        return smaller

    @linked_function
    def read_row(best, steps, address, n_own, unfolding):
        """Find the best vector of each of a thread's groups; return the largest other unfolded key.

        A step is number `step` of the vectors of its group.
        """
        words = cuda.local.array(_WORDS, u32)
        keys = cuda.local.array(_GROUPS, u32)
        other = u32(0)
        for group in range(_GROUPS):
            best[group] = u32(0)
            steps[group] = u32(0)
            load(words, group, address, group * n_threads, u32(group) < n_own)
        vector = u32(0)
        step = u32(0)
        while vector < n_own:
            address += _GROUPS * n_threads * VECTOR_BYTES
            # Without branches: compilers would wait for all loads at each.
            for group in range(_GROUPS):
                keys[group] = whole_key(unfolded_maximum(words, 4 * group, unfolding))
            for group in range(_GROUPS):
                exists = vector + u32(group + _GROUPS) < n_own
                load(words, group, address, group * n_threads, exists)
            for group in range(_GROUPS):
                exists = vector + u32(group) < n_own
                other = max(other, keep_first(best, steps, group, keys[group], step, exists))
            vector += _GROUPS
            step += 1
        return other

    @linked_function
    def share_maxima(memory, best, n_maxima, thread, lane, warp):
        """Put the maxima into shared memory; threads of several warps may have one together."""
        ptx.store_shared_u64(memory + warp * warp_stride + lane * PAIR_BYTES, best)
        cuda.syncthreads()
        if thread < n_maxima:
            best = u64(0)
            other = warp
            while other < n_warps:
                best = max(best, ptx.load_shared_u64(memory + other * warp_stride + lane * PAIR_BYTES))
                other += n_maxima // WARP_LANES
            ptx.store_shared_u64(memory + maxima_at + thread * PAIR_BYTES, best)
        cuda.syncthreads()

    @linked_function
    def keep_candidates(candidates, n_candidates, threshold, thread):
        """Drop the candidates that do not reach the threshold; return how many are left."""
        pairs, count, _ = candidates
        pair = u64(0)
        if thread < n_candidates:
            pair = ptx.load_shared_u64(pairs + thread * PAIR_BYTES)
        cuda.syncthreads()
        if thread == 0:
            ptx.store_shared_u32(count, u32(0))
        cuda.syncthreads()
        if pair >= threshold and pair != 0:
            add_candidate(candidates, pair)
        cuda.syncthreads()
        return ptx.load_shared_u32(count)

    @device_function
    def vectors_read_again(steps, n_own, other, threshold, prefix, key_format):
        """Return how many of a thread's vectors, from the first one on, are read again in full."""
        key = u32(threshold >> 32)
        # Larger elements may be anywhere; equal ones must not come after the threshold.
        position = ~u32(threshold)
        n_again = (max(position, prefix) - prefix) // step_elements + 1
        next_above = unfold_next_above(key, key_format)
        if next_above != 0 and other >= next_above:
            n_again = n_own
        n_again = min(n_again, n_own)
        # Where the first vector of each group is its best, there may be no others among these.
        are_best = n_again <= _GROUPS
        for group in range(_GROUPS):
            are_best &= steps[group] == 0 or n_again <= u32(group)
        if are_best or other < unfold_threshold(key, key_format):
            n_again = u32(0)
        return n_again

    @linked_function
    def list_candidates(candidates, row, own, threshold, p, thread):
        """List a thread's elements that reach the threshold, as far as there is room.

        First the best vectors of its groups are read again, then others: by the thread if they are few, by
        all of its warp if they are many.
        """
        address, prefix = row
        best, steps, n_own, other, unaligned = own
        if unaligned >= threshold and unaligned != 0:
            add_candidate(candidates, unaligned)
        n_again = vectors_read_again(steps, n_own, other, threshold, prefix, p.key_format)
        least = unfold_threshold(u32(threshold >> 32), p.key_format)
        bound = threshold, least, unfolding_of(p.unfolded_format, False)
        words = cuda.local.array(_WORDS, u32)
        vectors = cuda.local.array(_GROUPS, u32)
        loaded = u32(0)
        for group in range(_GROUPS):
            own_vector = steps[group] * _GROUPS + u32(group)
            vectors[group] = own_vector * n_threads + thread
            key = fold(best[group], p.key_format)
            may_be_listed = pair_of(key, prefix + vectors[group] * per_vector) >= threshold
            loaded |= u32(n_again <= own_vector < n_own and may_be_listed) << u32(group)
        # Vectors number `first`, `first + apart` and so on, up to `n`, of one thread.
        owner, first, apart = thread, u32(0), u32(1)
        n = n_again
        if n_again > _READ_ALONE:
            n = u32(0)
        most = ptx.warp_max(n)
        waiting = ptx.ballot(n_again > _READ_ALONE)
        done = u32(0)
        searching = True
        while searching:
            for at in range(_GROUPS):
                load(words, at, address, vectors[at], loaded & u32(1 << at))
            for at in range(_GROUPS):
                if loaded & u32(1 << at) != 0:
                    place = prefix + vectors[at] * per_vector, u32(per_vector)
                    list_vector(candidates, words, 4 * at, place, bound, p.key_format)
            if done >= most and waiting != 0:
                lane = ptx.trailing_zeros_u32(waiting)
                waiting &= waiting - 1
                n = ptx.shuffle_from_u32(n_again, lane)
                most = n
                owner = (thread & ~u32(31)) + lane
                first, apart = thread & 31, u32(WARP_LANES)
                done = u32(0)
            loaded = u32(0)
            for at in range(_GROUPS):
                own_vector = first + done + u32(at) * apart
                vectors[at] = own_vector * n_threads + owner
                loaded |= u32(own_vector < n) << u32(at)
            searching = done < most
            done += _GROUPS * apart

    @linked_function
    def select_row(operands, areas, row, p, m):
        """Select from a row; `areas` are shared memory, candidates there, and an array of one of them."""
        x, windows, values, indices, offsets = operands
        memory, pairs, found = areas
        thread = u32(cuda.threadIdx.x)
        start, length = row_window(windows, p.layout, offsets, row, p.axis_size, p.window_format)
        x += start * element_size
        value_row, index_row, count, base, address, n_before, n_vectors = locate(
            x, offsets, row, i64(0), length, p.axis_size, i64(1), element_size, p.layout
        )
        n_selected = u32(min(p.k, count))
        prefix = u32(n_before)
        # Elements outside all vectors are in no group: the first threads have one each.
        unaligned = u64(0)
        if thread < u32(count - n_vectors * per_vector):
            position = thread
            if thread >= prefix:
                position += u32(n_vectors) * per_vector
            bits = load_element(base + i64(position) * element_size)
            unaligned = pair_of(ordered_key(bits, p.key_format), position)
        if thread < (marks_at - count_at) // 4:
            ptx.store_shared_u32(memory + count_at + (thread << 2), u32(0))

        n_own = (u32(n_vectors) + u32(n_threads - 1) - thread) // u32(n_threads)
        best = cuda.local.array(_GROUPS, u32)
        steps = cuda.local.array(_GROUPS, u32)
        unfolding = unfolding_of(p.unfolded_format, False)
        own_address = address + i64(thread) * VECTOR_BYTES
        other = read_row(best, steps, own_address, n_own, unfolding)
        # Recomputed: live values would cost the loads their registers.
        thread = ptx.same_u32(thread)
        lane = thread & 31
        warp = thread >> 5
        maximum = u64(0)
        for group in range(_GROUPS):
            if u32(group) < n_own:
                vector = (steps[group] * _GROUPS + u32(group)) * n_threads + thread
                # The element is anywhere in the vector, at the latest at this position.
                last = prefix + vector * per_vector + u32(per_vector - 1)
                key = fold(best[group], p.key_format)
                maximum = max(maximum, pair_of(key, last))
        n_maxima = u32(m.n_maxima)
        share_maxima(memory, maximum, n_maxima, thread, lane, warp)
        maxima, places = memory + maxima_at, memory + places_at
        threshold = find_threshold(maxima, places, n_maxima, n_selected, lane, warp)
        candidates = pairs, memory + count_at, u32(ONE_PASS_CANDIDATES)
        own = best, steps, n_own, other, unaligned
        n_candidates = u32(0)
        searching = n_selected > 0
        while searching:
            list_candidates(candidates, (address, prefix), own, threshold, p, ptx.same_u32(thread))
            cuda.syncthreads()
            n_candidates = ptx.load_shared_u32(memory + count_at)
            searching = n_candidates > ONE_PASS_CANDIDATES
            if searching:
                threshold = pair_at(pairs, found, u32(ONE_PASS_CANDIDATES), n_selected - 1, thread)
                if thread == 0:
                    ptx.store_shared_u32(memory + count_at, u32(0))
                cuda.syncthreads()
        if n_candidates > 2 * n_selected + SPARE_CANDIDATES:
            threshold = find_threshold(pairs, places, n_candidates, n_selected, lane, warp)
            n_candidates = keep_candidates(candidates, n_candidates, threshold, thread)
        values += value_row * element_size
        row_indices = RowIndices(indices + index_row * p.index_size, start)
        listed, packed, is_by_index = (pairs, memory + bits_at), (base, i64(1)), m.is_sorted == 0
        output = values, row_indices, p.strides.values, p.strides.indices, p.index_size
        write_first(listed, packed, output, n_candidates, n_selected, is_by_index, p.key_format, thread)
        pad_results(values, row_indices, n_selected + thread, n_threads, p.k, p)

    share = share_of_rows(n_threads, select_row)

    # `marks` is for blocks that share rows.
    @linked_function
    def select_own_row(operands, areas, marks, p, m):
        select_row(operands, areas, p.first + i64(cuda.blockIdx.x), p, m)

    select_rows = share if shares_rows else select_own_row

    @cuda.jit(max_registers=64)
    def one_pass_top_k(x, windows: Windows, values, indices, offsets, p: RowParameters, m: OnePassParameters):
        ptx.grid_dependency_wait()
        memory = ptx.shared_address(cuda.shared.array(n_pairs_of_memory, u64, VECTOR_BYTES))
        pairs = ptx.shared_address(cuda.shared.array(ONE_PASS_CANDIDATES, u64, VECTOR_BYTES))
        found = cuda.shared.array(1, u64)
        operands = x, windows, values, indices, offsets
        select_rows(operands, (memory, pairs, found), memory + marks_at, p, m)

    return one_pass_top_k
