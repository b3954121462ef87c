"""Turn the arguments of a function into a bound call: check them, describe the call, plan it."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from dmlops.array_libraries import NUMPY, ArrayLibrary, Operand, as_input, as_output
from dmlops.calls.call import BoundCall, Manner
from dmlops.calls.dispatch import check_level, level_or, plan_kernels
from dmlops.calls.guard import Named
from dmlops.devices.backend import HIGHEST_LEVELS
from dmlops.devices.memory import CPU, Device
from dmlops.functions.function_errors import InWordsOf
from dmlops.operators import Descriptor, Options
from dmlops.operators.diagonal_matrix import diagonal_matrix_descriptor, infer_diagonal_matrix
from dmlops.operators.gather_nd import check_can_be_in_range, gather_nd_descriptor, infer_gather_nd
from dmlops.operators.nonzero_coordinates import (
    check_fill,
    infer_nonzero_coordinates,
    nonzero_coordinates_descriptor,
)
from dmlops.operators.support import INDEX_TYPES
from dmlops.operators.top_k import infer_top_k, top_k_descriptor
from dmlops.types import arguments
from dmlops.types.enums import FeatureLevel, TensorDataType
from dmlops.types.errors import (
    DeviceMismatchError,
    UnsupportedFeatureError,
    error_text,
    refuse,
)
from dmlops.types.opaque_types import ElementType, OpaqueType, identity, type_name
from dmlops.types.tensor import TensorDesc

# The constructor of a named tuple calls this as well, and takes three times as long.
_new: Any = tuple.__new__


def bind_top_k(
    x: Operand,
    out: Sequence[Operand],
    k: int,
    axis: int,
    largest: bool,
    is_sorted: bool,
    index_type: TensorDataType | None,
    lengths: Operand | None = None,
) -> BoundCall:
    """Bind a call of `top_k`."""
    library, device = x.library, x.library.device(x.array)
    data = _described(x, "top_k.x")
    inputs, input_descs, row_lengths = [x], [data], None
    if lengths is not None:
        row_lengths = lengths.library.describe(lengths.array, "top_k.lengths")
        _check_device("top_k.lengths", lengths.library.device(lengths.array), device)
        inputs, input_descs = [x, lengths], [data, row_lengths]
    with InWordsOf("top_k", has_out=bool(out)):
        index_type = resolved_index_type(index_type, library, out, "top_k")
        inferred = infer_top_k(data, k, axis, index_type, row_lengths)
        if isinstance(data.data_type, OpaqueType) and device is not CPU:
            reason = "top_k of dates and durations runs only on the CPU"
            remedy = "pass their int64; NaT is the lowest"
            raise TypeError(error_text("top_k.x", data.data_type.name, reason, remedy))
        values, indices = _check_outputs(out, ("values", "indices"), inferred, device, "top_k")
        call = _Call("top_k", inputs, input_descs, out, [values, indices], device)
        if lengths is not None:
            check_extended("top_k.lengths", "an array", "DirectML selects among all elements of a row")
        if k == 0:
            check_extended("top_k.k", 0, "DirectML selects at least 1")
            return call.without_kernels()
        descriptor = top_k_descriptor(data, axis, k, largest, values, indices)
        return call.bind(descriptor, Options(is_sorted=is_sorted, lengths=row_lengths))


def bind_top_k_of_lengths(
    x: Operand,
    lengths: Operand,
    out: Sequence[Operand],
    k: int,
    axis: int,
    largest: bool,
    is_sorted: bool,
    index_type: TensorDataType | None,
) -> BoundCall:
    """Bind a call of `top_k` on the first elements of each row."""
    return bind_top_k(x, out, k, axis, largest, is_sorted, index_type, lengths)


def bind_nonzero_coordinates(
    x: Operand, out: Sequence[Operand], size: int | None, fill: int | None, index_type: TensorDataType | None
) -> BoundCall:
    """Bind a call of `nonzero_coordinates`."""
    where = "nonzero_coordinates"
    library, device = x.library, x.library.device(x.array)
    data = _described(x, f"{where}.x")
    if isinstance(data.data_type, OpaqueType) and data.data_type.magnitude is None:
        reason = f"{library.name} is not asked which elements are zero"
        raise TypeError(error_text(f"{where}.x", data.data_type.name, reason, "pass bools: x != 0"))
    rows = data.element_count
    if out and size is None:
        given = out[0].library.describe(out[0].array, f"{where}.out[0]")
        size = given.sizes[0] if given.sizes else 0
    is_trimmed = size is None
    capacity = rows if size is None else size
    index_type = resolved_index_type(index_type, library, out, where)
    check_fill(fill, index_type, is_trimmed=is_trimmed)
    with InWordsOf(where, has_out=bool(out), sizes="size"):
        coordinates, count = infer_nonzero_coordinates(data, capacity, index_type)
    if out and out[1].library.describe(out[1].array, f"{where}.out[1]").sizes == (1,):
        count = count.with_leading_ones(1)
    inferred = coordinates, count
    coordinates, count = _check_outputs(out, ("coordinates", "count"), inferred, device, where)
    if capacity != rows:
        check_extended(f"{where}.size", capacity, f"DirectML writes one row per element, which are {rows}")
    options = Options(coordinates=coordinates, fill=fill)
    call = _Call(where, [x], [data], out, [coordinates, count], device)
    manner = Manner.COUNT_THEN_EXPAND if is_trimmed else Manner.LAUNCH
    with InWordsOf(where, has_out=bool(out), sizes="size"):
        descriptor = nonzero_coordinates_descriptor(data, coordinates, count)
        return call.bind(descriptor, options, manner, even_if_empty=True)


def bind_gather_nd(x: Operand, indices: Operand, out: Sequence[Operand], batch: int, mode: str) -> BoundCall:
    """Bind a call of `gather_nd`."""
    where = "gather_nd"
    device = x.library.device(x.array)
    data = _described(x, f"{where}.x")
    tuples = indices.library.describe(indices.array, f"{where}.indices")
    _check_device(f"{where}.indices", indices.library.device(indices.array), device)
    with InWordsOf(where, has_out=bool(out), sizes="indices"):
        inferred = infer_gather_nd(data, tuples, batch, mode)
    (output,) = _check_outputs(out, ("",), (inferred,), device, where)
    check_can_be_in_range(data, tuples, batch, mode)
    # After the check, every tuple is in range. Clamping is the cheapest mode that stays inside the input.
    options = Options(mode="fill" if mode == "fill" else "clip")
    call = _Call(where, [x, indices], [data, tuples], out, [output], device)
    checks = mode == "raise" and tuples.sizes[-1] > 0
    manner = Manner.CHECK_THEN_GATHER if checks else Manner.LAUNCH
    with InWordsOf(where, has_out=bool(out)):
        descriptor = gather_nd_descriptor(data, tuples, batch, output)
        return call.bind(descriptor, options, manner, even_if_empty=checks, batch_dims=batch)


def bind_diagonal_matrix(
    x: Operand, out: Sequence[Operand], made: None, value: Any, begin: int, end: int
) -> BoundCall:
    """Bind a call of `diagonal_matrix` that copies the elements outside the band."""
    library, device = x.library, x.library.device(x.array)
    data = _described(x, "diagonal_matrix.x")
    call = _matrix_call(data.sizes, data.data_type, value, "x", [x], [data], out, device, library)
    with InWordsOf("diagonal_matrix", has_out=bool(out)):
        output = call.output_descs[0]
        return call.bind(diagonal_matrix_descriptor(data, output, value, begin, end))


def bind_matrix_without_input(
    out: Sequence[Operand], made: "Made", value: Any, begin: int, end: int
) -> BoundCall:
    """Bind a call of `diagonal_matrix` that writes zeros outside the band."""
    call = _matrix_call(made.sizes, made.data_type, value, "shape", [], [], out, made.device, made.library)
    with InWordsOf("diagonal_matrix", has_out=bool(out), sizes="shape"):
        output = call.output_descs[0]
        return call.bind(diagonal_matrix_descriptor(None, output, value, begin, end))


def _matrix_call(
    sizes: tuple[int, ...],
    data_type: ElementType,
    value: Any,
    field: str,
    inputs: Sequence[Operand],
    input_descs: Sequence[TensorDesc],
    out: Sequence[Operand],
    device: Device,
    library: ArrayLibrary,
) -> "_Call":
    where = "diagonal_matrix"
    with InWordsOf(where, has_out=False, sizes=field):
        inferred = infer_diagonal_matrix(data_type, sizes, value, f"{where}.{field}")
    (output,) = _check_outputs(out, ("",), (inferred,), device, where)
    return _Call(where, inputs, input_descs, out, [output], device, library)


class Made(NamedTuple):
    """The form of a diagonal matrix without an input."""

    library: ArrayLibrary
    sizes: tuple[int, ...]
    data_type: ElementType
    device: Device
    identity: Hashable = None
    """Tells types apart that are equal to NumPy but not the same."""


def made_from(shape: Any, dtype: Any, like: Any, out: Any) -> Made:
    """Return the form of a diagonal matrix without an input."""
    where = "diagonal_matrix"
    if shape is None and out is None:
        allowed = "one of x, shape and out must be given"
        raise TypeError(error_text(f"{where}.shape", None, "neither x nor shape is given", allowed))
    library: ArrayLibrary = NUMPY
    device, described = CPU, None
    if like is not None:
        library, pattern, *_ = as_input(like, f"{where}.like")
        device, described = library.device(pattern), library.describe(pattern, f"{where}.like")
    if out is not None:
        out_library, array, *_ = as_output(out, f"{where}.out")
        given = out_library.describe(array, f"{where}.out")
        if like is None:
            library, device, described = out_library, out_library.device(array), given
        shape = given.sizes if shape is None else shape
    if dtype is not None:
        data_type = arguments.data_type(dtype, f"{where}.dtype")
    else:
        data_type = TensorDataType.FLOAT64 if described is None else described.data_type
    _check_level_of(data_type, f"{where}.dtype")
    dtype = data_type.dtype if isinstance(data_type, OpaqueType) else None
    made = (
        *(library, arguments.sizes(shape, f"{where}.shape"), data_type, device),
        None if dtype is None else identity(dtype),
    )
    return _new(Made, made)  # type: ignore[no-any-return]


class _Call(NamedTuple):
    """A function's arrays, for which a descriptor is planned."""

    function: str
    inputs: Sequence[Operand]
    input_descs: Sequence[TensorDesc]
    out: Sequence[Operand]
    output_descs: Sequence[TensorDesc]
    device: Device
    made_by: ArrayLibrary | None = None
    """The library of results where there are no inputs."""

    def bind(
        self,
        descriptor: Descriptor,
        options: Options = Options(),  # noqa: B008
        manner: Manner = Manner.LAUNCH,
        *,
        even_if_empty: bool = False,
        batch_dims: int = 0,
    ) -> BoundCall:
        """Plan a descriptor for these arrays."""
        level = level_or(FeatureLevel.EXTENDED)
        if level is not HIGHEST_LEVELS[self.device.kind]:
            # A DirectML level may want an older form of the operator, or more dimensions; the kernels do not.
            served = descriptor if level is FeatureLevel.EXTENDED else descriptor.at_level(level)
            check_level(served, level, self.device)
        self._check_representable()
        if not even_if_empty and not any(desc.element_count for desc in self.output_descs):
            return self.without_kernels()
        return self._bound(plan_kernels(descriptor, self.device, options), manner, batch_dims)

    def without_kernels(self) -> BoundCall:
        """Return a call that has nothing to compute."""
        self._check_representable()
        return self._bound(None, Manner.LAUNCH, 0)

    def _check_representable(self) -> None:
        """Refuse results that their library does not have, or would silently change."""
        library = self._library
        if not self.out:
            n_dims = max(desc.dimension_count for desc in self.output_descs)
            library.check_dimensions(n_dims, f"{self.function}.{'x' if self.inputs else 'shape'}")
        if self.out or type(library).check_representable is ArrayLibrary.check_representable:
            return
        names = _TYPES_OF_RESULTS[self.function] if self.inputs else ("dtype",)
        for name, desc in zip(names, self.output_descs, strict=True):
            library.check_representable(desc.data_type, f"{self.function}.{name}")

    @property
    def _library(self) -> ArrayLibrary:
        return self.made_by or self.inputs[0].library

    def _bound(self, kernels: Any, manner: Manner, batch_dims: int) -> BoundCall:
        n_inputs = len(self.inputs)
        library = self._library
        owners = [operand.library for operand in (*self.inputs, *self.out)]
        if not self.out:
            owners += [library] * len(self.output_descs)
        names = _NAMES[self.function, n_inputs]
        named = list(map(Named, names, (*self.input_descs, *self.output_descs), owners))
        return BoundCall(
            *(self.function, kernels, named[:n_inputs], named[n_inputs:]),
            *(library, self.device, manner, batch_dims),
        )


