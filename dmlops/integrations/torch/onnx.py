"""What the operators are in ONNX, for the argument ``custom_translation_table`` of ``torch.onnx.export``.

TopK, NonZero, GatherND and Trilu of opset 18 do the work, so the model runs without dmlops. ONNX does not say
where TopK puts NaN.
"""

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from onnxscript import ir
from onnxscript import opset18 as op

from dmlops.integrations.torch.operators.diagonal_matrix import DIAGONAL_MATRIX
from dmlops.integrations.torch.operators.gather_nd import GATHER_ND
from dmlops.integrations.torch.operators.nonzero_coordinates import (
    NONZERO_COORDINATES,
    NONZERO_COORDINATES_STATIC,
)
from dmlops.integrations.torch.operators.top_k import TOP_K
from dmlops.types.errors import UnsupportedFeatureError, error_text

# Bounds of bands become so large at most: runtimes add them to positions.
_FAR = 2**31


def top_k(
    x: ir.Value,
    k: int | ir.Value,
    axis: int,
    largest: bool,
    sorted: bool,
    lengths: ir.Value | None,
    index_dtype: int | None = None,
    starts: ir.Value | None = None,
    indices: ir.Value | None = None,
    max_length: int | None = None,
    nan_last: bool = False,
) -> tuple[ir.Value, ir.Value]:
    """Translate `dmlops.top_k`; ONNX does not say where NaN comes, so `nan_last` changes nothing."""
    for name, tensor in {"lengths": lengths, "starts": starts, "indices": indices}.items():
        if tensor is not None:
            _refuse(f"top_k.{name}", "a tensor", "leave it out")
    kind, x = x.dtype, op.Reshape(x, _ints([1])) if x.shape.rank() == 0 else x
    if kind == ir.DataType.BOOL:
        x = op.Cast(x, to=ir.DataType.UINT8)
    k = _vector(k)
    values, indices = op.TopK(x, k, axis=axis, largest=int(largest), sorted=1)
    if not sorted:
        indices, _ = op.TopK(indices, k, axis=axis, largest=0, sorted=1)
        values = op.GatherElements(x, indices, axis=axis)
    values = op.Cast(values, to=kind) if kind == ir.DataType.BOOL else values
    return values, _as_type(indices, index_dtype)


def nonzero_coordinates(x: ir.Value, index_dtype: int | None = None) -> tuple[ir.Value, ir.Value]:
    """Translate `dmlops.nonzero_coordinates`."""
    is_scalar = x.shape.rank() == 0
    coordinates = op.Transpose(op.NonZero(op.Reshape(x, _ints([1])) if is_scalar else x))
    count = op.Squeeze(op.Shape(coordinates, start=0, end=1))
    if is_scalar:
        coordinates = op.Slice(coordinates, _ints([0]), _ints([0]), _ints([1]))
    return _as_type(coordinates, index_dtype), _as_type(count, index_dtype)


def nonzero_coordinates_static(
    x: ir.Value,
    size: int | ir.Value,
    fill_value: Sequence[int] | None,
    index_dtype: int | None = None,
    batch_dims: int = 0,
) -> tuple[ir.Value, ir.Value]:
    """Translate `dmlops.nonzero_coordinates` with a size."""
    if batch_dims:
        _refuse("nonzero_coordinates", "a batch of torch.func.vmap", "pass one example at a time")
    coordinates, count = nonzero_coordinates(x)
    size = _vector(size)
    rows = op.Slice(coordinates, _ints([0]), size, _ints([0]))
    lacking = op.Sub(size, op.Shape(rows, start=0, end=1))
    fills = op.Expand(_ints([*(fill_value or [0])]), op.Concat(lacking, op.Shape(rows, start=1), axis=0))
    padded = op.Concat(rows, fills, axis=0)
    return _as_type(padded, index_dtype), _as_type(count, index_dtype)


def gather_nd(
    x: ir.Value,
    indices: ir.Value,
    batch_dims: int,
    mode: str,
    fill_value: float | ir.Value,
    wrap_negative: bool,
) -> ir.Value:
    """Translate `dmlops.gather_nd`. With ``mode="raise"``, the runtime says what an error is like."""
    n_coordinates, indices = indices.shape[-1], op.Cast(indices, to=ir.DataType.INT64)
    if n_coordinates == 0:
        _refuse("gather_nd.indices", "tuples without coordinates", "a tuple needs at least 1")
    sizes = op.Shape(x, start=batch_dims, end=batch_dims + n_coordinates)
    is_negative = op.Less(indices, _ints([0]))
    if mode == "raise":
        # The size is out of range.
        indices = indices if wrap_negative else op.Where(is_negative, sizes, indices)
        return op.GatherND(x, indices, batch_dims=batch_dims)
    places = op.Where(is_negative, op.Add(indices, sizes), indices) if wrap_negative else indices
    nearest = op.Max(op.Min(places, op.Sub(sizes, _ints([1]))), _ints([0]))
    gathered = op.GatherND(x, nearest, batch_dims=batch_dims)
    if mode == "clip":
        return gathered
    n_there = op.ReduceSum(op.Cast(op.Equal(places, nearest), to=ir.DataType.INT64), _ints([-1]), keepdims=0)
    found = op.Equal(n_there, _ints([n_coordinates]))
    for _ in range(x.shape.rank() - batch_dims - n_coordinates):
        found = op.Unsqueeze(found, _ints([-1]))
    return op.Where(found, gathered, op.CastLike(_constant(fill_value), x))


def diagonal_matrix(x: ir.Value, value: float | ir.Value, begin: int, end: int) -> ir.Value:
    """Translate `dmlops.diagonal_matrix`."""
    ones = op.Expand(_ints([1]), op.Shape(x, start=-2))
    low, high = (max(min(bound, _FAR), -_FAR) for bound in sorted((begin, end)))
    upper = op.Trilu(ones, op.Constant(value_int=low), upper=1)
    band = op.Trilu(upper, op.Constant(value_int=high - 1), upper=0)
    value = _constant(value)
    choice = (op.CastLike(value, x), x) if begin <= end else (x, op.CastLike(value, x))
    return op.Where(op.Cast(band, to=ir.DataType.BOOL), *choice)


def _refuse(where: str, got: str, allowed: str) -> NoReturn:
    raise UnsupportedFeatureError(error_text(where, got, "ONNX has no operator for it", allowed))


def _constant(value: float | ir.Value) -> ir.Value:
    """Return a number, unless it is computed in the graph, as a constant."""
    if not isinstance(value, (bool, int, float)):
        return value
    return op.Constant(value=ir.tensor(np.array(value, "float64" if isinstance(value, float) else "int64")))


def _ints(numbers: list[int]) -> ir.Value:
    return op.Constant(value_ints=numbers)


def _vector(number: int | ir.Value) -> ir.Value:
    """Return a number, which may be computed in the graph, as a vector."""
    return _ints([number]) if isinstance(number, int) else op.Reshape(number, _ints([1]))


def _as_type(indices: ir.Value, dtype: int | None) -> ir.Value:
    return indices if dtype is None else op.Cast(indices, to=dtype)


TRANSLATIONS = {
    TOP_K: top_k,
    NONZERO_COORDINATES: nonzero_coordinates,
    NONZERO_COORDINATES_STATIC: nonzero_coordinates_static,
    GATHER_ND: gather_nd,
    DIAGONAL_MATRIX: diagonal_matrix,
}
"""By operator of ``torch.ops.dmlops``."""
