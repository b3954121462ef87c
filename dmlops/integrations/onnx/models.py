"""Run models in ONNX's reference evaluator, and record which nodes dmlops ran."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.inliner import inline_local_functions
from onnx.reference import ReferenceEvaluator

from dmlops.errors import InvalidDescriptorError, counted, error_text, refuse
from dmlops.integrations.onnx.operators import OPERATORS, RECORD

NO_OPERATOR = "dmlops has no such operator"
"""The reason of nodes that onnx runs in any case."""

NOT_REACHED = "it was not reached"
"""The reason of nodes that are in a branch that was not taken, or in a loop without iterations."""

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
        What ran the node: "neither" if it was not reached, as in a branch that was not taken.
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
        If the file is not an ONNX model, or its external data is missing, too short, or in another folder.
    OSError
        If it cannot be read.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except OSError:
        raise
    except Exception as error:  # protobuf's DecodeError, or another error for a text format
        message = f"{path}: not an ONNX model: {error}"
        raise InvalidDescriptorError(message) from error
    try:
        onnx.load_external_data_for_model(model, str(Path(path).parent))
    except OSError:
        raise
    except Exception as error:  # a ValidationError of a missing file, a ValueError of a short one
        message = f"{path}: its external data cannot be read: {error}"
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
    inputs = _checked_inputs(model.graph, inputs)
    # The evaluator does not use `new_ops` for the nodes of a model's functions. The result is a copy.
    model = inline_local_functions(model)
    nodes = list(_nodes(model.graph.node))
    names = [node.name or next(filter(None, node.output), "") for node in nodes]
    # Nodes of different branches may have equal names.
    for number, node in enumerate(nodes):
        node.name = str(number)
    # A copy, because onnx before 1.23 appends operators of its own.
    evaluator = ReferenceEvaluator(model, new_ops=list(OPERATORS))
    record: list[tuple[onnx.NodeProto, str]] = []
    token = RECORD.set(record)
    try:
        results = evaluator.run(None, inputs)
    finally:
        RECORD.reset(token)
    outputs = [output.name for output in model.graph.output]
    return ModelRun(dict(zip(outputs, results, strict=True)), list(_node_runs(nodes, names, record)))


def inputs_of(model: onnx.ModelProto) -> list[str]:
    """Return the names of the inputs for which a model has no values."""
    with_values = {each.name for each in model.graph.initializer}
    with_values |= {each.values.name for each in model.graph.sparse_initializer}
    return [each.name for each in model.graph.input if each.name not in with_values]


def _checked_inputs(graph: onnx.GraphProto, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs, those that are tensors as arrays of NumPy, if they are what a graph declares."""
    declared = {each.name: each.type for each in graph.input}
    needed = inputs_of(onnx.ModelProto(graph=graph))
    allowed = f"its inputs are {', '.join(declared)}" if declared else "it has no inputs"
    for name in inputs:
        if name not in declared:
            refuse(f"input {name}", "a value", "the model has no input of that name", allowed)
    for name in needed:
        if name not in inputs:
            refuse(f"input {name}", "no value", "the model has none of its own", allowed)
    checked = dict(inputs)
    for name, value in inputs.items():
        if declared[name].HasField("tensor_type"):
            checked[name] = _as_array(name, value)
            _check_input(name, checked[name], declared[name].tensor_type)
    return checked


def _as_array(name: str, value: Any) -> np.ndarray[Any, Any]:
    """Return a value as an array in the byte order of the machine, which the evaluator expects."""
    try:
        array = np.asarray(value)
    except Exception as error:
        got, reason = type(value).__name__, f"NumPy makes no array of it: {error}"
        raise TypeError(error_text(f"input {name}", got, reason, "it must be an array")) from error
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _check_input(name: str, array: np.ndarray[Any, Any], declared: onnx.TypeProto.Tensor) -> None:
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


def _node_runs(
    nodes: Sequence[onnx.NodeProto], names: Sequence[str], record: Iterable[tuple[onnx.NodeProto, str]]
) -> Iterator[NodeRun]:
    """Yield how each node ran; in the graph that has run, the name of a node is its number."""
    ran_here: set[str] = set()
    reasons: dict[str, str] = {}
    for node, reason in record:
        if reason:
            reasons[node.name] = reason
        else:
            ran_here.add(node.name)
    for node, name in zip(nodes, names, strict=True):
        if node.domain or node.op_type not in _NAMES:
            operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            yield NodeRun(operator, name, "onnx", NO_OPERATOR)
        else:
            ran_by: RanBy = "onnx" if node.name in reasons else "neither"
            ran_by = "dmlops" if node.name in ran_here else ran_by
            reason = NOT_REACHED if ran_by == "neither" else reasons.get(node.name, "")
            yield NodeRun(node.op_type, name, ran_by, reason)


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes, and those of their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes(graph.node)
