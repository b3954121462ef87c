"""ONNX nodes as DirectML descriptors."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype

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
from dmlops.integrations.onnx.bands import INT32_LIMITS, INT64_LIMITS, clamped, zeroed
from dmlops.integrations.onnx.operators import OPERATORS
from dmlops.operators.gather_nd import gather_nd_descriptor
from dmlops.types.data_types import check_of_descriptors, data_type_of
from dmlops.types.errors import refuse

_NAMES = tuple(operator.__name__ for operator in OPERATORS)


def descriptor_from_node(
    node: onnx.NodeProto, inputs: Sequence[TensorDesc], constants: Mapping[str, Any] | None = None
) -> Descriptor:
    """Return the DirectML operator that a node becomes in ONNX Runtime's DirectML provider.

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
    # DirectML's bounds are 32-bit integers. Others are clamped to them if no diagonal lies beyond.
    limits = INT32_LIMITS if max(data.sizes, default=0) <= INT32_LIMITS[1] else INT64_LIMITS
    if name == "Trilu":
        k = _constant(node, 1, constants) if len(node.input) > 1 and node.input[1] else 0
        begin, end = zeroed(k, attributes.get("upper", 1), limits)
        return DiagonalMatrix1(input_tensor=data, value=0, diagonal_fill_begin=begin, diagonal_fill_end=end)
    if data.dimension_count != 2:
        got = f"{data.dimension_count} dimensions"
        refuse("EyeLike.input", got, "its result is a matrix", "it must have 2")
    made = _made(attributes["dtype"]) if "dtype" in attributes else data.data_type
    offset = clamped(attributes.get("k", 0), limits)
    return DiagonalMatrix(output_tensor=TensorDesc(made, data.sizes), offset=offset, value=1)


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
    """Return the data type of EyeLike's attribute."""
    try:
        made = tensor_dtype_to_np_dtype(dtype)
    except KeyError:
        refuse(
            "EyeLike.dtype", dtype, "ONNX has no such type of elements", "it must be a TensorProto.DataType"
        )
    where = "EyeLike.dtype"
    return check_of_descriptors(data_type_of(made, where), where)
