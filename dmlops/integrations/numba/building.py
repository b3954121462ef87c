"""The parts of implementations that all operators share: checks of types, and the call in words."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import TypingError, typeof, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from dmlops.integrations.numba import calls
from dmlops.integrations.numba.calls import FLOAT, KINDS_IN_WORD, UNSIGNED, code_of
from dmlops.types.errors import error_text
from kernels_cpu import nopython_call as words_of
from kernels_cpu.intrinsics.building import I64, reserved

_MAY_BE_NONE = ("size", "fill_value", "lengths", "starts", "indices", "max_length", "end", "out")
# Bounds may be infinite, and are floats then.
_BOUNDS = ("begin", "end")
_SYMBOL = "dmlops_nopython_cell"
llvm.add_symbol(_SYMBOL, calls.CELL)


def is_none(kind: object) -> bool:
    """Return whether an argument is None or left out."""
    return getattr(kind, "value", kind) is None or isinstance(kind, types.NoneType)


def refuse(where: str, kind: object, allowed: str) -> NoReturn:
    """Refuse a type of an argument."""
    raise TypingError(error_text(f"dmlops.{where}", str(kind), "the call is compiled for its type", allowed))


def dtype_of(kind: Any, where: str) -> Any:
    """Return the NumPy type of elements or of a scalar, or the one that an argument names."""
    kind = getattr(kind, "instance_type", getattr(kind, "dtype", kind))
    try:
        is_record = isinstance(kind, types.Record)
        return kind.dtype if is_record else np.dtype(getattr(kind, "literal_value", None) or str(kind))
    except (TypeError, ValueError):
        refuse(where, kind, "it must be a type of numbers, dates, durations or records")


def is_integer(kind: object) -> bool:
    """Return whether an argument is an integer."""
    return isinstance(types.unliteral(getattr(kind, "value", kind)), types.Integer)


def check(function: str, integers: dict[str, object], **arrays: object) -> None:
    """Refuse arguments of other types than integers and arrays, and None where it has no meaning."""
    for name, kind in integers.items():
        is_whole = isinstance(getattr(kind, "value", kind), (types.Integer, types.Boolean, int))
        is_bound = name in _BOUNDS and types.unliteral(getattr(kind, "value", kind)) == types.float64
        if not (is_whole or is_bound or (name in _MAY_BE_NONE and is_none(kind))):
            refuse(f"{function}.{name}", kind, "it must be an integer")
    for name, kind in arrays.items():
        if name in _MAY_BE_NONE and is_none(kind):
            continue
        if not isinstance(kind, types.Array):
            refuse(f"{function}.{name}", kind, "it must be an array")
        dtype, x = dtype_of(kind, f"{function}.{name}"), arrays.get("x", kind)
        if dtype.names is not None and dtype != dtype_of(x, f"{function}.x"):
            refuse(f"{function}.{name}", kind, "records must be of the type of those in x")


def is_pair(function: str, out: object) -> bool:
    """Return whether there are two outputs; refuse all but these and none."""
    if is_none(out):
        return False
    if not isinstance(out, types.BaseTuple) or len(out) != 2:
        refuse(f"{function}.out", out, "it must be a tuple of 2 arrays")
    check(function, {}, **{f"out[{i}]": kind for i, kind in enumerate(out)})
    return True


def named(kind: object, where: str, default: Any) -> tuple[Any, int]:
    """Return the type that an argument names, or the default, and the word for the argument."""
    if is_none(kind):
        return np.dtype(default), 0
    if not isinstance(kind, (types.NumberClass, types.DType, types.StringLiteral)):
        refuse(where, kind, "it must be the name of a type")
    dtype = dtype_of(kind, where)
    return dtype, code_of(dtype)


def value_code(value: object, where: str) -> int:
    """Return the type of the words of a scalar, which are as wide as they can be."""
    kind = getattr(value, "value", value)
    kind = types.unliteral(kind) if isinstance(kind, types.Type) else typeof(kind)
    if not isinstance(kind, (types.Number, types.Boolean, types.NPDatetime, types.NPTimedelta)):
        refuse(where, kind, "it must be a number, a date or a duration")
    dtype = dtype_of(kind, where)
    return code_of(np.dtype({"i": "i8", "u": "u8", "f": "f8", "c": "c16"}.get(dtype.kind, dtype)))


def _leaves(builder: ir.IRBuilder, kind: object, value: object) -> list[tuple[object, object]]:
    """Return the types and the values in nested tuples, without None; without a builder, only the types."""
    if not isinstance(kind, types.BaseTuple):
        return [] if is_none(kind) else [(kind, value)]
    parts = zip(kind, cgutils.unpack_tuple(builder, value) if builder else kind, strict=True)
    return [leaf for part in parts for leaf in _leaves(builder, *part)]


def as_words(context: Any, builder: ir.IRBuilder, kinds: object, values: object) -> list[object]:
    """Return scalars as words: integers, or the bits of floats, complex numbers and dates."""
    found: list[object] = []
    for kind, value in _leaves(builder, kinds, values):
        if isinstance(kind, types.Complex):
            for part in cgutils.unpack_tuple(builder, value):
                found += as_words(context, builder, kind.underlying_float, part)
        elif isinstance(kind, types.Float):
            found.append(builder.bitcast(context.cast(builder, value, kind, types.float64), I64))
        else:
            is_time = isinstance(kind, (types.NPDatetime, types.NPTimedelta))
            found.append(value if is_time else context.cast(builder, value, kind, types.int64))
    return found


def _kinds_of_words(*kinds: object) -> list[object]:
    """Return words that say what the words of scalars are: integers with a sign, without one, or floats."""
    found = []
    for kind, _ in (leaf for each in kinds for leaf in _leaves(None, each, None)):
        is_float, is_unsigned = isinstance(kind, types.Float), types.unliteral(kind) == types.uint64
        found += [FLOAT if is_float else UNSIGNED if is_unsigned else 0] * (
            1 + isinstance(kind, types.Complex)
        )
    parts = [found[i : i + KINDS_IN_WORD] for i in range(0, len(found), KINDS_IN_WORD)]
    return [I64(sum(kind << 2 * i for i, kind in enumerate(part))) for part in parts]


def _described(builder: ir.IRBuilder, kind: Any, array: ir.Value) -> tuple[object, list[object]]:
    """Return the word of an array in the key; its address, its sizes and, unless it is packed, strides."""
    is_packed = kind.layout == "C"
    flags = is_packed << words_of.IS_PACKED | (not kind.mutable) << words_of.IS_READ_ONLY
    word = I64(code_of(dtype_of(kind, "array")) | kind.ndim << words_of.N_DIMS | flags)
    fields = (array.shape,) if is_packed else (array.shape, array.strides)
    layout = [size for each in fields for size in cgutils.unpack_tuple(builder, each)]
    return word, [builder.ptrtoint(array.data, I64), *layout]


@intrinsic
def call(typing_context, operation, scalars, sizes, has_out, operands):
    """Make a call; return the first word of its block, which is 0 if the call was made.

    Parameters
    ----------
    operation, scalars : int, tuple
        What `calls` reads: what to do, and the arguments that are neither arrays nor sizes.
    sizes : tuple of int
        The arguments that are sizes, as the operator's `fit` takes them.
    has_out : bool
        Whether the outputs are the caller's.
    operands : tuple of array
        All arrays in the order in which the kernel takes their addresses.
    """

    def generate(
        context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]
    ) -> object:
        pairs = list(zip(signature.args, arguments, strict=True))
        number, key, rest, [is_given] = (as_words(context, builder, *pair) for pair in pairs[:4])
        leaves = _leaves(builder, *pairs[4])
        counts = len(key) << words_of.N_SCALARS | len(leaves) << words_of.N_ARRAYS
        counts |= len(rest) << words_of.N_SIZES | words_of.FORMAT << 32
        first = builder.or_(number[0], builder.shl(is_given, I64(words_of.HAS_OUT)))
        first = builder.or_(first, I64(counts))
        key += _kinds_of_words(signature.args[1], signature.args[2])
        for kind, value in leaves:
            word, layout = _described(builder, kind, context.make_array(kind)(context, builder, value))
            key.append(word)
            rest += layout
        words = [I64(len(key) + 1), first, *key, *rest]
        block = reserved(builder, I64, len(words))
        for i, word in enumerate(words):
            builder.store(word, builder.gep(block, [I64(i)]))
        cell = builder.module.globals.get(_SYMBOL) or ir.GlobalVariable(builder.module, I64, _SYMBOL)
        entry = ir.FunctionType(I64, [I64] * 3).as_pointer()
        function = builder.inttoptr(builder.load_atomic(cell, "acquire", 8), entry)
        addresses = [builder.ptrtoint(block, I64), builder.ptrtoint(cell, I64)]
        builder.call(function, [*addresses, I64(0)])
        with builder.if_then(builder.icmp_signed(">", builder.load(block), I64(0)), likely=False):
            callback = builder.load(builder.gep(cell, [I64(words_of.CALLBACK)]))
            builder.call(builder.inttoptr(callback, entry), [*addresses, I64(1)])
        return builder.load(block)

    return types.int64(operation, scalars, sizes, has_out, operands), generate


def countable(builder: ir.IRBuilder, sizes: Sequence[ir.Value], total: ir.Value) -> list[ir.Value]:
    """Return sizes, with 0 for negative ones; all are 0 if their product times `total` exceeds 64 bits."""
    zero, overflows = I64(0), ir.Constant(ir.IntType(1), 0)
    sizes = [builder.select(builder.icmp_signed("<", size, zero), zero, size) for size in sizes]
    for size in sizes:
        product = builder.smul_with_overflow(total, size)
        total = builder.extract_value(product, 0)
        overflows = builder.or_(overflows, builder.extract_value(product, 1))
    return [builder.select(overflows, zero, size) for size in sizes]


@intrinsic
def shape_with(typing_context, shape, axis, size, n_bytes):
    """Return a shape with another size along an axis, if that is not larger, and 0 for negative sizes.

    All sizes are 0 if elements of `n_bytes` then needed more bytes than 64 bits count.
    """

    def generate(
        context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]
    ) -> object:
        sizes, [axis], [size], [total] = (
            as_words(context, builder, *each) for each in zip(signature.args, arguments, strict=True)
        )
        for i, old in enumerate(sizes):
            is_axis = builder.or_(*(builder.icmp_signed("==", axis, I64(j)) for j in (i, i - len(sizes))))
            fits = builder.and_(is_axis, builder.icmp_unsigned("<=", size, old))
            sizes[i] = builder.select(fits, size, old)
        return context.make_tuple(builder, signature.return_type, countable(builder, sizes, total))

    return types.UniTuple(types.int64, len(shape))(shape, axis, size, n_bytes), generate


def function(function: Callable[..., object]) -> Callable[[Any], Any]:
    """Register what chooses the code of a function, for calls that the function itself would accept."""
    signature, name = inspect.signature(function), function.__name__

    def register(choose: Callable[..., object]) -> Callable[..., object]:
        # Numba would take any argument by position.
        def choose_for(*arguments, **options):
            try:
                signature.bind(*arguments, **options)
            except TypeError as error:
                msg = f"dmlops.{name}: {error}; arguments are passed by position or name as in plain calls"
                raise TypingError(msg) from None
            return choose(*arguments, **options)

        choose_for.__name__ = name  # in texts of Numba
        overload(function, strict=False)(choose_for)
        return choose

    return register
