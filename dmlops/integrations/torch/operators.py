"""The operators as torch operators, ``torch.ops.dmlops``, with their derivatives.

While a graph is traced, the descriptors infer what an operator returns. To compute a derivative, the kernels
find the positions, and torch's own operators move the elements. Torch knows the derivatives of these
operators: in reverse and forward mode, of any order, and under every transformation of ``torch.func``.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from dmlops import functions
from dmlops.functions.diagonal_matrix import DIAGONAL_MATRIX as DIAGONAL_MATRIX_FUNCTION
from dmlops.functions.gather_nd import GATHER_ND as GATHER_ND_FUNCTION
from dmlops.functions.nonzero_coordinates import NONZERO_COORDINATES as NONZERO_FUNCTION
from dmlops.functions.top_k import TOP_K as TOP_K_FUNCTION
from dmlops.operators.diagonal_matrix import infer_diagonal_matrix
from dmlops.operators.gather_nd import check_mode, infer_gather_nd
from dmlops.operators.nonzero_coordinates import infer_nonzero_coordinates
from dmlops.operators.top_k import infer_top_k
from dmlops.types.array_types import Mode
from dmlops.types.data_types import data_type_of, index_data_type
from dmlops.types.errors import DeviceMismatchError, error_text, refuse
from dmlops.types.opaque_types import ElementType, type_name
from dmlops.types.tensor import TensorDesc, sizes_stand_in

# More than any tensor has elements along a dimension.
_FIRST_STAND_IN = 2**60
_LIBRARY = torch.library.Library("dmlops", "FRAGMENT")


def is_distributed(x: Tensor) -> bool:
    """Return whether a tensor is a DTensor."""
    return type(x).__name__ == "DTensor"


def distributed_rules() -> dict[str, Callable[..., Any]]:
    """Return the module that runs the operators on DTensors; the first call registers it with torch."""
    from dmlops.integrations.torch.distributed import RULES  # noqa: PLC0415 - as few need it

    return RULES


def is_known(condition: Any) -> bool:
    """Return whether a condition is true, whatever its symbols stand for."""
    if isinstance(condition, bool) and not torch.compiler.is_compiling():
        return condition
    # This import takes long, but tracing has done it already.
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # noqa: PLC0415

    return statically_known_true(condition)  # type: ignore[no-any-return]


def _or_int64(dtype: torch.dtype | None) -> torch.dtype:
    """Return the type of indices: AOTInductor can leave out an argument only if it is None."""
    return torch.int64 if dtype is None else dtype


def torch_dtype(data_type: ElementType) -> torch.dtype:
    """Return torch's name of an element type."""
    return getattr(torch, type_name(data_type))


class _Symbols:
    """Numbers for the sizes that are unknown while tracing: descriptors get these, results the symbols."""

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

    def resized(self, desc: TensorDesc, axis: int, size: Any) -> TensorDesc:
        sizes = [*desc.sizes]
        sizes[axis] = self.number(size)
        return TensorDesc(desc.data_type, tuple(sizes))

    def empty(self, x: Tensor, desc: TensorDesc) -> Tensor:
        sizes = [self._sizes.get(size, size) for size in desc.sizes]
        return x.new_empty(sizes, dtype=torch_dtype(desc.data_type))


def check_device(array: Tensor, x: Tensor, where: str) -> None:
    """Refuse a tensor on another device than `x`."""
    if array.device != x.device:
        reason, allowed = f"x lives on {x.device}", "all arrays must share a device"
        raise DeviceMismatchError(error_text(where, f"an array on {array.device}", reason, allowed))


def _equated(where: str, desc: TensorDesc, shape: Any, other: Sequence[int], other_shape: Any) -> TensorDesc:
    """Return the description of a tensor with the unknown ones of its leading sizes replaced by another's."""
    sizes_differ = f"{where}: got shape {tuple(shape)}, but x has sizes {tuple(other_shape)} there"
    sizes = [*desc.sizes]
    for d, (ours, theirs) in enumerate(zip(shape, other_shape, strict=False)):
        if not (isinstance(ours, int) and isinstance(theirs, int)):
            torch._check(ours == theirs, lambda: sizes_differ)
            sizes[d] = other[d]
    return TensorDesc(desc.data_type, tuple(sizes))


def _plain(x: Tensor) -> Tensor:
    """Return a tensor without a derivative, of the plain type."""
    x = x.detach()
    return x if type(x) is Tensor else x.as_subclass(Tensor)


