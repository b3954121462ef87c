"""The operators as torch operators, ``torch.ops.dmlops``, for calls that torch differentiates or traces.

The functions of `dmlops` call this module if kernels alone are not enough: because a derivative is requested,
or because the tensors stand for others in a graph or a transformation. While a graph is traced, the
descriptors infer what an operator returns. To compute a derivative, the kernels find the positions, and
torch's own operators move the elements. Torch knows the derivatives of these operators: in reverse and
forward mode, of any order, and under every transformation of ``torch.func``.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from dmlops import arguments, functions, scalars
from dmlops.array_libraries.torch import check_kind
from dmlops.array_types import Mode
from dmlops.data_types import data_type_of, index_data_type
from dmlops.dispatch import level_or
from dmlops.enums import FeatureLevel
from dmlops.errors import DeviceMismatchError, error_text, instance_of, refuse, shown
from dmlops.function_errors import InWordsOf
from dmlops.functions import check_is_pair
from dmlops.opaque_types import ElementType, type_name
from dmlops.operators.diagonal_matrix import infer_diagonal_matrix
from dmlops.operators.gather_nd import infer_gather_nd
from dmlops.operators.nonzero_coordinates import infer_nonzero_coordinates
from dmlops.operators.top_k import infer_top_k
from dmlops.tensor import TensorDesc, sizes_stand_in

# More than any tensor has elements along a dimension.
_FIRST_STAND_IN = 2**60
# The bounds of a band are 64-bit integers. No element is on a diagonal so far out.
_FARTHEST_DIAGONAL = 2**62
_LIBRARY = torch.library.Library("dmlops", "FRAGMENT")


def top_k(
    inputs: Sequence[Any],
    out: Any,
    stream: Any,
    k: int,
    axis: int,
    largest: bool,
    sorted: bool,
    index_dtype: Any,
) -> Sequence[Tensor]:
    """Run `dmlops.top_k`."""
    _check_stream(stream, "top_k")
    x, lengths = _tensor(inputs[0], "top_k.x"), inputs[1] if len(inputs) > 1 else None
    results = _top_k(
        *(x, _integer(k, "top_k.k"), _integer(axis, "top_k.axis")),
        *(arguments.boolean(largest, "top_k.largest"), arguments.boolean(sorted, "top_k.sorted")),
        None if lengths is None else _as_tensor(lengths, "top_k.lengths"),
        _index_dtype(index_dtype, out, "top_k"),
    )
    return results if out is None else _written(results, out, ("values", "indices"), x, "top_k")


def nonzero_coordinates(
    inputs: Sequence[Any],
    out: Any,
    stream: Any,
    size: int | None,
    fill_value: int | None,
    index_dtype: Any,
) -> Sequence[Tensor]:
    """Run `dmlops.nonzero_coordinates`."""
    where = "nonzero_coordinates"
    _check_stream(stream, where)
    x, dtype = _tensor(inputs[0], f"{where}.x"), _index_dtype(index_dtype, out, where)
    if out is not None and size is None:
        size = _tensor(out[0], f"{where}.out[0]").shape[0]
    if size is None:
        if fill_value is not None:
            reason, allowed = "size is left out", "fill_value needs size"
            refuse(f"{where}.fill_value", fill_value, reason, allowed)
        return _nonzero_coordinates(x, dtype)  # type: ignore[no-any-return]
    fill = None if fill_value is None else _integer(fill_value, f"{where}.fill_value")
    results = _nonzero_coordinates_static(x, _integer(size, f"{where}.size"), fill, dtype)
    return results if out is None else _written(results, out, ("coordinates", "count"), None, where)


def gather_nd(inputs: Sequence[Any], out: Any, stream: Any, batch_dims: int, mode: str) -> Sequence[Tensor]:
    """Run `dmlops.gather_nd`."""
    _check_stream(stream, "gather_nd")
    x, indices = _tensor(inputs[0], "gather_nd.x"), _as_tensor(inputs[1], "gather_nd.indices")
    results = (_gather_nd(x, indices, _integer(batch_dims, "gather_nd.batch_dims"), mode),)
    return results if out is None else _written(results, (out,), ("result",), x, "gather_nd")


def diagonal_matrix(
    inputs: Sequence[Any], out: Any, stream: Any, pattern: Any, value: Any, begin: int, end: int
) -> Sequence[Tensor]:
    """Run `dmlops.diagonal_matrix`.

    If `inputs` is empty, `pattern` has the arguments ``shape``, ``dtype`` and ``like``.
    """
    where = "diagonal_matrix"
    _check_stream(stream, where)
    if isinstance(value, Tensor):
        refuse_tensor_as_value()
    value = _number(value)
    if type(value) not in (int, float, torch.SymInt, torch.SymFloat):
        value = scalars.fill_scalar(value, f"{where}.value")
    _check_fits(value, f"{where}.value")
    begin, end = _bounds(_any_integer(begin, f"{where}.begin"), _any_integer(end, f"{where}.end"))
    x = _tensor(inputs[0], f"{where}.x") if inputs else _zeros(pattern, out)
    # The difference is NaN for infinities and NaN.
    if torch.compiler.is_exporting() and x.is_floating_point() and _is_known(value - value != 0):
        # AOTInductor passes the arguments of operators as JSON, which has no such numbers.
        results = (torch.where(_band(x, begin, end), value, x),)
    else:
        results = (_diagonal_matrix(x, value, begin, end),)
    return results if out is None else _written(results, (out,), ("result",), x, where)


def refuse_tensor_as_value() -> NoReturn:
    """Refuse a tensor, which may have a derivative, as the value of a diagonal matrix."""
    got, reason = "a tensor", "there is no derivative with respect to it"
    allowed = "it must be a number: pass value.item()"
    raise TypeError(error_text("diagonal_matrix.value", got, reason, allowed))


def _zeros(pattern: tuple[Any, Any, Any], out: Any) -> Tensor:
    """Return zeros as the input of a diagonal matrix that has none."""
    where = "diagonal_matrix"
    shape, dtype, like = pattern
    like = out if like is None else like
    if not isinstance(like, Tensor):
        reason = "without it, the result would be a NumPy array, which torch does not trace"
        raise TypeError(error_text(f"{where}.like", shown(like), reason, "it must be a tensor"))
    check_kind(like, f"{where}.like")
    if shape is None:
        if out is None:
            reason = "x is left out too"
            raise TypeError(
                error_text(f"{where}.shape", None, reason, "one of x, shape and out must be given")
            )
        shape = out.shape
    made = like.dtype if dtype is None else _dtype(arguments.data_type(dtype, f"{where}.dtype"))
    return like.new_zeros((), dtype=made).expand(shape)


def _bounds(begin: int, end: int) -> tuple[int, int]:
    """Return bounds of the same band that fit into 64 bits."""
    far = _FARTHEST_DIAGONAL
    is_inverted = begin > end
    # Symbols stand for sizes, which are not so large.
    begin, end = (max(min(bound, far), -far) if isinstance(bound, int) else bound for bound in (begin, end))
    # An inverted fill with both bounds beyond the same end leaves nothing out.
    return (end + 1 if is_inverted and begin == end else begin), end


def _check_stream(stream: Any, function: str) -> None:
    if stream is not None:
        reason = "torch chooses the stream of calls that it differentiates or traces"
        remedy = "call it within torch.cuda.stream(stream)"
        raise TypeError(error_text(f"{function}.stream", shown(stream), reason, remedy))


def _tensor(x: Any, where: str) -> Tensor:
    """Return an array that must be a tensor here."""
    if not isinstance(x, Tensor):
        reason = "torch differentiates or traces this call"
        raise TypeError(error_text(where, instance_of(x), reason, "it must be a tensor"))
    check_kind(x, where)
    if _is_distributed(x):
        _distributed_rules()
    return x


def _is_distributed(x: Tensor) -> bool:
    return type(x).__name__ == "DTensor"


def _distributed_rules() -> dict[str, Callable[..., Any]]:
    """Return the module that runs the operators on DTensors; the first call registers it with torch."""
    from dmlops.torch_distributed import RULES  # noqa: PLC0415 - as few need it

    return RULES


def _as_tensor(array: Any, where: str) -> Tensor:
    """Return an input of integers, which may be of another library, as a tensor."""
    return _tensor(torch.as_tensor(array), where)


def _check_fits(value: Any, where: str) -> None:
    """Refuse an integer that torch's operators cannot pass."""
    if type(value) is int and (_is_known(value < -(2**63)) or _is_known(value >= 2**63)):
        reason = "torch passes integers to its operators in 64 bits with a sign"
        refuse(where, value, reason, "it must be in [-2**63, 2**63 - 1] in a graph, and with a derivative")


