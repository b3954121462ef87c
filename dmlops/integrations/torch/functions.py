"""The functions for calls that torch differentiates or traces: from their arguments to ``torch.ops.dmlops``.

The functions of `dmlops` call these if kernels alone are not enough: because a derivative is requested, or
because the tensors stand for others in a graph or a transformation (see `ArrayLibrary.takes_over`).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dmlops.array_libraries.detect import find_library
from dmlops.array_libraries.numpy import NUMPY, refuse_object
from dmlops.array_libraries.torch import check_inference, check_kind, refuse_as_scalar
from dmlops.calls.binding import Spec, check_device, check_is_pair
from dmlops.calls.dispatch import level_or
from dmlops.functions.nonzero_coordinates import SPEC as NONZERO_FUNCTION
from dmlops.functions.sample import is_array
from dmlops.integrations.torch.derivatives import has_tangent, is_known, is_tracked
from dmlops.integrations.torch.memory import check_memory, is_only_seen
from dmlops.integrations.torch.operators import (
    CHECK_MEMORY,
    DIAGONAL_MATRIX,
    GATHER_ND,
    NONZERO_COORDINATES,
    NONZERO_COORDINATES_STATIC,
    SAMPLE,
    TOP_K,
    band,
    distributed_rules,
    gather_range,
    is_distributed,
    torch_dtype,
)
from dmlops.operators.descriptor import check_index_type
from dmlops.operators.diagonal_matrix import band_bounds, check_matrices, near_band
from dmlops.operators.gather_nd import check_use
from dmlops.operators.nonzero_coordinates import check_fill, check_held, plain_fill
from dmlops.operators.sample import INTEGER_PARAMETERS, PARAMETERS
from dmlops.operators.top_k import Selection
from dmlops.types import arguments, scalars
from dmlops.types.data_types import data_type_of, index_data_type
from dmlops.types.enums import FeatureLevel
from dmlops.types.errors import Words, argument_of, error_text, instance_of, refuse, shown
from dmlops.types.tensor import TensorDesc

# The bounds of a band are 64-bit integers. No element is on a diagonal so far out.
_FARTHEST_DIAGONAL = 2**62


def run(spec: Spec, inputs: Sequence[Any], out: Any, stream: Any, *others: Any) -> Sequence[Tensor]:
    """Run a function."""
    return _FUNCTIONS[spec.operator](spec.words, inputs, out, stream, *others)


def top_k(
    words: Words, inputs: Sequence[Any], out: Any, stream: Any, selection: Selection
) -> Sequence[Tensor]:
    """Run `dmlops.top_k`."""
    _check_stream(stream, "top_k")
    x = _tensor(inputs[0], "top_k.x")
    arrays = selection.arrays(inputs[1:])
    given = {name: _as_tensor(array, f"top_k.{name}", x) for name, array in arrays.items()}
    read = {"top_k.x": x} | {f"top_k.{name}": tensor for name, tensor in given.items()}
    outputs = None if out is None else _Outputs("top_k", out, ("values", "indices"), read)
    # With indices, results have their type.
    is_named = "indices" not in given or selection.index_type is not None
    index_dtype = _index_dtype(selection.index_type, out, "top_k") if is_named else None
    results = TOP_K(
        x,
        _integer(selection.k, "top_k.k"),
        _integer(selection.axis, "top_k.axis"),
        arguments.boolean(selection.largest, "top_k.largest"),
        arguments.boolean(selection.is_sorted, "top_k.sorted"),
        given.get("lengths"),
        index_dtype,
        given.get("starts"),
        given.get("indices"),
        None if selection.max_length is None else _integer(selection.max_length, "top_k.max_length"),
        arguments.boolean(selection.nan_last, "top_k.nan_last"),
    )
    return results if outputs is None else outputs.write(results)


def nonzero_coordinates(
    words: Words,
    inputs: Sequence[Any],
    out: Any,
    stream: Any,
    size: int | None,
    fill_value: Any,
    index_dtype: Any,
) -> Sequence[Tensor]:
    """Run `dmlops.nonzero_coordinates`."""
    where = "nonzero_coordinates"
    _check_stream(stream, where)
    x, dtype = _tensor(inputs[0], f"{where}.x"), _index_dtype(index_dtype, out, where)
    if out is not None and size is None:
        coordinates = _tensor(out[0], f"{where}.out[0]")
        size = coordinates.shape[0] if coordinates.dim() else 0
    types = _types_of_rows(x, index_dtype, out, dtype)
    fill = plain_fill(fill_value, _integer)
    fills = None if fill is None else [*fill] if isinstance(fill, tuple) else [fill]
    if size is None or all(isinstance(value, int) for value in fills or ()):
        index_type = index_data_type(types[0], f"{where}.index_dtype")
        check_fill(fill, index_type, x.dim(), is_trimmed=size is None)
    if size is None:
        return NONZERO_COORDINATES(x, dtype)  # type: ignore[no-any-return]
    names = "coordinates", "count"
    outputs = None if out is None else _Outputs(where, out, names, {f"{where}.x": x})
    dtype = dtype if types[0] == types[1] else torch.int64
    results = NONZERO_COORDINATES_STATIC(x, _integer(size, f"{where}.size"), fills, dtype)
    if types[0] != types[1]:
        results = tuple([result.to(each) for result, each in zip(results, types, strict=True)])
    return results if outputs is None else outputs.write(results)


def _types_of_rows(
    x: Tensor, index_dtype: Any, out: Any, dtype: torch.dtype | None
) -> tuple[torch.dtype, torch.dtype]:
    """Return the types of coordinates and count: `dtype`, or those of `out`."""
    of_count = dtype or torch.int64
    if out is None or index_dtype is not None:
        return of_count, of_count
    where = "nonzero_coordinates.out[0]"
    index_type = check_index_type(where, data_type_of(_tensor(out[0], where).dtype, where))
    if torch_dtype(index_type) != of_count and all(isinstance(size, int) for size in x.shape):
        data = TensorDesc(data_type_of(x.dtype, "nonzero_coordinates.x"), tuple(x.shape))
        check_held(NONZERO_FUNCTION.words_with_out, data, data_type_of(of_count, where), index_type)
    return torch_dtype(index_type), of_count


def sample(
    words: Words,
    inputs: Sequence[Any],
    out: Any,
    stream: Any,
    given: Sequence[Any],
    index_dtype: Any,
    *others: Any,
) -> Sequence[Tensor]:
    """Run `dmlops.sample`."""
    _check_stream(stream, "sample")
    logits, tensors = _tensor(inputs[0], "sample.logits"), []
    numbers: list[Any] = []
    for name, value in zip(PARAMETERS, given, strict=True):
        where = f"sample.{name}"
        if is_array(value):
            tensors.append(_as_tensor(value, where))
            numbers.append(0)
            continue
        tensors.append(None)
        if name not in INTEGER_PARAMETERS:
            numbers.append(_real(value, where))
        else:
            numbers.append(0 if value is None and name == "k" else _integer(value, where))
    read = {"sample.logits": logits} | {
        f"sample.{name}": tensor
        for name, tensor in zip(PARAMETERS, tensors, strict=True)
        if tensor is not None
    }
    outputs = None if out is None else _Outputs("sample", (out,), ("tokens",), read)
    seed, step, temperature, k, top_p, min_p = numbers
    dtype = _index_dtype(index_dtype, None if out is None else (out, out), "sample")
    results = (SAMPLE(logits, tensors, seed, step, temperature, k, top_p, min_p, dtype),)
    return results if outputs is None else outputs.write(results)


def gather_nd(
    words: Words,
    inputs: Sequence[Any],
    out: Any,
    stream: Any,
    batch_dims: int,
    mode: str,
    fill_value: Any,
    wrap_negative: bool,
) -> Sequence[Tensor]:
    """Run `dmlops.gather_nd`."""
    _check_stream(stream, "gather_nd")
    fill = _scalar(fill_value, "gather_nd.fill_value")
    if not arguments.is_symbol(fill):
        check_use(fill, mode)
    wraps = arguments.boolean(wrap_negative, "gather_nd.wrap_negative")
    x, indices = _tensor(inputs[0], "gather_nd.x"), _as_tensor(inputs[1], "gather_nd.indices")
    if isinstance(inputs[1], Sequence) and not indices.numel():  # NumPy makes floats of nothing
        indices = indices.long()
    read = {"gather_nd.x": x, "gather_nd.indices": indices}
    outputs = None if out is None else _Outputs("gather_nd", (out,), ("result",), read)
    gather = partial(GATHER_ND, x, indices, _integer(batch_dims, "gather_nd.batch_dims"))
    if torch.compiler.is_exporting() and x.is_floating_point() and is_known(fill - fill != 0):
        found = gather_range(x, indices, batch_dims, wraps)
        results = (torch.where(found, gather("fill", 0, wraps), fill),)
    else:
        results = (gather(mode, fill, wraps),)
    return results if outputs is None else outputs.write(results)


def diagonal_matrix(
    words: Words, inputs: Sequence[Any], out: Any, stream: Any, pattern: Any, value: Any, begin: Any, end: Any
) -> Sequence[Tensor]:
    """Run `dmlops.diagonal_matrix`.

    If `inputs` is empty, `pattern` has the arguments ``shape``, ``dtype`` and ``like``.
    """
    where = words.operator
    _check_stream(stream, where)
    value = _scalar(value, f"{where}.value")
    begin, end = near_band(*band_bounds(where, _number(begin), _number(end)), _FARTHEST_DIAGONAL)
    read = {}
    if inputs:
        read[words.where("input_tensor")] = x = _tensor(inputs[0], words.where("input_tensor"))
        check_matrices(words.where("input_tensor"), tuple(x.shape))
    else:
        x = _zeros(words, pattern, out)
    outputs = None if out is None else _Outputs(where, (out,), ("result",), read)
    # The difference is NaN for infinities and NaN.
    if torch.compiler.is_exporting() and x.is_floating_point() and is_known(value - value != 0):
        # AOTInductor passes the arguments of operators as JSON, which has no such numbers.
        results = (torch.where(band(x, begin, end), value, x),)
    else:
        results = (DIAGONAL_MATRIX(x, value, begin, end),)
    return results if outputs is None else outputs.write(results)


def _zeros(words: Words, pattern: tuple[Any, Any, Any], out: Any) -> Tensor:
    """Return zeros as the input of a diagonal matrix that has none."""
    where = words.operator
    shape, dtype, like = pattern
    like = out if like is None else like
    if not isinstance(like, Tensor):
        reason = "the result would be a NumPy array, which torch does not trace"
        raise TypeError(error_text(f"{where}.like", shown(like), reason, "it must be a tensor"))
    check_kind(like, f"{where}.like")
    shape = out.shape if shape is None else shape
    if hasattr(shape, "__len__"):
        arguments.check_dimensions(words.where("output_tensor", ".sizes"), len(shape))
    if not isinstance(shape, Iterable) or all(isinstance(size, int) for size in shape):
        shape = arguments.sizes(shape, f"{where}.shape")
        check_matrices(words.where("output_tensor", ".sizes"), shape)
    made = like.dtype if dtype is None else torch_dtype(data_type_of(dtype, f"{where}.dtype"))
    return like.new_zeros((), dtype=made).expand(shape)


def _check_stream(stream: Any, function: str) -> None:
    if stream is not None:
        reason = "torch chooses the stream of calls that it differentiates or traces"
        remedy = "call it within torch.cuda.stream(stream)"
        raise TypeError(error_text(f"{function}.stream", shown(stream), reason, remedy))


def _tensor(x: Any, where: str) -> Tensor:
    """Return an array that must be a tensor here."""
    if not isinstance(x, Tensor):
        if not _is_array(x):
            refuse_object(x, where)
        reason = "torch differentiates or traces this call"
        raise TypeError(error_text(where, instance_of(x), reason, "it must be a tensor"))
    check_kind(x, where)
    if is_distributed(x):
        distributed_rules()
    return x


def _as_tensor(array: Any, where: str, beside: Tensor | None = None) -> Tensor:
    """Return an input of integers, which may be of another library, as a tensor; an int lies on a device."""
    if beside is not None and isinstance(array, (int, torch.SymInt)) and not isinstance(array, bool):
        _check_fits(array, where)
        return torch.full((), array, dtype=torch.int64, device=beside.device)
    if not isinstance(array, Tensor) and _is_array(array):
        # Not on torch's default device, if that is another one.
        device = "cpu" if isinstance(array, (np.ndarray, Sequence)) else None
        # A copy, because torch does not see what is written to the array before a backward pass.
        if not torch.compiler.is_compiling() and isinstance(array, (Sequence, np.ndarray)):
            array = NUMPY.as_plain(array, where)
            data_type_of(array.dtype, where)  # torch has no words for others
        array = np.asarray(array) if isinstance(array, Sequence) else array
        array = torch.as_tensor(array, device=device).clone()
    return _tensor(array, where)


def _is_array(x: Any) -> bool:
    return isinstance(x, (Sequence, int, float, complex)) or hasattr(x, "shape")


def _check_fits(value: Any, where: str) -> None:
    """Refuse an integer that torch's operators cannot pass."""
    if type(value) is int and (is_known(value < -(2**63)) or is_known(value >= 2**63)):
        reason = "torch passes integers to its operators in 64 bits with a sign"
        refuse(where, value, reason, "it must be in [-2**63, 2**63 - 1] in a graph, and with a derivative")