def _names(function: str, *parameters: str) -> tuple[str, ...]:
    return tuple(f"{function}.{parameter}" for parameter in parameters)


# Error texts use these names for the arrays of each function, by the number of inputs.
_NAMES = {
    ("top_k", 1): _names("top_k", "x", "out[0]", "out[1]"),
    ("top_k", 2): _names("top_k", "x", "lengths", "out[0]", "out[1]"),
    ("nonzero_coordinates", 1): _names("nonzero_coordinates", "x", "out[0]", "out[1]"),
    ("gather_nd", 2): _names("gather_nd", "x", "indices", "out"),
    ("diagonal_matrix", 0): _names("diagonal_matrix", "out"),
    ("diagonal_matrix", 1): _names("diagonal_matrix", "x", "out"),
}

# The parameters that determine the types of results, for functions with inputs.
_TYPES_OF_RESULTS = {
    "top_k": ("x", "index_dtype"),
    "nonzero_coordinates": ("index_dtype", "index_dtype"),
    "gather_nd": ("x",),
    "diagonal_matrix": ("x",),
}


def _described(operand: Operand, where: str) -> TensorDesc:
    """Return an input's description, if the current level has its type."""
    found = operand.library.describe(operand.array, where)
    _check_level_of(found.data_type, where)
    return found


