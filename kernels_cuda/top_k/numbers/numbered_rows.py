"""The numbers of a row's elements, and what sorts them."""

import functools
from typing import Any, NamedTuple

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.top_k.numbers.numbered_launches import ITEMS_PER_THREAD
from kernels_cuda.top_k.shared.keys import element_functions
from kernels_cuda.top_k.shared.rows import row_offsets
from kernels_cuda.top_k.shared.shapes import WARP_LANES


class NumberedRow(NamedTuple):
    """Where a row's elements and their numbers begin, its first position, and how many elements it has."""

    base: Any
    numbers: Any
    start: Any
    length: Any


class NumberFunctions(NamedTuple):
    """Device functions for one element width.

    ``load_number(row, position, exists, m)`` returns the number of an element, or `m.excluded` if it does not
    exist; ``number_key(bits, m)`` makes a key of a number. ``pack(key, position)`` makes one word of an
    element, whose lower half is the position, and ``key_of(packed, row, p)`` returns its key.
    """

    load_number: Any
    number_key: Any
    pack: Any
    key_of: Any


@device_function
def find_numbers(base, row_indices, length, numbers, tables, row, m):
    """Return a row with its numbers, the others as `results.row_functions` found them."""
    number_row, _, _ = row_offsets(m.layout, tables.numbers, row)
    start = row_indices.start
    return NumberedRow(base, numbers + (number_row + start * m.step) * m.size, start, length)


@device_function
def first_of_tile(thread):
    """Return the first element of a thread in a tile; its others follow, `WARP_LANES` apart."""
    return (thread >> 5) * u32(ITEMS_PER_THREAD * WARP_LANES) + (thread & 31)


@functools.cache
def number_functions(element_size: int) -> NumberFunctions:
    """Make the functions for one element width."""
    functions = element_functions(element_size)
    ordered_key, load_element, key_type = functions.ordered_key, functions.load_element, functions.key_type
    read_if_4, read_if_8 = ptx.READ_IF[4], ptx.READ_IF[8]
    has_room = element_size <= 4

    @device_function
    def load_number(row, position, exists, m):
        # Without branches: compilers would wait for each load.
        address = row.numbers + position * m.step * m.size
        bits = u64(read_if_4(address, u32(exists and m.size == 4)))
        bits |= read_if_8(address, u32(exists and m.size == 8))
        return bits if exists else u64(m.excluded)

    @device_function
    def number_key(bits, m):
        return ~(bits ^ u64(m.flip))

    @device_function
    def key_at(row, position, p):
        return u64(ordered_key(load_element(row.base + position * p.strides.x * element_size), p.key_format))

    if has_room:

        @device_function
        def pack(key, position):
            return u64(key) << 32 | u64(position)

        @device_function
        def key_of(packed, row, p):
            return key_type(packed >> 32)

    else:

        @device_function
        def pack(key, position):
            return u64(position)

        @device_function
        def key_of(packed, row, p):
            return key_at(row, i64(packed), p)

    return NumberFunctions(load_number, number_key, pack, key_of)
