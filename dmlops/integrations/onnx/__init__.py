"""ONNX's TopK, NonZero, GatherND, Trilu and EyeLike: run by dmlops, and as DirectML descriptors.

`OPERATORS` are for the argument ``new_ops`` of ``onnx.reference.ReferenceEvaluator``. Inputs that dmlops does
not support, such as strings, go to onnx's own implementation. `descriptor_from_node` returns the descriptor
of the DirectML operator that a node becomes.
"""

from dmlops.integrations.onnx.descriptors import descriptor_from_node
from dmlops.integrations.onnx.operators import OPERATORS

__all__ = ["OPERATORS", "descriptor_from_node"]
