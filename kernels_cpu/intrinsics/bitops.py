"""Words of bits: population counts and positions, and words that tell which elements are not zero."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from kernels_cpu.intrinsics.building import I8, I16, I64, element_at, emitted, filled, narrowed
from kernels_cpu.intrinsics.memory import VECTOR_BYTES

# For each byte, the positions of its set bits in ascending order: one per byte of a uint64, then zeros.
BIT_POSITIONS = np.array(
    [sum(bit << 8 * i for i, bit in enumerate(b for b in range(8) if byte >> b & 1)) for byte in range(256)],
    np.uint64,
)
_COUNT = types.int64(types.uint64)
_DEFINED_FOR_ZERO = ir.Constant(ir.IntType(1), 0)


@emitted(lambda word: _COUNT)
def set_bits(builder: Any, word: Any) -> Any:
    """Return how many bits of a uint64 are set."""
    return builder.ctpop(word)


@emitted(lambda word: _COUNT)
def trailing_zeros(builder: Any, word: Any) -> Any:
    """Return how many bits are below the lowest set bit of a uint64; 64 where none is set."""
    return builder.cttz(word, _DEFINED_FOR_ZERO)


@emitted(lambda word: _COUNT)
def leading_zeros(builder: Any, word: Any) -> Any:
    """Return how many bits are above the highest set bit of a uint64; 64 where none is set."""
    return builder.ctlz(word, _DEFINED_FOR_ZERO)


@emitted(lambda n, x, index, magnitude: types.uint64(n, x, types.int64, types.uint64), literal=0)
def lane_mask(builder: Any, n: int, x: Any, index: Any, magnitude: Any) -> Any:
    """Return a uint64 whose bit i says whether ``x[index + i] & magnitude`` is not zero, for `n` elements.

    `n` is a literal, 64 at most, and a multiple of 16.
    """
    element = x.type.pointee
    vector = ir.VectorType(element, min(VECTOR_BYTES * 8 // element.width, n))
    magnitude = filled(builder, vector, narrowed(builder, magnitude, element))
    zero = ir.Constant(vector, [ir.Constant(element, 0)] * vector.count)
    mask = ir.Constant(I64, 0)
    for first in range(0, n, vector.count):
        pointer = element_at(builder, x, builder.add(index, ir.Constant(I64, first)), vector)
        lanes = builder.load(pointer, align=element.width // 8)
        set_lanes = builder.icmp_unsigned("!=", builder.and_(lanes, magnitude), zero)
        bits = builder.bitcast(set_lanes, ir.IntType(vector.count))
        if vector.count < 64:
            bits = builder.shl(builder.zext(bits, I64), ir.Constant(I64, first))
        mask = builder.or_(mask, bits)
    return mask


@emitted(lambda *kinds: types.void(types.CPointer(types.uint16), types.int64, types.uint64, types.int64))
def store_positions(builder: Any, pointer: Any, index: Any, position_bytes: Any, base: Any) -> None:
    """Store the 8 bytes of `position_bytes`, each plus `base`, as 8 uint16 to ``pointer[index]`` on."""
    vector = ir.VectorType(I16, 8)
    positions = builder.zext(builder.bitcast(position_bytes, ir.VectorType(I8, 8)), vector)
    positions = builder.add(positions, filled(builder, vector, builder.trunc(base, I16)))
    builder.store(positions, element_at(builder, pointer, index, vector), align=2)
