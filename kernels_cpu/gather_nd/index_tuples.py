"""Turn the index tuples of a gather into offsets into the input, or only check them.

All arrays are pointers.
"""

from typing import Any

from kernels_cpu.gather_nd.plan import (
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
from kernels_cpu.intrinsics.pointers import as_element, stack_like
from kernels_cpu.jit import inline, int64, njit, uint64

OUTSIDE = -1  # the offset of a tuple that is out of range
CHECKED = 64  # tuples whose bounds are laid out next to each other


@inline
def outer_offsets(table: Any, position: Any) -> Any:
    """Return the offsets (x, index, output) of a position in all tuple dimensions but the last.

    Those of x count from its lowest element, so that none is negative, which could be `OUTSIDE`.
    """
    x = table[X_OFFSET]
    index = output = 0
    field = DIMENSIONS + 4 * (table[N_TUPLES] - 1)
    while field > DIMENSIONS:
        field -= 4
        quotient = position // table[field]
        coordinate = position - quotient * table[field]
        x += coordinate * table[field + 1]
        index += coordinate * table[field + 2]
        output += coordinate * table[field + 3]
        position = quotient
    return x, index, output


@njit
def _coordinate(bits: Any, wrap: Any, highest: Any) -> Any:
    """Return a coordinate that counts from the start: one unsigned comparison tells whether it is in range.

    `wrap` is added to bits above the `highest` that is not negative, which count from the end: it is the size
    less 2 to the power of their number. A coordinate below the range wraps around to a very large one. Where
    all negative ones are out of range, `wrap` keeps them at the size and above.
    """
    value = uint64(bits)
    return value + (wrap if value > highest else uint64(0))


@njit
def resolve(
    indices: Any, index: Any, index_stride: Any, offset: Any, stride: Any, n: Any, table: Any, offsets: Any
) -> Any:
    """Write the input offsets of `n` tuples to `offsets`; return whether any of them is out of range."""
    step = table[COORDINATE]
    highest, modulus = uint64(table[HIGHEST]), uint64(table[MODULUS])
    field = DIMENSIONS + 4 * table[N_TUPLES]
    end = field + 2 * table[N_BOUNDS]
    start = index
    outside = False
    if not table[NARROW]:
        for i in range(n):
            offsets[i] = offset + i * stride
    if field == end:
        return outside
    while field + 4 < end:
        size, x_stride = uint64(table[field]), table[field + 1]
        wrap = size - modulus
        for i in range(n):
            value = _coordinate(indices[start + i * index_stride], wrap, highest)
            outside |= value >= size
            offsets[i] += int64(value) * x_stride
        field += 2
        start += step
    size, x_stride = uint64(table[field]), table[field + 1]
    wrap = size - modulus
    if table[NARROW]:
        x_stride &= HALF
        if index_stride == 1:
            for i in range(n):
                value = _coordinate(indices[start + i], wrap, highest)
                outside |= value >= size
                offsets[i] = offset + i * stride + (int64(value) & HALF) * x_stride
        else:
            size_b, x_stride_b = uint64(table[field + 2]), table[field + 3] & HALF
            wrap_b = size_b - modulus
            for i in range(n):
                value = _coordinate(indices[start + 2 * i], wrap, highest)
                value_b = _coordinate(indices[start + 2 * i + 1], wrap_b, highest)
                outside |= (value >= size) | (value_b >= size_b)
                inner = (int64(value) & HALF) * x_stride + (int64(value_b) & HALF) * x_stride_b
                offsets[i] = offset + i * stride + inner
    elif field + 2 < end:
        size_b, x_stride_b = uint64(table[field + 2]), table[field + 3]
        wrap_b = size_b - modulus
        for i in range(n):
            value = _coordinate(indices[start + i * index_stride], wrap, highest)
            value_b = _coordinate(indices[start + step + i * index_stride], wrap_b, highest)
            outside |= (value >= size) | (value_b >= size_b)
            offsets[i] += int64(value) * x_stride + int64(value_b) * x_stride_b
    else:
        for i in range(n):
            value = _coordinate(indices[start + i * index_stride], wrap, highest)
            outside |= value >= size
            offsets[i] += int64(value) * x_stride
    if outside:
        for i in range(n):
            offsets[i] = _resolve_one(indices, index + i * index_stride, offset + i * stride, table)
    return outside


@njit
def _resolve_one(indices: Any, index: Any, offset: Any, table: Any) -> Any:
    """Return the input offset of one tuple, some of whose coordinates may be out of range."""
    field = DIMENSIONS + 4 * table[N_TUPLES]
    for _ in range(table[N_BOUNDS]):
        size, highest = uint64(table[field]), uint64(table[HIGHEST])
        value = _coordinate(indices[index], size - uint64(table[MODULUS]), highest)
        if value >= size:
            if not table[CLIPS]:
                return OUTSIDE
            value = uint64(0) if uint64(indices[index]) > highest else size - uint64(1)
        offset += int64(value) * table[field + 1]
        index += table[COORDINATE]
        field += 2
    return offset


@njit
def find_outside(table: Any, first: Any, last: Any, indices: Any) -> Any:
    """Return the first of tuples `first` to `last` that is out of range, or -1."""
    sizes = stack_like(indices, 256)
    wraps = stack_like(indices, 256)
    n_bounds = table[N_BOUNDS]
    bounds = DIMENSIONS + 4 * table[N_TUPLES]
    inner = bounds - 4
    n_inner = table[inner]
    index_stride = table[inner + 2]
    packed = table[PACKED] != 0
    if packed:
        for i in range(min(CHECKED, last - first)):
            for j in range(n_bounds):
                size = table[bounds + 2 * j]
                sizes[i * n_bounds + j] = size
                wraps[i * n_bounds + j] = size - table[MODULUS]
    highest = as_element(indices, uint64(table[HIGHEST]))
    position = first
    while position < last:
        outer = position // n_inner
        start = position - outer * n_inner
        n = min(n_inner - start, last - position, CHECKED)
        offset, index, _ = outer_offsets(table, outer)
        offset += start * table[inner + 1]
        index += start * index_stride
        outside = not packed
        if packed:
            for i in range(n * n_bounds):
                value = indices[index + i]
                if value > highest:
                    value = as_element(indices, uint64(value + wraps[i]))
                outside |= value >= sizes[i]
        if outside:
            for i in range(n):
                if _resolve_one(indices, index + i * index_stride, offset, table) == OUTSIDE:
                    return position + i
                offset += table[inner + 1]
        position += n
    return -1
