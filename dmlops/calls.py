"""Function calls, planned once for arrays of one kind: from arguments to a compiled operator and back."""

import math
from collections.abc import Callable, Hashable, Sequence
from operator import index
from typing import Any, NamedTuple

import numpy as np

from dmlops import arrays, cuda
from dmlops.arrays import Library
from dmlops.compiled import CompiledOperator
from dmlops.data_types import data_type_of, index_data_type
from dmlops.dispatch import check_level, level_or, level_set, plan
from dmlops.enums import AxisDirection, FeatureLevel, TensorDataType
from dmlops.errors import (
    DeviceMismatchError,
    IndexOutOfRangeError,
    InvalidDescriptorError,
    UnsupportedFeatureError,
    wording,
)
from dmlops.memory import CPU, Device, Slot
from dmlops.operators import Descriptor, DiagonalMatrix1, GatherND1, NonzeroCoordinates, TopK1
from dmlops.operators.support import INDEX_TYPES
from dmlops.problems import Options
from dmlops.tensor import TensorDesc
from kernels_cpu import threads

Operand = tuple[Library, Any]
# What the check of gather indices writes where every tuple is in range.
_NO_OFFENDER = 2**63 - 1
_CALLS_KEPT = 4096


class Call(NamedTuple):
    """One kind of call.

    Attributes
    ----------
    operator : CompiledOperator or None
        What computes it; None where there is nothing to compute.
    outputs : tuple of TensorDesc
        What is allocated where the caller gives no outputs.
    device : Device
        Where the arrays live.
    """

    operator: CompiledOperator | None
    outputs: tuple[TensorDesc, ...]
    device: Device


_calls: dict[Hashable, Call] = {}


def planned(key: Hashable) -> Call | None:
    """Return the call planned for `key`, or None where there is none yet."""
    try:
        return _calls.get(key)
    except TypeError:  # an argument that cannot be hashed: planning finds out which
        return None


def keep(key: Hashable, call: Call) -> Call:
    """Keep a call for the next time that `key` is asked for, and return it."""
    if len(_calls) >= _CALLS_KEPT:
        _calls.clear()
    _calls[key] = call
    return call


def common_key(library: Library, x: Any, outputs: Sequence[Operand]) -> tuple[Hashable, ...]:
    """Return what distinguishes calls of every function."""
    return (
        library,
        None if x is None else library.signature(x),
        tuple([(other, other.signature(array)) for other, array in outputs]) if outputs else None,
        level_set(),
        threads.get_num_threads(),
    )


def adopt_outputs(out: Any, names: Sequence[str]) -> list[Operand]:
    """Return the arrays of an ``out`` argument with their libraries; none where it was left out."""
    if out is None:
        return []
    if not isinstance(out, (tuple, list)) or len(out) != len(names):
        reason = f"there are {len(names)} results"
        got = f"{len(out)} arrays" if isinstance(out, (tuple, list)) else type(out).__name__
        raise TypeError(wording(names[0].partition("[")[0], got, reason, f"out must be {len(names)} arrays"))
    return [arrays.adopt_output(array, name) for array, name in zip(out, names, strict=True)]


def integer(value: Any, where: str) -> int:
    """Return an argument as a plain int."""
    if type(value) is int:
        return value
    try:
        return index(value)
    except TypeError:
        raise TypeError(wording(where, repr(value), "it is no integer", "it must be one")) from None


def run(
    call: Call,
    library: Library,
    operands: Sequence[Operand | None],
    given: Sequence[Operand],
    names: Sequence[str],
    stream: Any,
    *,
    before: Callable[[CompiledOperator, Sequence[Any], int], None] | None = None,
) -> list[Any]:
    """Allocate what was not given, launch, and return the outputs.

    `names` are those of operands and outputs in error texts; `before` is called with the operator, the viewed
    operands and the stream ahead of the launch.
    """
    operator = call.operator
    if operator is None:
        return [array for _, array in given] or [
            library.deliver(library.empty(desc.sizes, desc.data_type, call.device), 0)
            for desc in call.outputs
        ]
    if call.device is CPU and stream is None:
        return _run_on_host(call, operator, library, operands, given, names, before)
    present = [operand for operand in (*operands, *given) if operand is not None] or [(library, None)]
    handle = operator.stream(stream, present, f"{names[0].partition('.')[0]}.stream")
    with operator.allocating_on(library, stream, handle):
        outputs = given or _allocated(call, library)
        views = operator.views((*operands, *outputs))
        if given:
            operator.check_overlap(views, names)
        if before is not None:
            before(operator, views, handle)
        memory, _owner = operator.scratch(library)
        operator.launch(views, memory, handle)
    return [array if given else library.deliver(array, handle) for _, array in outputs]


