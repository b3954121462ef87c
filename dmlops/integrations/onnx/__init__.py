"""ONNX's TopK, NonZero, GatherND, Trilu and EyeLike: run by dmlops, and as DirectML descriptors.

`OPERATORS` are for the argument ``new_ops`` of ``onnx.reference.ReferenceEvaluator``; `run_model` runs a
model with them and says which nodes dmlops ran. Inputs that no operator of dmlops takes, such as strings, are
left to onnx's own implementation. `descriptor_from_node` says which DirectML operator a node is.
"""

from dmlops.integrations.onnx.descriptors import descriptor_from_node
from dmlops.integrations.onnx.models import ModelRun, NodeRun, load_model, run_model
from dmlops.integrations.onnx.operators import OPERATORS

__all__ = ["OPERATORS", "ModelRun", "NodeRun", "descriptor_from_node", "load_model", "run_model"]
