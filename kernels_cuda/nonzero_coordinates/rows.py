"""Step 2: from mask words to rows, with the sums of counts in between; and all steps in one block."""

from typing import Any

from numba import cuda, types

from kernels_cuda import ptx
from kernels_cuda.nonzero_coordinates.parameters import EXPAND_THREADS as THREADS
from kernels_cuda.nonzero_coordinates.parameters import (
    GENERAL_COLUMNS,
    GRANULE,
    SCAN_THREADS,
    SMALL_IN_FLIGHT,
    SMALL_LIMIT,
    Columns,
    Dims,
    ExpandParameters,
    SmallParameters,
)
from kernels_cuda.offsets import arithmetic, dims_type, offset_functions
from kernels_cuda.ptx import i64, u16, u32, u64
from kernels_cuda.runtime.compiler import device_function, integers
from kernels_cuda.scan import block_scan

# A tile's bits are listed at once if they are at most one in so many, and those of a granule up to here;
# with more, threads that list the bits of a word each meet in memory banks.
SPARSE = 4
MOST_LISTED = GRANULE * 3 // 4
# From one bit in so many on, flat positions are not listed at all.
DENSE = 2
GROUP = 128  # elements of a thread's four mask words
_WORDS = THREADS * 4
_RANKS = THREADS + 1


@device_function
def store_count(address, size, count):
    """Write the count as `size` bytes."""
    if size == 8:
        ptx.store_u64(address, u64(count))
    else:
        ptx.store_u32(address, u32(count))


@device_function
def four_counts(counts, at, end):
    """Read the counts of four granules from `at` on, which divides by 4; from `end` on they are 0, unread."""
    if at + 3 < end:
        return ptx.load_u32x4(counts + at * 4)
    a = ptx.load_u32(counts + at * 4) if at < end else u32(0)
    b = ptx.load_u32(counts + at * 4 + 4) if at + 1 < end else u32(0)
    c = ptx.load_u32(counts + at * 4 + 8) if at + 2 < end else u32(0)
    return a, b, c, u32(0)


def columns_type(n_columns: int) -> Any:
    """Return the type of `Columns` for so many columns."""
    return types.NamedUniTuple(integers(n_columns), len(Columns._fields), Columns)


def scan_kernel() -> Any:
    """Make the kernel that turns counts into sums of the counts before, one block for all."""
    exclusive_sum = block_scan(SCAN_THREADS)

    @cuda.jit
    def nonzero_scan(counts, prefix, count_output, n_granules, count_size):
        """Write the sum of all counts before each granule, and of all of them, as 64 bits."""
        ptx.grid_dependency_wait()
        totals = cuda.shared.array(32, u32)
        thread = u32(cuda.threadIdx.x)
        carried = i64(0)
        first = i64(0)
        while first < n_granules:
            at = first + i64(thread) * 4
            a, b, c, d = four_counts(counts, at, n_granules)
            before, total = exclusive_sum(a + b + (c + d), thread, totals)
            address = prefix + at * 8
            through = carried + i64(before)
            if at < n_granules:
                ptx.store_u64(address, u64(through))
            through += i64(a)
            if at + 1 < n_granules:
                ptx.store_u64(address + 8, u64(through))
            through += i64(b)
            if at + 2 < n_granules:
                ptx.store_u64(address + 16, u64(through))
            through += i64(c)
            if at + 3 < n_granules:
                ptx.store_u64(address + 24, u64(through))
            carried += i64(total)
            first += SCAN_THREADS * 4
            cuda.syncthreads()
        if thread == 0:
            ptx.store_u64(prefix + n_granules * 8, u64(carried))
            store_count(count_output, count_size, carried)

    return nonzero_scan


