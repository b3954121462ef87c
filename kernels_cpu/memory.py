"""Memory by its address: what kernels take for arrays, and make of it inside.

An operand is passed by the integer address of its element [0, ..., 0], or as the NumPy array that begins
there. Either costs a call next to nothing, while an array with its sizes and strides would cost 0.1 us.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.types.containers import NamedUniTuple
from numba.extending import NativeValue, intrinsic, register_model, unbox
from numba.np import arrayobj
from numpy.typing import NDArray

from kernels_cpu.addresses import DATA_FIELD, TYPE_FIELD


class Operand(types.Type):
    """The Numba type of an argument that is an address or a NumPy array; kernels see a pointer."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Operand({dtype})")


@register_model(Operand)
class _OperandModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, operand: Operand) -> None:
        element = manager.lookup(operand.dtype).get_data_type()
        super().__init__(manager, operand, element.as_pointer())


def _field(builder: Any, instance: Any, offset: int, kind: Any) -> Any:
    """Load a field of a Python object."""
    start = builder.bitcast(instance, ir.IntType(8).as_pointer())
    place = builder.gep(start, [ir.Constant(ir.IntType(64), offset)])
    return builder.load(builder.bitcast(place, kind.as_pointer()))


@unbox(Operand)  # type: ignore[untyped-decorator]
def _unbox_operand(kind: Any, given: Any, c: Any) -> Any:
    builder, pointer = c.builder, ir.IntType(8).as_pointer()
    integers = builder.bitcast(c.pyapi.get_c_object("PyLong_Type"), pointer)
    is_integer = builder.icmp_unsigned("==", _field(builder, given, TYPE_FIELD, pointer), integers)
    address = cgutils.alloca_once(builder, pointer)
    failed = cgutils.alloca_once_value(builder, cgutils.false_bit)
    with builder.if_else(is_integer) as (from_integer, from_array):
        with from_integer:
            builder.store(c.pyapi.long_as_voidptr(given), address)
            builder.store(c.pyapi.c_api_error(), failed)
        with from_array:
            builder.store(_field(builder, given, DATA_FIELD, pointer), address)
    value = builder.bitcast(builder.load(address), c.context.get_value_type(kind))
    return NativeValue(value, is_error=builder.load(failed))


UNSIGNED = {
    1: Operand(types.uint8),
    2: Operand(types.uint16),
    4: Operand(types.uint32),
    8: Operand(types.uint64),
}
"""Operands by the bytes of their elements."""
BYTES, WORDS, INTEGER = UNSIGNED[1], UNSIGNED[8], types.int64


class Instance(types.Type):
    """The Numba type of any Python object, of which a function sees the address."""

    def __init__(self) -> None:
        super().__init__(name="Instance")


@register_model(Instance)
class _InstanceModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, instance: Instance) -> None:
        super().__init__(manager, instance, ir.IntType(64))


@unbox(Instance)  # type: ignore[untyped-decorator]
def _unbox_instance(kind: Any, given: Any, c: Any) -> Any:
    return NativeValue(c.builder.ptrtoint(given, ir.IntType(64)))


INSTANCE = Instance()


def operand_of(array: NDArray[Any]) -> Operand:
    """Return the type of an operand with elements like those of `array`."""
    return Operand(types.Integer.from_bitwidth(array.itemsize * 8, array.dtype.kind == "i"))


def _start(context: Any, builder: Any, kind: Any, value: Any, pointer: Any) -> Any:
    """Return a pointer to the memory of an array, an operand, or an integer address."""
    if isinstance(kind, types.Array):
        value = arrayobj.make_array(kind)(context, builder, value).data
    if isinstance(kind, (types.Integer, Instance)):
        return builder.inttoptr(value, pointer)
    return builder.bitcast(value, pointer)


def _place(kind: Any) -> Any:
    return kind if isinstance(kind, (Operand, types.Array)) else types.int64


@intrinsic
def elements_at(typing_context, place, like):  # type: ignore[no-untyped-def]
    """Return a pointer to the elements at an address, which have the data type of those of `like`.

    `simd.get` and its fellows take it. Numba counts the references to an array, and passes seven numbers for
    each to every function; a pointer is one number.
    """
    kind, place = Operand(like.dtype), _place(place)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _start(context, builder, place, arguments[0], context.get_value_type(kind))

    return kind(place, like), generate


@intrinsic
def integers_at(typing_context, address):  # type: ignore[no-untyped-def]
    """Return a pointer to the integers of 64 bits at an address, as `elements_at` does."""
    kind = Operand(types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _start(context, builder, types.int64, arguments[0], context.get_value_type(kind))

    return kind(types.int64), generate


@intrinsic
def words_at(typing_context, address):  # type: ignore[no-untyped-def]
    """Return the memory at `address` as an array of int64, whose length reads 0: nobody knows it."""
    kind = types.Array(types.int64, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = arrayobj.make_array(kind)(context, builder)
        itemsize = context.get_constant(types.intp, 8)
        arrayobj.populate_array(
            array,
            data=_start(context, builder, types.int64, arguments[0], array.data.type),
            shape=[context.get_constant(types.intp, 0)],
            strides=[itemsize],
            itemsize=itemsize,
            meminfo=None,
        )
        return array._getvalue()

    return kind(types.int64), generate


@intrinsic
def int32_at(typing_context, address):  # type: ignore[no-untyped-def]
    """Return the 32-bit integer at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(32).as_pointer())
        return builder.sext(builder.load(place), ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic
def place_of(typing_context, memory):  # type: ignore[no-untyped-def]
    """Return the address of an array, an operand or an instance."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = _start(context, builder, memory, arguments[0], ir.IntType(8).as_pointer())
        return builder.ptrtoint(start, ir.IntType(64))

    return types.int64(memory), generate


@intrinsic
def put_index(typing_context, place, size, at, index):  # type: ignore[no-untyped-def]
    """Write an index of `size` (4 or 8) bytes, the one number `at` of those from `place` on."""
    place = _place(place)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        memory, size, at, index = arguments
        is_narrow = builder.icmp_unsigned("==", size, context.get_constant(types.int64, 4))
        with builder.if_else(is_narrow) as (narrow, wide):
            for branch, kind in ((narrow, types.uint32), (wide, types.uint64)):
                with branch:
                    llvm_kind = context.get_value_type(kind)
                    start = _start(context, builder, place, memory, llvm_kind.as_pointer())
                    value = index if kind is types.uint64 else builder.trunc(index, llvm_kind)
                    builder.store(value, builder.gep(start, [at]))
        return context.get_dummy_value()

    return types.void(place, types.int64, types.int64, types.int64), generate


def structure(fields: Any) -> Any:
    """Return a function for kernels that turns an array into a named tuple `fields` of its first elements.

    Read by hand, field by field, a tuple of thirty would take a fifth of a second to compile.
    """
    n_fields = len(fields._fields)

    def unpack(typing_context, array):  # type: ignore[no-untyped-def]
        result = NamedUniTuple(array.dtype, n_fields, fields)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            element = context.get_data_type(array.dtype).as_pointer()
            data = _start(context, builder, array, arguments[0], element)
            values = [builder.load(cgutils.gep_inbounds(builder, data, i)) for i in range(n_fields)]
            return context.make_tuple(builder, result, values)

        return result(array), generate

    unpack.__name__ = unpack.__qualname__ = f"unpack_{fields.__name__}"
    return intrinsic(unpack)
