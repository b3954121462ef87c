"""The functions inside users' `numba.njit` functions.

Numba imports this module, by the entry point of its extensions, before it first compiles in a program that
has imported dmlops. It compiles an implementation here for each of its callers. They are short: they allocate
the results, and describe the call to native code (`kernels_cpu.nopython_call`) or to `calls`.
"""

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import TypingError, typeof, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

import dmlops
from dmlops import NonzeroResult, TopKResult
from dmlops.integrations.numba import calls
from dmlops.integrations.numba.calls import (
    CHECK,
    DRAW,
    FILL,
    FLOAT,
    GATHER,
    KINDS_IN_WORD,
    LIST,
    MAKE,
    SELECT,
    UNSIGNED,
    CallError,
    code_of,
)
from dmlops.operators.sample import INTEGER_PARAMETERS, PARAMETERS
from dmlops.types.errors import error_text
from kernels_cpu import nopython_call as words_of
from kernels_cpu.intrinsics.building import I64, reserved
from kernels_cpu.nonzero_coordinates.problem_words import WHOLE

_MAY_BE_NONE = ("size", "fill_value", "lengths", "starts", "indices", "max_length", "end", "out")
# These may be infinite.
_BOUNDS = ("begin", "end")
# No matrix has a diagonal so far out.
_FARTHEST = (1 << 62) - 1
_ALL = (1 << 63) - 1
_SYMBOL = "dmlops_nopython_cell"
llvm.add_symbol(_SYMBOL, calls.CELL)


def _is_none(kind: Any) -> bool:
    """Return whether an argument is None or left out."""
    return getattr(kind, "value", kind) is None or isinstance(kind, types.NoneType)


def _refuse(where: str, kind: Any, allowed: str) -> NoReturn:
    raise TypingError(error_text(f"dmlops.{where}", str(kind), "the call is compiled for its type", allowed))


def _dtype(kind: Any, where: str) -> Any:
    """Return the NumPy type of elements or of a scalar, or the one that an argument names."""
    kind = getattr(kind, "instance_type", getattr(kind, "dtype", kind))
    try:
        is_record = isinstance(kind, types.Record)
        return kind.dtype if is_record else np.dtype(getattr(kind, "literal_value", None) or str(kind))
    except (TypeError, ValueError):
        _refuse(where, kind, "it must be a type of numbers, dates, durations or records")


def _is_integer(kind: Any) -> bool:
    return isinstance(types.unliteral(getattr(kind, "value", kind)), types.Integer)


def _check(function: str, integers: dict[str, Any], **arrays: Any) -> None:
    """Refuse other types of arguments than these, and None where it has no meaning."""
    for name, kind in integers.items():
        is_integer = isinstance(getattr(kind, "value", kind), (types.Integer, types.Boolean, int))
        is_bound = name in _BOUNDS and types.unliteral(getattr(kind, "value", kind)) == types.float64
        if not (is_integer or is_bound or (name in _MAY_BE_NONE and _is_none(kind))):
            _refuse(f"{function}.{name}", kind, "it must be an integer")
    for name, kind in arrays.items():
        may_be_none = name in _MAY_BE_NONE and (function, name) != ("gather_nd", "indices")
        if not (may_be_none and _is_none(kind)):
            if not isinstance(kind, types.Array):
                _refuse(f"{function}.{name}", kind, "it must be an array")
            dtype, x = _dtype(kind, f"{function}.{name}"), arrays.get("x", kind)
            if dtype.names is not None and dtype != _dtype(x, f"{function}.x"):
                _refuse(f"{function}.{name}", kind, "records must be of the type of those in x")


def _is_pair(function: str, out: Any) -> bool:
    """Return whether there are two outputs; refuse all but these and none."""
    if _is_none(out):
        return False
    if not isinstance(out, types.BaseTuple) or len(out) != 2:
        _refuse(f"{function}.out", out, "it must be a tuple of 2 arrays")
    _check(function, {}, **{f"out[{i}]": kind for i, kind in enumerate(out)})
    return True


