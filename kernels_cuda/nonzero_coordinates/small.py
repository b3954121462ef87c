"""All steps in one block, for inputs that it reads in about the time of one more launch."""

from numba import cuda, types

from kernels_cuda import ptx
from kernels_cuda.compiler import KernelSource
from kernels_cuda.nonzero_coordinates.expand import store_count
from kernels_cuda.nonzero_coordinates.sizes import GENERAL_COLUMNS, SMALL_IN_FLIGHT, SMALL_LIMIT
from kernels_cuda.offsets import arithmetic, offset_functions, table_lengths

u32 = types.uint32
u64 = types.uint64
i64 = types.int64

_WORDS = SMALL_LIMIT // 32


def small_source(element_size: int) -> KernelSource:
    """Make the kernel for any layout of up to `SMALL_LIMIT` elements, and up to `GENERAL_COLUMNS` columns.

    A warp turns every element into a bit of a word, and adds up the counts of all words before its own.
    """
    read = ptx.READ[element_size]
    register = ptx.REGISTER[element_size]
    _, divide = arithmetic(wide=False)
    one_offset, _, _ = offset_functions(wide=False)

    def small(
        x,
        output,
        count_output,
        end,
        magnitude,
        capacity,
        row_bytes,
        column_bytes,
        coordinate_size,
        n_columns,
        fills,
        fill,
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
        words = cuda.shared.array(_WORDS, u32)
        elements = cuda.local.array(SMALL_IN_FLIGHT, register)
        threads = u32(cuda.blockDim.x)
        thread = u32(cuda.threadIdx.x)
        lane = u32(thread & u32(31))
        warp = u32(thread >> u32(5))
        n_warps = u32(threads >> u32(5))
        n_elements = u32(end)
        for k in range(SMALL_IN_FLIGHT):
            position = u32(u32(u32(k) * threads) + thread)
            elements[k] = register(0)
            if position < n_elements:
                elements[k] = read(x + one_offset(position, n_dims, multipliers, shifts, sizes, strides))
        for k in range(SMALL_IN_FLIGHT):
            if u32(u32(k) * threads) < n_elements:
                holds = ptx.ballot(register(elements[k] & register(magnitude)) != register(0))
                if lane == u32(0):
                    words[u32(u32(u32(k) * n_warps) + warp)] = holds
        cuda.syncthreads()

        below = ptx.lanes_below()
        total = u32(0)
        first = u32(0)
        while first < n_elements:
            first_word = u32(first >> u32(5))
            of_lane = u32(0)
            if lane < n_warps:
                of_lane = ptx.popcount_u32(words[u32(first_word + lane)])
            word = words[u32(first_word + warp)]
            before = ptx.warp_add(u32(of_lane if lane < warp else u32(0)))
            row = i64(u32(u32(total + before) + ptx.popcount_u32(u32(word & below))))
            total = u32(total + ptx.warp_add(of_lane))
            if u32(u32(word >> lane) & u32(1)) != u32(0) and row < capacity:
                address = output + row * row_bytes
                rest = u32(first + thread)
                for c in range(GENERAL_COLUMNS):
                    if c >= n_columns:
                        break
                    quotient = divide(rest, m[c], s[c])
                    rest = u32(rest - u32(quotient * u32(p[c])))
                    if coordinate_size == 8:
                        ptx.store_u64(address + c * column_bytes, u64(quotient))
                    else:
                        ptx.store_u32(address + c * column_bytes, quotient)
            first = u32(first + threads)
        if thread == u32(0) and count_output != 0:
            store_count(count_output, count_size, i64(total))
        if fills:
            row = i64(total) + i64(thread)
            while row < capacity:
                for c in range(n_columns):
                    address = output + row * row_bytes + c * column_bytes
                    if coordinate_size == 8:
                        ptx.store_u64(address, u64(fill))
                    else:
                        ptx.store_u32(address, u32(fill))
                row += i64(threads)

    tables = table_lengths(("multipliers", "shifts", "sizes", "strides"), wide=False)
    return KernelSource(small, tables | dict.fromkeys(("m", "s", "p"), GENERAL_COLUMNS))
