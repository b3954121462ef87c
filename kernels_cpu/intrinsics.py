"""Bit masks of many lanes, wide intrinsics and non-temporal stores, written in LLVM's generic vector IR.

Kernels work on plain pointers: passing an array on costs two atomic updates of its reference count,
which also break up non-temporal stores. Indices count elements and are unsigned. Nothing here checks
bounds: a caller proves that every byte which an intrinsic touches lies inside the array.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels_cpu.processor import LINE_BYTES, WIDTH

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


VECTOR_BYTES = max(WIDTH, 128) // 8


def _splat(builder: Any, vector: ir.VectorType, scalar: Any) -> Any:
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    lanes = ir.Constant(ir.VectorType(I32, vector.count), [ir.Constant(I32, 0)] * vector.count)
    return builder.shuffle_vector(first, undefined, lanes)


def _intrinsic(function: Callable[..., Any]) -> Any:
    return intrinsic(prefer_literal=True)(function)


def _narrowed(builder: Any, word: Any, element: ir.IntType) -> Any:
    return word if element == I64 else builder.trunc(word, element)


def _store_streaming(builder: Any, vector: Any, pointer: Any) -> None:
    pointer = builder.bitcast(pointer, vector.type.as_pointer())
    store = builder.store(vector, pointer, align=VECTOR_BYTES)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))


def _vector_of(context: Any, pointer_type: Any) -> ir.VectorType:
    element = context.get_data_type(pointer_type.dtype)
    return ir.VectorType(element, VECTOR_BYTES * 8 // element.width)


@_intrinsic
def pointer(typing_context: Any, operand: Any) -> Any:
    """Return the pointer to an operand's first element."""
    signature = types.CPointer(operand.dtype)(operand)
    return signature, lambda context, builder, signature, arguments: arguments[0]


@_intrinsic
def word_pointer(typing_context: Any, operand: Any) -> Any:
    """Return the pointer to an operand that is aligned to 8 bytes, as uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], I64.as_pointer())

    return types.CPointer(types.uint64)(operand), generate


@_intrinsic
def popcount(typing_context: Any, bits: Any) -> Any:
    """Count the set bits of a uint64."""
    signature = types.uint64(types.uint64)
    return signature, lambda context, builder, signature, arguments: builder.ctpop(arguments[0])


@_intrinsic
def trailing_zeros(typing_context: Any, bits: Any) -> Any:
    """Return the position of the lowest set bit of a uint64; 64 where none is."""
    signature = types.uint64(types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return signature, generate


@_intrinsic
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
        magnitude = _splat(builder, vector, _narrowed(builder, magnitude, element))
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

    return types.uint64(n, x, types.uint64, types.uint64), generate


def _reserved(builder: Any, kind: Any) -> Any:
    # Numba's own way to do this fills the memory with zeros, which takes a small call longer than its work.
    with builder.goto_entry_block():
        return builder.alloca(kind)


def _on_stack(element: Any, n: Any, *arguments: Any) -> Any:
    if not isinstance(n, types.IntegerLiteral):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_data_type(element)
        elements = _reserved(builder, ir.ArrayType(kind, n.literal_value))
        return builder.bitcast(elements, kind.as_pointer())

    return types.CPointer(element)(*arguments, n), generate


@_intrinsic
def stack_uint16(typing_context: Any, n: Any) -> Any:
    """Return a pointer to `n` (a literal) uint16 on the stack, which live as long as the kernel runs."""
    return _on_stack(types.uint16, n)


@_intrinsic
def stack_uint64(typing_context: Any, n: Any) -> Any:
    """Return a pointer to `n` (a literal) uint64 on the stack, which live as long as the kernel runs."""
    return _on_stack(types.uint64, n)


@_intrinsic
def stack_like(typing_context: Any, array: Any, n: Any) -> Any:
    """Return a pointer to `n` (a literal) elements like those of `array` on the stack."""
    return _on_stack(array.dtype, n, array)


@_intrinsic
def like(typing_context: Any, array: Any, word: Any) -> Any:
    """Return the low bits of a uint64 as an element of `array`, an array or a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _narrowed(builder, arguments[1], context.get_data_type(signature.return_type))

    return array.dtype(array, types.uint64), generate


@_intrinsic
def store_positions(typing_context: Any, pointer: Any, index: Any, position_bytes: Any, base: Any) -> Any:
    """Store the 8 bytes of `position_bytes`, each plus `base`, as 8 uint16 to ``pointer[index]`` on."""
    signature = types.void(types.CPointer(types.uint16), types.uint64, types.uint64, types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(I16, 8)
        positions = builder.zext(builder.bitcast(arguments[2], ir.VectorType(I8, 8)), vector)
        positions = builder.add(positions, _splat(builder, vector, builder.trunc(arguments[3], I16)))
        target = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), vector.as_pointer())
        builder.store(positions, target, align=2)
        return context.get_dummy_value()

    return signature, generate