def _is_known(condition: Any) -> bool:
    """Return whether a condition is true, whatever its symbols stand for."""
    if isinstance(condition, bool) and not torch.compiler.is_compiling():
        return condition
    # This import takes long, but tracing has done it already.
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # noqa: PLC0415

    return statically_known_true(condition)  # type: ignore[no-any-return]


def _number(value: Any) -> Any:
    """Return a scalar of NumPy, which torch's compiler takes for an array, as Python's."""
    return torch.as_tensor(value).item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _integer(value: Any, where: str) -> int:
    """Return an integer unchanged; it may be a symbol."""
    integer = _any_integer(value, where)
    _check_fits(integer, where)
    return integer


def _any_integer(value: Any, where: str) -> int:
    value = _number(value)
    return value if isinstance(value, (int, torch.SymInt)) else arguments.integer(value, where)


def _index_dtype(dtype: Any, out: Any, function: str) -> torch.dtype | None:
    """Return the type of the indices of a call; None for int64."""
    if dtype is not None:
        return _dtype(index_data_type(dtype, f"{function}.index_dtype"))
    if out is not None:
        check_is_pair(out, f"{function}.out")
        return _tensor(out[1], f"{function}.out[1]").dtype
    # The compiler cannot trace the look-up of the level; a compiled call checks it when it runs.
    if torch.compiler.is_dynamo_compiling() or level_or(FeatureLevel.EXTENDED) is FeatureLevel.EXTENDED:
        return None
    return torch.uint32


