"""From a function's arguments to a planned call: what fits together is checked, and a descriptor made."""

import math
from collections.abc import Sequence
from typing import Any

from dmlops import arrays
from dmlops.calls import Call, Operand, integer
from dmlops.data_types import data_type_of, index_data_type
from dmlops.dispatch import check_level, level_or, plan
from dmlops.enums import AxisDirection, FeatureLevel, TensorDataType
from dmlops.errors import (
    DeviceMismatchError,
    IndexOutOfRangeError,
    UnsupportedFeatureError,
    refuse,
    wording,
)
from dmlops.libraries import NUMPY, Library
from dmlops.memory import CPU, Device
from dmlops.operators import Descriptor, DiagonalMatrix1, GatherND1, NonzeroCoordinates, TopK1
from dmlops.operators.support import INDEX_TYPES
from dmlops.problems import Options
from dmlops.tensor import TensorDesc


def plan_top_k(
    library: Library, x: Any, given: Sequence[Operand], k: int, axis: int, largest: bool, index_dtype: Any
) -> Call:
    """Plan a call of `top_k`."""
    data, device = library.describe(x, "top_k.x"), library.device(x)
    if data.dimension_count == 0:
        data = TensorDesc(data.data_type, (1,))
    rank = data.dimension_count
    if not -rank <= axis < rank:
        refuse("top_k.axis", axis, f"x has {rank} dimensions", f"axis must be in [{-rank}, {rank - 1}]")
    axis %= rank
    size = data.sizes[axis]
    if not 0 <= k <= size:
        refuse("top_k.k", k, f"axis {axis} of x has {size} elements", f"k must be in [0, {size}]")
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
    return _compiled(descriptor, device, (values, indices))


def plan_nonzero_coordinates(
    library: Library, x: Any, given: Sequence[Operand], size: int | None, fill: int | None, index_dtype: Any
) -> Call:
    """Plan a call of `nonzero_coordinates`."""
    where = "nonzero_coordinates"
    data, device = library.describe(x, f"{where}.x"), library.device(x)
    rows, columns = data.element_count, data.dimension_count
    if given and size is None:
        out = given[0][0].describe(given[0][1], f"{where}.out[0]")
        size = out.sizes[0] if out.sizes else 0
    capacity = rows if size is None else size
    if capacity < 0:
        refuse(f"{where}.size", capacity, "a result cannot have fewer than no rows", "size must be >= 0")
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
        refuse(
            f"{where}.fill_value",
            fill,
            f"coordinates are {index_type.name}",
            f"it must be in [{low}, {high}]",
        )
    descriptor = NonzeroCoordinates(
        input_tensor=data,
        output_coordinates_tensor=TensorDesc(index_type, (rows, columns)),
        output_count_tensor=count,
    )
    options = Options(coordinates=coordinates, fill=fill)
    return _compiled(descriptor, device, (coordinates, count), options, even_if_empty=True)


def plan_gather_nd(operands: Sequence[Operand], given: Sequence[Operand], batch: int, mode: str) -> Call:
    """Plan a call of `gather_nd`."""
    where = "gather_nd"
    (library, x), (index_library, indices) = operands
    data, picks = library.describe(x, f"{where}.x"), index_library.describe(indices, f"{where}.indices")
    device = library.device(x)
    _same_device(f"{where}.indices", index_library.device(indices), device)
    if mode not in ("raise", "clip", "fill"):
        refuse(f"{where}.mode", repr(mode), "there is no such mode", 'mode must be "raise", "clip" or "fill"')
    if picks.data_type not in INDEX_TYPES:
        allowed = "indices must be uint32, uint64, int32 or int64"
        raise TypeError(
            wording(f"{where}.indices", picks.data_type.name.lower(), "it is no index type", allowed)
        )
    for name, desc in (("x", data), ("indices", picks)):
        if desc.dimension_count == 0:
            refuse(
                f"{where}.{name}", "0 dimensions", "a tuple names a position in x", "it must have at least 1"
            )
    limit = min(data.dimension_count, picks.dimension_count) - 1
    if not 0 <= batch <= limit:
        reason = f"x has {data.dimension_count} dimensions and indices have {picks.dimension_count}"
        refuse(f"{where}.batch_dims", batch, reason, f"batch_dims must be in [0, {limit}]")
    indexable = data.dimension_count - batch
    if not 1 <= picks.sizes[-1] <= indexable:
        reason = f"{indexable} dimensions of x can be indexed"
        allowed = f"their last size must be in [1, {indexable}]"
        refuse(f"{where}.indices", f"shape {picks.sizes}", reason, allowed)
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
    return _compiled(descriptor, device, (output,), options, even_if_empty=mode == "raise")


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
        data, device = library.describe(x, f"{where}.x"), library.device(x)
        sizes, data_type = data.sizes, data.data_type
    else:
        (sizes, data_type, device), data = made, None
    if len(sizes) < 2:
        field = "shape" if data is None else "x"
        refuse(
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
    return _compiled(descriptor, device, (output,))


def made_from(
    shape: Any, dtype: Any, like: Any, given: Sequence[Operand]
) -> tuple[Library, tuple[tuple[int, ...], TensorDataType, Device]]:
    """Return library, sizes, type and device of a diagonal matrix that has no input."""
    where = "diagonal_matrix"
    if shape is None and not given:
        allowed = "one of x, shape and out must be given"
        raise TypeError(wording(f"{where}.shape", None, "x is left out too", allowed))
    library, device, described = NUMPY, CPU, None
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


def _compiled(
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
            refuse(where, f"shape {got.sizes}", reason, "shapes must be equal")
        if got.data_type != expected.data_type:
            reason = f"the {what} is {expected.data_type.name.lower()}"
            refuse(where, got.data_type.name.lower(), reason, "types must be equal")
        if got.overlaps_itself:
            reason = f"sizes {got.sizes} then share addresses"
            allowed = "the strides of an output must not overlap"
            refuse(where, f"strides {got.strides}", reason, allowed)
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
            refuse(f"{function}.out[1]", data_type.name.lower(), reason, allowed)
        return data_type
    return library.index_type


def _same_device(where: str, got: Device, expected: Device) -> None:
    if got != expected:
        reason = f"x lives on {expected}"
        allowed = "all arrays must share a device"
        raise DeviceMismatchError(wording(where, f"an array on {got}", reason, allowed))
