"""Words of bits: population counts and positions, and words that tell which elements are not zero."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels_cpu.intrinsics.building import I8, I16, I64, filled, literal_intrinsic, narrowed
from kernels_cpu.intrinsics.memory import VECTOR_BYTES

# For each byte, the positions of its set bits, ascending, one a byte of a uint64 (zero behind the last).
BIT_POSITIONS = np.array(
    [sum(bit << 8 * i for i, bit in enumerate(b for b in range(8) if byte >> b & 1)) for byte in range(256)],
    np.uint64,
)


@intrinsic
def set_bits(typing_context, word):  # type: ignore[no-untyped-def]
    """Return how many bits of a uint64 are set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@intrinsic
def trailing_zeros(typing_context, word):  # type: ignore[no-untyped-def]
    """Return how many bits are below the lowest set bit of a uint64; 64 where none is set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@intrinsic
def leading_zeros(typing_context, word):  # type: ignore[no-untyped-def]
    """Return how many bits are above the highest set bit of a uint64; 64 where none is set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@literal_intrinsic
def lane_mask(typing_context: Any, n: Any, x: Any, index: Any, magnitude: Any) -> Any:
    """Return a uint64 whose bit i says whether ``x[index + i] & magnitude`` is not zero, for `n` elements.

    `n` is a literal, 64 at most, and a multiple of 16.
    """
    if not isinstance(n, types.IntegerLiteral):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, x, index, magnitude = arguments
        element = context.get_data_type(signature.args[1].dtype)
        vector = ir.VectorType(element, min(VECTOR_BYTES * 8 // element.width, n.literal_value))
        magnitude = filled(builder, vector, narrowed(builder, magnitude, element))
        zero = ir.Constant(vector, [ir.Constant(element, 0)] * vector.count)
        mask = ir.Constant(I64, 0)
        for first in range(0, n.literal_value, vector.count):
            pointer = builder.gep(x, [builder.add(index, ir.Constant(I64, first))])
            lanes = builder.load(builder.bitcast(pointer, vector.as_pointer()), align=element.width // 8)
            set_lanes = builder.icmp_unsigned("!=", builder.and_(lanes, magnitude), zero)
            bits = builder.bitcast(set_lanes, ir.IntType(vector.count))
            if vector.count < 64:
                bits = builder.shl(builder.zext(bits, I64), ir.Constant(I64, first))
            mask = builder.or_(mask, bits)
        return mask

    return types.uint64(n, x, types.int64, types.uint64), generate


@literal_intrinsic
def store_positions(typing_context: Any, pointer: Any, index: Any, position_bytes: Any, base: Any) -> Any:
    """Store the 8 bytes of `position_bytes`, each plus `base`, as 8 uint16 to ``pointer[index]`` on."""
    signature = types.void(types.CPointer(types.uint16), types.int64, types.uint64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(I16, 8)
        positions = builder.zext(builder.bitcast(arguments[2], ir.VectorType(I8, 8)), vector)
        positions = builder.add(positions, filled(builder, vector, builder.trunc(arguments[3], I16)))
        target = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), vector.as_pointer())
        builder.store(positions, target, align=2)
        return context.get_dummy_value()

    return signature, generate
