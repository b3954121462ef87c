"""Vector arithmetic for kernels: LLVM's generic vectors at the width of the host's registers.

A vector of `lanes` elements is a value like any other inside a kernel: ``load`` makes one, ``store`` writes
it. Without vector registers (or with ``DMLOPS_SIMD=0``), a vector has one lane and *is* its element, so the
same source is the scalar path. Comparisons are signed, the only kind that every target has for every width.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

from kernels_cpu.intrinsics.building import declared, filled
from kernels_cpu.processor import WIDTH, lanes


class Vector(types.Type):
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


def _llvm_type(kind: types.Type) -> ir.Type:
    element = ir.IntType(_element(kind).bitwidth)
    return ir.VectorType(element, kind.count) if isinstance(kind, Vector) else element


def _address(builder: ir.IRBuilder, array: ir.Value, index: ir.Value, to: ir.Type) -> ir.Value:
    return builder.bitcast(builder.gep(array, [index]), to.as_pointer())


def _mask_bits(builder: ir.IRBuilder, condition: ir.Value) -> ir.Value:
    """Turn a vector of booleans (or one boolean) into an unsigned 64-bit integer, lane 0 lowest."""
    if isinstance(condition.type, ir.VectorType):
        condition = builder.bitcast(condition, ir.IntType(condition.type.count))
    word = ir.IntType(64)
    return condition if condition.type == word else builder.zext(condition, word)


@intrinsic
def lanes_of(typing_context, array):  # type: ignore[no-untyped-def]
    """Return how many elements of `array` a vector has, a constant of the compiled code."""
    count = lanes(array.dtype.bitwidth // 8)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(ir.IntType(64), count)

    return types.int64(array), generate


@intrinsic
def load(typing_context, array, index):  # type: ignore[no-untyped-def]
    """Return the vector that starts at `array[index]`; `array` is contiguous."""
    vector = _vector_of(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = _llvm_type(vector)
        address = _address(builder, arguments[0], arguments[1], kind)
        return builder.load(address, align=array.dtype.bitwidth // 8)

    return vector(array, types.int64), generate


@intrinsic
def store(typing_context, array, index, vector):  # type: ignore[no-untyped-def]
    """Write `vector` to `array[index]` and on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = _llvm_type(vector)
        address = _address(builder, arguments[0], arguments[1], kind)
        builder.store(arguments[2], address, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, vector), generate


def block_edge(element_size: int) -> int:
    """Return how many rows and columns `transpose` takes: what 16 bytes hold, or 1 on the scalar path."""
    return 16 // element_size if WIDTH else 1


@intrinsic
def block_edge_of(typing_context, array):  # type: ignore[no-untyped-def]
    """Return `block_edge` for the elements of `array`, a constant of the compiled code."""
    edge = block_edge(array.dtype.bitwidth // 8)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(ir.IntType(64), edge)

    return types.int64(array), generate


@intrinsic
def transpose(typing_context, source, at, pitch, target, to, target_pitch):  # type: ignore[no-untyped-def]
    """Copy a block of `block_edge` rows, `pitch` elements apart, to the columns of a block of `target`."""
    size = source.dtype.bitwidth // 8
    edge = block_edge(size)
    kind = ir.VectorType(ir.IntType(8 * size), edge) if edge > 1 else ir.IntType(8 * size)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source_array, first, pitch, target_array, to, target_pitch = arguments
        half = edge // 2

        def interleave(a: ir.Value, b: ir.Value, start: int) -> ir.Value:
            order = [start + i // 2 + (edge if i % 2 else 0) for i in range(edge)]
            return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), edge), order))

        def row(array: ir.Value, start: ir.Value, step: ir.Value, i: int) -> ir.Value:
            index = builder.add(start, builder.mul(step, ir.Constant(step.type, i)))
            return _address(builder, array, index, kind)

        rows = [builder.load(row(source_array, first, pitch, i), align=size) for i in range(edge)]
        for _ in range(edge.bit_length() - 1):
            pairs = zip(rows[:half], rows[half:], strict=True)
            rows = [interleave(a, b, start) for a, b in pairs for start in (0, half)]
        for i, column in enumerate(rows):
            builder.store(column, row(target_array, to, target_pitch, i), align=size)
        return context.get_dummy_value()

    index = types.int64
    return types.void(source, index, index, target, index, index), generate


