"""``torch.ops.dmlops.top_k``."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dmlops import functions
from dmlops.calls.binding import Spec, check_device
from dmlops.functions.top_k import SPEC, TopKResult
from dmlops.integrations.torch import derivatives
from dmlops.integrations.torch.arguments import as_tensor, index_dtype, integer, tensor, torch_dtype
from dmlops.integrations.torch.operators.registration import Symbols, broadcast, operator, save_as_part
from dmlops.operators.top_k import Rows, Selection, broadcast_rows, check_type_of_numbers, infer_top_k
from dmlops.types import arguments
from dmlops.types.data_types import index_data_type
from dmlops.types.tensor import sizes_stand_in


class TopKCall(NamedTuple):
    """The arguments of the operator."""

    x: Tensor
    k: int
    axis: int
    largest: bool
    sorted: bool
    lengths: Tensor | None
    index_dtype: torch.dtype | None = None
    starts: Tensor | None = None
    indices: Tensor | None = None
    max_length: int | None = None
    nan_last: bool = False

    def given(self) -> dict[str, Tensor]:
        """Return the tensors beside `x` that there are, by name."""
        arrays = {"lengths": self.lengths, "starts": self.starts, "indices": self.indices}
        return {name: array for name, array in arrays.items() if array is not None}


def front(
    spec: Spec, inputs: Sequence[object], out: object, selection: Selection
) -> tuple[dict[str, Tensor], Callable[[], object]]:
    """Return the tensors that a call of the function reads, and what computes its results."""
    x = tensor(inputs[0], "top_k.x")
    arrays = selection.arrays(inputs[1:])
    given: Mapping[str, Any] = {name: as_tensor(array, f"top_k.{name}", x) for name, array in arrays.items()}

    def select() -> object:
        # With indices, results have their type.
        is_named = "indices" not in given or selection.index_type is not None
        return TOP_K(
            x,
            integer(selection.k, "top_k.k"),
            integer(selection.axis, "top_k.axis"),
            arguments.boolean(selection.largest, "top_k.largest"),
            arguments.boolean(selection.is_sorted, "top_k.sorted"),
            given.get("lengths"),
            index_dtype(selection.index_type, out, "top_k") if is_named else None,
            given.get("starts"),
            given.get("indices"),
            None if selection.max_length is None else integer(selection.max_length, "top_k.max_length"),
            arguments.boolean(selection.nan_last, "top_k.nan_last"),
        )

    return {"top_k.x": x} | {f"top_k.{name}": each for name, each in given.items()}, select


def _described_rows(symbols: Symbols, x: Tensor, axis: int, given: dict[str, Tensor]) -> Rows:
    """Return the descriptions of a call's tensors, with numbers for the sizes that are unknown."""
    data = symbols.describe(x, "top_k.x")
    described = {}
    rows, row_sizes = [*x.shape], [*data.sizes]
    if x.dim() and -x.dim() <= axis < x.dim():
        del rows[axis]
        del row_sizes[axis]
    for name, array in given.items():
        where = f"top_k.{name}"
        check_device(where, array.device, x.device)
        desc = symbols.describe(array, where)
        if name != "indices":
            desc = broadcast(where, desc, array.shape, row_sizes, rows)
        elif x.dim() and -x.dim() <= axis < x.dim():
            n_dims = array.dim()
            shape, sizes = [*x.shape], [*data.sizes]
            if n_dims == 1:
                shape, sizes = [shape[axis]], [sizes[axis]]
            elif len(rows) >= x.dim():
                shape, sizes = [*rows, shape[axis]], [*row_sizes, sizes[axis]]
            desc = broadcast(where, desc, array.shape, sizes, shape)
        described[name] = desc
    return broadcast_rows(data, axis, described)