def _check_level_of(data_type: ElementType, where: str) -> None:
    """Refuse an opaque type at a level of DirectML."""
    if isinstance(data_type, OpaqueType):
        check_extended(where, data_type.name, "DirectML has no such type")


def as_testable(x: Operand, where: str, stream: int | None) -> Operand:
    """Return an array whose elements kernels can test for zero: bools if bits alone do not tell."""
    dtype = x.array.dtype
    if dtype.itemsize <= 8 and getattr(dtype, "names", None) is None:
        return x
    _described(x, where)
    return x.library.as_bools(x, stream) or x


def check_extended(where: str, got: object, reason: str) -> None:
    """Refuse options that no DirectML level supports, if such a level is set."""
    if level_or(FeatureLevel.EXTENDED) < FeatureLevel.EXTENDED:
        remedy = f"the lowest level that supports it is {FeatureLevel.EXTENDED.name}"
        raise UnsupportedFeatureError(error_text(where, got, reason, remedy))


def _check_outputs(
    out: Sequence[Operand],
    names: Sequence[str],
    inferred: Sequence[TensorDesc],
    device: Device,
    function: str,
) -> tuple[TensorDesc, ...]:
    """Return the inferred descriptions of the outputs, or those of given outputs, which must fit."""
    if not out:
        return tuple(inferred)
    checked = []
    for i, (operand, name, expected) in enumerate(zip(out, names, inferred, strict=True)):
        library, array = operand.library, operand.array
        where = f"{function}.out[{i}]" if name else f"{function}.out"
        what = name or "result"
        _check_device(where, library.device(array), device)
        got = library.describe(array, where)
        is_plural = what.endswith("s")
        if got.sizes != expected.sizes:
            reason = f"the {what} {'have' if is_plural else 'has'} shape {expected.sizes}"
            refuse(where, f"shape {got.sizes}", reason, "shapes must be equal")
        if got.data_type != expected.data_type:
            expected_type = type_name(expected.data_type)
            reason = f"the {what} {'are' if is_plural else 'is'} {expected_type}"
            refuse(where, type_name(got.data_type), reason, "types must be equal")
        if got.overlaps_itself:
            reason = f"sizes {got.sizes} then share addresses"
            allowed = "the strides of an output must not overlap"
            refuse(where, f"strides {got.strides}", reason, allowed)
        checked.append(got)
    return tuple(checked)


def resolved_index_type(
    index_type: TensorDataType | None, library: ArrayLibrary, out: Sequence[Operand], function: str
) -> TensorDataType:
    """Return the type of indices: what the caller asked for, or that of `out` or the library."""
    if index_type is not None:
        return index_type
    if out:
        # Indices of top_k and the count and coordinates of nonzero share one type, that of the second output.
        data_type = out[1].library.describe(out[1].array, f"{function}.out[1]").data_type
        if isinstance(data_type, OpaqueType) or data_type not in INDEX_TYPES:
            reason, allowed = "it holds indices", "it must be uint32, uint64, int32 or int64"
            refuse(f"{function}.out[1]", type_name(data_type), reason, allowed)
        return data_type
    # UINT32 is the type of indices that DirectML has at every level.
    return (
        library.index_type
        if level_or(FeatureLevel.EXTENDED) is FeatureLevel.EXTENDED
        else TensorDataType.UINT32
    )


def _check_device(where: str, got: Device, expected: Device) -> None:
    if got != expected:
        reason = f"x lives on {expected}"
        allowed = "all arrays must share a device"
        raise DeviceMismatchError(error_text(where, f"an array on {got}", reason, allowed))
