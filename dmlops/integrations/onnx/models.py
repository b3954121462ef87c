"""Run models in ONNX's reference evaluator, and record which nodes dmlops ran."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.inliner import inline_local_functions
from onnx.reference import ReferenceEvaluator

from dmlops.errors import InvalidDescriptorError, counted, refuse
from dmlops.integrations.onnx.operators import OPERATORS, RECORD

NO_OPERATOR = "dmlops has no such operator"
"""The reason of nodes that onnx runs in any case."""

RanBy = Literal["dmlops", "onnx", "neither"]

_NAMES = frozenset(operator.__name__ for operator in OPERATORS)


@dataclass(frozen=True)
class NodeRun:
    """A node, and what ran it.

    Attributes
    ----------
    operator : str
        The operator, with the domain if it is not that of ONNX.
    name : str
        The name of the node, or of its first output if it has no name.
    ran_by : {"dmlops", "onnx", "neither"}
        What ran the node: "neither" if it is in a branch that was not taken.
    reason : str
        Why dmlops did not run the node, or not every time. Empty if it did.
    """

    operator: str
    name: str
    ran_by: RanBy
    reason: str


@dataclass(frozen=True)
class ModelRun:
    """The result of `run_model`.

    Attributes
    ----------
    outputs : dict of str to array
        The outputs of the model by name. As in ONNX, they may also be sequences and maps.
    nodes : list of NodeRun
        The nodes of the graph and of its subgraphs, with those of a function where it is called.
    """

    outputs: dict[str, Any]
    nodes: list[NodeRun]


def load_model(path: str | PathLike[str]) -> onnx.ModelProto:
    """Read a model from a file.

    Raises
    ------
    InvalidDescriptorError
        If the file is not an ONNX model.
    OSError
        If it cannot be read.
    """
    try:
        model = onnx.load(path)
    except OSError:
        raise
    except Exception as error:  # protobuf's DecodeError, or another error for a text format
        message = f"{path}: not an ONNX model: {error}"
        raise InvalidDescriptorError(message) from error
    if not model.graph.output:
        # To protobuf, an empty file is a valid message, and so are some others.
        message = f"{path}: not an ONNX model: it has no outputs"
        raise InvalidDescriptorError(message)
    return model


def run_model(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> ModelRun:
    """Run a model in ONNX's reference evaluator, with `OPERATORS`.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, as `onnx.load` returns it.
    inputs : mapping of str to array
        A value for each input for which the model has none.

    Returns
    -------
    ModelRun
        The outputs by name, and how each node ran.

    Raises
    ------
    InvalidDescriptorError
        If an input is missing, unknown, or not of the type and shape that the model declares.

    Examples
    --------
    >>> model = onnx.parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["": 18]>
    ...     example (float[N] x) => (int64[1, M] found) { y = Relu(x)  found = NonZero(y) }
    ... ''')
    >>> run = run_model(model, {"x": np.array([-1, 0, 3], np.float32)})
    >>> run.outputs["found"].tolist()
    [[2]]
    >>> [(node.operator, node.ran_by, node.reason) for node in run.nodes]
    [('Relu', 'onnx', 'dmlops has no such operator'), ('NonZero', 'dmlops', '')]
    """
    _check_inputs(model.graph, inputs)
    # The evaluator does not use `new_ops` for the nodes of a model's functions.
    model = inline_local_functions(model)
    # A copy, because onnx before 1.23 appends operators of its own.
    evaluator = ReferenceEvaluator(model, new_ops=list(OPERATORS))
    record: list[tuple[onnx.NodeProto, str]] = []
    token = RECORD.set(record)
    try:
        results = evaluator.run(None, dict(inputs))
    finally:
        RECORD.reset(token)
    names = [output.name for output in model.graph.output]
    return ModelRun(dict(zip(names, results, strict=True)), list(_node_runs(model, record)))


def inputs_of(model: onnx.ModelProto) -> list[str]:
    """Return the names of the inputs for which a model has no values."""
    with_values = {each.name for each in model.graph.initializer}
    with_values |= {each.values.name for each in model.graph.sparse_initializer}
    return [each.name for each in model.graph.input if each.name not in with_values]


def _check_inputs(graph: onnx.GraphProto, inputs: Mapping[str, Any]) -> None:
    declared = {each.name: each.type for each in graph.input}
    needed = inputs_of(onnx.ModelProto(graph=graph))
    allowed = f"its inputs are {', '.join(declared)}" if declared else "it has no inputs"
    for name in inputs:
        if name not in declared:
            refuse(f"input {name}", "a value", "the model has no input of that name", allowed)
    for name in needed:
        if name not in inputs:
            refuse(f"input {name}", "no value", "the model has none of its own", allowed)
    for name, value in inputs.items():
        if declared[name].HasField("tensor_type"):
            _check_input(name, value, declared[name].tensor_type)


def _check_input(name: str, value: Any, declared: onnx.TypeProto.Tensor) -> None:
    array = np.asarray(value)
    if declared.elem_type and declared.elem_type != onnx.TensorProto.STRING:
        dtype = tensor_dtype_to_np_dtype(declared.elem_type)
        if array.dtype != dtype:
            refuse(
                f"input {name}", array.dtype.name, f"the model declares {dtype.name}", "types must be equal"
            )
    if not declared.HasField("shape"):
        return
    sizes = [each.dim_value if each.HasField("dim_value") else None for each in declared.shape.dim]
    if array.ndim != len(sizes):
        reason = f"the model declares {counted(len(sizes), 'dimension')}"
        refuse(f"input {name}", f"shape {array.shape}", reason, "the numbers must be equal")
    if any(size is not None and size != n for n, size in zip(array.shape, sizes, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        refuse(
            f"input {name}", f"shape {array.shape}", f"the model declares ({wanted})", "sizes must be equal"
        )


def _node_runs(model: onnx.ModelProto, record: Iterable[tuple[onnx.NodeProto, str]]) -> Iterator[NodeRun]:
    ran_here: set[tuple[str, str]] = set()
    reasons: dict[tuple[str, str], str] = {}
    for node, reason in record:
        if reason:
            reasons[node.op_type, _name(node)] = reason
        else:
            ran_here.add((node.op_type, _name(node)))
    for node in _nodes(model.graph.node):
        key = node.op_type, _name(node)
        if node.domain or node.op_type not in _NAMES:
            operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            yield NodeRun(operator, key[1], "onnx", NO_OPERATOR)
        else:
            ran_by: RanBy = "onnx" if key in reasons else "neither"
            yield NodeRun(*key, "dmlops" if key in ran_here else ran_by, reasons.get(key, ""))


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes, and those of their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes(graph.node)


def _name(node: onnx.NodeProto) -> str:
    return node.name or next(filter(None, node.output), "")
