"""Index tuples of a gather, turned into offsets of the input or only checked.

All arrays are pointers.
"""

from typing import Any

import numpy as np

from kernels_cpu import intrinsics
from kernels_cpu.gather_nd.table import (
    CLIPS,
    COORDINATE,
    DIMENSIONS,
    HALF,
    HIGHEST,
    MODULUS,
    N_BOUNDS,
    N_TUPLES,
    NARROW,
    PACKED,
    X_OFFSET,
)
from kernels_cpu.jit import helper, inline, kernel
from kernels_cpu.unsigned import FOUR, ONE, THREE, TWO, ZERO

OUTSIDE: Any = np.uint64((1 << 64) - 1)  # the offset of a tuple that is out of range
CHECKED: Any = np.uint64(64)  # tuples whose bounds are laid out next to each other


@inline
def outer_offsets(table: Any, position: Any) -> Any:
    """Return the offsets (x, index, output) of a position in all tuple dimensions but the last.

    Those of x count from its lowest element, so that none is negative, which could be `OUTSIDE`.
    """
    x = table[X_OFFSET]
    index = output = ZERO
    field = DIMENSIONS + FOUR * (table[N_TUPLES] - ONE)
    while field > DIMENSIONS:
        field -= FOUR
        quotient = position // table[field]
        coordinate = position - quotient * table[field]
        x += coordinate * table[field + ONE]
        index += coordinate * table[field + TWO]
        output += coordinate * table[field + THREE]
        position = quotient
    return x, index, output


@inline
def _coordinate(bits: Any, wrap: Any, highest: Any) -> Any:
    """Return a coordinate that counts from the start: one unsigned comparison tells whether it is in range.

    Bits above the `highest` that is not negative count from the end: `wrap` is the size less 2 to the power
    of their number. What is too negative wraps around to a very large coordinate.
    """
    value = np.uint64(bits)
    return value + (wrap if value > highest else ZERO)


@helper
def resolve(
    x: Any,
    indices: Any,
    index: Any,
    index_stride: Any,
    offset: Any,
    stride: Any,
    n: Any,
    table: Any,
    offsets: Any,
) -> Any:
    """Write the input offsets of `n` tuples to `offsets`; return whether any of them is out of range."""
    step = table[COORDINATE]
    highest = table[HIGHEST]
    field = DIMENSIONS + FOUR * table[N_TUPLES]
    end = field + TWO * table[N_BOUNDS]
    start = index
    outside = False
    for i in range(n):
        offsets[i] = offset + i * stride
    if field == end:
        return outside
    while field + FOUR < end:
        size, x_stride = table[field], table[field + ONE]
        wrap = size - table[MODULUS]
        for i in range(n):
            value = _coordinate(indices[start + i * index_stride], wrap, highest)
            outside |= value >= size
            offsets[i] += value * x_stride
        field += TWO
        start += step
    size, x_stride = table[field], table[field + ONE]
    wrap = size - table[MODULUS]
    if table[NARROW] and table[N_BOUNDS] == index_stride and step == ONE and index_stride <= TWO:
        x_stride &= HALF
        if index_stride == ONE:
            for i in range(n):
                value = _coordinate(indices[start + i], wrap, highest)
                outside |= value >= size
                offsets[i] += (value & HALF) * x_stride
        else:
            size_b, x_stride_b = table[field + TWO], table[field + THREE] & HALF
            wrap_b = size_b - table[MODULUS]
            for i in range(n):
                value = _coordinate(indices[start + TWO * i], wrap, highest)
                value_b = _coordinate(indices[start + TWO * i + ONE], wrap_b, highest)
                outside |= (value >= size) | (value_b >= size_b)
                offsets[i] += (value & HALF) * x_stride + (value_b & HALF) * x_stride_b
        for i in range(n):
            intrinsics.prefetch(x, offsets[i])
    elif field + TWO < end:
        size_b, x_stride_b = table[field + TWO], table[field + THREE]
        wrap_b = size_b - table[MODULUS]
        for i in range(n):
            value = _coordinate(indices[start + i * index_stride], wrap, highest)
            value_b = _coordinate(indices[start + step + i * index_stride], wrap_b, highest)
            outside |= (value >= size) | (value_b >= size_b)
            offsets[i] += value * x_stride + value_b * x_stride_b
            intrinsics.prefetch(x, offsets[i])
    else:
        for i in range(n):
            value = _coordinate(indices[start + i * index_stride], wrap, highest)
            outside |= value >= size
            offsets[i] += value * x_stride
            intrinsics.prefetch(x, offsets[i])
    if outside:
        for i in range(n):
            offsets[i] = _settled(indices, index + i * index_stride, offset + i * stride, table)
    return outside


@helper
def _settled(indices: Any, index: Any, offset: Any, table: Any) -> Any:
    """Return the input offset of one tuple, some of whose coordinates may be out of range."""
    field = DIMENSIONS + FOUR * table[N_TUPLES]
    for _ in range(table[N_BOUNDS]):
        size = table[field]
        value = _coordinate(indices[index], size - table[MODULUS], table[HIGHEST])
        if value >= size:
            if not table[CLIPS]:
                return OUTSIDE
            value = ZERO if np.uint64(indices[index]) > table[HIGHEST] else size - ONE
        offset += value * table[field + ONE]
        index += table[COORDINATE]
        field += TWO
    return offset


@kernel
def find_outside(table: Any, first: Any, last: Any, indices: Any) -> Any:
    """Return the first of tuples `first` to `last` that is out of range, or -1."""
    sizes = intrinsics.stack_like(indices, 256)
    wraps = intrinsics.stack_like(indices, 256)
    indices = intrinsics.pointer(indices)
    table = intrinsics.pointer(table)
    n_bounds = table[N_BOUNDS]
    bounds = DIMENSIONS + FOUR * table[N_TUPLES]
    inner = bounds - FOUR
    n_inner = table[inner]
    index_stride = table[inner + TWO]
    packed = table[PACKED] != ZERO
    if packed:
        for i in range(min(CHECKED, np.uint64(last) - np.uint64(first))):
            for j in range(n_bounds):
                size = table[bounds + TWO * j]
                sizes[i * n_bounds + j] = size
                wraps[i * n_bounds + j] = size - table[MODULUS]
    highest = intrinsics.like(indices, table[HIGHEST])
    position = np.uint64(first)
    while position < np.uint64(last):
        outer = position // n_inner
        start = position - outer * n_inner
        n = min(n_inner - start, np.uint64(last) - position, CHECKED)
        offset, index, _ = outer_offsets(table, outer)
        offset += start * table[inner + ONE]
        index += start * index_stride
        outside = not packed
        if packed:
            for i in range(n * n_bounds):
                value = indices[index + i]
                if value > highest:
                    value = intrinsics.like(indices, value + wraps[i])
                outside |= value >= sizes[i]
        if outside:
            for i in range(n):
                if _settled(indices, index + i * index_stride, offset, table) == OUTSIDE:
                    return np.int64(position + i)
                offset += table[inner + ONE]
        position += n
    return np.int64(-1)