@_intrinsic
def move_bytes(typing_context: Any, n_bytes: Any, x: Any, x_index: Any, output: Any, index: Any) -> Any:
    """Copy `n_bytes` (a literal) bytes from ``x[x_index]`` on to ``output[index]`` on, at any alignment."""
    if not isinstance(n_bytes, types.IntegerLiteral):
        return None
    vector = ir.VectorType(I8, n_bytes.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = builder.gep(arguments[1], [arguments[2]])
        target = builder.gep(arguments[3], [arguments[4]])
        lanes = builder.load(builder.bitcast(source, vector.as_pointer()), align=1)
        builder.store(lanes, builder.bitcast(target, vector.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(n_bytes, x, types.uint64, output, types.uint64), generate


@_intrinsic
def copy(typing_context: Any, x: Any, x_index: Any, output: Any, index: Any, n: Any) -> Any:
    """Copy `n` elements from ``x[x_index]`` on to ``output[index]`` on, as C's memcpy does."""
    signature = types.void(x, types.uint64, output, types.uint64, types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = builder.gep(arguments[0], [arguments[1]])
        target = builder.gep(arguments[2], [arguments[3]])
        element_bytes = context.get_data_type(signature.args[0].dtype).width // 8
        cgutils.raw_memcpy(builder, target, source, arguments[4], element_bytes)
        return context.get_dummy_value()

    return signature, generate


@_intrinsic
def prefetch(typing_context: Any, x: Any, index: Any) -> Any:
    """Ask for the line of ``x[index]``, which will be read soon."""
    signature = types.void(x, types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), I8.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        known = builder.module.globals
        name = "llvm.prefetch.p0i8"
        function = known[name] if name in known else ir.Function(builder.module, kind, name)
        read, everywhere, data = (ir.Constant(I32, flag) for flag in (0, 3, 1))
        builder.call(function, [address, read, everywhere, data])
        return context.get_dummy_value()

    return signature, generate


@_intrinsic
def elements_to_line(typing_context: Any, output: Any, index: Any) -> Any:
    """Return how many elements after ``output[index]`` the next line starts."""
    signature = types.uint64(output, types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.gep(arguments[0], [arguments[1]])
        element_bytes = context.get_data_type(signature.args[0].dtype).width // 8
        distance = builder.neg(builder.ptrtoint(pointer, I64))
        distance = builder.and_(distance, ir.Constant(I64, LINE_BYTES - 1))
        return builder.udiv(distance, ir.Constant(I64, element_bytes))

    return signature, generate


@_intrinsic
def line_elements(typing_context: Any, output: Any) -> Any:
    """Return how many elements a line has, which is what `stream_fill` and `stream_copy` write."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(I64, LINE_BYTES * 8 // context.get_data_type(signature.args[0].dtype).width)

    return types.uint64(output), generate


@_intrinsic
def element_bytes(typing_context: Any, array: Any) -> Any:
    """Return how many bytes an element has."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(I64, context.get_data_type(signature.args[0].dtype).width // 8)

    return types.uint64(array), generate


@_intrinsic
def at(typing_context: Any, x: Any, index: Any) -> Any:
    """Return the pointer to ``x[index]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return x(x, types.uint64), generate


@_intrinsic
def stream_fill(typing_context: Any, output: Any, index: Any, value: Any) -> Any:
    """Store `value` all over the line that starts at ``output[index]``, past the cache."""
    signature = types.void(output, types.uint64, types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = _vector_of(context, signature.args[0])
        lanes = _splat(builder, vector, _narrowed(builder, arguments[2], vector.element))
        for first in range(0, LINE_BYTES * 8 // vector.element.width, vector.count):
            offset = builder.add(arguments[1], ir.Constant(I64, first))
            target = builder.gep(arguments[0], [offset])
            _store_streaming(builder, lanes, target)
        return context.get_dummy_value()

    return signature, generate


@_intrinsic
def stream_copy(typing_context: Any, x: Any, x_index: Any, output: Any, index: Any) -> Any:
    """Copy from ``x[x_index]`` on to the line that starts at ``output[index]``, past the cache."""
    signature = types.void(x, types.uint64, output, types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = _vector_of(context, signature.args[0])
        for first in range(0, LINE_BYTES * 8 // vector.element.width, vector.count):
            x_offset = builder.add(arguments[1], ir.Constant(I64, first))
            offset = builder.add(arguments[3], ir.Constant(I64, first))
            source = builder.gep(arguments[0], [x_offset])
            target = builder.gep(arguments[2], [offset])
            lanes = builder.load(
                builder.bitcast(source, vector.as_pointer()), align=vector.element.width // 8
            )
            _store_streaming(builder, lanes, target)
        return context.get_dummy_value()

    return signature, generate


@_intrinsic
def fill_line(typing_context: Any, output: Any, index: Any, value: Any) -> Any:
    """Store `value` to as many elements from ``output[index]`` on as a line has, at any alignment."""
    signature = types.void(output, types.uint64, types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = context.get_data_type(signature.args[0].dtype)
        vector = ir.VectorType(element, LINE_BYTES * 8 // element.width)
        lanes = _splat(builder, vector, _narrowed(builder, arguments[2], element))
        target = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), vector.as_pointer())
        builder.store(lanes, target, align=element.width // 8)
        return context.get_dummy_value()

    return signature, generate


@_intrinsic
def blend_line(
    typing_context: Any,
    x: Any,
    x_index: Any,
    output: Any,
    index: Any,
    value: Any,
    distance: Any,
    n_values: Any,
) -> Any:
    """Store a line: `value` where ``distance + lane < n_values``, and elements of `x` elsewhere.

    Distances wrap around, and are compared as unsigned 32-bit integers.
    """
    signature = types.void(x, types.uint64, output, *[types.uint64] * 4)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, x_index, output, index, value, distance, n_values = arguments
        element = context.get_data_type(signature.args[2].dtype)
        vector = ir.VectorType(element, LINE_BYTES * 8 // element.width)
        lanes = ir.VectorType(I32, vector.count)
        numbers = ir.Constant(lanes, [ir.Constant(I32, lane) for lane in range(vector.count)])
        distances = builder.add(_splat(builder, lanes, builder.trunc(distance, I32)), numbers)
        limits = _splat(builder, lanes, builder.trunc(n_values, I32))
        is_value = builder.icmp_unsigned("<", distances, limits)
        source = builder.bitcast(builder.gep(x, [x_index]), vector.as_pointer())
        kept = builder.load(source, align=element.width // 8)
        values = _splat(builder, vector, _narrowed(builder, value, element))
        target = builder.bitcast(builder.gep(output, [index]), vector.as_pointer())
        builder.store(builder.select(is_value, values, kept), target, align=element.width // 8)
        return context.get_dummy_value()

    return signature, generate


def _stack_lines(builder: Any, element: ir.IntType, n: int) -> Any:
    lines = _reserved(builder, ir.ArrayType(element, n * LINE_BYTES * 8 // element.width))
    lines.align = LINE_BYTES
    return builder.bitcast(lines, element.as_pointer())


@_intrinsic
def stack_lines(typing_context: Any, output: Any, n: Any) -> Any:
    """Return a pointer to `n` (a literal) lines on the stack, of the same elements as `output`."""
    if not isinstance(n, types.IntegerLiteral):
        return None
    count = n.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _stack_lines(builder, context.get_data_type(signature.args[0].dtype), count)

    return types.CPointer(output.dtype)(output, n), generate


@_intrinsic
def stack_line(typing_context: Any, output: Any) -> Any:
    """Return a pointer to a line on the stack with a line to spare before and behind it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = context.get_data_type(signature.args[0].dtype)
        return builder.gep(
            _stack_lines(builder, element, 3), [ir.Constant(I64, LINE_BYTES * 8 // element.width)]
        )

    return types.CPointer(output.dtype)(output), generate


@_intrinsic
def stream_line(typing_context: Any, line: Any, output: Any, index: Any) -> Any:
    """Copy the line at the pointer `line` to the line that starts at ``output[index]``, past the cache."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = _vector_of(context, signature.args[1])
        for first in range(0, LINE_BYTES * 8 // vector.element.width, vector.count):
            source = builder.gep(arguments[0], [ir.Constant(I64, first)])
            offset = builder.add(arguments[2], ir.Constant(I64, first))
            target = builder.gep(arguments[1], [offset])
            lanes = builder.load(builder.bitcast(source, vector.as_pointer()), align=VECTOR_BYTES)
            _store_streaming(builder, lanes, target)
        return context.get_dummy_value()

    return types.void(line, output, types.uint64), generate


# For each byte, the positions of its set bits, ascending, one a byte of a uint64 (zero behind the last).
BIT_POSITIONS = np.array(
    [
        sum(bit << 8 * place for place, bit in enumerate(b for b in range(8) if byte >> b & 1))
        for byte in range(256)
    ],
    np.uint64,
)
