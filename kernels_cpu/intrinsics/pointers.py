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

from kernels_cpu.intrinsics.building import I32, I64, element_at, emitted, narrowed, reserved


def type_of(name: str) -> Any:
    """Return the Numba type that `kernel.Kernel.signature` calls by this name."""
    if not name.startswith("*"):
        count = name.removesuffix("i64")
        return types.UniTuple(types.int64, int(count)) if count else types.int64
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


def _pointer_to(dtype: Any) -> Any:
    def pointer_to(typing_context, address):  # type: ignore[no-untyped-def]
        return _pointer_at(address, dtype)

    return intrinsic(pointer_to)


integers_at, short_integers_at, half_integers_at, words_at = map(
    _pointer_to, (types.int64, types.int32, types.int16, types.uint64)
)
"""Return a pointer to the signed integers of 64, 32 or 16 bits, or the words of bits, at an address."""


@emitted(types.int64)
def address_of(builder: Any, pointer: Any) -> Any:
    """Return the address that a pointer holds."""
    return builder.ptrtoint(pointer, I64)


@emitted(lambda pointer, *integers: types.void(pointer, types.int64, types.int64, types.int64))
def put_index(builder: Any, pointer: Any, size: Any, at: Any, index: Any) -> None:
    """Write an index of `size` (4 or 8) bytes, the one number `at` of those from `pointer` on."""
    is_narrow = builder.icmp_unsigned("==", size, ir.Constant(I64, 4))
    with builder.if_else(is_narrow) as (narrow, wide):
        for branch, kind in ((narrow, I32), (wide, I64)):
            with branch:
                start = builder.bitcast(pointer, kind.as_pointer())
                builder.store(narrowed(builder, index, kind), builder.gep(start, [at]))


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


@emitted(lambda array, index: array(array, types.int64))
def tail(builder: Any, array: Any, index: Any) -> Any:
    """Return a pointer to `array[index]`."""
    return element_at(builder, array, index)


@emitted(types.int64)
def element_size(builder: Any, array: Any) -> Any:
    """Return how many bytes an element has."""
    return ir.Constant(I64, array.type.pointee.width // 8)


def _on_stack(dtype: Any) -> Any:
    def on_stack(builder: Any, n: int) -> Any:
        return reserved(builder, ir.IntType(dtype.bitwidth), n)

    return emitted(types.CPointer(dtype), literal=0)(on_stack)


stack_positions, stack_words, stack_integers = map(_on_stack, (types.uint16, types.uint64, types.int64))
"""Return a pointer to `n` (a literal) integers on the stack, which live as long as the kernel runs."""


@emitted(lambda array, n: types.CPointer(array.dtype)(array, n), literal=1)
def stack_like(builder: Any, array: Any, n: int) -> Any:
    """Return a pointer to `n` (a literal) elements like those of `array` on the stack."""
    return reserved(builder, array.type.pointee, n)


@emitted(lambda array, word: array.dtype(array, types.uint64))
def as_element(builder: Any, array: Any, word: Any) -> Any:
    """Return the low bits of a uint64 as an element of `array`."""
    return narrowed(builder, word, array.type.pointee)
