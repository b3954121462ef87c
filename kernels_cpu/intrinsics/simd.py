"""Vector arithmetic for kernels: LLVM's generic vectors at the width of the host's registers.

A vector of `lanes` elements is a value like any other inside a kernel: ``load`` makes one, ``store`` writes
it. Without vector registers (or with ``DMLOPS_SIMD=0``), a vector has one lane and *is* its element, so the
same source is the scalar path. Comparisons are signed, the only kind that every target has for every width.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.extending import register_model

from kernels_cpu.intrinsics.building import I32, I64, declared, element_at, emitted, filled
from kernels_cpu.processor import WIDTH, lanes


class Vector(types.Type):  # type: ignore[misc]
    """The Numba type of a vector of integers."""

    def __init__(self, element: Any, count: int) -> None:
        self.element = element
        self.count = count
        super().__init__(name=f"Vector({element} x {count})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, ir.VectorType(ir.IntType(vector.element.bitwidth), vector.count))


def _vector_of(element: Any) -> types.Type:
    count = lanes(element.bitwidth // 8)
    return element if count == 1 else Vector(element, count)


def _element(kind: types.Type) -> Any:
    return kind.element if isinstance(kind, Vector) else kind


def _size(array: ir.Value) -> int:
    """Return how many bytes an element of `array` has."""
    return int(array.type.pointee.width) // 8


def _vector(array: ir.Value) -> ir.Type:
    element = array.type.pointee
    count = lanes(_size(array))
    return element if count == 1 else ir.VectorType(element, count)


def _mask_bits(builder: ir.IRBuilder, condition: ir.Value) -> ir.Value:
    """Turn a vector of booleans (or one boolean) into an unsigned 64-bit integer, lane 0 lowest."""
    if isinstance(condition.type, ir.VectorType):
        condition = builder.bitcast(condition, ir.IntType(condition.type.count))
    return condition if condition.type == I64 else builder.zext(condition, I64)


@emitted(types.int64)
def lanes_of(builder: Any, array: Any) -> Any:
    """Return how many elements of `array` a vector has, a constant of the compiled code."""
    return ir.Constant(I64, lanes(_size(array)))


@emitted(lambda array, index: _vector_of(array.dtype)(array, types.int64))
def load(builder: Any, array: Any, index: Any) -> Any:
    """Return the vector that starts at `array[index]`; `array` is contiguous."""
    return builder.load(element_at(builder, array, index, _vector(array)), align=_size(array))


@emitted(lambda array, index, vector: types.void(array, types.int64, _vector_of(array.dtype)))
def store(builder: Any, array: Any, index: Any, vector: Any) -> None:
    """Write `vector` to `array[index]` and on."""
    builder.store(vector, element_at(builder, array, index, vector.type), align=_size(array))


def _block_edge(array: ir.Value) -> int:
    """Return how many rows and columns `transpose` takes: what 16 bytes hold, or 1 on the scalar path."""
    return 16 // _size(array) if WIDTH else 1


@emitted(types.int64)
def block_edge_of(builder: Any, array: Any) -> Any:
    """Return how many rows and columns of `array` `transpose` takes, a constant of the compiled code."""
    return ir.Constant(I64, _block_edge(array))


@emitted(
    lambda source, at, pitch, target, *places: types.void(
        source, types.int64, types.int64, target, types.int64, types.int64
    )
)
def transpose(
    builder: Any, source: Any, at: Any, pitch: Any, target: Any, to: Any, target_pitch: Any
) -> None:
    """Copy a block of `block_edge_of` rows, `pitch` elements apart, to the columns of a block of `target`."""
    size, edge = _size(source), _block_edge(source)
    half, element = edge // 2, source.type.pointee
    kind = ir.VectorType(element, edge) if edge > 1 else element

    def interleave(a: ir.Value, b: ir.Value, start: int) -> ir.Value:
        order = [start + i // 2 + (edge if i % 2 else 0) for i in range(edge)]
        return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, edge), order))

    def row(array: ir.Value, start: ir.Value, step: ir.Value, i: int) -> ir.Value:
        index = builder.add(start, builder.mul(step, ir.Constant(step.type, i)))
        return element_at(builder, array, index, kind)

    rows = [builder.load(row(source, at, pitch, i), align=size) for i in range(edge)]
    for _ in range(edge.bit_length() - 1):
        pairs = zip(rows[:half], rows[half:], strict=True)
        rows = [interleave(a, b, start) for a, b in pairs for start in (0, half)]
    for i, column in enumerate(rows):
        builder.store(column, row(target, to, target_pitch, i), align=size)


@emitted(lambda vector, scalar: vector(vector, _element(vector)))
def fill(builder: Any, vector: Any, scalar: Any) -> Any:
    """Return a vector like `vector` with `scalar` in every lane."""
    return filled(builder, vector.type, scalar)


@emitted(lambda a, b: a(a, a))
def add(builder: Any, a: Any, b: Any) -> Any:
    """Return ``a + b``, wrapping."""
    return builder.add(a, b)


@emitted(lambda a, b: a(a, a))
def subtract(builder: Any, a: Any, b: Any) -> Any:
    """Return ``a - b``, wrapping."""
    return builder.sub(a, b)


@emitted(lambda a, b: a(a, a))
def differ(builder: Any, a: Any, b: Any) -> Any:
    """Return ``a ^ b``."""
    return builder.xor(a, b)


@emitted(lambda a, b: a(a, a))
def minimum(builder: Any, a: Any, b: Any) -> Any:
    """Return the lesser element of each lane."""
    return builder.select(builder.icmp_signed("<", a, b), a, b)


@emitted(lambda a, b: a(a, a))
def maximum(builder: Any, a: Any, b: Any) -> Any:
    """Return the greater element of each lane."""
    return builder.select(builder.icmp_signed(">", a, b), a, b)


@emitted(lambda test, negative, other: test(test, test, test))
def where_negative(builder: Any, test: Any, negative: Any, other: Any) -> Any:
    """Return the lanes of `negative` where those of `test` are below zero, else those of `other`."""
    is_negative = builder.icmp_signed("<", test, ir.Constant(test.type, None))
    return builder.select(is_negative, negative, other)


@emitted(lambda a, b, at_most, other: a(a, a, a, a))
def where_at_most(builder: Any, a: Any, b: Any, at_most: Any, other: Any) -> Any:
    """Return the lanes of `at_most` where ``a <= b``, else those of `other`."""
    return builder.select(builder.icmp_signed("<=", a, b), at_most, other)


@emitted(lambda total, a, b: total(total, total, total))
def count_less(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """Return `total`, one greater in every lane where ``a < b``."""
    # All ones is -1: the form that compare instructions give, without a mask to widen.
    return builder.sub(total, builder.sext(builder.icmp_signed("<", a, b), total.type))


@emitted(lambda a, b: types.uint64(a, a))
def mask_at_most(builder: Any, a: Any, b: Any) -> Any:
    """Return a bit mask (uint64, lane 0 lowest) of the lanes where ``a <= b``."""
    return _mask_bits(builder, builder.icmp_signed("<=", a, b))


@emitted(lambda array, index, limit: types.uint64(array, types.int64, array.dtype))
def word_at_least(builder: Any, array: Any, index: Any, limit: Any) -> Any:
    """Return a bit mask (uint64) of the elements from `array[index]` on that are ``>= limit``.

    There is a mask in every register of booleans a byte wide; to gather those of several vectors in one first
    takes less than half of the instructions that joining the masks of each takes.
    """
    kind, count = _vector(array), lanes(_size(array))
    limit = filled(builder, kind, limit)
    joined = max(min(WIDTH // 8, 64), count)
    mask = ir.Constant(I64, 0)
    for first in range(0, 64, joined):
        parts = []
        for i in range(first, first + joined, count):
            at = builder.add(index, ir.Constant(I64, i))
            keys = builder.load(element_at(builder, array, at, kind), align=_size(array))
            parts.append(builder.icmp_signed("<", keys, limit))
        while len(parts) > 1:
            parts = [_joined(builder, *pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
        bits = _mask_bits(builder, parts[0])
        mask = builder.or_(mask, builder.shl(bits, ir.Constant(I64, first)))
    return builder.not_(mask)


def _joined(builder: ir.IRBuilder, first: ir.Value, second: ir.Value) -> ir.Value:
    n = 2 * first.type.count
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(I32, n), list(range(n))))


def _reduction(builder: Any, vector: ir.Value, operation: str) -> ir.Value:
    kind = vector.type
    if not isinstance(kind, ir.VectorType):
        return vector
    name = f"llvm.vector.reduce.{operation}.v{kind.count}i{kind.element.width}"
    return builder.call(declared(builder, name, kind.element, kind), [vector])


@emitted(lambda vector: _element(vector)(vector))
def least(builder: Any, vector: Any) -> Any:
    """Return the least element of `vector`."""
    return _reduction(builder, vector, "smin")


@emitted(lambda vector: _element(vector)(vector))
def greatest(builder: Any, vector: Any) -> Any:
    """Return the greatest element of `vector`."""
    return _reduction(builder, vector, "smax")