@sizes_stand_in()
def _fake(call: TopKCall) -> tuple[Tensor, Tensor]:
    symbols, x, k, dtype = Symbols(), call.x, call.k, call.index_dtype
    given = call.given()
    rows = _described_rows(symbols, x, call.axis, given)
    if rows.numbers is not None:
        check_type_of_numbers(rows.numbers, None if dtype is None else index_data_type(dtype, ""))
        dtype = torch_dtype(rows.numbers.data_type)
    dtype = dtype or torch.int64  # AOTInductor can leave out an argument only if it is None
    # Whether a type holds all indices is known once the sizes are.
    is_sized = rows.numbers is not None or all(isinstance(size, int) for size in x.shape)
    index_type = index_data_type(dtype if is_sized else torch.int64, "top_k.index_dtype")
    # torch checks a symbolic k, and then knows that it is not larger than the axis.
    values, found = infer_top_k(SPEC.words, rows, k if isinstance(k, int) else 0, index_type)
    if not isinstance(k, int):
        torch._check(k >= 0, lambda: f"top_k.k: got {k}, but it must be >= 0")
        if not given:
            size = x.shape[call.axis] if x.dim() else 1
            torch._check(k <= size, lambda: f"top_k.k: got {k}, but the axis of x has {size} elements")
        values, found = symbols.resized(values, rows.axis, k), symbols.resized(found, rows.axis, k)
    return symbols.empty(x, values), symbols.empty(x, found).to(dtype)


def _differentiate(call: TopKCall) -> tuple[Tensor, Tensor]:
    x, axis, numbers = call.x, call.axis, call.indices
    if numbers is None:
        values, indices = TOP_K(*call._replace(x=x.detach()))
        # A copy, because the caller may write to the indices before the backward pass.
        places = indices.to(torch.int64, copy=True)
    else:
        # The order of the numbers gives the position of each element, too.
        _fake(call)  # this refuses arguments that do not fit
        order, ranks = derivatives.order_of_numbers(numbers, x, axis)
        values, found = TOP_K(*call._replace(x=x.detach(), index_dtype=None, indices=ranks))
        places, indices = derivatives.numbered(numbers, order, found, x, axis)
    x = x if x.dim() else x.reshape(1)
    axis %= x.dim()
    if not call.given():
        return derivatives.selected(
            x,
            values,
            places,
            lambda zeros, gradient, places: zeros.scatter_(axis, places, gradient),
            lambda x, places: x.gather(axis, places),
        ), indices
    if _rows_of(x, axis) != _rows_of(values, axis + values.dim() - x.dim()):
        # Rows share elements of x: it becomes a single row.
        x, places = derivatives.flattened(x, axis, places)
        axis = 0

    def select(x: Tensor, places: Tensor) -> Tensor:
        is_there, places = derivatives.within(x, axis, places)
        found = x.gather(axis, places if places.dim() == x.dim() else places.reshape(-1))
        return torch.where(is_there, found.reshape(places.shape), values)

    return derivatives.selected(x, values, places, partial(derivatives.spread_along, axis), select), indices


def _rows_of(x: Tensor, axis: int) -> tuple[object, ...]:
    return (*x.shape[:axis], *x.shape[axis + 1 :])


def to_onnx(onnx: ModuleType, call: Any) -> tuple[object, object]:
    """Translate a call; ONNX does not say where NaN comes, so `nan_last` changes nothing."""
    for name in call.given():
        onnx.refuse(f"top_k.{name}", "a tensor", "leave it out")
    op, x, axis = onnx.op, call.x, call.axis
    kind, x = x.dtype, op.Reshape(x, onnx.ints([1])) if x.shape.rank() == 0 else x
    if kind == onnx.DataType.BOOL:
        x = op.Cast(x, to=onnx.DataType.UINT8)
    k = onnx.vector(call.k)
    values, indices = op.TopK(x, k, axis=axis, largest=int(call.largest), sorted=1)
    if not call.sorted:
        indices, _ = op.TopK(indices, k, axis=axis, largest=0, sorted=1)
        values = op.GatherElements(x, indices, axis=axis)
    values = op.Cast(values, to=kind) if kind == onnx.DataType.BOOL else values
    return values, onnx.as_type(indices, call.index_dtype)


TOP_K = operator("top_k", TopKCall, functions.top_k, _fake, differentiate=_differentiate, batch=SPEC.batch)
save_as_part(TopKResult)
OPERATORS = {TOP_K: TopKCall}
