"""ONNX's TopK, NonZero, GatherND, Trilu and EyeLike: run by dmlops, and as DirectML descriptors.

``ReferenceEvaluator(model, new_ops=OPERATORS)`` of ``onnx.reference`` runs a model with them. Inputs that no
operator of dmlops takes, such as strings, are left to onnx's own implementation.
`descriptor_from_node` says which DirectML operator a node is.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op

import dmlops
from dmlops import (
    AxisDirection,
    Descriptor,
    DiagonalMatrix,
    DiagonalMatrix1,
    NonzeroCoordinates,
    TensorDataType,
    TensorDesc,
    TopK1,
)
from dmlops.data_types import SUPPORTED, check_of_descriptors, data_type_of
from dmlops.errors import refuse
from dmlops.operators.gather_nd import gather_nd_descriptor
from dmlops.operators.support import INDEX_TYPES

_INT32_LIMITS = -(2**31), 2**31 - 1
_INT64_LIMITS = -(2**63), 2**63 - 1
_INDEX_NAMES = frozenset(data_type.name.lower() for data_type in INDEX_TYPES)


class _LeftToOnnxError(Exception):
    """The inputs of a node are of a type or form that dmlops does not take."""


class _Operator(OpRun):  # type: ignore[misc]
    """An operator that is run by dmlops, or by onnx where `_run` raises _LeftToOnnxError."""

    def run(self, *inputs: Any, **options: Any) -> Any:
        try:
            return super().run(*inputs, **options)
        except _LeftToOnnxError:
            return self._of_onnx.run(*inputs, **options)

    @cached_property
    def _of_onnx(self) -> Any:
        implementation = load_op("", self.op_type, self.run_params["opsets"][self.domain])
        return implementation(self.onnx_node, self.run_params)


def _check_type(array: Any, names: Any = SUPPORTED) -> None:
    if not isinstance(array, (np.ndarray, np.generic)) or isinstance(array, np.ma.MaskedArray):
        raise _LeftToOnnxError
    _check_dtype(array.dtype, names)


def _check_dtype(dtype: Any, names: Any = SUPPORTED) -> None:
    if not dtype.isnative or dtype.name not in names:
        raise _LeftToOnnxError


def _number(k: Any) -> int:
    """Return the `k` of TopK or Trilu: an attribute, or an input of one integer."""
    if isinstance(k, int):
        return k
    _check_type(k, _INDEX_NAMES)
    if k.size != 1:
        raise _LeftToOnnxError
    return int(k.item())


class TopK(_Operator):
    """TopK; ties by ascending index. If `sorted` is 0, the results are in order of index."""

    def _run(self, x: Any, k: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Any, Any]:
        _check_type(x)
        found = dmlops.top_k(
            x, _number(k), axis=axis, largest=bool(largest), sorted=bool(sorted), index_dtype=np.int64
        )
        return tuple(found)


class NonZero(_Operator):
    """NonZero: one row per dimension, one column per element."""

    def _run(self, x: Any) -> tuple[Any]:
        _check_type(x)
        return (np.ascontiguousarray(dmlops.nonzero_coordinates(x, index_dtype=np.int64).coordinates.T),)


class GatherND(_Operator):
    """GatherND; an index out of range is an IndexOutOfRangeError."""

    def _run(self, data: Any, indices: Any, *, batch_dims: int = 0) -> tuple[Any]:
        _check_type(data)
        _check_type(indices, _INDEX_NAMES)
        return (dmlops.gather_nd(data, indices, batch_dims=batch_dims),)


class Trilu(_Operator):
    """Trilu: the upper triangle where `upper` is left out."""

    def _run(self, x: Any, k: Any = None, *, upper: int = 1) -> tuple[Any]:
        _check_type(x)
        if x.ndim < 2:
            raise _LeftToOnnxError
        lowest, highest = _INT64_LIMITS
        begin, end = _zeroed(0 if k is None else _number(k), upper, (lowest, highest + 1))
        return (dmlops.diagonal_matrix(x, value=0, begin=begin, end=end),)


class EyeLike(_Operator):
    """EyeLike: of the input's type where `dtype` is left out."""

    def _run(self, x: Any, *, dtype: int | None = None, k: int = 0) -> tuple[Any]:
        if x.ndim != 2:
            raise _LeftToOnnxError
        made = x.dtype if dtype is None else tensor_dtype_to_np_dtype(dtype)
        _check_dtype(made)
        return (dmlops.diagonal_matrix(shape=x.shape, dtype=made, begin=k, end=k + 1),)


# A list, to which onnx before 1.23 appends operators of its own.
OPERATORS: list[type[Any]] = [TopK, NonZero, GatherND, Trilu, EyeLike]
"""For the argument ``new_ops`` of `onnx.reference.ReferenceEvaluator`."""

_NAMES = tuple(operator.__name__ for operator in OPERATORS)