def _named(kind: Any, where: str, default: Any) -> tuple[Any, int]:
    """Return the type that an argument names, or the default, and the word for the argument."""
    if _is_none(kind):
        return np.dtype(default), 0
    if not isinstance(kind, (types.NumberClass, types.DType, types.StringLiteral)):
        _refuse(where, kind, "it must be the name of a type")
    dtype = _dtype(kind, where)
    return dtype, code_of(dtype)


def _value_code(value: Any, where: str) -> int:
    """Return the type of the words of a scalar, which are as wide as they can be."""
    kind = getattr(value, "value", value)
    kind = types.unliteral(kind) if isinstance(kind, types.Type) else typeof(kind)
    if not isinstance(kind, (types.Number, types.Boolean, types.NPDatetime, types.NPTimedelta)):
        _refuse(where, kind, "it must be a number, a date or a duration")
    dtype = _dtype(kind, where)
    return code_of(np.dtype({"i": "i8", "u": "u8", "f": "f8", "c": "c16"}.get(dtype.kind, dtype)))


def _leaves(builder: Any, kind: Any, value: Any) -> list[tuple[Any, Any]]:
    """Return the types and the values in nested tuples, without None; without a builder, only the types."""
    if not isinstance(kind, types.BaseTuple):
        return [] if _is_none(kind) else [(kind, value)]
    parts = zip(kind, cgutils.unpack_tuple(builder, value) if builder else kind, strict=True)
    return [leaf for part in parts for leaf in _leaves(builder, *part)]


def _words(context: Any, builder: Any, kinds: Any, values: Any) -> list[Any]:
    """Return scalars as words: integers, or the bits of floats, complex numbers and dates."""
    words = []
    for kind, value in _leaves(builder, kinds, values):
        if isinstance(kind, types.Complex):
            for part in cgutils.unpack_tuple(builder, value):
                words += _words(context, builder, kind.underlying_float, part)
        elif isinstance(kind, types.Float):
            words.append(builder.bitcast(context.cast(builder, value, kind, types.float64), I64))
        else:
            is_time = isinstance(kind, (types.NPDatetime, types.NPTimedelta))
            words.append(value if is_time else context.cast(builder, value, kind, types.int64))
    return words


def _kinds_of_words(*kinds: Any) -> list[Any]:
    """Return words that say what the words of scalars are: integers with a sign, without one, or floats."""
    found = []
    for kind, _ in (leaf for each in kinds for leaf in _leaves(None, each, None)):
        is_float, is_unsigned = isinstance(kind, types.Float), types.unliteral(kind) == types.uint64
        found += [FLOAT if is_float else UNSIGNED if is_unsigned else 0] * (
            1 + isinstance(kind, types.Complex)
        )
    parts = [found[i : i + KINDS_IN_WORD] for i in range(0, len(found), KINDS_IN_WORD)]
    return [I64(sum(kind << 2 * i for i, kind in enumerate(part))) for part in parts]


def _described(builder: Any, kind: Any, array: Any) -> tuple[Any, list[Any]]:
    """Return the word of an array in the key; its address, its sizes and, unless it is packed, strides."""
    is_packed = kind.layout == "C"
    flags = is_packed << words_of.IS_PACKED | (not kind.mutable) << words_of.IS_READ_ONLY
    word = I64(code_of(_dtype(kind, "array")) | kind.ndim << words_of.N_DIMS | flags)
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

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pairs = list(zip(signature.args, arguments, strict=True))
        number, key, rest, [is_given] = (_words(context, builder, *pair) for pair in pairs[:4])
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