def _row_writer(n_columns: int, size: int, wide: bool) -> Any:
    """Make the function that writes the rows of positions that lie in shared memory."""
    register, _, quotient_of = arithmetic(wide)
    store = ptx.STORE_STREAM[size]
    is_long = size == 8

    @device_function
    def store_vectors(address, values):
        """Write a row of two or four columns that lie side by side."""
        if is_long:
            for c in range(0, n_columns, 2):
                ptx.store_stream_u64x2(address + c * size, values[c], values[c + 1])
        elif n_columns == 4:
            ptx.store_stream_u32x4(address, values[0], values[1], values[2], values[3])
        else:
            ptx.store_stream_u32x2(address, values[0], values[1])

    @device_function
    def write_columns(thread, n_rows, row, first, positions, output, p, columns):
        values = cuda.local.array(n_columns, register)
        i = thread
        while i < n_rows:
            rest = register(first + i64(positions[i]))
            for c in range(n_columns - 1):
                values[c] = quotient_of(rest, columns.multipliers[c], columns.shifts[c])
                rest -= values[c] * register(columns.periods[c])
            values[n_columns - 1] = rest
            address = output + (row + i64(i)) * p.row_bytes
            if n_columns > 1 and p.is_packed:
                store_vectors(address, values)
            else:
                for c in range(n_columns):
                    store(address + c * p.column_bytes, values[c])
            i += THREADS

    @device_function
    def write_three(thread, n_rows, row, first, positions, output, p, columns):
        # A word a thread rather than a row: three stores of each row would leave gaps between the lanes.
        i = thread
        while i < n_rows * 3:
            index = i // 3
            column = i - index * 3
            position = register(first + i64(positions[index]))
            major = quotient_of(position, columns.multipliers[0], columns.shifts[0])
            rest = position - major * register(columns.periods[0])
            middle = quotient_of(rest, columns.multipliers[1], columns.shifts[1])
            minor = rest - middle * register(columns.periods[1])
            value = major if column == 0 else middle if column == 1 else minor
            store(output + (row + i64(index)) * p.row_bytes + i64(column) * p.column_bytes, value)
            i += THREADS

    @device_function
    def write_general(thread, n_rows, row, first, positions, output, p, columns):
        i = thread
        while i < n_rows:
            position = register(first + i64(positions[i]))
            rest = position - quotient_of(position, p.multiplier, p.shift) * register(p.period)
            address = output + (row + i64(i)) * p.row_bytes
            for c in range(GENERAL_COLUMNS):
                if c >= p.n_columns:
                    break
                quotient = quotient_of(rest, columns.multipliers[c], columns.shifts[c])
                rest -= quotient * register(columns.periods[c])
                store(address + c * p.column_bytes, quotient)
            i += THREADS

    return {3: write_three, GENERAL_COLUMNS: write_general}.get(n_columns, write_columns)


