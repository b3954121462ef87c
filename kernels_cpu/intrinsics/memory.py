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
    element_at,
    emitted,
    filled,
    narrowed,
    reserved,
)
from kernels_cpu.processor import LINE_BYTES, WIDTH

VECTOR_BYTES = max(WIDTH, 128) // 8


def _line_elements(element: ir.IntType) -> int:
    return LINE_BYTES * 8 // int(element.width)


def _copy_lines(builder: Any, x: Any, x_index: Any, output: Any, index: Any, align: int) -> None:
    """Copy the line at ``x[x_index]``, or at `x` itself, past the cache."""
    element = output.type.pointee
    vector = ir.VectorType(element, VECTOR_BYTES * 8 // element.width)
    for first in range(0, _line_elements(element), vector.count):
        offset = ir.Constant(I64, first)
        source = element_at(builder, x, offset if x_index is None else builder.add(x_index, offset), vector)
        target = element_at(builder, output, builder.add(index, offset), vector)
        _store_streaming(builder, builder.load(source, align=align), target)


def _store_streaming(builder: Any, vector: Any, pointer: Any) -> None:
    store = builder.store(vector, pointer, align=VECTOR_BYTES)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))


@emitted(
    lambda n_bytes, x, x_index, output, index: types.void(n_bytes, x, types.int64, output, types.int64),
    literal=0,
)
def move_bytes(builder: Any, n_bytes: int, x: Any, x_index: Any, output: Any, index: Any) -> None:
    """Copy `n_bytes` (a literal) bytes from ``x[x_index]`` on to ``output[index]`` on, at any alignment."""
    vector = ir.VectorType(I8, n_bytes)
    source, target = builder.gep(x, [x_index]), builder.gep(output, [index])
    lanes = builder.load(builder.bitcast(source, vector.as_pointer()), align=1)
    builder.store(lanes, builder.bitcast(target, vector.as_pointer()), align=1)


@emitted(lambda x, x_index, output, index, n: types.void(x, types.int64, output, types.int64, types.int64))
def copy(builder: Any, x: Any, x_index: Any, output: Any, index: Any, n: Any) -> None:
    """Copy `n` elements from ``x[x_index]`` on to ``output[index]`` on, as C's memcpy does."""
    source, target = builder.gep(x, [x_index]), builder.gep(output, [index])
    cgutils.raw_memcpy(builder, target, source, n, x.type.pointee.width // 8)


@emitted(lambda level, x, index: types.void(level, x, types.int64), literal=0)
def prefetch(builder: Any, level: int, x: Any, index: Any) -> None:
    """Prefetch the line of ``x[index]`` into the cache of a level (a literal): 1, the nearest, or 2."""
    address = element_at(builder, x, index, I8)
    function = declared(builder, "llvm.prefetch.p0i8", ir.VoidType(), I8.as_pointer(), I32, I32, I32)
    read, locality, data = (ir.Constant(I32, flag) for flag in (0, 4 - level, 1))
    builder.call(function, [address, read, locality, data])


@emitted(lambda output, index: types.int64(output, types.int64))
def elements_to_line(builder: Any, output: Any, index: Any) -> Any:
    """Return how many elements after ``output[index]`` the next line starts."""
    distance = builder.neg(builder.ptrtoint(builder.gep(output, [index]), I64))
    distance = builder.and_(distance, ir.Constant(I64, LINE_BYTES - 1))
    return builder.udiv(distance, ir.Constant(I64, output.type.pointee.width // 8))


@emitted(types.int64)
def line_elements(builder: Any, output: Any) -> Any:
    """Return how many elements a line has, which is what `stream_fill` and `stream_copy` write."""
    return ir.Constant(I64, _line_elements(output.type.pointee))


@emitted(lambda output, index, value: types.void(output, types.int64, types.uint64))
def stream_fill(builder: Any, output: Any, index: Any, value: Any) -> None:
    """Store `value` all over the line that starts at ``output[index]``, past the cache."""
    element = output.type.pointee
    vector = ir.VectorType(element, VECTOR_BYTES * 8 // element.width)
    lanes = filled(builder, vector, narrowed(builder, value, element))
    for first in range(0, _line_elements(element), vector.count):
        offset = builder.add(index, ir.Constant(I64, first))
        _store_streaming(builder, lanes, element_at(builder, output, offset, vector))


@emitted(lambda x, x_index, output, index: types.void(x, types.int64, output, types.int64))
def stream_copy(builder: Any, x: Any, x_index: Any, output: Any, index: Any) -> None:
    """Copy from ``x[x_index]`` on to the line that starts at ``output[index]``, past the cache."""
    _copy_lines(builder, x, x_index, output, index, align=x.type.pointee.width // 8)


@emitted(lambda line, output, index: types.void(line, output, types.int64))
def stream_line(builder: Any, line: Any, output: Any, index: Any) -> None:
    """Copy the line at the pointer `line` to the line that starts at ``output[index]``, past the cache."""
    _copy_lines(builder, line, None, output, index, align=VECTOR_BYTES)


@emitted(lambda output, index, value: types.void(output, types.int64, types.uint64))
def fill_line(builder: Any, output: Any, index: Any, value: Any) -> None:
    """Store `value` to as many elements from ``output[index]`` on as a line has, at any alignment."""
    element = output.type.pointee
    vector = ir.VectorType(element, _line_elements(element))
    lanes = filled(builder, vector, narrowed(builder, value, element))
    builder.store(lanes, element_at(builder, output, index, vector), align=element.width // 8)


@emitted(
    lambda x, x_index, output, *integers: types.void(
        x, types.int64, output, types.int64, types.uint64, types.int64, types.int64
    )
)
def blend_line(
    builder: Any, x: Any, x_index: Any, output: Any, index: Any, value: Any, distance: Any, n_values: Any
) -> None:
    """Store a line: `value` where ``distance + lane < n_values``, and elements of `x` elsewhere.

    Distances wrap around, and are compared as unsigned 32-bit integers.
    """
    element = output.type.pointee
    vector = ir.VectorType(element, _line_elements(element))
    lanes = ir.VectorType(I32, vector.count)
    numbers = ir.Constant(lanes, [ir.Constant(I32, lane) for lane in range(vector.count)])
    distances = builder.add(filled(builder, lanes, builder.trunc(distance, I32)), numbers)
    limits = filled(builder, lanes, builder.trunc(n_values, I32))
    is_value = builder.icmp_unsigned("<", distances, limits)
    kept = builder.load(element_at(builder, x, x_index, vector), align=element.width // 8)
    values = filled(builder, vector, narrowed(builder, value, element))
    target = element_at(builder, output, index, vector)
    builder.store(builder.select(is_value, values, kept), target, align=element.width // 8)


@emitted(lambda output, n: types.CPointer(output.dtype)(output, n), literal=1)
def stack_lines(builder: Any, output: Any, n: int) -> Any:
    """Return a pointer to `n` (a literal) lines on the stack, of the same elements as `output`."""
    element = output.type.pointee
    return reserved(builder, element, n * _line_elements(element), LINE_BYTES)


@emitted(lambda output: types.CPointer(output.dtype)(output))
def stack_line(builder: Any, output: Any) -> Any:
    """Return a pointer to a line on the stack with a line to spare before and behind it."""
    element = output.type.pointee
    lines = reserved(builder, element, 3 * _line_elements(element), LINE_BYTES)
    return builder.gep(lines, [ir.Constant(I64, _line_elements(element))])