def descriptor_from_node(
    node: onnx.NodeProto, inputs: Sequence[TensorDesc], constants: Mapping[str, Any] | None = None
) -> Descriptor:
    """Return the DirectML operator that a node is, as ONNX Runtime's DirectML provider chooses it.

    Parameters
    ----------
    node : onnx.NodeProto
        A TopK, NonZero, GatherND, Trilu or EyeLike of ONNX's own domain.
    inputs : sequence of TensorDesc
        Types and sizes of the node's inputs, in their order.
    constants : mapping of str to array, optional
        Values of inputs that DirectML takes as a number, by name: the `k` of TopK and of Trilu.

    Returns
    -------
    Descriptor
        Its outputs are inferred: indices and coordinates are UINT32, where ONNX has INT64. Its
        `minimum_feature_level` says what DirectML needs.

    Raises
    ------
    InvalidDescriptorError
        If the node is none of these, lacks an input or a constant, or does not fit its inputs.
    TypeError
        If EyeLike is to make a type that no operator takes.

    Examples
    --------
    >>> from dmlops import TensorDataType
    >>> node = onnx.helper.make_node("Trilu", ["x"], ["y"], upper=0)
    >>> desc = descriptor_from_node(node, [TensorDesc(TensorDataType.FLOAT32, (4, 4))])
    >>> desc.name, desc.diagonal_fill_begin, desc.minimum_feature_level().name
    ('DiagonalMatrix1', 1, 'DML_5_1')
    """
    name = node.op_type
    if node.domain not in ("", "ai.onnx") or name not in _NAMES:
        got = f"{node.domain}.{name}" if node.domain else name
        allowed = f"it must be one of {', '.join(_NAMES)} of ONNX's own domain"
        refuse("descriptor_from_node.node", got, "no descriptor here computes that", allowed)
    attributes = _attributes(node)
    data = _input(node, 0, inputs)
    if name == "TopK":
        axis, rank = attributes.get("axis", -1), data.dimension_count
        if not -rank <= axis < rank:
            reason = f"its input has {rank} dimensions"
            refuse("TopK.axis", axis, reason, f"axis must be in [{-rank}, {rank - 1}]")
        largest = attributes.get("largest", 1)
        return TopK1(
            input_tensor=data,
            axis=axis % rank,
            k=attributes["k"] if "k" in attributes else _constant(node, 1, constants),
            axis_direction=AxisDirection.DECREASING if largest else AxisDirection.INCREASING,
        )
    if name == "NonZero":
        return NonzeroCoordinates(input_tensor=data)
    if name == "GatherND":
        return gather_nd_descriptor(data, _input(node, 1, inputs), attributes.get("batch_dims", 0))
    # DirectML's bounds are 32-bit integers, and clamped to those where no diagonal lies beyond.
    limits = _INT32_LIMITS if max(data.sizes, default=0) <= _INT32_LIMITS[1] else _INT64_LIMITS
    if name == "Trilu":
        k = _constant(node, 1, constants) if len(node.input) > 1 and node.input[1] else 0
        begin, end = _zeroed(k, attributes.get("upper", 1), limits)
        return DiagonalMatrix1(input_tensor=data, value=0, diagonal_fill_begin=begin, diagonal_fill_end=end)
    if data.dimension_count != 2:
        got = f"{data.dimension_count} dimensions"
        refuse("EyeLike.input", got, "its result is a matrix", "it must have 2")
    made = _made(attributes["dtype"]) if "dtype" in attributes else data.data_type
    offset = _clamped(attributes.get("k", 0), limits)
    return DiagonalMatrix(output_tensor=TensorDesc(made, data.sizes), offset=offset, value=1)


def _zeroed(k: int, upper: int, limits: tuple[int, int]) -> tuple[int, int]:
    """Return the band of diagonals that Trilu clears: those below `k`, or those above it."""
    lowest, highest = limits
    edge = _clamped(k if upper else k + 1, limits)
    return (lowest, edge) if upper else (edge, highest)


def _clamped(k: int, limits: tuple[int, int]) -> int:
    lowest, highest = limits
    return min(max(k, lowest), highest)


def _attributes(node: onnx.NodeProto) -> dict[str, int]:
    """Return the attributes of a node, all of which are integers."""
    for attribute in node.attribute:
        where = f"{node.op_type}.{attribute.name}"
        if attribute.ref_attr_name:
            got = f"a reference to {attribute.ref_attr_name}"
            reason, allowed = "each caller of the function gives its own value", "inline the function first"
            refuse(where, got, reason, allowed)
        if attribute.type != onnx.AttributeProto.INT:
            got = onnx.AttributeProto.AttributeType.Name(attribute.type)
            refuse(
                where, f"an attribute of type {got}", "ONNX has an integer there", "it must be of type INT"
            )
    return {attribute.name: attribute.i for attribute in node.attribute}


def _input(node: onnx.NodeProto, place: int, inputs: Sequence[TensorDesc]) -> TensorDesc:
    if place >= len(inputs):
        reason, allowed = f"the operator reads input {place}", "there must be one for each input"
        refuse(f"{node.op_type}.inputs", f"{len(inputs)} descriptions", reason, allowed)
    if not isinstance(inputs[place], TensorDesc):
        reason, allowed = f"it describes input {place}", "it must be a TensorDesc"
        refuse(f"{node.op_type}.inputs", repr(inputs[place]), reason, allowed)
    return inputs[place]


def _constant(node: onnx.NodeProto, place: int, constants: Mapping[str, Any] | None) -> int:
    name = node.input[place] if place < len(node.input) else f"input {place}"
    where, reason = f"{node.op_type}.{name}", "DirectML takes it as a number"
    if constants is None or name not in constants:
        refuse(where, "no value", reason, "it must be among the constants")
    value = np.asarray(constants[name])
    if value.size != 1 or value.dtype.kind not in "iu":
        refuse(where, repr(constants[name]), reason, "it must be one integer")
    return int(value.item())


def _made(dtype: int) -> TensorDataType:
    """Return the data type that EyeLike's attribute names."""
    try:
        made = tensor_dtype_to_np_dtype(dtype)
    except KeyError:
        refuse(
            "EyeLike.dtype", dtype, "ONNX has no such type of elements", "it must be a TensorProto.DataType"
        )
    where = "EyeLike.dtype"
    return check_of_descriptors(data_type_of(made, where), where)
