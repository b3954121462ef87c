"""Numbers settle ties of any number of selected elements: rows are sorted by number, then selected from.

1. `write_codes` makes an unsigned code of each number, in the same order. Elements that take no part, and
   what is behind a window, have the largest code, which no number has.
2. The codes are sorted: an algorithm of `top_k` selects all of them.
3. `bring_into_order` brings the elements of a row into this order, and counts those that take part.
4. An algorithm of `top_k` selects from so many: positions, which settle its ties, are in the order of
   numbers.
5. `write_numbers` writes what is selected, and its numbers.
"""

from typing import Any

from numba import cuda

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u64
from kernels_cuda.top_k.numbers.numbered_launches import NumberParameters, Tables
from kernels_cuda.top_k.numbers.numbered_rows import find_numbers, number_functions
from kernels_cuda.top_k.numbers.sorted_launches import CODE_BYTES, MOVED_ELEMENTS, MOVING_THREADS
from kernels_cuda.top_k.shared.launches import RowParameters, Windows
from kernels_cuda.top_k.shared.results import RowIndices, row_functions
from kernels_cuda.top_k.shared.rows import load_index, part_of

_NO_CODE = (1 << 64) - 1


def codes_kernel() -> Any:
    """Make `write_codes`."""
    find_row, _, _ = row_functions(4)
    load_number = number_functions(4).load_number

    @cuda.jit
    def write_codes(
        windows: Windows,
        numbers,
        codes,
        tables: Tables,
        p: RowParameters,
        m: NumberParameters,
    ):
        ptx.grid_dependency_wait()
        number, part = part_of(p.first + i64(cuda.blockIdx.x), m.n_parts)
        _, _, row_indices, length = find_row(i64(0), windows, i64(0), i64(0), tables.rows, number, p)
        row = find_numbers(i64(0), row_indices, length, numbers, tables, number, m)
        at = part * MOVED_ELEMENTS + i64(cuda.threadIdx.x)
        end = min((part + 1) * MOVED_ELEMENTS, p.axis_size)
        while at < end:
            code = u64(_NO_CODE)
            bits = load_number(row, at, at < length, m)
            if bits != u64(m.excluded):
                code = bits ^ u64(m.flip)
                # Codes behind that of -1 move up: so no number has the largest code.
                code -= u64(code > u64(m.excluded) ^ u64(m.flip))
            ptx.store_u64(codes + (number * p.axis_size + at) * CODE_BYTES, code)
            at += MOVING_THREADS

    return write_codes


def order_kernel(element_size: int) -> Any:
    """Make `bring_into_order` for one element width."""
    load_element, store_element = ptx.LOAD[element_size], ptx.STORE[element_size]
    find_row, _, _ = row_functions(element_size)

    @cuda.jit
    def bring_into_order(
        x, windows: Windows, codes, order, elements, counts, offsets, p: RowParameters, order_size, n_parts
    ):
        ptx.grid_dependency_wait()
        row, part = part_of(p.first + i64(cuda.blockIdx.x), n_parts)
        base, _, _, _ = find_row(x, windows, i64(0), i64(0), offsets, row, p)
        at = part * MOVED_ELEMENTS + i64(cuda.threadIdx.x)
        end = min((part + 1) * MOVED_ELEMENTS, p.axis_size)
        while at < end:
            place = row * p.axis_size + at
            exists = ptx.load_u64(codes + place * CODE_BYTES) != u64(_NO_CODE)
            is_last = exists
            if exists and at + 1 < p.axis_size:
                is_last = ptx.load_u64(codes + (place + 1) * CODE_BYTES) == u64(_NO_CODE)
            if exists:
                position = load_index(order + place * order_size, order_size)
                element = load_element(base + position * p.strides.x * element_size)
                store_element(elements + place * element_size, element)
            if is_last:
                ptx.store_u64(counts + row * 8, u64(at + 1))
            if at == 0 and not exists:
                ptx.store_u64(counts + row * 8, u64(0))
            at += MOVING_THREADS

    return bring_into_order


def numbers_kernel(element_size: int) -> Any:
    """Make `write_numbers` for one element width."""
    load_element = ptx.LOAD[element_size]
    find_row, write_result, pad_results = row_functions(element_size)
    load_number = number_functions(element_size).load_number

    @cuda.jit
    def write_numbers(
        windows: Windows,
        numbers,
        values,
        indices,
        order,
        selected,
        places,
        tables: Tables,
        p: RowParameters,
        m: NumberParameters,
    ):
        ptx.grid_dependency_wait()
        number, part = part_of(p.first + i64(cuda.blockIdx.x), m.n_parts)
        _, values, row_indices, length = find_row(i64(0), windows, values, indices, tables.rows, number, p)
        row = find_numbers(i64(0), row_indices, length, numbers, tables, number, m)
        outputs = RowIndices(row_indices.address, i64(0))
        rank = part * MOVED_ELEMENTS + i64(cuda.threadIdx.x)
        end = min((part + 1) * MOVED_ELEMENTS, p.k)
        while rank < end:
            at = number * p.k + rank
            place = i64(ptx.load_u64(places + at * 8))
            if place < 0:
                pad_results(values, outputs, rank, 1, rank + 1, p)
            else:
                found = order + (number * p.axis_size + place) * m.found_size
                bits = load_number(row, load_index(found, m.found_size), True, m)
                element = load_element(selected + at * element_size)
                write_result(values, outputs, rank, element, i64(bits), p)
            rank += MOVING_THREADS

    return write_numbers
