"""Typed pointers inside kernels: an argument is an address, and a kernel says what it points at.

Numba counts the references to an array and passes seven numbers for it to every function; a pointer is one
number.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.types.containers import NamedUniTuple
from numba.extending import intrinsic, register_model


class Pointer(types.Type):
    """The Numba type of a pointer to integers that kernels may read and write."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Pointer({dtype})")


@register_model(Pointer)
class _PointerModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, pointer: Pointer) -> None:
        element = manager.lookup(pointer.dtype).get_data_type()
        super().__init__(manager, pointer, element.as_pointer())


def type_of(name: str) -> Any:
    """Return the Numba type that `kernel.Kernel.signature` calls by this name."""
    if not name.startswith("*"):
        return types.int64
    return Pointer(types.Integer.from_bitwidth(int(name[2:]), signed=name[1] == "i"))


def _start(builder: Any, kind: Any, value: Any, pointer: Any) -> Any:
    """Return a pointer to the memory of a `Pointer` or at an integer address."""
    return builder.bitcast(value, pointer) if isinstance(kind, Pointer) else builder.inttoptr(value, pointer)


def _address(kind: Any) -> Any:
    return kind if isinstance(kind, Pointer) else types.int64


@intrinsic
def elements_at(typing_context, address, like):  # type: ignore[no-untyped-def]
    """Return a pointer to the elements at an address, which have the data type of those of `like`.

    `simd.get` and its fellows take it.
    """
    kind, address = Pointer(like.dtype), _address(address)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _start(builder, address, arguments[0], context.get_value_type(kind))

    return kind(address, like), generate


def _pointer_to(dtype: Any, name: str) -> Any:
    kind = Pointer(dtype)

    def pointer(typing_context, address):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return _start(builder, types.int64, arguments[0], context.get_value_type(kind))

        return kind(types.int64), generate

    pointer.__name__ = pointer.__qualname__ = name
    return intrinsic(pointer)


integers_at = _pointer_to(types.int64, "integers_at")
"""Return a pointer to the integers of 64 bits at an address, as `elements_at` does."""
short_integers_at = _pointer_to(types.int32, "short_integers_at")
"""Return a pointer to the integers of 32 bits at an address."""


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