def expand_kernel(n_columns: int, size: int, wide: bool) -> Any:
    """Make the kernel that writes `n_columns` coordinates per row, or any number up to `GENERAL_COLUMNS`."""
    write_rows = _row_writer(n_columns, size, wide)
    exclusive_sum = block_scan(THREADS)
    store = ptx.STORE_STREAM[size]
    stored = ptx.REGISTER[size]
    n_warps = THREADS // 32
    store_position = ptx.STORE[size]
    is_flat = n_columns == 1
    group = GRANULE // GROUP

    @device_function
    def fill_rows(first, output, p, columns):
        """Write the fills to all rows from `first` on; all threads of the grid share the work."""
        i = i64(cuda.blockIdx.x) * THREADS + i64(cuda.threadIdx.x)
        step = i64(cuda.gridDim.x) * THREADS
        if p.fills_cells:
            i += first * p.n_columns
            while i < p.capacity * p.n_columns:
                store(output + i * size, stored(columns.fills[0]))
                i += step
        else:
            i += first
            while i < p.capacity:
                for c in range(n_columns):
                    if c < p.n_columns:
                        store(output + i * p.row_bytes + c * p.column_bytes, stored(columns.fills[c]))
                i += step

    @device_function
    def list_bits(positions, word, slot, position):
        """Write the positions of a word's bits from `slot` on; return the slot after them."""
        while word != 0:
            lowest = word & (0 - word)
            word ^= lowest
            positions[slot] = u16(position + ptx.popcount_u32(lowest - 1))
            slot += 1
        return slot

    @device_function
    def sums_of_counts(counts, prefix, first_granule, needs_all, sums, p):
        """Return the counts before a tile, and if `needs_all` the full count; `sums` is shared memory."""
        if prefix != 0:
            first_row = i64(ptx.load_u64(prefix + min(first_granule, p.n_granules) * 8))
            return first_row, i64(ptx.load_u64(prefix + p.n_granules * 8))
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        before = u32(0)
        found = u32(0)
        needed = p.n_granules if needs_all else min(first_granule, p.n_granules)
        at = i64(thread) * 4
        while at < needed:
            e, f, g, h = four_counts(counts, at, needed)
            found += e + f + (g + h)
            e = e if at < first_granule else u32(0)
            f = f if at + 1 < first_granule else u32(0)
            g = g if at + 2 < first_granule else u32(0)
            h = h if at + 3 < first_granule else u32(0)
            before += e + f + (g + h)
            at += THREADS * 4
        before = ptx.warp_add(before)
        found = ptx.warp_add(found)
        if lane == 0:
            sums[thread >> 5] = before
            sums[(thread >> 5) + 32] = found
        cuda.syncthreads()
        before = u32(0)
        found = u32(0)
        if lane < n_warps:
            before = sums[lane]
            found = sums[lane + 32]
        return i64(ptx.warp_add(before)), i64(ptx.warp_add(found))

    @device_function
    def write_positions(words, word_ranks, n_rows, first_address, first_position, p):
        """Write positions that are rows by themselves: a warp finds and writes those of 32 elements."""
        lane = u32(cuda.threadIdx.x) & 31
        below = ptx.lanes_below()
        own = 1 << lane
        g = u32(cuda.threadIdx.x) >> 5
        while g < u32(p.granules_per_tile) * group:
            group_words = ptx.load_shared_u32x4(ptx.shared_address(words) + (g << 4))
            group_ranks = word_ranks[g]
            for q in range(4):
                word = group_words[q]
                slot = (u32(group_ranks >> u64(16 * q)) & 0xFFFF) + ptx.popcount_u32(word & below)
                if word & own != 0 and slot < n_rows:
                    position = first_position + i64(g * GROUP + u32(q * 32) + lane)
                    store_position(first_address + i64(slot) * size, stored(position))
            g += n_warps

    @device_function
    def list_granule(positions, words, word_ranks, granule, start, takes_words):
        """List the positions of a granule's bits, the first of which has rank `start` in the tile."""
        thread = u32(cuda.threadIdx.x)
        first_group = u32(granule) * group
        if takes_words:
            # Every thread lists the bits of one word.
            quarter = thread & 3
            rank_of_word = u32(word_ranks[first_group + (thread >> 2)] >> u64(quarter * 16))
            position = u32(granule * GRANULE) + thread * 32
            word = words[u32(granule * THREADS) + thread]
            list_bits(positions, word, (rank_of_word - start) & 0xFFFF, position)
            return
        # A warp ranks 32 words, one bit per lane.
        lane = thread & 31
        below = ptx.lanes_below()
        own = 1 << lane
        for k in range(GRANULE // GROUP // n_warps):
            g = first_group + (thread >> 5) * u32(GRANULE // GROUP // n_warps) + u32(k)
            group_words = ptx.load_shared_u32x4(ptx.shared_address(words) + (g << 4))
            group_ranks = word_ranks[g]
            for q in range(4):
                word = group_words[q]
                if word & own != 0:
                    # A granule has no more bits than 16 of these tell apart.
                    rank_of_word = (u32(group_ranks >> u64(16 * q)) - start) & 0xFFFF
                    slot = rank_of_word + ptx.popcount_u32(word & below)
                    positions[slot] = u16(g * GROUP + u32(q * 32) + lane)

    @cuda.jit
    def nonzero_expand(
        mask,
        counts,
        prefix,
        output,
        count_output,
        p: ExpandParameters,
        columns: columns_type(n_columns),
    ):
        ptx.grid_dependency_wait()
        positions = cuda.shared.array(GRANULE, u16)
        words = cuda.shared.array(_WORDS, u32, 16)
        # Of four words each, 16 bits of how many bits of the tile come before.
        word_ranks = cuda.shared.array(THREADS, u64)
        ranks = cuda.shared.array(_RANKS, u32)
        totals = cuda.shared.array(32, u32)
        sums = cuda.shared.array(64, u32)
        thread = u32(cuda.threadIdx.x)
        tile = i64(cuda.blockIdx.x)
        first_granule = tile * p.granules_per_tile
        is_last = tile == max(p.n_tiles - 1, 0)

        mine = first_granule + i64(thread // group)
        a = u32(0)
        b = u32(0)
        c = u32(0)
        d = u32(0)
        if i64(thread // group) < p.granules_per_tile and mine < p.n_granules:
            a, b, c, d = ptx.load_u32x4(mask + first_granule * (GRANULE // 8) + i64(thread) * 16)

        first_row, n_found = sums_of_counts(counts, prefix, first_granule, p.fills or is_last, sums, p)

        if is_last and thread == 0 and count_output != 0:
            store_count(count_output, p.count_size, n_found)
        if p.fills:
            fill_rows(n_found, output, p, columns)

        counts_of_words = (ptx.popcount_u32(a), ptx.popcount_u32(b), ptx.popcount_u32(c), ptx.popcount_u32(d))
        mine_total = counts_of_words[0] + counts_of_words[1] + (counts_of_words[2] + counts_of_words[3])
        rank, total = exclusive_sum(mine_total, thread, totals)
        if total == 0 or first_row >= p.capacity:
            return
        first_position = first_granule * GRANULE - p.skipped

        # Few bits: every thread lists those of its own words, and the tile is written at once.
        if i64(total) <= p.granules_per_tile * (GRANULE // SPARSE):
            slot = rank
            position = thread * GROUP
            slot = list_bits(positions, a, slot, position)
            slot = list_bits(positions, b, slot, position + 32)
            slot = list_bits(positions, c, slot, position + 64)
            list_bits(positions, d, slot, position + 96)
            cuda.syncthreads()
            n_rows = u32(min(i64(total), p.capacity - first_row))
            write_rows(thread, n_rows, first_row, first_position, positions, output, p, columns)
            return

        # Many bits: the tile is written granule by granule.
        ptx.store_shared_u32x4(ptx.shared_address(words) + (thread << 4), a, b, c, d)
        second = rank + counts_of_words[0]
        third = second + counts_of_words[1]
        fourth = third + counts_of_words[2]
        word_ranks[thread] = ptx.join_u32((rank & 0xFFFF) | (second << 16), (third & 0xFFFF) | (fourth << 16))
        ranks[thread] = rank
        if thread == u32(THREADS - 1):
            ranks[THREADS] = total
        cuda.syncthreads()
        if is_flat and p.is_packed and i64(total) >= p.granules_per_tile * (GRANULE // DENSE):
            n_rows = u32(min(i64(total), p.capacity - first_row))
            write_positions(words, word_ranks, n_rows, output + first_row * size, first_position, p)
            return

        for granule in range(p.granules_per_tile):
            first_group = u32(granule) * group
            start = ranks[first_group]
            n_rows = i64(ranks[first_group + group] - start)
            list_granule(positions, words, word_ranks, granule, start, n_rows <= MOST_LISTED)
            cuda.syncthreads()
            row = first_row + i64(start)
            if row < p.capacity:
                write_rows(
                    thread,
                    u32(min(n_rows, p.capacity - row)),
                    row,
                    first_position,
                    positions,
                    output,
                    p,
                    columns,
                )
            cuda.syncthreads()

    return nonzero_expand


_SMALL_WORDS = SMALL_LIMIT // 32


def small_kernel(element_size: int) -> Any:
    """Make the kernel of all steps, for up to `SMALL_LIMIT` elements and `GENERAL_COLUMNS` columns.

    One block reads an input of any layout in about the time of one more launch.
    A warp turns every element into a bit of a word, and adds up the counts of all words before its own.
    """
    read = ptx.READ[element_size]
    register = ptx.REGISTER[element_size]
    _, _, quotient = arithmetic(wide=False)
    one_offset, _, _ = offset_functions(wide=False)

    @device_function
    def write_column(address, rest, multiplier, shift, period, size):
        """Write a coordinate, and return what is left of the position for the columns after it."""
        coordinate = quotient(rest, multiplier, shift)
        if size == 8:
            ptx.store_u64(address, u64(coordinate))
        else:
            ptx.store_u32(address, coordinate)
        return rest - coordinate * u32(period)

    @cuda.jit
    def nonzero_small(
        x,
        output,
        count_output,
        p: SmallParameters,
        dims: dims_type(Dims, wide=False),
        columns: columns_type(GENERAL_COLUMNS),
    ):
        words = cuda.shared.array(_SMALL_WORDS, u32)
        elements = cuda.local.array(SMALL_IN_FLIGHT, register)
        threads = u32(cuda.blockDim.x)
        thread = u32(cuda.threadIdx.x)
        lane = thread & 31
        warp = thread >> 5
        n_warps = threads >> 5
        n_elements = u32(p.end)
        for k in range(SMALL_IN_FLIGHT):
            position = u32(k) * threads + thread
            elements[k] = register(0)
            if position < n_elements and dims.n_dims == 1:
                elements[k] = read(x + i64(position) * dims.strides[0])
        if dims.n_dims > 1:
            for k in range(SMALL_IN_FLIGHT):
                position = u32(k) * threads + thread
                if position < n_elements:
                    elements[k] = read(x + one_offset(position, dims, dims.strides))
        for k in range(SMALL_IN_FLIGHT):
            if u32(k) * threads < n_elements:
                holds = ptx.ballot(elements[k] & register(p.magnitude) != 0)
                if lane == 0:
                    words[u32(k) * n_warps + warp] = holds
        cuda.syncthreads()

        below = ptx.lanes_below()
        total = u32(0)
        first = u32(0)
        while first < n_elements:
            first_word = first >> 5
            of_lane = u32(0)
            if lane < n_warps:
                of_lane = ptx.popcount_u32(words[first_word + lane])
            word = words[first_word + warp]
            before = ptx.warp_add(of_lane if lane < warp else u32(0))
            row = i64(total + before + ptx.popcount_u32(word & below))
            total += ptx.warp_add(of_lane)
            if (word >> lane) & 1 != 0 and row < p.capacity:
                address = output + row * p.row_bytes
                step, size = p.column_bytes, p.coordinate_size
                factors = columns.multipliers
                shifts = columns.shifts
                periods = columns.periods
                rest = first + thread
                # The compiler unrolls this loop, and so knows all indices of tables without addresses.
                for c in range(GENERAL_COLUMNS):
                    if p.n_columns > c:
                        rest = write_column(address, rest, factors[c], shifts[c], periods[c], size)
                        address += step
            first += threads
        if thread == 0 and count_output != 0:
            store_count(count_output, p.count_size, i64(total))
        if p.fills:
            row = i64(total) + i64(thread)
            while row < p.capacity:
                address = output + row * p.row_bytes
                for c in range(GENERAL_COLUMNS):
                    if p.n_columns > c:
                        if p.coordinate_size == 8:
                            ptx.store_u64(address, u64(columns.fills[c]))
                        else:
                            ptx.store_u32(address, u32(columns.fills[c]))
                        address += p.column_bytes
                row += i64(threads)

    return nonzero_small