def _run_on_host(
    call: Call,
    operator: CompiledOperator,
    library: Library,
    operands: Sequence[Operand | None],
    given: Sequence[Operand],
    names: Sequence[str],
    before: Callable[[CompiledOperator, Sequence[Any], int], None] | None,
) -> list[Any]:
    # The short way that small arrays feel: no stream, no context to allocate in.
    outputs = given or _allocated(call, library)
    views = operator.views((*operands, *outputs))
    if given:
        operator.check_overlap(views, names)
    if before is not None:
        before(operator, views, 0)
    operator.launch(views, operator.scratch(library)[0], 0)
    return [array if given else library.deliver(array, 0) for _, array in outputs]


def _allocated(call: Call, library: Library) -> list[Operand]:
    return [(library, library.empty(desc.sizes, desc.data_type, call.device)) for desc in call.outputs]


def plan_top_k(
    library: Library, x: Any, given: Sequence[Operand], k: int, axis: int, largest: bool, index_dtype: Any
) -> Call:
    """Plan a call of `top_k`."""
    device, data = library.device(x), library.describe(x, "top_k.x")
    if data.dimension_count == 0:
        data = TensorDesc(data.data_type, (1,))
    rank = data.dimension_count
    if not -rank <= axis < rank:
        _refuse("top_k.axis", axis, f"x has {rank} dimensions", f"axis must be in [{-rank}, {rank - 1}]")
    axis %= rank
    size = data.sizes[axis]
    if not 0 <= k <= size:
        _refuse("top_k.k", k, f"axis {axis} of x has {size} elements", f"k must be in [0, {size}]")
    sizes = (*data.sizes[:axis], k, *data.sizes[axis + 1 :])
    index_type = _index_type(index_dtype, library, given, "top_k")
    inferred = TensorDesc(data.data_type, sizes), TensorDesc(index_type, sizes)
    values, indices = _settle(given, ("values", "indices"), inferred, device, "top_k")
    if k == 0:
        if level_or(FeatureLevel.EXTENDED) < FeatureLevel.EXTENDED:
            remedy = f"the lowest level that would do is {FeatureLevel.EXTENDED.name}"
            raise UnsupportedFeatureError(wording("top_k.k", 0, "DirectML selects at least 1", remedy))
        return Call(None, (values, indices), device)
    descriptor = TopK1(
        input_tensor=data,
        axis=axis,
        k=k,
        axis_direction=AxisDirection.DECREASING if largest else AxisDirection.INCREASING,
        output_value_tensor=values,
        output_index_tensor=indices,
    )
    return _compile(descriptor, device, (values, indices))


def plan_nonzero_coordinates(
    library: Library, x: Any, given: Sequence[Operand], size: int | None, fill: int | None, index_dtype: Any
) -> Call:
    """Plan a call of `nonzero_coordinates`."""
    where = "nonzero_coordinates"
    device, data = library.device(x), library.describe(x, f"{where}.x")
    rows, columns = data.element_count, data.dimension_count
    if given and size is None:
        out = given[0][0].describe(given[0][1], f"{where}.out[0]")
        size = out.sizes[0] if out.sizes else 0
    capacity = rows if size is None else size
    if capacity < 0:
        _refuse(f"{where}.size", capacity, "a result cannot have fewer than no rows", "size must be >= 0")
    index_type = _index_type(index_dtype, library, given, where)
    coordinates, count = _settle(
        given,
        ("coordinates", "count"),
        (TensorDesc(index_type, (capacity, columns)), TensorDesc(index_type, (1,))),
        device,
        where,
    )
    low, high = index_type.integer_range
    if fill is not None and not low <= fill <= high:
        _refuse(
            f"{where}.fill_value",
            fill,
            f"coordinates are {index_type.name}",
            f"it must be in [{low}, {high}]",
        )
    descriptor = NonzeroCoordinates(
        input_tensor=data,
        output_coordinates_tensor=_lengthened(coordinates, rows),
        output_count_tensor=count,
    )
    options = Options(capacity=capacity, fill=fill)
    return _compile(descriptor, device, (coordinates, count), options, even_if_empty=True)