def _scalar(value: Any, where: str) -> Any:
    """Return a scalar that fills elements, which may be a symbol."""
    if isinstance(value, Tensor):
        refuse_as_scalar(where)
    value = _number(value)
    if type(value) not in (int, float, torch.SymInt, torch.SymFloat):
        value = scalars.fill_scalar(value, where)
    if isinstance(value, (str, np.generic)):
        allowed = f"{where.rpartition('.')[2]} must be a number"
        raise TypeError(error_text(where, shown(value), "torch has no such elements", allowed))
    _check_fits(value, where)
    return value


def _number(value: Any) -> Any:
    """Return a scalar of NumPy, which torch's compiler takes for an array, as Python's."""
    if not isinstance(value, np.ndarray) or value.ndim:
        return value
    scalar = torch.as_tensor(value)
    return (scalar.long() if scalar.dtype is torch.bool else scalar).item()


def _integer(value: Any, where: str) -> int:
    """Return an integer unchanged; it may be a symbol."""
    integer = arguments.integer(_number(value), where)
    _check_fits(integer, where)
    return integer


def _real(value: Any, where: str) -> float:
    """Return a real number unchanged; it may be a symbol."""
    number = _number(value)
    if arguments.is_symbol(number) or type(number) is float:
        return number  # type: ignore[no-any-return]
    real = scalars.as_real(number)
    if real is None:
        allowed = f"{where.rpartition('.')[2]} must be a real number"
        raise TypeError(error_text(where, shown(value), "it is not a number", allowed))
    return float(real)


