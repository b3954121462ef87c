"""The operators as torch custom operators: whole graphs for torch.compile and torch.export, and autograd.

The functions here are those of `dmlops` for tensors. The operators behind them are registered as
``torch.ops.dmlops``; what they return is inferred from the descriptors while a graph is traced.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import dmlops
from dmlops import NonzeroResult, TensorDataType, TensorDesc, TopKResult
from dmlops.data_types import data_type_of
from dmlops.integrations import inference

# No tensor has so many elements along a dimension.
_FIRST_STAND_IN = 2**60
_INDEX_TYPE = TensorDataType.INT64


def top_k(x: Tensor, k: int, *, axis: int = -1, largest: bool = True) -> TopKResult:
    """Return the `k` largest or smallest elements along an axis, and their int64 indices.

    As `dmlops.top_k`: sorted, ties by ascending index. Differentiable with respect to `x`.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([1.0, 3.0, 3.0], requires_grad=True)
    >>> values, indices = torch.compile(top_k, fullgraph=True, backend="eager")(x, 1)
    >>> values.sum().backward()
    >>> indices, x.grad
    (tensor([1]), tensor([0., 1., 0.]))
    """
    return TopKResult(*_top_k(x, k, axis, largest))


def nonzero_coordinates(
    x: Tensor, *, size: int | None = None, fill_value: int | None = None
) -> NonzeroResult:
    """Return the int64 coordinates of the non-zero elements, in ascending element order, and their count.

    As `dmlops.nonzero_coordinates`. With ``size=None`` the number of rows depends on the data, in a graph
    too, and a GPU is waited for.
    """
    if size is None:
        return NonzeroResult(*_nonzero_coordinates(x))
    return NonzeroResult(*_nonzero_coordinates_static(x, size, fill_value))


def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0, mode: str = "raise") -> Tensor:
    """Return the elements or blocks of `x` that tuples of indices name.

    As `dmlops.gather_nd`. Differentiable with respect to `x`; the gradients of an element that is gathered
    more than once are summed, by torch's ``index_add``.
    """
    return _gather_nd(x, indices, batch_dims, mode)


def diagonal_matrix(
    x: Tensor | None = None,
    *,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    device: Any = None,
    value: float = 1,
    begin: int = 0,
    end: int = 1,
) -> Tensor:
    """Return matrices that hold `value` along a band of diagonals, and `x` or zeros elsewhere.

    As `dmlops.diagonal_matrix`, with 64-bit bounds. Differentiable with respect to `x`. Without it, `shape`,
    `dtype` and `device` mean what they do to `torch.zeros`.
    """
    if x is None:
        if shape is None:
            msg = "diagonal_matrix.shape: got None, but x is left out too; one of them must be given"
            raise TypeError(msg)
        x = torch.zeros((), dtype=dtype, device=device).expand(shape)
    return _diagonal_matrix(x, value, begin, end)


class _Symbols:
    """Descriptors take numbers: sizes unknown while tracing get one each, and are put back in results."""

    def __init__(self) -> None:
        self._sizes: dict[int, Any] = {}

    def number(self, size: Any) -> int:
        if isinstance(size, int):
            return size
        stand_in = _FIRST_STAND_IN + len(self._sizes)
        self._sizes[stand_in] = size
        return stand_in

    def describe(self, x: Tensor, where: str) -> TensorDesc:
        return TensorDesc(data_type_of(x.dtype, where), tuple(self.number(size) for size in x.shape))

    def empty(self, x: Tensor, desc: TensorDesc) -> Tensor:
        sizes = [self._sizes.get(size, size) for size in desc.sizes]
        return x.new_empty(sizes, dtype=getattr(torch, desc.data_type.name.lower()))


def _run_top_k(x: Tensor, k: int, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    return tuple(dmlops.top_k(x, k, axis=axis, largest=largest))


def _fake_top_k(x: Tensor, k: int, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    symbols = _Symbols()
    values, indices = inference.top_k(symbols.describe(x, "top_k.x"), int(k), axis, _INDEX_TYPE)
    return symbols.empty(x, values), symbols.empty(x, indices)


def _keep_for_top_k(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, _, ctx.axis, _ = inputs
    ctx.shape = x.shape
    ctx.save_for_backward(output[1])


def _top_k_backward(ctx: Any, grad_values: Tensor, _grad_indices: Any) -> tuple[Tensor, None, None, None]:
    (indices,) = ctx.saved_tensors
    zeros = grad_values.new_zeros(ctx.shape if len(ctx.shape) else (1,))
    return zeros.scatter(ctx.axis, indices, grad_values).reshape(ctx.shape), None, None, None


def _run_nonzero_coordinates(x: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(dmlops.nonzero_coordinates(x))


def _fake_nonzero_coordinates(x: Tensor) -> tuple[Tensor, Tensor]:
    return _fake_nonzero_coordinates_static(x, torch.library.get_ctx().new_dynamic_size(), None)


def _run_nonzero_coordinates_static(x: Tensor, size: int, fill_value: int | None) -> tuple[Tensor, Tensor]:
    return tuple(dmlops.nonzero_coordinates(x, size=size, fill_value=fill_value))


def _fake_nonzero_coordinates_static(x: Tensor, size: int, fill_value: int | None) -> tuple[Tensor, Tensor]:
    symbols = _Symbols()
    # The sizes of x reach neither result.
    data = TensorDesc(data_type_of(x.dtype, "nonzero_coordinates.x"), (1,) * x.dim())
    coordinates, count = inference.nonzero_coordinates(data, symbols.number(size), _INDEX_TYPE)
    return symbols.empty(x, coordinates), symbols.empty(x, count)


def _run_gather_nd(x: Tensor, indices: Tensor, batch_dims: int, mode: str) -> Tensor:
    return dmlops.gather_nd(x, indices, batch_dims=batch_dims, mode=mode)


def _fake_gather_nd(x: Tensor, indices: Tensor, batch_dims: int, mode: str) -> Tensor:
    symbols = _Symbols()
    data, picks = symbols.describe(x, "gather_nd.x"), symbols.describe(indices, "gather_nd.indices")
    sizes = [*picks.sizes[:-1], *map(int, indices.shape[-1:])]
    for d, (ours, theirs) in enumerate(zip(x.shape[:batch_dims], indices.shape[:batch_dims], strict=False)):
        if not (isinstance(ours, int) and isinstance(theirs, int)):
            torch._check(ours == theirs)
            sizes[d] = data.sizes[d]
    picks = TensorDesc(picks.data_type, tuple(sizes))
    return symbols.empty(x, inference.gather_nd(data, picks, batch_dims, mode))


def _keep_for_gather_nd(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, indices, ctx.batch_dims, ctx.mode = inputs
    ctx.shape = x.shape
    ctx.save_for_backward(indices)


def _gather_nd_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    (indices,) = ctx.saved_tensors
    shape = ctx.shape
    if math.prod(shape) == 0:
        return grad.new_zeros(shape), None, None, None
    end = ctx.batch_dims + indices.shape[-1]
    rows, valid = _rows(indices, shape[:end], ctx.batch_dims)
    blocks = grad.reshape(rows.numel(), math.prod(shape[end:]))
    if ctx.mode == "fill":
        blocks = torch.where(valid.reshape(-1, 1), blocks, 0)
    summed = blocks.new_zeros(math.prod(shape[:end]), blocks.shape[1]).index_add(0, rows.reshape(-1), blocks)
    return summed.reshape(shape), None, None, None


def _rows(indices: Tensor, sizes: Sequence[int], batch_dims: int) -> tuple[Tensor, Tensor]:
    """Return which block of a tensor with leading `sizes` each tuple names, and which tuples are in range."""
    coordinates = indices.to(torch.int64)
    if not indices.dtype.is_signed:
        # What a uint64 wraps to is out of range, at the upper end.
        coordinates = coordinates.where(coordinates >= 0, torch.iinfo(torch.int64).max)
    batch = indices.shape[:batch_dims]
    rows = torch.arange(math.prod(batch), device=indices.device)
    rows = rows.reshape(*batch, *(1,) * (indices.dim() - 1 - batch_dims)).expand(indices.shape[:-1])
    valid = torch.ones_like(rows, dtype=torch.bool)
    for size, coordinate in zip(sizes[batch_dims:], coordinates.unbind(-1), strict=True):
        valid = valid & (coordinate >= -size) & (coordinate < size)
        counted = coordinate.where(coordinate >= 0, coordinate + size)
        rows = rows * size + counted.clamp(0, size - 1)
    return rows, valid


def _run_diagonal_matrix(x: Tensor, value: torch.types.Number, begin: int, end: int) -> Tensor:
    return dmlops.diagonal_matrix(x, value=value, begin=begin, end=end)


def _fake_diagonal_matrix(x: Tensor, value: torch.types.Number, begin: int, end: int) -> Tensor:
    symbols = _Symbols()
    # Neither the bounds nor a value that is traced have a say in the result's shape.
    known = value if isinstance(value, (int, float)) else 0
    return symbols.empty(x, inference.diagonal_matrix(symbols.describe(x, "diagonal_matrix.x"), known, 0, 1))


def _keep_for_diagonal_matrix(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.begin, ctx.end = inputs[2:]


def _diagonal_matrix_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return _diagonal_matrix(grad, 0, ctx.begin, ctx.end), None, None, None


def _operator(run: Any, fake: Any, *tags: Any) -> Any:
    """Register an operator; every one takes tensors of any strides."""
    name = run.__name__.removeprefix("_run_")
    tags = (torch.Tag.flexible_layout, *tags)
    operator = torch.library.custom_op(f"dmlops::{name}", run, mutates_args=(), tags=tags)
    operator.register_fake(fake)
    return operator


_top_k = _operator(_run_top_k, _fake_top_k)
_top_k.register_autograd(_top_k_backward, setup_context=_keep_for_top_k)
_nonzero_coordinates = _operator(
    _run_nonzero_coordinates,
    _fake_nonzero_coordinates,
    *(torch.Tag.dynamic_output_shape, torch.Tag.cudagraph_unsafe),
)
_nonzero_coordinates_static = _operator(_run_nonzero_coordinates_static, _fake_nonzero_coordinates_static)
_gather_nd = _operator(_run_gather_nd, _fake_gather_nd)
_gather_nd.register_autograd(_gather_nd_backward, setup_context=_keep_for_gather_nd)
_diagonal_matrix = _operator(_run_diagonal_matrix, _fake_diagonal_matrix)
_diagonal_matrix.register_autograd(_diagonal_matrix_backward, setup_context=_keep_for_diagonal_matrix)
