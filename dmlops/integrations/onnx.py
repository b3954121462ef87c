"""ONNX's TopK, NonZero, GatherND, Trilu and EyeLike: run by dmlops, and as DirectML descriptors.

``ReferenceEvaluator(model, new_ops=OPERATORS)`` of ``onnx.reference`` runs a model with them.
`descriptor_from_node` says which DirectML operator a node is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference.op_run import OpRun

import dmlops
from dmlops import (
    AxisDirection,
    Descriptor,
    DiagonalMatrix,
    DiagonalMatrix1,
    InvalidDescriptorError,
    NonzeroCoordinates,
    TensorDesc,
    TopK1,
)
from dmlops.data_types import data_type_of
from dmlops.errors import wording
from dmlops.integrations.inference import gather_nd_descriptor

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class TopK(OpRun):  # type: ignore[misc]
    """TopK from opset 10 on; sorted whatever `sorted` says, ties by ascending index."""

    def _run(self, x: Any, k: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Any, Any]:
        return tuple(dmlops.top_k(x, k.item(), axis=axis, largest=bool(largest), index_dtype=np.int64))


class NonZero(OpRun):  # type: ignore[misc]
    """NonZero: a row a dimension, a column an element."""

    def _run(self, x: Any) -> tuple[Any]:
        return (np.ascontiguousarray(dmlops.nonzero_coordinates(x, index_dtype=np.int64).coordinates.T),)


class GatherND(OpRun):  # type: ignore[misc]
    """GatherND; an index out of range is an IndexOutOfRangeError."""

    def _run(self, data: Any, indices: Any, *, batch_dims: int = 0) -> tuple[Any]:
        return (dmlops.gather_nd(data, indices, batch_dims=batch_dims),)


class Trilu(OpRun):  # type: ignore[misc]
    """Trilu: the upper triangle where `upper` is left out."""

    def _run(self, x: Any, k: Any = None, *, upper: int = 1) -> tuple[Any]:
        begin, end = _zeroed(0 if k is None else k.item(), upper, (_INT64_MIN, _INT64_MAX + 1))
        return (dmlops.diagonal_matrix(x, value=0, begin=begin, end=end),)


class EyeLike(OpRun):  # type: ignore[misc]
    """EyeLike: of the input's type where `dtype` is left out."""

    def _run(self, x: Any, *, dtype: int | None = None, k: int = 0) -> tuple[Any]:
        made = x.dtype if dtype is None else tensor_dtype_to_np_dtype(dtype)
        return (dmlops.diagonal_matrix(shape=x.shape, dtype=made, begin=k, end=k + 1),)


OPERATORS: tuple[type[Any], ...] = (TopK, NonZero, GatherND, Trilu, EyeLike)
"""For the argument ``new_ops`` of `onnx.reference.ReferenceEvaluator`."""


def descriptor_from_node(
    node: onnx.NodeProto, inputs: Sequence[TensorDesc], constants: Mapping[str, Any] | None = None
) -> Descriptor:
    """Return the DirectML operator that a node is, as ONNX Runtime's DirectML provider chooses it.

    Parameters
    ----------
    node : onnx.NodeProto
        A TopK (opset 10 and above), NonZero, GatherND, Trilu or EyeLike.
    inputs : sequence of TensorDesc
        Types and sizes of the node's inputs.
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
        If the node is none of these, lacks a constant, or does not fit its inputs.

    Examples
    --------
    >>> from dmlops import TensorDataType
    >>> node = onnx.helper.make_node("Trilu", ["x"], ["y"], upper=0)
    >>> desc = descriptor_from_node(node, [TensorDesc(TensorDataType.FLOAT32, (4, 4))])
    >>> desc.name, desc.diagonal_fill_begin, desc.minimum_feature_level().name
    ('DiagonalMatrix1', 1, 'DML_5_1')
    """
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    data = inputs[0]
    if node.op_type == "TopK":
        axis = attributes.get("axis", -1)
        largest = attributes.get("largest", 1)
        return TopK1(
            input_tensor=data,
            axis=axis + data.dimension_count if axis < 0 else axis,
            k=_constant(node, 1, constants),
            axis_direction=AxisDirection.DECREASING if largest else AxisDirection.INCREASING,
        )
    if node.op_type == "NonZero":
        return NonzeroCoordinates(input_tensor=data)
    if node.op_type == "GatherND":
        return gather_nd_descriptor(data, inputs[1], attributes.get("batch_dims", 0))
    if node.op_type == "Trilu":
        k = _constant(node, 1, constants) if len(node.input) > 1 and node.input[1] else 0
        begin, end = _zeroed(k, attributes.get("upper", 1), (_INT32_MIN, _INT32_MAX))
        return DiagonalMatrix1(input_tensor=data, value=0, diagonal_fill_begin=begin, diagonal_fill_end=end)
    if node.op_type == "EyeLike":
        made = data.data_type
        if "dtype" in attributes:
            made = data_type_of(tensor_dtype_to_np_dtype(attributes["dtype"]), "EyeLike.dtype")
        return DiagonalMatrix(
            output_tensor=TensorDesc(made, data.sizes), offset=attributes.get("k", 0), value=1
        )
    allowed = f"it must be one of {', '.join(operator.__name__ for operator in OPERATORS)}"
    raise InvalidDescriptorError(
        wording("descriptor_from_node.node", node.op_type, "no descriptor here computes that", allowed)
    )


def _zeroed(k: int, upper: int, limits: tuple[int, int]) -> tuple[int, int]:
    """Return the band of diagonals that Trilu clears: those below `k`, or those above it."""
    lowest, highest = limits
    edge = min(max(k if upper else k + 1, lowest), highest)
    return (lowest, edge) if upper else (edge, highest)


def _constant(node: onnx.NodeProto, place: int, constants: Mapping[str, Any] | None) -> int:
    name = node.input[place] if place < len(node.input) else f"input {place}"
    if constants is None or name not in constants:
        reason = "DirectML takes it as a number"
        raise InvalidDescriptorError(
            wording(f"{node.op_type}.{name}", "no value", reason, "it must be among the constants")
        )
    return int(np.asarray(constants[name]).item())