def _lengthened(coordinates: TensorDesc, rows: int) -> TensorDesc:
    """Return the coordinates with a row for every element, as a descriptor has them."""
    strides = coordinates.strides
    if strides is not None and coordinates.sizes[0] < 2:
        # Where there is at most one row, the distance of rows is free.
        strides = (max(coordinates.extent, 1), strides[1])
    return TensorDesc(coordinates.data_type, (rows, coordinates.sizes[1]), strides)


def run_trimmed(call: Call, library: Library, x: Any, stream: Any) -> list[Any]:
    """Count, wait for the count, and write exactly as many rows."""
    operator, device = call.operator, call.device
    assert operator is not None
    where = "nonzero_coordinates"
    handle = operator.stream(stream, [(library, x)], f"{where}.stream")
    if device != CPU and cuda.is_capturing(handle):
        reason = "the stream is being captured into a CUDA graph"
        _refuse(f"{where}.size", None, reason, "size must be a number of rows, so that nothing waits")
    coordinates, count = call.outputs
    with operator.allocating_on(library, stream, handle):
        counted = library.empty(count.sizes, count.data_type, device)
        memory, _owner = operator.scratch(library)
        (x_view, _, count_view) = operator.views([(library, x), None, (library, counted)])
        stream_first = operator.stream_argument(handle)
        operator.plan.count(*stream_first, x_view, count_view, memory)
        rows = operator.read(count_view, count.data_type, handle)
        columns = coordinates.sizes[1]
        written = library.empty((rows, columns), coordinates.data_type, device)
        if rows and columns:
            view = library.view(written, Slot.of(TensorDesc(coordinates.data_type, (rows, columns))))
            operator.plan.expand(*stream_first, x_view, view, rows, columns, 1, memory)
    return [library.deliver(array, handle) for array in (written, counted)]


def plan_gather_nd(operands: Sequence[Operand], given: Sequence[Operand], batch: int, mode: str) -> Call:
    """Plan a call of `gather_nd`."""
    where = "gather_nd"
    (library, x), (index_library, indices) = operands
    device = library.device(x)
    data, picks = library.describe(x, f"{where}.x"), index_library.describe(indices, f"{where}.indices")
    _same_device(f"{where}.indices", index_library.device(indices), device)
    if mode not in ("raise", "clip", "fill"):
        _refuse(
            f"{where}.mode", repr(mode), "there is no such mode", 'mode must be "raise", "clip" or "fill"'
        )
    if picks.data_type not in INDEX_TYPES:
        allowed = "indices must be uint32, uint64, int32 or int64"
        raise TypeError(
            wording(f"{where}.indices", picks.data_type.name.lower(), "it is no index type", allowed)
        )
    for name, desc in (("x", data), ("indices", picks)):
        if desc.dimension_count == 0:
            _refuse(
                f"{where}.{name}", "0 dimensions", "a tuple names a position in x", "it must have at least 1"
            )
    limit = min(data.dimension_count, picks.dimension_count) - 1
    if not 0 <= batch <= limit:
        reason = f"x has {data.dimension_count} dimensions and indices have {picks.dimension_count}"
        _refuse(f"{where}.batch_dims", batch, reason, f"batch_dims must be in [0, {limit}]")
    indexable = data.dimension_count - batch
    if not 1 <= picks.sizes[-1] <= indexable:
        reason = f"{indexable} dimensions of x can be indexed"
        allowed = f"their last size must be in [1, {indexable}]"
        _refuse(f"{where}.indices", f"shape {picks.sizes}", reason, allowed)
    sizes = picks.sizes[:-1] + data.sizes[batch + picks.sizes[-1] :]
    (output,) = _settle(given, ("",), (TensorDesc(data.data_type, sizes),), device, where)
    rank = max(data.dimension_count, picks.dimension_count, len(sizes))
    descriptor = GatherND1(
        input_tensor=data.with_leading_ones(rank),
        indices_tensor=picks.with_leading_ones(rank),
        output_tensor=output.with_leading_ones(rank),
        input_dimension_count=data.dimension_count,
        indices_dimension_count=picks.dimension_count,
        batch_dimension_count=batch,
    )
    indexed = data.sizes[batch : batch + picks.sizes[-1]]
    impossible = 0 in indexed and math.prod(picks.sizes[:-1]) > 0
    if impossible and mode != "fill":
        reason = f"x has sizes {data.sizes}, so that no tuple is in range"
        raise IndexOutOfRangeError(
            wording(
                f"{where}.indices",
                f"{math.prod(picks.sizes[:-1])} tuples",
                reason,
                'only mode="fill" will do',
            )
        )
    # Once checked, every tuple is in range, and clamping is the cheaper way to be safe.
    options = Options(mode="fill" if mode == "fill" else "clip")
    return _compile(descriptor, device, (output,), options, even_if_empty=mode == "raise")