# These functions run on plain tensors, without derivatives.
def _run_top_k(
    x: Tensor,
    k: int,
    axis: int,
    largest: bool,
    sorted: bool,
    lengths: Tensor | None,
    index_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    return tuple(
        functions.top_k(
            *(_plain(x), k),
            axis=axis,
            largest=largest,
            sorted=sorted,
            lengths=None if lengths is None else _plain(lengths),
            index_dtype=_or_int64(index_dtype),
        )
    )


@sizes_stand_in()
def _fake_top_k(
    x: Tensor,
    k: int,
    axis: int,
    largest: bool,
    sorted: bool,
    lengths: Tensor | None,
    index_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    symbols = _Symbols()
    data, row_lengths = symbols.describe(x, "top_k.x"), None
    if lengths is not None:
        check_device(lengths, x, "top_k.lengths")
        rows = [d for d in range(x.dim()) if d != axis % x.dim()]
        row_lengths = _equated(
            "top_k.lengths",
            *(symbols.describe(lengths, "top_k.lengths"), lengths.shape),
            *([data.sizes[d] for d in rows], [x.shape[d] for d in rows]),
        )
    # Whether a type holds all indices is known once the sizes are.
    is_sized = all(isinstance(size, int) for size in x.shape)
    index_type = index_data_type(_or_int64(index_dtype) if is_sized else torch.int64, "top_k.index_dtype")
    # torch checks a symbolic k, and then knows that it is not larger than the axis.
    known_k = k if isinstance(k, int) else 0
    values, indices = infer_top_k(TOP_K_FUNCTION.words, data, known_k, axis, index_type, row_lengths)
    if not isinstance(k, int):
        size = x.shape[axis] if x.dim() else 1
        torch._check(k >= 0, lambda: f"top_k.k: got {k}, but it must be >= 0")
        torch._check(k <= size, lambda: f"top_k.k: got {k}, but the axis of x has {size} elements")
        values, indices = (symbols.resized(desc, axis, k) for desc in (values, indices))
    return symbols.empty(x, values), symbols.empty(x, indices).to(_or_int64(index_dtype))


def _gather(x: Tensor, axis: int, places: Tensor) -> Tensor:
    """`torch.gather`, except that the backward pass keeps the shape of `x` and not its elements."""
    try:
        with torch.autograd.graph.saved_tensors_hooks(_without_elements, _with_any_elements):
            return x.gather(axis, places)
    except RuntimeError:  # transformations do not allow hooks
        return x.gather(axis, places)


def _without_elements(saved: Tensor) -> Any:
    is_places = saved.dtype == torch.int64
    return saved if is_places else (saved.shape, saved.dtype, saved.device)


def _with_any_elements(saved: Any) -> Tensor:
    if isinstance(saved, Tensor):
        return saved
    shape, dtype, device = saved
    return torch.empty(shape, dtype=dtype, device=device)


def _differentiable_top_k(x: Tensor, k: int, axis: int, *others: Any) -> tuple[Tensor, Tensor]:
    _, _, lengths, *_ = others
    values, indices = TOP_K(x.detach(), k, axis, *others)
    x = x if x.dim() else x.reshape(1)
    if lengths is None:
        # A copy, because the caller may write to the indices before the backward pass.
        return _gather(x, axis, indices.to(torch.int64, copy=True)), indices
    # In unsigned types, the index of padding is the highest number.
    places, size = indices.long(), x.shape[axis]
    is_there = (places >= 0) & (places < size)
    return torch.where(is_there, _gather(x, axis, places.clamp(0, size - 1)), values), indices


def _batched_top_k(
    in_dims: tuple[int | None, ...], x: Tensor, k: int, axis: int, *others: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    largest, sorted, lengths, *index_dtype = others
    of_x, of_lengths = in_dims[0], in_dims[5]
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
    axis = axis if axis < 0 else axis + 1
    return TOP_K(x, k, axis, largest, sorted, lengths, *index_dtype), (0, 0)


def _run_nonzero_coordinates(x: Tensor, index_dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    return tuple(functions.nonzero_coordinates(_plain(x), index_dtype=_or_int64(index_dtype)))


@sizes_stand_in()
def _fake_nonzero_coordinates(x: Tensor, index_dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    if x.device.type == "meta":
        reason = "the number of rows depends on the elements, which this tensor does not have"
        refuse("nonzero_coordinates.size", None, reason, "size must be a number of rows")
    size = torch.library.get_ctx().new_dynamic_size()
    return _fake_nonzero_coordinates_static(x, size, None, index_dtype)


def _refuse_batched_nonzero_coordinates(info: Any, in_dims: Any, *arguments: Any) -> NoReturn:
    reason, remedy = "examples of torch.func.vmap may differ in their count", "size must be a number of rows"
    refuse("nonzero_coordinates.size", None, reason, remedy)


def _run_nonzero_coordinates_static(
    x: Tensor, size: int, fill_value: int | None, index_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    return tuple(
        functions.nonzero_coordinates(
            _plain(x), size=size, fill_value=fill_value, index_dtype=_or_int64(index_dtype)
        )
    )


@sizes_stand_in()
def _fake_nonzero_coordinates_static(
    x: Tensor, size: int, fill_value: int | None, index_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    symbols = _Symbols()
    index_type = index_data_type(_or_int64(index_dtype), "nonzero_coordinates.index_dtype")
    # Neither result depends on the sizes of x.
    data = TensorDesc(data_type_of(x.dtype, "nonzero_coordinates.x"), (1,) * x.dim())
    words, capacity = NONZERO_FUNCTION.words, symbols.number(size)
    coordinates, count = infer_nonzero_coordinates(words, data, capacity, index_type)
    return symbols.empty(x, coordinates), symbols.empty(x, count)


def _batched_nonzero_coordinates_static(
    in_dims: tuple[int | None, ...],
    x: Tensor,
    size: int,
    fill_value: int | None,
    index_dtype: torch.dtype | None = None,
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    x = x.movedim(in_dims[0] or 0, 0)
    # The number of non-zero elements up to each element. The n-th non-zero element is where it becomes n.
    counts = (x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)).ne(0).cumsum(1)
    rows = torch.arange(1, size + 1, device=x.device).repeat(x.shape[0], 1)
    places = torch.searchsorted(counts.contiguous(), rows.contiguous())
    count = counts[:, -1] if counts.shape[1] else counts.new_zeros(x.shape[0])
    columns: list[Tensor] = []
    for length in reversed(x.shape[1:]):
        columns.insert(0, places % max(length, 1))
        places = places // max(length, 1)
    coordinates = torch.stack(columns, 2) if columns else places.new_empty(*places.shape, 0)
    if fill_value is not None:
        coordinates = coordinates.where((rows <= count.unsqueeze(1)).unsqueeze(2), fill_value)
    dtype = _or_int64(index_dtype)
    return (coordinates.to(dtype), count.to(dtype)), (0, 0)


def _run_gather_nd(x: Tensor, indices: Tensor, batch_dims: int, mode: str) -> Tensor:
    return functions.gather_nd(_plain(x), _plain(indices), batch_dims=batch_dims, mode=cast("Mode", mode))


@sizes_stand_in()
def _fake_gather_nd(x: Tensor, indices: Tensor, batch_dims: int, mode: str) -> Tensor:
    symbols = _Symbols()
    check_device(indices, x, "gather_nd.indices")
    data, tuples = symbols.describe(x, "gather_nd.x"), symbols.describe(indices, "gather_nd.indices")
    tuples = TensorDesc(tuples.data_type, (*tuples.sizes[:-1], *map(int, indices.shape[-1:])))
    tuples = _equated(
        "gather_nd.indices", tuples, indices.shape[:batch_dims], data.sizes, x.shape[:batch_dims]
    )
    check_mode(mode)
    return symbols.empty(x, infer_gather_nd(GATHER_ND_FUNCTION.words, data, tuples, batch_dims))


def _differentiable_gather_nd(x: Tensor, indices: Tensor, batch_dims: int, mode: str) -> Tensor:
    if is_known(x.numel() == 0):
        # The sum of no elements is zero, and connects the result to x.
        gathered: Tensor = GATHER_ND(x.detach(), indices, batch_dims, mode)
        return gathered + x.sum()
    has_batches = 0 <= batch_dims < min(x.dim(), indices.dim())
    if not (has_batches and 0 < indices.shape[-1] <= x.dim() - batch_dims):
        # The kernel refuses arguments that do not fit. A tuple without coordinates selects all of its batch.
        GATHER_ND(x.detach(), indices, batch_dims, mode)
        batch, rest = x.shape[:batch_dims], x.shape[batch_dims:]
        whole = x.reshape((*batch, *(1,) * (indices.dim() - 1 - batch_dims), *rest))
        return whole.expand((*indices.shape[:-1], *rest)).contiguous()
    if _lacks_gather(x):
        reason, remedy = "torch has no derivative of gathers of this type", "pass x.detach(), or convert it"
        raise TypeError(error_text("gather_nd.x", x.dtype, reason, remedy))
    end = batch_dims + indices.shape[-1]
    rows, found = _rows(x, indices, batch_dims, mode)
    blocks = x.reshape(math.prod(x.shape[:end]), math.prod(x.shape[end:]))
    # Inductor compiles index_select under vmap and grad to wrong gradients.
    blocks = _gather(blocks, 0, rows.reshape(-1, 1).expand(-1, blocks.shape[1]))
    if mode == "fill":
        blocks = torch.where(found.reshape(-1, 1), blocks, 0)
    return blocks.reshape((*indices.shape[:-1], *x.shape[end:]))


def _lacks_gather(x: Tensor) -> bool:
    """Return whether torch cannot gather elements of a type: those of 8 bits, and complex ones of 32."""
    return bool(x.element_size() == (4 if x.is_complex() else 1))


def _rows(x: Tensor, indices: Tensor, batch_dims: int, mode: str) -> tuple[Tensor, Tensor]:
    """Return the block of `x` that each tuple points at, and which tuples point at one.

    The position along each dimension is gathered from all that there are, so that the kernel alone knows what
    an index means.
    """
    sizes = x.shape[: batch_dims + indices.shape[-1]]
    rows = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=x.device)
    found = rows + 1
    for d, size in enumerate(sizes):
        # From 1 on, because "fill" gives 0 for tuples without a block.
        positions = torch.arange(1, size + 1, device=x.device)
        positions = positions.reshape(-1, *(1,) * (len(sizes) - 1 - d)).expand(sizes)
        found = GATHER_ND(positions, indices, batch_dims, mode)
        rows = rows * size + (found - 1).clamp(0)
        # The indices are checked once.
        mode = "clip" if mode == "raise" else mode
    return rows, found > 0


def _batched_gather_nd(
    in_dims: tuple[int | None, ...], x: Tensor, indices: Tensor, batch_dims: int, mode: str
) -> tuple[Tensor, int]:
    of_x, of_indices = in_dims[:2]
    if of_indices is None:
        # The batch is copied as the first dimension of the blocks.
        x = x.movedim(of_x, batch_dims + indices.shape[-1])
        return GATHER_ND(x, indices, batch_dims, mode), indices.dim() - 1
    if of_x is None:
        # The batch only adds tuples.
        return GATHER_ND(x, indices.movedim(of_indices, batch_dims), batch_dims, mode), batch_dims
    return GATHER_ND(x.movedim(of_x, 0), indices.movedim(of_indices, 0), batch_dims + 1, mode), 0


def _run_diagonal_matrix(x: Tensor, value: torch.types.Number, begin: int, end: int) -> Tensor:
    return functions.diagonal_matrix(_plain(x), value=value, begin=begin, end=end)


@sizes_stand_in()
def _fake_diagonal_matrix(x: Tensor, value: torch.types.Number, begin: int, end: int) -> Tensor:
    symbols = _Symbols()
    # The shape of the result depends neither on the bounds nor on a traced value.
    known = value if isinstance(value, (int, float, complex)) else 0
    data = symbols.describe(x, "diagonal_matrix.x")
    words = DIAGONAL_MATRIX_FUNCTION.words
    return symbols.empty(x, infer_diagonal_matrix(words, data.data_type, data.sizes, known))


def _differentiable_diagonal_matrix(x: Tensor, value: torch.types.Number, begin: int, end: int) -> Tensor:
    if x.dim() < 2:
        return DIAGONAL_MATRIX(x.detach(), value, begin, end)  # this refuses it
    fill = DIAGONAL_MATRIX(torch.zeros((1, 1), dtype=x.dtype, device=x.device), value, 0, 1)
    return torch.where(band(x, begin, end), fill, x).contiguous()


def band(x: Tensor, begin: int, end: int) -> Tensor:
    """Return a matrix that is True where `x` is filled."""
    nothing = torch.zeros((), dtype=torch.bool, device=x.device)
    band: Tensor = DIAGONAL_MATRIX(nothing.expand(x.shape[-2:]), 1, begin, end)
    return band


def _batched_diagonal_matrix(
    in_dims: tuple[int, ...], x: Tensor, value: torch.types.Number, begin: int, end: int
) -> tuple[Tensor, int]:
    return DIAGONAL_MATRIX(x.movedim(in_dims[0], 0), value, begin, end), 0


def is_tracked(x: Tensor) -> bool:
    """Return whether a derivative with respect to `x` is requested, in reverse or forward mode."""
    if not (x.is_floating_point() or x.is_complex()) or x.layout is not torch.strided:
        return False
    return (x.requires_grad and torch.is_grad_enabled()) or has_tangent(x)


def has_tangent(x: Tensor) -> bool:
    """Return whether `x` has a tangent, for a derivative in forward mode."""
    try:
        # torch has only one level of forward mode. Compiled graphs enter it without telling Python.
        return forward_ad.unpack_dual(x, level=0).tangent is not None
    except RuntimeError:  # a batch in vmap: torch asks again for the tensor that it wraps
        return False


# The functions that run an operator, by its name and dispatch key.
_code: dict[tuple[str, str], Callable[..., Any]] = {}


def _implement(name: str, function: Callable[..., Any], key: str) -> None:
    def run(*arguments: Any) -> Any:
        return _code[name, key](*arguments)

    _code[name, key] = function
    _LIBRARY.impl(name, run, key, with_keyset=key == "Autograd")


@functools.cache
def hide_from_compiler() -> None:
    """Make torch's compiler see calls of the operators rather than the code that runs them.

    It would trace that code where a graph breaks at such a call, and find a call of the same operator there.
    """
    for place, function in _code.items():
        _code[place] = torch.compiler.disable(function)


def _operator(name: str, run: Callable[..., Any], fake: Callable[..., Any], *tags: Any) -> Any:
    """Register an operator, which takes tensors of any strides."""
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout, *tags)
    _LIBRARY.define(torch.library.infer_schema(run, mutates_args=(), op_name=name), tags=tags)
    _implement(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"dmlops::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.dmlops, name).default


def _register_derivatives(operator: Any, differentiable: Callable[..., Any]) -> None:
    """Let `differentiable` run an operator if a derivative is requested.

    torch calls it once for each transformation, from the innermost on: only the tensors that this one tracks
    are tracked in the call.
    """

    def run_or_differentiate(keys: Any, x: Tensor, *arguments: Any) -> Any:
        if is_tracked(x):
            if is_distributed(x):
                return distributed_rules()[operator.name()](x, *arguments)
            return differentiable(x, *arguments)
        return operator.redispatch(keys.remove(keys.highestPriorityTypeId()), x, *arguments)

    _implement(operator.name(), run_or_differentiate, "Autograd")


def _register_vmap(operator: Any, fake: Callable[..., Any], batched: Callable[..., Any]) -> None:
    """Let `batched` run an operator on a batch of examples in vmap."""

    def run_batch(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        # Arguments that do not fit are refused in terms of one example. A batch may have none.
        pairs = zip(arguments, in_dims, strict=True)
        fake(*[argument if d is None else _example(argument, d) for argument, d in pairs])
        return batched(in_dims, *arguments)

    torch.library.register_vmap(operator, run_batch, lib=_LIBRARY)


def _example(batch: Tensor, d: int) -> Tensor:
    """Return a stand-in for one example of a batch along dimension `d`."""
    return batch.new_empty(()).expand(batch.shape[:d] + batch.shape[d + 1 :])


# Exported programs that return these can be saved.
_register: Any = getattr(torch.utils._pytree, "_register_namedtuple", None)
if _register is not None:
    for _result in (functions.TopKResult, functions.NonzeroResult):
        _register(_result, serialized_type_name=f"dmlops.{_result.__name__}")

TOP_K = _operator("top_k", _run_top_k, _fake_top_k)
_register_derivatives(TOP_K, _differentiable_top_k)
_register_vmap(TOP_K, _fake_top_k, _batched_top_k)

NONZERO_COORDINATES = _operator(
    "nonzero_coordinates",
    _run_nonzero_coordinates,
    _fake_nonzero_coordinates,
    *(torch.Tag.dynamic_output_shape, torch.Tag.cudagraph_unsafe),
)
torch.library.register_vmap(NONZERO_COORDINATES, _refuse_batched_nonzero_coordinates, lib=_LIBRARY)

NONZERO_COORDINATES_STATIC = _operator(
    "nonzero_coordinates_static", _run_nonzero_coordinates_static, _fake_nonzero_coordinates_static
)
_register_vmap(
    NONZERO_COORDINATES_STATIC, _fake_nonzero_coordinates_static, _batched_nonzero_coordinates_static
)

GATHER_ND = _operator("gather_nd", _run_gather_nd, _fake_gather_nd)
_register_derivatives(GATHER_ND, _differentiable_gather_nd)
_register_vmap(GATHER_ND, _fake_gather_nd, _batched_gather_nd)

DIAGONAL_MATRIX = _operator("diagonal_matrix", _run_diagonal_matrix, _fake_diagonal_matrix)
_register_derivatives(DIAGONAL_MATRIX, _differentiable_diagonal_matrix)
_register_vmap(DIAGONAL_MATRIX, _fake_diagonal_matrix, _batched_diagonal_matrix)

OPERATORS = TOP_K, NONZERO_COORDINATES, NONZERO_COORDINATES_STATIC, GATHER_ND, DIAGONAL_MATRIX
"""All operators that are registered as ``torch.ops.dmlops``."""
