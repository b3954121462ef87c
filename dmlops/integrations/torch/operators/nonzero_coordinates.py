"""``torch.ops.dmlops.nonzero_coordinates``, and ``nonzero_coordinates_static`` with a number of rows."""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from dmlops import functions
from dmlops.calls.binding import Spec
from dmlops.calls.dispatch import level_or
from dmlops.functions.nonzero_coordinates import SPEC, NonzeroResult
from dmlops.integrations.torch.arguments import index_dtype as dtype_of
from dmlops.integrations.torch.arguments import integer, tensor, torch_dtype
from dmlops.integrations.torch.operators.registration import Symbols, implement_vmap, operator, save_as_part
from dmlops.operators.batching import BATCH, Batched
from dmlops.operators.descriptor import check_index_type
from dmlops.operators.nonzero_coordinates import check_fill, check_held, infer_nonzero_coordinates, row_fill
from dmlops.types.data_types import data_type_of, index_data_type
from dmlops.types.enums import FeatureLevel
from dmlops.types.errors import refuse
from dmlops.types.tensor import TensorDesc, sizes_stand_in

# A call of the kernel takes some 10 us. Examples of a batch that have this many elements take longer, and
# each gets a call of its own; shorter examples share calls of up to `_TOGETHER` elements.
_LONG_EXAMPLE = {"cpu": 2**12, "cuda": 2**16}
_TOGETHER = 2**20


class NonzeroCall(NamedTuple):
    """The arguments of the operator that counts."""

    x: Tensor
    index_dtype: torch.dtype | None = None


class StaticCall(NamedTuple):
    """The arguments of the operator with a number of rows; the fill has one value, or one per column."""

    x: Tensor
    size: int
    fill_value: Sequence[int] | None
    index_dtype: torch.dtype | None = None
    batch_dims: int = 0


def front(
    spec: Spec, inputs: Sequence[object], out: Any, size: int | None, fill_value: object, index_dtype: object
) -> tuple[dict[str, Tensor], Callable[[], object]]:
    """Return the tensors that a call of the function reads, and what computes its results."""
    where = spec.name
    x, dtype = tensor(inputs[0], f"{where}.x"), dtype_of(index_dtype, out, where)
    if out is not None and size is None:
        coordinates = tensor(out[0], f"{where}.out[0]")
        size = coordinates.shape[0] if coordinates.dim() else 0
    types = _types_of_rows(x, index_dtype, out, dtype)
    fill = row_fill(fill_value, integer)
    fills = None if fill is None else [*fill] if isinstance(fill, tuple) else [fill]
    if size is None or all(isinstance(value, int) for value in fills or ()):
        index_type = index_data_type(types[0], f"{where}.index_dtype")
        check_fill(fill, index_type, x.dim(), is_trimmed=size is None)

    def find() -> object:
        if size is None:
            return NONZERO_COORDINATES(x, dtype)
        asked = dtype if types[0] == types[1] else torch.int64
        results = NONZERO_COORDINATES_STATIC(x, integer(size, f"{where}.size"), fills, asked)
        if types[0] == types[1]:
            return results
        return tuple([result.to(each) for result, each in zip(results, types, strict=True)])

    return {f"{where}.x": x}, find


def _types_of_rows(
    x: Tensor, index_dtype: object, out: Any, dtype: torch.dtype | None
) -> tuple[torch.dtype, torch.dtype]:
    """Return the types of coordinates and count: `dtype`, or those of `out`."""
    of_count = dtype or torch.int64
    if out is None or index_dtype is not None:
        return of_count, of_count
    where = "nonzero_coordinates.out[0]"
    index_type = check_index_type(where, data_type_of(tensor(out[0], where).dtype, where))
    if torch_dtype(index_type) != of_count and all(isinstance(size, int) for size in x.shape):
        data = TensorDesc(data_type_of(x.dtype, "nonzero_coordinates.x"), tuple(x.shape))
        check_held(SPEC.words_with_out, data, data_type_of(of_count, where), index_type)
    return torch_dtype(index_type), of_count


@sizes_stand_in()
def _fake(call: NonzeroCall) -> tuple[Tensor, Tensor]:
    if call.x.device.type == "meta":
        reason = "the number of rows depends on the elements, which this tensor does not have"
        refuse("nonzero_coordinates.size", None, reason, "size must be a number of rows")
    return _fake_static(
        StaticCall(call.x, torch.library.get_ctx().new_dynamic_size(), None, call.index_dtype)
    )


@sizes_stand_in()
def _fake_static(call: StaticCall) -> tuple[Tensor, Tensor]:
    symbols, x = Symbols(), call.x
    index_type = index_data_type(call.index_dtype or torch.int64, "nonzero_coordinates.index_dtype")
    # Neither result depends on the sizes of x.
    data = TensorDesc(data_type_of(x.dtype, "nonzero_coordinates.x"), (1,) * (x.dim() - call.batch_dims))
    described = infer_nonzero_coordinates(SPEC.words, data, symbols.number(call.size), index_type)
    coordinates, count = (symbols.empty(x, desc, x.shape[: call.batch_dims]) for desc in described)
    return coordinates, count


