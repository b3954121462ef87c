"""Typed pointers inside kernels: an argument is an address, and the kernel says which elements are there.

Numba counts the references to an array and passes seven numbers for it to every function; a pointer is one
number.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.types.containers import NamedUniTuple
from numba.extending import intrinsic

from kernels_cpu.intrinsics.building import I64, literal_intrinsic, narrowed, reserved


def type_of(name: str) -> Any:
    """Return the Numba type that `kernel.Kernel.signature` calls by this name."""
    if not name.startswith("*"):
        return types.int64
    return types.CPointer(types.Integer.from_bitwidth(int(name[2:]), signed=name[1] == "i"))


def _pointer_at(address: Any, dtype: Any, *others: Any) -> Any:
    """Return the signature and the code of a conversion from an integer, or from another pointer."""
    kind, is_pointer = types.CPointer(dtype), isinstance(address, types.CPointer)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        convert = builder.bitcast if is_pointer else builder.inttoptr
        return convert(arguments[0], context.get_value_type(kind))

    return kind(address if is_pointer else types.int64, *others), generate


@intrinsic
def elements_at(typing_context, address, like):  # type: ignore[no-untyped-def]
    """Return a pointer to the elements at an address, which have the data type of those of `like`."""
    return _pointer_at(address, like.dtype, like)


@intrinsic
def integers_at(typing_context, address):  # type: ignore[no-untyped-def]
    """Return a pointer to the signed integers of 64 bits at an address."""
    return _pointer_at(address, types.int64)


@intrinsic
def short_integers_at(typing_context, address):  # type: ignore[no-untyped-def]
    """Return a pointer to the signed integers of 32 bits at an address."""
    return _pointer_at(address, types.int32)


@intrinsic
def words_at(typing_context, address):  # type: ignore[no-untyped-def]
    """Return a pointer to the words of bits at an address."""
    return _pointer_at(address, types.uint64)


@intrinsic
def address_of(typing_context, pointer):  # type: ignore[no-untyped-def]
    """Return the address that a pointer holds."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(arguments[0], ir.IntType(64))

    return types.int64(pointer), generate


@intrinsic
def put_index(typing_context, pointer, size, at, index):  # type: ignore[no-untyped-def]
    """Write an index of `size` (4 or 8) bytes, the one number `at` of those from `pointer` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        memory, size, at, index = arguments
        is_narrow = builder.icmp_unsigned("==", size, context.get_constant(types.int64, 4))
        with builder.if_else(is_narrow) as (narrow, wide):
            for branch, kind in ((narrow, types.uint32), (wide, types.uint64)):
                with branch:
                    llvm_kind = context.get_value_type(kind)
                    start = builder.bitcast(memory, llvm_kind.as_pointer())
                    value = index if kind is types.uint64 else builder.trunc(index, llvm_kind)
                    builder.store(value, builder.gep(start, [at]))
        return context.get_dummy_value()

    return types.void(pointer, types.int64, types.int64, types.int64), generate


def structure(fields: Any) -> Any:
    """Return a function for kernels that reads a named tuple `fields` from the elements behind a pointer.

    Read field by field in Python, a tuple of thirty would take a fifth of a second to compile.
    """
    n_fields = len(fields._fields)

    def unpack(typing_context, pointer):  # type: ignore[no-untyped-def]
        result = NamedUniTuple(pointer.dtype, n_fields, fields)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            element = context.get_data_type(pointer.dtype).as_pointer()
            data = builder.bitcast(arguments[0], element)
            values = [builder.load(cgutils.gep_inbounds(builder, data, i)) for i in range(n_fields)]
            return context.make_tuple(builder, result, values)

        return result(pointer), generate

    unpack.__name__ = unpack.__qualname__ = f"unpack_{fields.__name__}"
    return intrinsic(unpack)


@intrinsic
def tail(typing_context, array, index):  # type: ignore[no-untyped-def]
    """Return a pointer to `array[index]`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return array(array, types.int64), generate


@literal_intrinsic
def element_size(typing_context: Any, array: Any) -> Any:
    """Return how many bytes an element has."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(I64, context.get_data_type(signature.args[0].dtype).width // 8)

    return types.int64(array), generate


def _on_stack(element: Any, n: Any, *arguments: Any) -> Any:
    if not isinstance(n, types.IntegerLiteral):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_data_type(element)
        elements = reserved(builder, ir.ArrayType(kind, n.literal_value))
        return builder.bitcast(elements, kind.as_pointer())

    return types.CPointer(element)(*arguments, n), generate


@literal_intrinsic
def stack_positions(typing_context: Any, n: Any) -> Any:
    """Return a pointer to `n` (a literal) uint16 on the stack, which live as long as the kernel runs."""
    return _on_stack(types.uint16, n)


@literal_intrinsic
def stack_words(typing_context: Any, n: Any) -> Any:
    """Return a pointer to `n` (a literal) uint64 on the stack, which live as long as the kernel runs."""
    return _on_stack(types.uint64, n)


@literal_intrinsic
def stack_integers(typing_context: Any, n: Any) -> Any:
    """Return a pointer to `n` (a literal) int64 on the stack, which live as long as the kernel runs."""
    return _on_stack(types.int64, n)


@literal_intrinsic
def stack_like(typing_context: Any, array: Any, n: Any) -> Any:
    """Return a pointer to `n` (a literal) elements like those of `array` on the stack."""
    return _on_stack(array.dtype, n, array)


@literal_intrinsic
def as_element(typing_context: Any, array: Any, word: Any) -> Any:
    """Return the low bits of a uint64 as an element of `array`, an array or a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return narrowed(builder, arguments[1], context.get_data_type(signature.return_type))

    return array.dtype(array, types.uint64), generate