@intrinsic
def shape_with(typing_context, shape, axis, size, n_bytes):
    """Return a shape with another size along an axis, if that is not larger, and 0 for negative sizes.

    All sizes are 0 if elements of `n_bytes` then needed more bytes than 64 bits count.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sizes, [axis], [size], [total] = (
            _words(context, builder, *each) for each in zip(signature.args, arguments, strict=True)
        )
        overflows = ir.Constant(ir.IntType(1), 0)
        for i, old in enumerate(sizes):
            is_axis = builder.or_(*(builder.icmp_signed("==", axis, I64(j)) for j in (i, i - len(sizes))))
            fits = builder.and_(is_axis, builder.icmp_unsigned("<=", size, old))
            new = builder.select(fits, size, old)
            sizes[i] = builder.select(builder.icmp_signed("<", new, I64(0)), I64(0), new)
            product = builder.smul_with_overflow(total, sizes[i])
            total = builder.extract_value(product, 0)
            overflows = builder.or_(overflows, builder.extract_value(product, 1))
        sizes = [builder.select(overflows, I64(0), size) for size in sizes]
        return context.make_tuple(builder, signature.return_type, sizes)

    return types.UniTuple(types.int64, len(shape))(shape, axis, size, n_bytes), generate


@intrinsic
def shape_of_rows(typing_context, shape, axis, size, lengths, starts):
    """Return the shape to which rows and their windows broadcast, with another size along the axis.

    Of the shapes of windows, one may be None. Sizes that are negative or overflow become 0 (`shape_with`).
    """
    windows = [kind for kind in (lengths, starts) if not _is_none(kind)]
    rank = max([len(shape), *[len(kind) + 1 for kind in windows]])

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pairs = zip(signature.args, arguments, strict=True)
        of_x, [axis], [size], *others = (_words(context, builder, *each) for each in pairs)
        one, added = I64(1), rank - len(of_x)
        # If there are more dimensions, the axis is the last one.
        axis = builder.select(builder.icmp_signed("<", axis, I64(0)), builder.add(axis, I64(len(of_x))), axis)
        axis = builder.add(axis, I64(added))
        total, overflows = one, ir.Constant(ir.IntType(1), 0)
        sizes = []
        for d in range(rank):
            found = of_x[d - added] if d >= added else one
            is_behind = builder.icmp_signed("<", axis, I64(d))
            for other in others:
                at = d - (rank - 1 - len(other))
                here = other[at] if 0 <= at < len(other) else one
                before = other[at - 1] if 0 < at <= len(other) else one
                own = builder.select(is_behind, before, here)
                found = builder.select(builder.icmp_signed("==", found, one), own, found)
            found = builder.select(builder.icmp_signed("==", axis, I64(d)), size, found)
            found = builder.select(builder.icmp_signed("<", found, I64(0)), I64(0), found)
            product = builder.smul_with_overflow(total, found)
            total = builder.extract_value(product, 0)
            overflows = builder.or_(overflows, builder.extract_value(product, 1))
            sizes.append(found)
        sizes = [builder.select(overflows, I64(0), each) for each in sizes]
        return context.make_tuple(builder, signature.return_type, sizes)

    return types.UniTuple(types.int64, rank)(shape, axis, size, lengths, starts), generate


def _function(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Register what chooses the code of a function, for calls that the function itself would accept."""
    signature, name = inspect.signature(function), function.__name__

    def register(choose: Callable[..., Any]) -> Callable[..., Any]:
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


@_function(dmlops.top_k)
def _top_k(
    x,
    k,
    axis=-1,
    largest=True,
    sorted=True,
    starts=None,
    lengths=None,
    max_length=None,
    indices=None,
    nan_last=False,
    index_dtype=None,
    out=None,
):
    arguments = {"k": k, "axis": axis, "largest": largest, "sorted": sorted, "max_length": max_length}
    windows = {"lengths": lengths, "starts": starts}
    # An integer is the window of all rows.
    integers = {name: kind for name, kind in windows.items() if _is_integer(kind)}
    arrays = {name: kind for name, kind in windows.items() if name not in integers}
    _check("top_k", arguments | {"nan_last": nan_last} | integers, x=x, indices=indices, **arrays)
    has_out, is_scalar = _is_pair("top_k", out), x.ndim == 0
    dtype, code = _named(index_dtype, "top_k.index_dtype", np.int64)
    has_lengths, has_starts, has_numbers = (not _is_none(kind) for kind in (lengths, starts, indices))
    has_longest, is_plain = not _is_none(max_length), not (has_lengths or has_starts)
    is_length, is_start = "lengths" in integers, "starts" in integers
    which = has_lengths | has_starts << 1 | has_numbers << 2
    dtype = _dtype(indices, "top_k.indices") if has_numbers else dtype

    def call_top_k(
        x,
        k,
        axis=-1,
        largest=True,
        sorted=True,
        starts=None,
        lengths=None,
        max_length=None,
        indices=None,
        nan_last=False,
        index_dtype=None,
        out=None,
    ):
        given = (1,) if is_scalar else x.shape
        all_lengths = np.full((), lengths) if is_length else lengths
        all_starts = np.full((), starts) if is_start else starts
        of_lengths = all_lengths.shape if has_lengths else None
        of_starts = all_starts.shape if has_starts else None
        if is_plain and not has_numbers:
            shape = shape_with(given, axis, k, 1)
        else:
            shape = shape_of_rows(given, axis, k, of_lengths, of_starts)
        results = out if has_out else (np.empty(shape, x.dtype), np.empty(shape, dtype))
        scalars = axis, largest, sorted, nan_last, has_longest, which, code
        sizes = k, max_length if has_longest else _ALL
        if call(SELECT, scalars, sizes, has_out, (x, all_lengths, all_starts, indices, results)) != 0:
            raise CallError
        return TopKResult(results[0], results[1])

    return call_top_k