def _or_int64(dtype: torch.dtype | None) -> torch.dtype:
    """Return the type of indices: AOTInductor can leave out an argument only if it is None."""
    return torch.int64 if dtype is None else dtype


def _dtype(data_type: ElementType) -> torch.dtype:
    return getattr(torch, type_name(data_type))


def _written(
    results: Sequence[Tensor], out: Sequence[Any], names: Sequence[str], x: Tensor | None, function: str
) -> Sequence[Tensor]:
    """Copy results to the tensors of an ``out`` argument, which must fit exactly, and return those."""
    differentiates = x is not None and _is_tracked(x)
    for place, (result, array, name) in enumerate(zip(results, out, names, strict=True)):
        where = f"{function}.out[{place}]" if len(names) > 1 else f"{function}.out"
        _check_output(_tensor(array, where), result, name, differentiates, where)
    for result, array in zip(results, out, strict=True):
        array.copy_(result)
    return out


def _check_output(array: Tensor, result: Tensor, name: str, differentiates: bool, where: str) -> None:
    if differentiates or (torch.is_grad_enabled() and array.requires_grad):
        reason = "an output that is written in place has no derivative"
        remedy = "leave out, pass x.detach(), or use torch.no_grad()"
        raise TypeError(error_text(where, "a tensor", reason, remedy))
    _check_device(array, result, where)
    shape = () if name == "count" and tuple(array.shape) == (1,) else array.shape
    if shape != result.shape or array.dtype != result.dtype:
        got = f"{array.dtype} of shape {tuple(array.shape)}"
        expected = f"{result.dtype} of shape {tuple(result.shape)}"
        refuse(where, got, f"the {name} must be {expected}", "types and shapes must be equal")


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
        return x.new_empty(sizes, dtype=_dtype(desc.data_type))