def _run_static(
    x: Tensor,
    /,
    *,
    size: int,
    fill_value: Sequence[int] | None,
    index_dtype: torch.dtype,
    batch_dims: int = 0,
) -> Any:
    """Run `dmlops.nonzero_coordinates` with a size, on each example of a batch.

    The fill has one value, or one for each column.
    """
    fill = fill_value[0] if fill_value and len(fill_value) == 1 else fill_value
    if batch_dims == 0:
        return functions.nonzero_coordinates(x, size=size, fill_value=fill, index_dtype=index_dtype)
    batch, shape = x.shape[:batch_dims], x.shape[batch_dims:]
    results = (
        x.new_empty((*batch, size, len(shape)), dtype=index_dtype),
        x.new_empty(batch, dtype=index_dtype),
    )
    n_elements = math.prod(shape)
    is_level_set = level_or(FeatureLevel.EXTENDED) is not FeatureLevel.EXTENDED
    if n_elements >= _LONG_EXAMPLE[x.device.type] or is_level_set:
        for example in np.ndindex(*batch):
            out = tuple(result[example] for result in results)
            functions.nonzero_coordinates(x[example], fill_value=fill, out=out)
        return results
    step = max(_TOGETHER // max(n_elements, 1), 1)
    for *place, part in np.ndindex(*batch[:-1], -(-batch[-1] // step)):
        some = (*place, slice(part * step, (part + 1) * step))
        for result, found in zip(results, _of_short_examples(x[some], size, fill_value), strict=True):
            result[some] = found
    return results


def _of_short_examples(x: Tensor, size: int, fill_value: Sequence[int] | None) -> tuple[Tensor, Tensor]:
    """Find what is not zero in some examples by one call of the kernel."""
    n, n_elements = x.shape[0], x.numel()
    # There is at least one row behind the last example's.
    found, _ = functions.nonzero_coordinates(x, size=n_elements + 1, fill_value=n)
    starts = torch.searchsorted(found[:, 0].contiguous(), torch.arange(n + 1, device=x.device))
    counts, rows = starts.diff(), torch.arange(size, device=x.device)
    coordinates = found[(starts[:-1, None] + rows).clamp(max=n_elements), 1:]
    if fill_value is not None:
        is_found = rows < counts.unsqueeze(1)
        # Numbers in a list would be copied to a GPU, which waits.
        fills = torch.stack([coordinates.new_full((), value) for value in fill_value])
        coordinates = torch.where(is_found.unsqueeze(2), coordinates, fills)
    return coordinates, counts


def _batch(shapes: Mapping[str, Sequence[int]], batched: Set[str], call: StaticCall) -> Batched:
    return Batched({"x": (BATCH, *range(len(shapes["x"])))}, {"batch_dims": call.batch_dims + 1})


def _refuse_batch(*arguments: object) -> NoReturn:
    reason, remedy = "examples of torch.func.vmap may differ in their count", "size must be a number of rows"
    refuse("nonzero_coordinates.size", None, reason, remedy)


def _to_onnx(onnx: ModuleType, call: Any) -> tuple[object, object]:
    op, x = onnx.op, call.x
    is_scalar = x.shape.rank() == 0
    coordinates = op.Transpose(op.NonZero(op.Reshape(x, onnx.ints([1])) if is_scalar else x))
    count = op.Squeeze(op.Shape(coordinates, start=0, end=1))
    if is_scalar:
        coordinates = op.Slice(coordinates, onnx.ints([0]), onnx.ints([0]), onnx.ints([1]))
    return onnx.as_type(coordinates, call.index_dtype), onnx.as_type(count, call.index_dtype)


def to_onnx(onnx: ModuleType, call: Any) -> tuple[object, object]:
    """Translate a call, with a size or without."""
    if isinstance(call, NonzeroCall):
        return _to_onnx(onnx, call)
    op = onnx.op
    if call.batch_dims:
        onnx.refuse("nonzero_coordinates", "a batch of torch.func.vmap", "pass one example at a time")
    coordinates, count = _to_onnx(onnx, NonzeroCall(call.x))
    size = onnx.vector(call.size)
    rows = op.Slice(coordinates, onnx.ints([0]), size, onnx.ints([0]))
    lacking = op.Sub(size, op.Shape(rows, start=0, end=1))
    fills = op.Expand(
        onnx.ints([*(call.fill_value or [0])]), op.Concat(lacking, op.Shape(rows, start=1), axis=0)
    )
    padded = op.Concat(rows, fills, axis=0)
    return onnx.as_type(padded, call.index_dtype), onnx.as_type(count, call.index_dtype)


_DYNAMIC = torch.Tag.dynamic_output_shape, torch.Tag.cudagraph_unsafe
NONZERO_COORDINATES = operator(
    "nonzero_coordinates", NonzeroCall, functions.nonzero_coordinates, _fake, tags=_DYNAMIC
)
implement_vmap(NONZERO_COORDINATES, _refuse_batch)
NONZERO_COORDINATES_STATIC = operator(
    "nonzero_coordinates_static", StaticCall, _run_static, _fake_static, batch=_batch
)
save_as_part(NonzeroResult)
OPERATORS = {NONZERO_COORDINATES: NonzeroCall, NONZERO_COORDINATES_STATIC: StaticCall}