@_function(dmlops.nonzero_coordinates)
def _nonzero_coordinates(x, size=None, fill_value=None, index_dtype=None, out=None):
    has_size, has_fill = not _is_none(size), not _is_none(fill_value)
    has_fills = isinstance(fill_value, types.BaseTuple)
    for value in fill_value if has_fills else [fill_value]:
        _check("nonzero_coordinates", {"size": size, "fill_value": value}, x=x)
    has_out = _is_pair("nonzero_coordinates", out)
    dtype, code = _named(index_dtype, "nonzero_coordinates.index_dtype", np.int64)
    n_bytes = dtype.itemsize

    def call_nonzero(x, size=None, fill_value=None, index_dtype=None, out=None):
        rows, fill = size if has_size else 0, fill_value if has_fill and not has_fills else 0
        fills = fill_value if has_fills else ()
        scalars, count = (has_size, has_fill, has_fills, code, fills), np.empty((), dtype)
        if has_out:
            if call(LIST, scalars, (WHOLE, fill, rows), True, (x, out)) != 0:
                raise CallError
            return NonzeroResult(out[0], out[1])
        if not has_size:
            none = np.empty(shape_with((0, x.ndim), 2, 0, n_bytes), dtype)
            if call(LIST, scalars, (WHOLE, fill, 0), False, (x, none, count)) != 0:
                raise CallError  # this counts alone
            rows = np.int64(count[()])
        results = np.empty(shape_with((rows, x.ndim), 2, 0, n_bytes), dtype), count
        if call(LIST, scalars, (WHOLE, fill, rows), False, (x, results)) != 0:
            raise CallError
        return NonzeroResult(results[0], results[1])

    return call_nonzero


@_function(dmlops.sample)
def _sample(
    logits,
    seeds,
    steps=0,
    temperature=1.0,
    k=None,
    top_p=1.0,
    min_p=0.0,
    index_dtype=None,
    out=None,
):
    kinds = dict(zip(PARAMETERS, (seeds, steps, temperature, k, top_p, min_p), strict=True))
    arrays = {name: kind for name, kind in kinds.items() if isinstance(kind, types.Array)}
    _check("sample", {}, logits=logits, out=out, **arrays)
    for name, kind in kinds.items():
        if name in INTEGER_PARAMETERS and name not in arrays and not (name == "k" and _is_none(kind)):
            _check("sample", {name: kind})
        elif name not in arrays and name not in INTEGER_PARAMETERS:
            _value_code(kind, f"sample.{name}")
    dtype, code = _named(index_dtype, "sample.index_dtype", np.int64)
    has_out, has_k = not _is_none(out), not _is_none(k)
    are_arrays = tuple([name in arrays for name in PARAMETERS])
    of_seeds, of_steps, of_temperature, of_k, of_top_p, of_min_p = are_arrays
    which = sum(1 << i for i, is_array in enumerate(are_arrays) if is_array)

    def call_sample(
        logits,
        seeds,
        steps=0,
        temperature=1.0,
        k=None,
        top_p=1.0,
        min_p=0.0,
        index_dtype=None,
        out=None,
    ):
        tokens = out if has_out else np.empty(logits.shape[:-1], dtype)
        sizes = (
            0 if of_seeds else seeds,
            0 if of_steps else steps,
            0.0 if of_temperature else np.float64(temperature),
            k if has_k and not of_k else 0,
            0.0 if of_top_p else np.float64(top_p),
            0.0 if of_min_p else np.float64(min_p),
        )
        given = (
            seeds if of_seeds else None,
            steps if of_steps else None,
            temperature if of_temperature else None,
            k if of_k else None,
            top_p if of_top_p else None,
            min_p if of_min_p else None,
        )
        if call(DRAW, (which, code), sizes, has_out, (logits, given, tokens)) != 0:
            raise CallError
        return tokens

    return call_sample