def check_indices(
    operands: Sequence[Operand], batch: int
) -> Callable[[CompiledOperator, Sequence[Any], int], None]:
    """Return the check that `run` makes before a gather with ``mode="raise"``."""

    def check(operator: CompiledOperator, views: Sequence[Any], handle: int) -> None:
        library = operands[0][0]
        if operator.device == CPU:
            first = operator.plan.check(views[1], operator.scratch(library)[0])
        else:
            if cuda.is_capturing(handle):
                reason = "the stream is being captured into a CUDA graph, where nothing can be checked"
                _refuse("gather_nd.mode", "'raise'", reason, 'mode must be "clip" or "fill"')
            found = library.empty((8,), TensorDataType.UINT8, operator.device)
            address = library.view(found, Slot.of(TensorDesc(TensorDataType.UINT8, (8,))))
            operator.plan.check(*operator.stream_argument(handle), views[1], address)
            first = operator.read(address, TensorDataType.INT64, handle)
        if first not in (-1, _NO_OFFENDER):
            _raise_offender(operands, batch, operator, views[1], first, handle)

    return check


def _raise_offender(
    operands: Sequence[Operand], batch: int, operator: CompiledOperator, view: Any, first: int, handle: int
) -> None:
    (library, x), (index_library, indices) = operands
    sizes = library.describe(x, "gather_nd.x").sizes
    picks = index_library.describe(indices, "gather_nd.indices")
    position = tuple(int(i) for i in np.unravel_index(first, picks.sizes[:-1]))
    first_element = picks.offset if operator.device == CPU else 0
    steps = zip(position, picks.effective_strides[:-1], strict=True)
    start = first_element + sum(i * stride for i, stride in steps)
    coordinates = [
        operator.read(view, picks.data_type, handle, start + j * picks.effective_strides[-1])
        for j in range(picks.sizes[-1])
    ]
    for j, coordinate in enumerate(coordinates):
        bound = sizes[batch + j]
        low = -bound if picks.data_type.is_signed else 0
        if not low <= coordinate < bound:
            got = f"tuple {tuple(coordinates)} at position {position}"
            reason = f"coordinate {j} is {coordinate}, and dimension {batch + j} of x has {bound} elements"
            allowed = f"it must be in [{low}, {bound - 1}]"
            raise IndexOutOfRangeError(wording("gather_nd.indices", got, reason, allowed))


def plan_diagonal_matrix(
    library: Library,
    x: Any,
    made: tuple[tuple[int, ...], TensorDataType, Device] | None,
    given: Sequence[Operand],
    value: Any,
    begin: int,
    end: int,
) -> Call:
    """Plan a call of `diagonal_matrix`; `made` is what there is without `x`."""
    where = "diagonal_matrix"
    if made is None:
        device, data = library.device(x), library.describe(x, f"{where}.x")
        sizes, data_type = data.sizes, data.data_type
    else:
        (sizes, data_type, device), data = made, None
    if len(sizes) < 2:
        field = "shape" if data is None else "x"
        _refuse(
            f"{where}.{field}",
            f"{len(sizes)} dimensions",
            "a matrix has height and width",
            "it must have at least 2",
        )
    (output,) = _settle(given, ("",), (TensorDesc(data_type, sizes),), device, where)
    descriptor = DiagonalMatrix1(
        input_tensor=data,
        output_tensor=output,
        value=value,
        diagonal_fill_begin=begin,
        diagonal_fill_end=end,
    )
    return _compile(descriptor, device, (output,))


