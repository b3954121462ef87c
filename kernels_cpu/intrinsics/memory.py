"""Memory in pieces wider than an element: copies, whole cache lines, and stores past the cache."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels_cpu.intrinsics.building import (
    I8,
    I32,
    I64,
    declared,
    filled,
    literal_intrinsic,
    narrowed,
    reserved,
)
from kernels_cpu.processor import LINE_BYTES, WIDTH

VECTOR_BYTES = max(WIDTH, 128) // 8


def _store_streaming(builder: Any, vector: Any, pointer: Any) -> None:
    pointer = builder.bitcast(pointer, vector.type.as_pointer())
    store = builder.store(vector, pointer, align=VECTOR_BYTES)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))


def _vector_of(context: Any, pointer_type: Any) -> ir.VectorType:
    element = context.get_data_type(pointer_type.dtype)
    return ir.VectorType(element, VECTOR_BYTES * 8 // element.width)


@literal_intrinsic
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

    return types.void(n_bytes, x, types.int64, output, types.int64), generate


@literal_intrinsic
def copy(typing_context: Any, x: Any, x_index: Any, output: Any, index: Any, n: Any) -> Any:
    """Copy `n` elements from ``x[x_index]`` on to ``output[index]`` on, as C's memcpy does."""
    signature = types.void(x, types.int64, output, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = builder.gep(arguments[0], [arguments[1]])
        target = builder.gep(arguments[2], [arguments[3]])
        element_bytes = context.get_data_type(signature.args[0].dtype).width // 8
        cgutils.raw_memcpy(builder, target, source, arguments[4], element_bytes)
        return context.get_dummy_value()

    return signature, generate


@literal_intrinsic
def prefetch(typing_context: Any, level: Any, x: Any, index: Any) -> Any:
    """Prefetch the line of ``x[index]`` into the cache of a level (a literal): 1, the nearest, or 2."""
    if not isinstance(level, types.IntegerLiteral):
        return None
    signature = types.void(level, x, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = builder.bitcast(builder.gep(arguments[1], [arguments[2]]), I8.as_pointer())
        function = declared(builder, "llvm.prefetch.p0i8", ir.VoidType(), I8.as_pointer(), I32, I32, I32)
        read, locality, data = (ir.Constant(I32, flag) for flag in (0, 4 - level.literal_value, 1))
        builder.call(function, [address, read, locality, data])
        return context.get_dummy_value()

    return signature, generate


@literal_intrinsic
def elements_to_line(typing_context: Any, output: Any, index: Any) -> Any:
    """Return how many elements after ``output[index]`` the next line starts."""
    signature = types.int64(output, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.gep(arguments[0], [arguments[1]])
        element_bytes = context.get_data_type(signature.args[0].dtype).width // 8
        distance = builder.neg(builder.ptrtoint(pointer, I64))
        distance = builder.and_(distance, ir.Constant(I64, LINE_BYTES - 1))
        return builder.udiv(distance, ir.Constant(I64, element_bytes))

    return signature, generate


@literal_intrinsic
def line_elements(typing_context: Any, output: Any) -> Any:
    """Return how many elements a line has, which is what `stream_fill` and `stream_copy` write."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(I64, LINE_BYTES * 8 // context.get_data_type(signature.args[0].dtype).width)

    return types.int64(output), generate


@literal_intrinsic
def stream_fill(typing_context: Any, output: Any, index: Any, value: Any) -> Any:
    """Store `value` all over the line that starts at ``output[index]``, past the cache."""
    signature = types.void(output, types.int64, types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = _vector_of(context, signature.args[0])
        lanes = filled(builder, vector, narrowed(builder, arguments[2], vector.element))
        for first in range(0, LINE_BYTES * 8 // vector.element.width, vector.count):
            offset = builder.add(arguments[1], ir.Constant(I64, first))
            target = builder.gep(arguments[0], [offset])
            _store_streaming(builder, lanes, target)
        return context.get_dummy_value()

    return signature, generate


@literal_intrinsic
def stream_copy(typing_context: Any, x: Any, x_index: Any, output: Any, index: Any) -> Any:
    """Copy from ``x[x_index]`` on to the line that starts at ``output[index]``, past the cache."""
    signature = types.void(x, types.int64, output, types.int64)

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


@literal_intrinsic
def fill_line(typing_context: Any, output: Any, index: Any, value: Any) -> Any:
    """Store `value` to as many elements from ``output[index]`` on as a line has, at any alignment."""
    signature = types.void(output, types.int64, types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = context.get_data_type(signature.args[0].dtype)
        vector = ir.VectorType(element, LINE_BYTES * 8 // element.width)
        lanes = filled(builder, vector, narrowed(builder, arguments[2], element))
        target = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), vector.as_pointer())
        builder.store(lanes, target, align=element.width // 8)
        return context.get_dummy_value()

    return signature, generate


@literal_intrinsic
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
    signature = types.void(x, types.int64, output, types.int64, types.uint64, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, x_index, output, index, value, distance, n_values = arguments
        element = context.get_data_type(signature.args[2].dtype)
        vector = ir.VectorType(element, LINE_BYTES * 8 // element.width)
        lanes = ir.VectorType(I32, vector.count)
        numbers = ir.Constant(lanes, [ir.Constant(I32, lane) for lane in range(vector.count)])
        distances = builder.add(filled(builder, lanes, builder.trunc(distance, I32)), numbers)
        limits = filled(builder, lanes, builder.trunc(n_values, I32))
        is_value = builder.icmp_unsigned("<", distances, limits)
        source = builder.bitcast(builder.gep(x, [x_index]), vector.as_pointer())
        kept = builder.load(source, align=element.width // 8)
        values = filled(builder, vector, narrowed(builder, value, element))
        target = builder.bitcast(builder.gep(output, [index]), vector.as_pointer())
        builder.store(builder.select(is_value, values, kept), target, align=element.width // 8)
        return context.get_dummy_value()

    return signature, generate


def _stack_lines(builder: Any, element: ir.IntType, n: int) -> Any:
    lines = reserved(builder, ir.ArrayType(element, n * LINE_BYTES * 8 // element.width))
    lines.align = LINE_BYTES
    return builder.bitcast(lines, element.as_pointer())


@literal_intrinsic
def stack_lines(typing_context: Any, output: Any, n: Any) -> Any:
    """Return a pointer to `n` (a literal) lines on the stack, of the same elements as `output`."""
    if not isinstance(n, types.IntegerLiteral):
        return None
    count = n.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _stack_lines(builder, context.get_data_type(signature.args[0].dtype), count)

    return types.CPointer(output.dtype)(output, n), generate


@literal_intrinsic
def stack_line(typing_context: Any, output: Any) -> Any:
    """Return a pointer to a line on the stack with a line to spare before and behind it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = context.get_data_type(signature.args[0].dtype)
        return builder.gep(
            _stack_lines(builder, element, 3), [ir.Constant(I64, LINE_BYTES * 8 // element.width)]
        )

    return types.CPointer(output.dtype)(output), generate


@literal_intrinsic
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

    return types.void(line, output, types.int64), generate