def _check_device(array: Tensor, x: Tensor, where: str) -> None:
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
        _check_device(lengths, x, "top_k.lengths")
        rows = [d for d in range(x.dim()) if d != axis % x.dim()]
        row_lengths = _equated(
            "top_k.lengths",
            *(symbols.describe(lengths, "top_k.lengths"), lengths.shape),
            *([data.sizes[d] for d in rows], [x.shape[d] for d in rows]),
        )
    # Whether a type holds all indices is known once the sizes are.
    is_sized = all(isinstance(size, int) for size in x.shape)
    index_type = index_data_type(_or_int64(index_dtype) if is_sized else torch.int64, "top_k.index_dtype")
    with InWordsOf("top_k", has_out=False):
        # torch checks a symbolic k, and then knows that it is not larger than the axis.
        known_k = k if isinstance(k, int) else 0
        values, indices = infer_top_k(data, known_k, axis, index_type, row_lengths)
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


def _differentiable_top_k(
    x: Tensor,
    k: int,
    axis: int,
    largest: bool,
    sorted: bool,
    lengths: Tensor | None,
    index_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    values, indices = _top_k(x.detach(), k, axis, largest, sorted, lengths, index_dtype)
    x = x if x.dim() else x.reshape(1)
    # In unsigned types, the index of padding is the highest number.
    places = indices.long()
    if lengths is None:
        return _gather(x, axis, places), indices
    size = x.shape[axis]
    is_there = (places >= 0) & (places < size)
    return torch.where(is_there, _gather(x, axis, places.clamp(0, size - 1)), values), indices


def _batched_top_k(
    in_dims: tuple[int | None, ...],
    x: Tensor,
    k: int,
    axis: int,
    largest: bool,
    sorted: bool,
    lengths: Tensor | None,
    index_dtype: torch.dtype | None = None,
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
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
    return _top_k(x, k, axis, largest, sorted, lengths, index_dtype), (0, 0)


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
    with InWordsOf("nonzero_coordinates", has_out=False, sizes="size"):
        coordinates, count = infer_nonzero_coordinates(data, symbols.number(size), index_type)
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
    places = torch.searchsorted(counts, rows)
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
    _check_device(indices, x, "gather_nd.indices")
    data, tuples = symbols.describe(x, "gather_nd.x"), symbols.describe(indices, "gather_nd.indices")
    tuples = TensorDesc(tuples.data_type, (*tuples.sizes[:-1], *map(int, indices.shape[-1:])))
    tuples = _equated(
        "gather_nd.indices", tuples, indices.shape[:batch_dims], data.sizes, x.shape[:batch_dims]
    )
    with InWordsOf("gather_nd", has_out=False, sizes="indices"):
        return symbols.empty(x, infer_gather_nd(data, tuples, batch_dims, mode))


def _differentiable_gather_nd(x: Tensor, indices: Tensor, batch_dims: int, mode: str) -> Tensor:
    if _is_known(x.numel() == 0):
        # The sum of no elements is zero, and connects the result to x.
        gathered: Tensor = _gather_nd(x.detach(), indices, batch_dims, mode)
        return gathered + x.sum()
    has_batches = 0 <= batch_dims < min(x.dim(), indices.dim())
    if not (has_batches and 0 < indices.shape[-1] <= x.dim() - batch_dims):
        # The kernel refuses arguments that do not fit. A tuple without coordinates selects all of its batch.
        _gather_nd(x.detach(), indices, batch_dims, mode)
        batch, rest = x.shape[:batch_dims], x.shape[batch_dims:]
        whole = x.reshape((*batch, *(1,) * (indices.dim() - 1 - batch_dims), *rest))
        return whole.expand((*indices.shape[:-1], *rest)).contiguous()
    end = batch_dims + indices.shape[-1]
    rows, found = _rows(x, indices, batch_dims, mode)
    blocks = x.reshape(math.prod(x.shape[:end]), math.prod(x.shape[end:]))
    # Inductor compiles index_select under vmap and grad to wrong gradients.
    blocks = _gather(blocks, 0, rows.reshape(-1, 1).expand(-1, blocks.shape[1]))
    if mode == "fill":
        blocks = torch.where(found.reshape(-1, 1), blocks, 0)
    return blocks.reshape((*indices.shape[:-1], *x.shape[end:]))


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
        # The batch is copied as the first dimension of the blocks.
        x = x.movedim(of_x, batch_dims + indices.shape[-1])
        return _gather_nd(x, indices, batch_dims, mode), indices.dim() - 1
    if of_x is None:
        # The batch only adds tuples.
        return _gather_nd(x, indices.movedim(of_indices, batch_dims), batch_dims, mode), batch_dims
    return _gather_nd(x.movedim(of_x, 0), indices.movedim(of_indices, 0), batch_dims + 1, mode), 0


def _run_diagonal_matrix(x: Tensor, value: torch.types.Number, begin: int, end: int) -> Tensor:
    return functions.diagonal_matrix(_plain(x), value=value, begin=begin, end=end)


@sizes_stand_in()
def _fake_diagonal_matrix(x: Tensor, value: torch.types.Number, begin: int, end: int) -> Tensor:
    symbols = _Symbols()
    # The shape of the result depends neither on the bounds nor on a traced value.
    known = value if isinstance(value, (int, float, complex)) else 0
    data = symbols.describe(x, "diagonal_matrix.x")
    with InWordsOf("diagonal_matrix", has_out=False):
        return symbols.empty(x, infer_diagonal_matrix(data.data_type, data.sizes, known))


def _differentiable_diagonal_matrix(x: Tensor, value: torch.types.Number, begin: int, end: int) -> Tensor:
    if x.dim() < 2:
        return _diagonal_matrix(x.detach(), value, begin, end)  # this refuses it
    fill = _diagonal_matrix(torch.zeros((1, 1), dtype=x.dtype, device=x.device), value, 0, 1)
    return torch.where(_band(x, begin, end), fill, x).contiguous()


def _band(x: Tensor, begin: int, end: int) -> Tensor:
    """Return a matrix that is True where `x` is filled."""
    nothing = torch.zeros((), dtype=torch.bool, device=x.device)
    band: Tensor = _diagonal_matrix(nothing.expand(x.shape[-2:]), 1, begin, end)
    return band


def _batched_diagonal_matrix(
    in_dims: tuple[int, ...], x: Tensor, value: torch.types.Number, begin: int, end: int
) -> tuple[Tensor, int]:
    return _diagonal_matrix(x.movedim(in_dims[0], 0), value, begin, end), 0


def _is_tracked(x: Tensor) -> bool:
    """Return whether a derivative with respect to `x` is requested, in reverse or forward mode."""
    if not (x.is_floating_point() or x.is_complex()) or x.layout is not torch.strided:
        return False
    return (x.requires_grad and torch.is_grad_enabled()) or _has_tangent(x)


def _has_tangent(x: Tensor) -> bool:
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
        if _is_tracked(x):
            if _is_distributed(x):
                return _distributed_rules()[operator.name()](x, *arguments)
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

_top_k = _operator("top_k", _run_top_k, _fake_top_k)
_register_derivatives(_top_k, _differentiable_top_k)
_register_vmap(_top_k, _fake_top_k, _batched_top_k)

_nonzero_coordinates = _operator(
    "nonzero_coordinates",
    _run_nonzero_coordinates,
    _fake_nonzero_coordinates,
    *(torch.Tag.dynamic_output_shape, torch.Tag.cudagraph_unsafe),
)
torch.library.register_vmap(_nonzero_coordinates, _refuse_batched_nonzero_coordinates, lib=_LIBRARY)

_nonzero_coordinates_static = _operator(
    "nonzero_coordinates_static", _run_nonzero_coordinates_static, _fake_nonzero_coordinates_static
)
_register_vmap(
    _nonzero_coordinates_static, _fake_nonzero_coordinates_static, _batched_nonzero_coordinates_static
)

_gather_nd = _operator("gather_nd", _run_gather_nd, _fake_gather_nd)
_register_derivatives(_gather_nd, _differentiable_gather_nd)
_register_vmap(_gather_nd, _fake_gather_nd, _batched_gather_nd)

_diagonal_matrix = _operator("diagonal_matrix", _run_diagonal_matrix, _fake_diagonal_matrix)
_register_derivatives(_diagonal_matrix, _differentiable_diagonal_matrix)
_register_vmap(_diagonal_matrix, _fake_diagonal_matrix, _batched_diagonal_matrix)

OPERATORS = _top_k, _nonzero_coordinates, _nonzero_coordinates_static, _gather_nd, _diagonal_matrix
"""All operators that are registered as ``torch.ops.dmlops``."""