def _index_dtype(dtype: Any, out: Any, function: str) -> torch.dtype | None:
    """Return the type of the indices of a call; None for int64."""
    if dtype is not None:
        return torch_dtype(index_data_type(dtype, f"{function}.index_dtype"))
    if out is not None:
        check_is_pair(out, f"{function}.out")
        dtype, where = _tensor(out[1], f"{function}.out[1]").dtype, f"{function}.out[1]"
        return torch_dtype(check_index_type(where, data_type_of(dtype, where)))
    # The compiler cannot trace the look-up of the level; a compiled call checks it when it runs.
    if torch.compiler.is_dynamo_compiling() or level_or(FeatureLevel.EXTENDED) is FeatureLevel.EXTENDED:
        return None
    return torch.uint32


class _Outputs:
    """The tensors of an ``out`` argument, which must have memory of their own.

    Parameters
    ----------
    function : str
        What error texts begin with.
    out : sequence of Tensor
        What the caller gave.
    names : sequence of str
        What texts call the results.
    read : dict of str to Tensor
        The inputs by their names in texts.
    """

    def __init__(
        self, function: str, out: Sequence[Any], names: Sequence[str], read: dict[str, Tensor]
    ) -> None:
        places = [f"{function}.out[{i}]" if len(names) > 1 else f"{function}.out" for i in range(len(names))]
        self._out, self._names = out, names
        self._written = {where: _tensor(array, where) for where, array in zip(places, out, strict=True)}
        self._differentiates = names[0] != "coordinates" and any(map(is_tracked, read.values()))
        check = CHECK_MEMORY
        if is_only_seen([*read.values()], out):
            check = check_memory
            for where, array in self._written.items():
                library: Any = find_library(array, where)
                library.writable(array, where)
        inputs, outputs = ([_local(x) for x in each.values()] for each in (read, self._written))
        check(inputs, outputs, ",".join([*read, *self._written]))
        (place, first), *others = self._written.items()
        for where, array in others:  # a graph does not tell whether other tensors share memory
            if array is first:
                got, reason = "an overlapping array", f"it shares memory with {place}"
                refuse(where, got, reason, "an output must have memory of its own")

    def write(self, results: Sequence[Tensor]) -> Sequence[Tensor]:
        """Copy results to the tensors, which must fit exactly, and return those."""
        for result, name, (where, array) in zip(results, self._names, self._written.items(), strict=True):
            _check_output(array, result, name, self._differentiates, where)
        for result, array in zip(results, self._out, strict=True):
            array.copy_(result)
        return self._out


