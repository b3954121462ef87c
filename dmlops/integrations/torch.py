"""The operators as torch operators: whole graphs for torch.compile and torch.export, and derivatives.

The functions here are those of `dmlops` for tensors. Behind each is an operator of ``torch.ops.dmlops``; what
it returns is inferred from the descriptors while a graph is traced. Where a derivative is asked for, the
kernels find the positions, and torch's own operators move the elements there. The derivatives are theirs: in
reverse and forward mode, of any order, and under every transformation of ``torch.func``.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

import dmlops
from dmlops import NonzeroResult, TensorDataType, TensorDesc, TopKResult
from dmlops.array_types import Mode
from dmlops.data_types import data_type_of
from dmlops.errors import error_text
from dmlops.operators.diagonal_matrix import infer_diagonal_matrix
from dmlops.operators.gather_nd import infer_gather_nd
from dmlops.operators.nonzero_coordinates import infer_nonzero_coordinates
from dmlops.operators.top_k import infer_top_k
from dmlops.tensor import sizes_stand_in

# No tensor has so many elements along a dimension.
_FIRST_STAND_IN = 2**60
_INDEX_TYPE = TensorDataType.INT64
_LIBRARY = torch.library.Library("dmlops", "FRAGMENT")


def top_k(
    x: Tensor,
    k: int,
    *,
    axis: int = -1,
    largest: bool = True,
    sorted: bool = True,
    lengths: Tensor | None = None,
) -> TopKResult[Tensor, Tensor]:
    """Return the `k` largest or smallest elements along an axis, and their int64 indices.

    As `dmlops.top_k`: ties by ascending index. Differentiable with respect to `x`; results beyond the length
    of a row, of index -1, have no derivative.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([1.0, 3.0, 3.0], requires_grad=True)
    >>> values, indices = torch.compile(top_k, fullgraph=True, backend="eager")(x, 1)
    >>> values.sum().backward()
    >>> indices, x.grad
    (tensor([1]), tensor([0., 1., 0.]))
    """
    return TopKResult(*_top_k(x, k, axis, largest, sorted, lengths))


def nonzero_coordinates(
    x: Tensor, *, size: int | None = None, fill_value: int | None = None
) -> NonzeroResult[Tensor]:
    """Return the int64 coordinates of the non-zero elements, in ascending element order, and their count.

    As `dmlops.nonzero_coordinates`. With ``size=None`` the number of rows depends on the data, in a graph
    too, and a GPU is waited for. Neither result has a derivative.
    """
    if size is None:
        return NonzeroResult(*_nonzero_coordinates(x))
    return NonzeroResult(*_nonzero_coordinates_static(x, size, fill_value))


def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0, mode: Mode = "raise") -> Tensor:
    """Return the elements or blocks of `x` that tuples of indices name.

    As `dmlops.gather_nd`. Differentiable with respect to `x`; the gradients of an element that is gathered
    more than once are summed, by torch's ``scatter_add``. Where a derivative is asked for, and the indexed or
    the copied dimensions of `x` are no single dimension of its memory, `x` is copied.
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

    Raises
    ------
    TypeError
        If neither `x` nor `shape` is given, or `value` is a tensor.
    """
    where = "diagonal_matrix"
    if isinstance(value, Tensor):
        reason = "there is no derivative with respect to it"
        raise TypeError(
            error_text(f"{where}.value", "a tensor", reason, "it must be a number, as value.item() is")
        )
    if x is None:
        if shape is None:
            raise TypeError(
                error_text(f"{where}.shape", None, "x is left out too", "one of them must be given")
            )
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


def _equated(desc: TensorDesc, shape: Any, other: Sequence[int], other_shape: Any) -> TensorDesc:
    """Return the description of a tensor with the leading sizes of another, where those are unknown."""
    sizes = [*desc.sizes]
    for d, (ours, theirs) in enumerate(zip(shape, other_shape, strict=False)):
        if not (isinstance(ours, int) and isinstance(theirs, int)):
            torch._check(ours == theirs)
            sizes[d] = other[d]
    return TensorDesc(desc.data_type, tuple(sizes))


# These functions run on the tensors themselves: they know nothing of derivatives, and are given none.
def _run_top_k(
    x: Tensor, k: int, axis: int, largest: bool, sorted: bool, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    return tuple(dmlops.top_k(x.detach(), k, axis=axis, largest=largest, sorted=sorted, lengths=lengths))


@sizes_stand_in()
def _fake_top_k(
    x: Tensor, k: int, axis: int, largest: bool, sorted: bool, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    symbols = _Symbols()
    data, row_lengths = symbols.describe(x, "top_k.x"), None
    if lengths is not None:
        rows = [d for d in range(x.dim()) if d != axis % x.dim()]
        row_lengths = _equated(
            *(symbols.describe(lengths, "top_k.lengths"), lengths.shape),
            *([data.sizes[d] for d in rows], [x.shape[d] for d in rows]),
        )
    values, indices = infer_top_k(data, int(k), axis, _INDEX_TYPE, row_lengths)
    return symbols.empty(x, values), symbols.empty(x, indices)


def _differentiable_top_k(
    x: Tensor, k: int, axis: int, largest: bool, sorted: bool, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    values, indices = _top_k(x.detach(), k, axis, largest, sorted, lengths)
    x = x if x.dim() else x.reshape(1)
    if lengths is None:
        return x.gather(axis, indices), indices
    selected = x.gather(axis, indices.clamp(min=0))
    return torch.where(indices < 0, values, selected), indices


def _batched_top_k(
    in_dims: tuple[int | None, ...],
    x: Tensor,
    k: int,
    axis: int,
    largest: bool,
    sorted: bool,
    lengths: Tensor | None,
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    of_x, of_lengths = in_dims[0], in_dims[-1]
    if of_x is None:
        assert lengths is not None
        x = x.expand(lengths.shape[of_lengths], *x.shape)
    else:
        x = x.movedim(of_x, 0)
    if lengths is not None:
        if of_lengths is None:
            lengths = lengths.expand(x.shape[0], *lengths.shape)
        else:
            lengths = lengths.movedim(of_lengths, 0)
    x = x if x.dim() > 1 else x.unsqueeze(1)
    return _top_k(x, k, axis if axis < 0 else axis + 1, largest, sorted, lengths), (0, 0)


def _run_nonzero_coordinates(x: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(dmlops.nonzero_coordinates(x.detach()))


@sizes_stand_in()
def _fake_nonzero_coordinates(x: Tensor) -> tuple[Tensor, Tensor]:
    return _fake_nonzero_coordinates_static(x, torch.library.get_ctx().new_dynamic_size(), None)


def _run_nonzero_coordinates_static(x: Tensor, size: int, fill_value: int | None) -> tuple[Tensor, Tensor]:
    return tuple(dmlops.nonzero_coordinates(x.detach(), size=size, fill_value=fill_value))


@sizes_stand_in()
def _fake_nonzero_coordinates_static(x: Tensor, size: int, fill_value: int | None) -> tuple[Tensor, Tensor]:
    symbols = _Symbols()
    # The sizes of x reach neither result.
    data = TensorDesc(data_type_of(x.dtype, "nonzero_coordinates.x"), (1,) * x.dim())
    coordinates, count = infer_nonzero_coordinates(data, symbols.number(size), _INDEX_TYPE)
    return symbols.empty(x, coordinates), symbols.empty(x, count)


def _run_gather_nd(x: Tensor, indices: Tensor, batch_dims: int, mode: str) -> Tensor:
    return dmlops.gather_nd(x.detach(), indices, batch_dims=batch_dims, mode=cast("Mode", mode))


@sizes_stand_in()
def _fake_gather_nd(x: Tensor, indices: Tensor, batch_dims: int, mode: str) -> Tensor:
    symbols = _Symbols()
    data, picks = symbols.describe(x, "gather_nd.x"), symbols.describe(indices, "gather_nd.indices")
    picks = TensorDesc(picks.data_type, (*picks.sizes[:-1], *map(int, indices.shape[-1:])))
    picks = _equated(picks, indices.shape[:batch_dims], data.sizes, x.shape[:batch_dims])
    return symbols.empty(x, infer_gather_nd(data, picks, batch_dims, mode))


def _differentiable_gather_nd(x: Tensor, indices: Tensor, batch_dims: int, mode: str) -> Tensor:
    if x.numel() == 0:
        # The sum of no elements is exactly zero, and connects the result to x.
        gathered: Tensor = _gather_nd(x.detach(), indices, batch_dims, mode)
        return gathered + x.sum()
    if not 0 <= batch_dims < min(x.dim(), indices.dim()) or indices.shape[-1] == 0:
        # The kernel refuses what does not fit.
        _gather_nd(x.detach(), indices, batch_dims, mode)
    end = batch_dims + indices.shape[-1]
    rows, found = _rows(x, indices, batch_dims, mode)
    blocks = x.reshape(math.prod(x.shape[:end]), -1)
    # Inductor compiles index_select under vmap and grad to wrong gradients.
    blocks = blocks.gather(0, rows.reshape(-1, 1).expand(-1, blocks.shape[1]))
    if mode == "fill":
        blocks = torch.where(found.reshape(-1, 1), blocks, 0)
    return blocks.reshape(*indices.shape[:-1], *x.shape[end:])


def _rows(x: Tensor, indices: Tensor, batch_dims: int, mode: str) -> tuple[Tensor, Tensor]:
    """Return which block of `x` each tuple names, and which tuples name one.

    The position along each dimension is gathered from all that there are, so that the kernel alone knows what
    an index means.
    """
    sizes = x.shape[: batch_dims + indices.shape[-1]]
    rows = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=x.device)
    found = rows + 1
    for d, size in enumerate(sizes):
        # From 1, as 0 is what "fill" gives where there is none.
        positions = torch.arange(1, size + 1, device=x.device)
        positions = positions.reshape(-1, *(1,) * (len(sizes) - 1 - d)).expand(sizes)
        found = _gather_nd(positions, indices, batch_dims, mode)
        rows = rows * size + (found - 1).clamp(0)
        # The indices are checked once.
        mode = "clip" if mode == "raise" else mode
    return rows, found > 0


def _batched_gather_nd(
    in_dims: tuple[int | None, ...], x: Tensor, indices: Tensor, batch_dims: int, mode: str
) -> tuple[Tensor, int]:
    of_x, of_indices = in_dims[:2]
    if of_indices is None:
        # Copied along, as the first dimension of the blocks.
        x = x.movedim(of_x, batch_dims + indices.shape[-1])
        return _gather_nd(x, indices, batch_dims, mode), indices.dim() - 1
    if of_x is None:
        # More tuples.
        return _gather_nd(x, indices.movedim(of_indices, batch_dims), batch_dims, mode), batch_dims
    return _gather_nd(x.movedim(of_x, 0), indices.movedim(of_indices, 0), batch_dims + 1, mode), 0


def _run_diagonal_matrix(x: Tensor, value: torch.types.Number, begin: int, end: int) -> Tensor:
    return dmlops.diagonal_matrix(x.detach(), value=value, begin=begin, end=end)


@sizes_stand_in()
def _fake_diagonal_matrix(x: Tensor, value: torch.types.Number, begin: int, end: int) -> Tensor:
    symbols = _Symbols()
    # Neither the bounds nor a value that is traced have a say in the result's shape.
    known = value if isinstance(value, (int, float)) else 0
    data = symbols.describe(x, "diagonal_matrix.x")
    return symbols.empty(x, infer_diagonal_matrix(data.data_type, data.sizes, known))


def _differentiable_diagonal_matrix(x: Tensor, value: torch.types.Number, begin: int, end: int) -> Tensor:
    if x.dim() < 2:
        return _diagonal_matrix(x.detach(), value, begin, end)  # refuses it
    nothing = torch.zeros((1, 1), dtype=torch.bool, device=x.device)
    band = _diagonal_matrix(nothing.expand(x.shape[-2:]), 1, begin, end)
    fill = _diagonal_matrix(nothing.to(x.dtype), value, 0, 1)
    return torch.where(band, fill, x).contiguous()


def _batched_diagonal_matrix(
    in_dims: tuple[int, ...], x: Tensor, value: torch.types.Number, begin: int, end: int
) -> tuple[Tensor, int]:
    return _diagonal_matrix(x.movedim(in_dims[0], 0), value, begin, end), 0


def _is_tracked(x: Tensor) -> bool:
    """Return whether a derivative with respect to `x` is asked for, in reverse or forward mode."""
    if not x.is_floating_point() or x.layout is not torch.strided:
        return False
    if x.requires_grad and torch.is_grad_enabled():
        return True
    # The level is torch's only one. Compiled graphs enter it without telling Python.
    return forward_ad.unpack_dual(x, level=0).tangent is not None


def _operator(name: str, run: Callable[..., Any], fake: Callable[..., Any], *tags: Any) -> Any:
    """Register an operator, which takes tensors of any strides."""
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout, *tags)
    _LIBRARY.define(torch.library.infer_schema(run, mutates_args=(), op_name=name), tags=tags)
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"dmlops::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.dmlops, name).default


def _differentiable_operator(
    name: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    differentiable: Callable[..., Any],
    batched: Callable[..., Any],
) -> Any:
    """Register an operator that `differentiable` runs where a derivative is asked for, and `batched` in vmap.

    torch calls the former once for each transformation, from the innermost on: only the tensors that this one
    tracks are tracked in the call.
    """
    operator = _operator(name, run, fake)

    def run_or_differentiate(keys: Any, x: Tensor, *arguments: Any) -> Any:
        if _is_tracked(x):
            return differentiable(x, *arguments)
        return operator.redispatch(keys.remove(keys.highestPriorityTypeId()), x, *arguments)

    def run_batch(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        # Arguments that do not fit are refused in terms of one example.
        pairs = zip(arguments, in_dims, strict=True)
        fake(*[argument if d is None else argument.select(d, 0) for argument, d in pairs])
        return batched(in_dims, *arguments)

    _LIBRARY.impl(name, run_or_differentiate, "Autograd", with_keyset=True)
    torch.library.register_vmap(operator, run_batch, lib=_LIBRARY)
    return operator


_top_k = _differentiable_operator("top_k", _run_top_k, _fake_top_k, _differentiable_top_k, _batched_top_k)
_nonzero_coordinates = _operator(
    "nonzero_coordinates",
    _run_nonzero_coordinates,
    _fake_nonzero_coordinates,
    *(torch.Tag.dynamic_output_shape, torch.Tag.cudagraph_unsafe),
)
_nonzero_coordinates_static = _operator(
    "nonzero_coordinates_static", _run_nonzero_coordinates_static, _fake_nonzero_coordinates_static
)
_gather_nd = _differentiable_operator(
    "gather_nd", _run_gather_nd, _fake_gather_nd, _differentiable_gather_nd, _batched_gather_nd
)
_diagonal_matrix = _differentiable_operator(
    "diagonal_matrix",
    _run_diagonal_matrix,
    _fake_diagonal_matrix,
    _differentiable_diagonal_matrix,
    _batched_diagonal_matrix,
)