def made_from(
    shape: Any, dtype: Any, like: Any, given: Sequence[Operand]
) -> tuple[Library, tuple[tuple[int, ...], TensorDataType, Device]]:
    """Return library, sizes, type and device of a diagonal matrix that has no input."""
    where = "diagonal_matrix"
    if shape is None and not given:
        allowed = "one of x, shape and out must be given"
        raise TypeError(wording(f"{where}.shape", None, "x is left out too", allowed))
    library, device, described = arrays.NUMPY, CPU, None
    if like is not None:
        library, pattern = arrays.adopt(like, f"{where}.like")
        device, described = library.device(pattern), library.describe(pattern, f"{where}.like")
    if given:
        out_library, array = given[0]
        out = out_library.describe(array, f"{where}.out")
        if like is None:
            library, device, described = out_library, out_library.device(array), out
        shape = out.sizes if shape is None else shape
    if not hasattr(shape, "__iter__"):
        reason, allowed = "it is no sequence", "it must be a sequence of sizes"
        raise TypeError(wording(f"{where}.shape", repr(shape), reason, allowed))
    sizes = tuple(integer(size, f"{where}.shape") for size in shape)
    if dtype is not None:
        data_type = data_type_of(dtype, f"{where}.dtype")
    else:
        data_type = TensorDataType.FLOAT64 if described is None else described.data_type
    return library, (sizes, data_type, device)


def scalar(value: Any) -> Any:
    """Return a scalar of any library as a plain bool, int or float."""
    if type(value) is int:
        return value
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, (int, float)):
        reason, allowed = "it fills a matrix", "value must be a real number"
        raise TypeError(wording("diagonal_matrix.value", repr(value), reason, allowed))
    return math.nan if value != value else value  # noqa: PLR0124 - one NaN object makes one key


def _compile(
    descriptor: Descriptor,
    device: Device,
    outputs: tuple[TensorDesc, ...],
    options: Options = Options(),  # noqa: B008
    *,
    even_if_empty: bool = False,
) -> Call:
    check_level(descriptor, level_or(FeatureLevel.EXTENDED), device)
    if not even_if_empty and all(desc.element_count == 0 for desc in outputs):
        return Call(None, outputs, device)
    return Call(plan(descriptor, device, options), outputs, device)


def _settle(
    given: Sequence[Operand],
    names: Sequence[str],
    inferred: tuple[TensorDesc, ...],
    device: Device,
    function: str,
) -> tuple[TensorDesc, ...]:
    """Return the descriptions of the outputs: those inferred, or those given where they fit."""
    if not given:
        return inferred
    settled = []
    for i, ((library, array), name, expected) in enumerate(zip(given, names, inferred, strict=True)):
        where = f"{function}.out[{i}]" if name else f"{function}.out"
        what = name or "result"
        _same_device(where, library.device(array), device)
        got = library.describe(array, where)
        if got.sizes != expected.sizes:
            reason = f"the {what} has shape {expected.sizes}"
            _refuse(where, f"shape {got.sizes}", reason, "shapes must be equal")
        if got.data_type != expected.data_type:
            reason = f"the {what} is {expected.data_type.name.lower()}"
            _refuse(where, got.data_type.name.lower(), reason, "types must be equal")
        settled.append(got)
    return tuple(settled)


def _index_type(dtype: Any, library: Library, given: Sequence[Operand], function: str) -> TensorDataType:
    if dtype is not None:
        return index_data_type(dtype, f"{function}.index_dtype")
    if given:
        # Indices of top_k and the count and coordinates of nonzero share one type, that of the second output.
        out_library, array = given[1]
        data_type = out_library.describe(array, f"{function}.out[1]").data_type
        if data_type not in INDEX_TYPES:
            reason, allowed = "it holds indices", "it must be uint32, uint64, int32 or int64"
            _refuse(f"{function}.out[1]", data_type.name.lower(), reason, allowed)
        return data_type
    return library.index_type


def _same_device(where: str, got: Device, expected: Device) -> None:
    if got != expected:
        reason = f"x lives on {expected}"
        allowed = "all arrays must share a device"
        raise DeviceMismatchError(wording(where, f"an array on {got}", reason, allowed))


def _refuse(where: str, got: object, reason: str, allowed: str) -> None:
    raise InvalidDescriptorError(wording(where, got, reason, allowed))