def _local(x: Tensor) -> Tensor:
    """Return the tensor, or the part of a DTensor, that is on this rank."""
    return x.to_local() if is_distributed(x) else x.detach()


def _check_output(array: Tensor, result: Tensor, name: str, differentiates: bool, where: str) -> None:
    if differentiates or (torch.is_grad_enabled() and array.requires_grad) or has_tangent(array):
        reason = "an output that is written in place has no derivative"
        remedy = f"leave it out, pass {argument_of(where)}.detach(), or use torch.no_grad()"
        raise TypeError(error_text(where, "a tensor", reason, remedy))
    if not torch.compiler.is_compiling():
        check_inference(array, where)
    check_device(where, array.device, result.device)
    shape = () if name == "count" and tuple(array.shape) == (1,) else array.shape
    verbs = ("have", "are") if name.endswith("s") else ("has", "is")
    if shape != result.shape:
        reason = f"the {name} {verbs[0]} shape {tuple(result.shape)}"
        refuse(where, f"shape {tuple(array.shape)}", reason, "shapes must be equal")
    if array.dtype != result.dtype:
        got, expected = (str(kind).removeprefix("torch.") for kind in (array.dtype, result.dtype))
        refuse(where, got, f"the {name} {verbs[1]} {expected}", "types must be equal")


_FUNCTIONS: dict[str, Callable[..., Sequence[Tensor]]] = {
    "top_k": top_k,
    "nonzero_coordinates": nonzero_coordinates,
    "sample": sample,
    "gather_nd": gather_nd,
    "diagonal_matrix": diagonal_matrix,
}
