"""``torch.ops.dmlops.gather_nd``."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dmlops import functions
from dmlops.calls.binding import Spec, check_device
from dmlops.functions.gather_nd import SPEC
from dmlops.integrations.torch.arguments import as_tensor, integer, scalar, tensor
from dmlops.integrations.torch.derivatives import as_int64, is_known, selected
from dmlops.integrations.torch.operators.registration import Symbols, equated, operator
from dmlops.operators.fill_values import held_value
from dmlops.operators.gather_nd import check_mode, check_use, infer_gather_nd
from dmlops.types import arguments
from dmlops.types.errors import error_text
from dmlops.types.tensor import TensorDesc, sizes_stand_in


class GatherCall(NamedTuple):
    """The arguments of the operator."""

    x: Tensor
    indices: Tensor
    batch_dims: int
    mode: str
    fill_value: torch.types.Number
    wrap_negative: bool


def front(
    spec: Spec,
    inputs: Sequence[object],
    out: object,
    batch_dims: int,
    mode: str,
    fill_value: object,
    wrap_negative: bool,
) -> tuple[dict[str, Tensor], Callable[[], object]]:
    """Return the tensors that a call of the function reads, and what computes its results."""
    fill = scalar(fill_value, "gather_nd.fill_value")
    if not arguments.is_symbol(fill):
        check_use(fill, mode)
    wraps = arguments.boolean(wrap_negative, "gather_nd.wrap_negative")
    x = tensor(inputs[0], "gather_nd.x")
    indices = as_tensor(arguments.integers(inputs[1]), "gather_nd.indices")

    def gather() -> Tensor:
        of_batch = integer(batch_dims, "gather_nd.batch_dims")
        if torch.compiler.is_exporting() and x.is_floating_point() and is_known(fill - fill != 0):
            # AOTInductor passes the arguments of operators as JSON, which has no such numbers.
            found = _are_in_range(x, indices, batch_dims, wraps)
            return (torch.where(found, GATHER_ND(x, indices, of_batch, "fill", 0, wraps), fill),)
        return (GATHER_ND(x, indices, of_batch, mode, fill, wraps),)

    return {"gather_nd.x": x, "gather_nd.indices": indices}, gather


@sizes_stand_in()
def _fake(call: GatherCall) -> Tensor:
    symbols, x, indices = Symbols(), call.x, call.indices
    check_device("gather_nd.indices", indices.device, x.device)
    data, tuples = symbols.describe(x, "gather_nd.x"), symbols.describe(indices, "gather_nd.indices")
    tuples = TensorDesc(tuples.data_type, (*tuples.sizes[:-1], *map(int, indices.shape[-1:])))
    of_x, of_indices = (each.shape[: call.batch_dims] for each in (x, indices))
    tuples = equated("gather_nd.indices", tuples, of_indices, data.sizes, of_x)
    check_mode(call.mode)
    if isinstance(call.fill_value, (int, float, complex)):
        check_use(call.fill_value, call.mode)
        held_value("gather_nd.fill_value", call.fill_value, data.data_type)
    return symbols.empty(x, infer_gather_nd(SPEC.words, data, tuples, call.batch_dims))


def _differentiate(call: GatherCall) -> Tensor:
    x, indices, batch_dims, mode, fill_value, wrap_negative = call
    # This refuses arguments that do not fit.
    values = GATHER_ND(*call._replace(x=call.x.detach()))
    if x.element_size() == (4 if x.is_complex() else 1):
        reason, remedy = "torch has no derivative of gathers of this type", "pass x.detach(), or convert it"
        raise TypeError(error_text("gather_nd.x", x.dtype, reason, remedy))
    shape, end = x.shape, batch_dims + indices.shape[-1]
    n_blocks, block = math.prod(shape[:end]), shape[end:]
    blocks_of = partial(_blocks, shape, batch_dims=batch_dims, wraps=wrap_negative)

    def spread(zeros: Tensor, gradient: Tensor, indices: Tensor) -> Tensor:
        numbers, found = blocks_of(indices)
        gradient = gradient.reshape(-1, *block)
        if mode == "fill":
            gradient = torch.where(found.reshape(-1, *(1,) * len(block)), gradient, 0)
        return zeros.reshape(n_blocks, *block).index_add_(0, numbers, gradient).reshape(shape)

    def select(x: Tensor, indices: Tensor) -> Tensor:
        numbers, found = blocks_of(indices)
        # Inductor compiles index_select under vmap and grad to wrong gradients.
        blocks = x.reshape(n_blocks, math.prod(block))
        blocks = blocks.gather(0, numbers.unsqueeze(1).expand(-1, blocks.shape[1]))
        if mode == "fill":
            blocks = torch.where(found.reshape(-1, 1), blocks, fill_value)
        return blocks.reshape(values.shape)

    return selected(x, values, indices, spread, select)


def _blocks(shape: Sequence[int], indices: Tensor, *, batch_dims: int, wraps: bool) -> tuple[Tensor, Tensor]:
    """Return the number of the block that each tuple points at, or of the nearest, and whether it is one."""
    numbers = torch.arange(math.prod(shape[:batch_dims]), device=indices.device)
    numbers = numbers.reshape((*shape[:batch_dims], *(1,) * (indices.dim() - 1 - batch_dims)))
    found = torch.ones_like(numbers, dtype=torch.bool)
    for size, index in zip(shape[batch_dims:], as_int64(indices).unbind(-1), strict=False):
        place = torch.where(index < 0, index + size, index) if wraps else index
        found = found & (place >= 0) & (place < size)
        numbers = numbers * size + place.clamp(0, size - 1)
    return numbers.expand(indices.shape[:-1]).reshape(-1), found.expand(indices.shape[:-1])


def _are_in_range(x: Tensor, indices: Tensor, batch_dims: int, wraps: bool) -> Tensor:
    """Return whether each slice of a gather is in range, in a shape that broadcasts with the result."""
    _, found = _blocks(x.shape, indices, batch_dims=batch_dims, wraps=wraps)
    return found.reshape(*found.shape, *(1,) * (x.dim() - batch_dims - indices.shape[-1]))


def to_onnx(onnx: ModuleType, call: Any) -> object:
    """Translate a call. With ``mode="raise"``, the runtime says what an error is like."""
    op, (x, indices, batch_dims, mode, fill_value, wrap_negative) = onnx.op, call
    n_coordinates, indices = indices.shape[-1], op.Cast(indices, to=onnx.DataType.INT64)
    if n_coordinates == 0:
        onnx.refuse("gather_nd.indices", "tuples without coordinates", "a tuple needs at least 1")
    sizes = op.Shape(x, start=batch_dims, end=batch_dims + n_coordinates)
    is_negative = op.Less(indices, onnx.ints([0]))
    if mode == "raise":
        # The size is out of range.
        indices = indices if wrap_negative else op.Where(is_negative, sizes, indices)
        return op.GatherND(x, indices, batch_dims=batch_dims)
    places = op.Where(is_negative, op.Add(indices, sizes), indices) if wrap_negative else indices
    nearest = op.Max(op.Min(places, op.Sub(sizes, onnx.ints([1]))), onnx.ints([0]))
    gathered = op.GatherND(x, nearest, batch_dims=batch_dims)
    if mode == "clip":
        return gathered
    n_there = op.ReduceSum(
        op.Cast(op.Equal(places, nearest), to=onnx.DataType.INT64), onnx.ints([-1]), keepdims=0
    )
    found = op.Equal(n_there, onnx.ints([n_coordinates]))
    for _ in range(x.shape.rank() - batch_dims - n_coordinates):
        found = op.Unsqueeze(found, onnx.ints([-1]))
    return op.Where(found, gathered, op.CastLike(onnx.constant(fill_value), x))


GATHER_ND = operator(
    "gather_nd", GatherCall, functions.gather_nd, _fake, differentiate=_differentiate, batch=SPEC.batch
)
OPERATORS = {GATHER_ND: GatherCall}