@intrinsic
def fill(typing_context, vector, scalar):  # type: ignore[no-untyped-def]
    """Return a vector like `vector` with `scalar` in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return filled(builder, _llvm_type(vector), arguments[1])

    return vector(vector, _element(vector)), generate


def _binary(emit: Callable[[Any, Any, Any], Any], name: str, summary: str) -> Any:
    def operation(typing_context, a, b):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return emit(builder, *arguments)

        return a(a, a), generate

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = summary
    return intrinsic(operation)


add = _binary(lambda builder, a, b: builder.add(a, b), "add", "Return ``a + b``, wrapping.")
subtract = _binary(lambda builder, a, b: builder.sub(a, b), "subtract", "Return ``a - b``, wrapping.")
both = _binary(lambda builder, a, b: builder.and_(a, b), "both", "Return ``a & b``.")
differ = _binary(lambda builder, a, b: builder.xor(a, b), "differ", "Return ``a ^ b``.")
minimum = _binary(
    lambda builder, a, b: builder.select(builder.icmp_signed("<", a, b), a, b),
    "minimum",
    "Return the lesser element of each lane.",
)
maximum = _binary(
    lambda builder, a, b: builder.select(builder.icmp_signed(">", a, b), a, b),
    "maximum",
    "Return the greater element of each lane.",
)


@intrinsic
def where_negative(typing_context, test, negative, other):  # type: ignore[no-untyped-def]
    """Return the lanes of `negative` where those of `test` are below zero, else those of `other`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        condition = builder.icmp_signed("<", arguments[0], ir.Constant(_llvm_type(test), None))
        return builder.select(condition, arguments[1], arguments[2])

    return test(test, test, test), generate


@intrinsic
def where_at_most(typing_context, a, b, at_most, other):  # type: ignore[no-untyped-def]
    """Return the lanes of `at_most` where ``a <= b``, else those of `other`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, b, at_most, other = arguments
        return builder.select(builder.icmp_signed("<=", a, b), at_most, other)

    return a(a, a, a, a), generate


@intrinsic
def count_less(typing_context, total, a, b):  # type: ignore[no-untyped-def]
    """Return `total`, one greater in every lane where ``a < b``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # All ones is -1: the form that compare instructions give, without a mask to widen.
        less = builder.sext(builder.icmp_signed("<", arguments[1], arguments[2]), arguments[0].type)
        return builder.sub(arguments[0], less)

    return total(total, total, total), generate


@intrinsic
def mask_at_most(typing_context, a, b):  # type: ignore[no-untyped-def]
    """Return a bit mask (uint64, lane 0 lowest) of the lanes where ``a <= b``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _mask_bits(builder, builder.icmp_signed("<=", *arguments))

    return types.uint64(a, a), generate


@intrinsic
def word_at_most(typing_context, array, index, limit):  # type: ignore[no-untyped-def]
    """Return a bit mask (uint64) of the elements from `array[index]` on that are ``<= limit``.

    There is a mask in every register of booleans a byte wide; to gather those of several vectors in one first
    takes less than half of the instructions that joining the masks of each takes.
    """
    element = array.dtype

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = _llvm_type(_vector_of(element))
        limit = filled(builder, kind, arguments[2])
        count = lanes(element.bitwidth // 8)
        joined = max(min(WIDTH // 8, 64), count)
        word = ir.IntType(64)
        mask = ir.Constant(word, 0)
        for first in range(0, 64, joined):
            parts = []
            for i in range(first, first + joined, count):
                at = builder.add(arguments[1], ir.Constant(word, i))
                address = _address(builder, arguments[0], at, kind)
                keys = builder.load(address, align=element.bitwidth // 8)
                parts.append(builder.icmp_signed(">", keys, limit))
            while len(parts) > 1:
                parts = [_joined(builder, *pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
            bits = _mask_bits(builder, parts[0])
            mask = builder.or_(mask, builder.shl(bits, ir.Constant(word, first)))
        return builder.not_(mask)

    return types.uint64(array, types.int64, element), generate


def _joined(builder: ir.IRBuilder, first: ir.Value, second: ir.Value) -> ir.Value:
    n = 2 * first.type.count
    order = ir.Constant(ir.VectorType(ir.IntType(32), n), list(range(n)))
    return builder.shuffle_vector(first, second, order)


def _reduction(vector: types.Type, operation: str) -> Any:
    element = _element(vector)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not isinstance(vector, Vector):
            return arguments[0]
        kind = _llvm_type(vector)
        name = f"llvm.vector.reduce.{operation}.v{vector.count}i{element.bitwidth}"
        return builder.call(declared(builder, name, kind.element, kind), [arguments[0]])

    return element(vector), generate


@intrinsic
def least(typing_context, vector):  # type: ignore[no-untyped-def]
    """Return the least element of `vector`."""
    return _reduction(vector, "smin")


@intrinsic
def greatest(typing_context, vector):  # type: ignore[no-untyped-def]
    """Return the greatest element of `vector`."""
    return _reduction(vector, "smax")
