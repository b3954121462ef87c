"""Memory by its address: kernels take plain integers, and make arrays of them inside.

An array argument costs the caller of a compiled function about 0.1 us, and a view of the right type three
times as much; an integer is almost free.
"""

import ctypes
from typing import Any

import numpy as np
from numba.core import cgutils, types
from numba.core.types.containers import NamedUniTuple
from numba.extending import intrinsic
from numba.np import arrayobj
from numpy.typing import NDArray

# An array object is Python's header of every object, and then the pointer to its data.
_DATA = object.__basicsize__
_pointer_at = ctypes.c_size_t.from_address


def address_of(array: NDArray[Any]) -> int:
    """Return where element [0, ..., 0] of an array is."""
    return _pointer_at(id(array) + _DATA).value


def _asked_address_of(array: NDArray[Any]) -> int:
    address: int = array.ctypes.data
    return address


_probe = np.empty(1, np.uint8)
if address_of(_probe) != _probe.ctypes.data:  # another layout than that of every NumPy so far: the slow way
    address_of = _asked_address_of


def _array_at(context: Any, builder: Any, kind: Any, address: Any) -> Any:
    array = arrayobj.make_array(kind)(context, builder)
    itemsize = context.get_constant(types.intp, kind.dtype.bitwidth // 8)
    arrayobj.populate_array(
        array,
        data=builder.inttoptr(address, array.data.type),
        shape=[context.get_constant(types.intp, 0)],
        strides=[itemsize],
        itemsize=itemsize,
        meminfo=None,
    )
    return array._getvalue()


@intrinsic
def elements_at(typing_context, address, like):  # type: ignore[no-untyped-def]
    """Return the memory at `address` as an array of the data type of `like`, for `simd.get` and its fellows.

    How long it is nobody knows: its length reads 0.
    """
    kind = types.Array(like.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _array_at(context, builder, kind, arguments[0])

    return kind(types.int64, like), generate


@intrinsic
def words_at(typing_context, address):  # type: ignore[no-untyped-def]
    """Return the memory at `address` as an array of int64, as `elements_at` does."""
    kind = types.Array(types.int64, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _array_at(context, builder, kind, arguments[0])

    return kind(types.int64), generate


@intrinsic
def put_index(typing_context, address, size, at, index):  # type: ignore[no-untyped-def]
    """Write an index of `size` (4 or 8) bytes, the one number `at` of those from `address` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, size, at, index = arguments
        is_narrow = builder.icmp_unsigned("==", size, context.get_constant(types.int64, 4))
        with builder.if_else(is_narrow) as (narrow, wide):
            for branch, kind in ((narrow, types.uint32), (wide, types.uint64)):
                with branch:
                    llvm_kind = context.get_value_type(kind)
                    start = builder.inttoptr(address, llvm_kind.as_pointer())
                    value = index if kind is types.uint64 else builder.trunc(index, llvm_kind)
                    builder.store(value, builder.gep(start, [at]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), generate


def structure(fields: Any) -> Any:
    """Return a function for kernels that turns an array into a named tuple `fields` of its first elements.

    Read by hand, field by field, a tuple of thirty would take a fifth of a second to compile.
    """
    n_fields = len(fields._fields)

    def unpack(typing_context, array):  # type: ignore[no-untyped-def]
        result = NamedUniTuple(array.dtype, n_fields, fields)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = arrayobj.make_array(array)(context, builder, arguments[0]).data
            values = [builder.load(cgutils.gep_inbounds(builder, data, i)) for i in range(n_fields)]
            return context.make_tuple(builder, result, values)

        return result(array), generate

    unpack.__name__ = unpack.__qualname__ = f"unpack_{fields.__name__}"
    return intrinsic(unpack)