@_function(dmlops.gather_nd)
def _gather_nd(x, indices, batch_dims=0, mode="raise", fill_value=0, wrap_negative=True, out=None):
    integers = {"batch_dims": batch_dims, "wrap_negative": wrap_negative}
    _check("gather_nd", integers, x=x, indices=indices, out=out)
    name = getattr(mode, "literal_value", getattr(mode, "value", mode))
    if name not in calls.MODES:
        _refuse("gather_nd.mode", mode, f"it must be a literal of {', '.join(calls.MODES)}")
    has_out = not _is_none(out)
    described = calls.MODES.index(name), _value_code(fill_value, "gather_nd.fill_value")
    checks_first = has_out and name == "raise"

    def call_gather(x, indices, batch_dims=0, mode="raise", fill_value=0, wrap_negative=True, out=None):
        result = out if has_out else np.empty(indices.shape[:-1], x.dtype)
        scalars = batch_dims, wrap_negative, described, fill_value
        if checks_first and call(CHECK, scalars, (), True, (x, indices, out)) != 0:
            raise CallError
        if call(GATHER, scalars, (), has_out, (x, indices, result)) != 0:
            raise CallError
        return result

    return call_gather


@_function(dmlops.diagonal_matrix)
def _diagonal_matrix(x=None, shape=None, dtype=None, value=1, begin=0, end=None, out=None):
    has_x, has_shape, has_out = (not _is_none(kind) for kind in (x, shape, out))
    _check("diagonal_matrix", {"begin": begin, "end": end}, out=out, **({"x": x} if has_x else {}))
    if has_x and (has_shape or not _is_none(dtype)):
        _refuse("diagonal_matrix.x", x, "shape and dtype describe a result without x")
    if not (has_x or has_shape or has_out):
        _refuse("diagonal_matrix.shape", shape, "one of x, shape and out must be given")
    if has_shape and not isinstance(shape, types.BaseTuple):
        _refuse("diagonal_matrix.shape", shape, "it must be a tuple")
    for size in shape if has_shape else ():
        _check("diagonal_matrix", {"shape": size})
    made, code = _named(dtype, "diagonal_matrix.dtype", np.float64)
    has_end = not _is_none(end)
    value_code = _value_code(value, "diagonal_matrix.value")
    described = has_end, value_code, code, len(shape) if has_shape else -1
    operation, n_bytes = FILL if has_x else MAKE, made.itemsize

    def call_diagonal_matrix(x=None, shape=None, dtype=None, value=1, begin=0, end=None, out=None):
        sizes = shape if has_shape else ()
        last = end if has_end else begin + (begin < _FARTHEST)
        if has_out:
            result = out
        elif has_x:
            result = np.empty(x.shape, x.dtype)
        else:
            result = np.empty(shape_with(sizes, len(sizes), 0, n_bytes), made)
        is_made = not has_shape or result.shape == shape
        if call(operation, (described, value, is_made), (begin, last, 0, sizes), has_out, (x, result)) != 0:
            raise CallError
        return result

    return call_diagonal_matrix


@overload(dmlops.eye)
@overload(dmlops.triu)
@overload(dmlops.tril)
def _forms(*_, **__):
    msg = "dmlops.tril, triu and eye cannot be compiled; call diagonal_matrix with value, begin and end"
    raise TypingError(msg)
