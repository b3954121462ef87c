"""All steps in one block, for inputs that it reads in about the time of one more launch."""

from numba import cuda, types

from kernels_cuda import ptx
from kernels_cuda.compiler import KernelSource
from kernels_cuda.layout import arithmetic, offset_functions, table_lengths
from kernels_cuda.nonzero_coordinates.expand import store_count
from kernels_cuda.nonzero_coordinates.sizes import GENERAL_COLUMNS
from kernels_cuda.scan import block_scan

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

THREADS = 512
LIMIT = THREADS * 32  # a mask word a thread
_WARPS = THREADS // 32
_IN_FLIGHT = 8


def small_source(element_size: int) -> KernelSource:
    """Make the kernel for any layout of at most `LIMIT` elements, and at most `GENERAL_COLUMNS` columns."""
    read = ptx.READ[element_size]
    register = ptx.REGISTER[element_size]
    _, divide = arithmetic(wide=False)
    one_offset, _, _ = offset_functions(wide=False)
    exclusive_sum = block_scan(THREADS)

    def small(
        x,
        end,
        magnitude,
        output,
        capacity,
        row_bytes,
        column_bytes,
        coordinate_size,
        n_columns,
        fills,
        fill,
        count_output,
        count_size,
        n_dims,
        multipliers,
        shifts,
        sizes,
        strides,
        m,
        s,
        p,
    ):
        words = cuda.shared.array(THREADS, u32)
        ranks = cuda.shared.array(THREADS, u32)
        totals = cuda.shared.array(32, u32)
        elements = cuda.local.array(_IN_FLIGHT, register)
        thread = u32(cuda.threadIdx.x)
        lane = i64(thread & u32(31))
        warp = i64(thread >> u32(5))
        last = end - 1
        n_words = (end + 31) >> 5
        words[thread] = u32(0)
        cuda.syncthreads()
        for batch in range(THREADS // (_WARPS * _IN_FLIGHT)):
            if batch * _IN_FLIGHT * _WARPS < n_words:
                for k in range(_IN_FLIGHT):
                    index = (batch * _IN_FLIGHT + k) * _WARPS + warp
                    position = min(index * 32 + lane, last)
                    elements[k] = read(x + one_offset(position, n_dims, multipliers, shifts, sizes, strides))
                for k in range(_IN_FLIGHT):
                    index = (batch * _IN_FLIGHT + k) * _WARPS + warp
                    holds = ptx.ballot(
                        index * 32 + lane < end and register(elements[k] & register(magnitude)) != register(0)
                    )
                    if lane == 0:
                        words[index] = holds
        cuda.syncthreads()
        rank, total = exclusive_sum(ptx.popcount_u32(words[thread]), thread, totals)
        ranks[thread] = rank
        cuda.syncthreads()
        if thread == u32(0):
            store_count(count_output, count_size, i64(total))

        below = ptx.lanes_below()
        own = u32(u32(1) << u32(lane))
        index = warp
        while index < n_words:
            word = words[index]
            row = i64(u32(ranks[index] + ptx.popcount_u32(u32(word & below))))
            if u32(word & own) != u32(0) and row < capacity:
                address = output + row * row_bytes
                rest = u32(index * 32 + lane)
                for c in range(GENERAL_COLUMNS):
                    if c >= n_columns:
                        break
                    quotient = divide(rest, m[c], s[c])
                    rest = u32(rest - u32(quotient * u32(p[c])))
                    if coordinate_size == 8:
                        ptx.store_u64(address + c * column_bytes, u64(quotient))
                    else:
                        ptx.store_u32(address + c * column_bytes, quotient)
            index += _WARPS
        if fills:
            row = i64(total) + i64(thread)
            while row < capacity:
                for c in range(n_columns):
                    address = output + row * row_bytes + c * column_bytes
                    if coordinate_size == 8:
                        ptx.store_u64(address, u64(fill))
                    else:
                        ptx.store_u32(address, u32(fill))
                row += THREADS

    tables = table_lengths(("multipliers", "shifts", "sizes", "strides"), wide=False)
    return KernelSource(small, tables | dict.fromkeys(("m", "s", "p"), GENERAL_COLUMNS))
