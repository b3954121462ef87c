"""The operators as torch operators, ``torch.ops.dmlops``, with their derivatives.

While a graph is traced, the descriptors infer what an operator returns. With a derivative, the kernels still
do the work, and torch's own operators take gradients back, whose derivatives torch knows. In forward mode and
within a transformation of ``torch.func``, torch's own operators move the elements as well.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from dmlops import NonzeroResult, TopKResult, functions
from dmlops.calls.binding import check_device
from dmlops.calls.dispatch import level_or
from dmlops.functions.diagonal_matrix import SPEC as DIAGONAL_MATRIX_FUNCTION
from dmlops.functions.gather_nd import SPEC as GATHER_ND_FUNCTION
from dmlops.functions.nonzero_coordinates import SPEC as NONZERO_FUNCTION
from dmlops.functions.sample import SPEC as SAMPLE_FUNCTION
from dmlops.functions.top_k import SPEC as TOP_K_FUNCTION
from dmlops.integrations.torch.derivatives import (
    as_int64,
    flattened,
    is_known,
    is_tracked,
    numbered,
    order_of_numbers,
    selected,
    spread_along,
    within,
)
from dmlops.integrations.torch.memory import check_known_strides, check_memory
from dmlops.operators.diagonal_matrix import infer_diagonal_matrix
from dmlops.operators.fill_values import held_value
from dmlops.operators.gather_nd import check_mode, check_use, infer_gather_nd
from dmlops.operators.nonzero_coordinates import infer_nonzero_coordinates
from dmlops.operators.sample import PARAMETERS, infer_sample
from dmlops.operators.top_k import Rows, broadcast_rows, check_type_of_numbers, infer_top_k
from dmlops.store.once import registered
from dmlops.types.arguments import check_dimensions
from dmlops.types.data_types import data_type_of, dtype_name, index_data_type
from dmlops.types.enums import FeatureLevel
from dmlops.types.errors import error_text, refuse
from dmlops.types.opaque_types import ElementType, type_name
from dmlops.types.tensor import TensorDesc, sizes_stand_in

# More than any tensor has elements along a dimension.
_FIRST_STAND_IN = 2**60
# A call of the kernel takes some 10 us. Examples of a batch that have this many elements take longer, and
# each gets a call of its own; shorter examples share calls of up to `_TOGETHER` elements.
_LONG_EXAMPLE = {"cpu": 2**12, "cuda": 2**16}
_TOGETHER = 2**20
# Torch's calls look up their functions here, by purpose and operator: another import of dmlops registers
# nothing, and writes its own functions here.
_code: dict[tuple[str, str], Callable[..., Any]] = registered("torch", "code", dict)
_LIBRARY = registered("torch", "library", partial(torch.library.Library, "dmlops", "FRAGMENT"))
_DISPATCH_KEYS = "CompositeExplicitAutograd", "Autograd"


def is_distributed(x: Tensor) -> bool:
    """Return whether a tensor is a DTensor."""
    return type(x).__name__ == "DTensor"


def distributed_rules() -> dict[str, Callable[..., Any]]:
    """Return the module that runs the operators on DTensors; the first call registers it with torch."""
    from dmlops.integrations.torch.distributed import RULES  # noqa: PLC0415 - as few need it

    return RULES


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
        check_dimensions(where, x.dim())
        return TensorDesc(data_type_of(x.dtype, where), tuple(self.number(size) for size in x.shape))

    def resized(self, desc: TensorDesc, axis: int, size: Any) -> TensorDesc:
        sizes = [*desc.sizes]
        sizes[axis] = self.number(size)
        return TensorDesc(desc.data_type, tuple(sizes))

    def empty(self, x: Tensor, desc: TensorDesc, batch: Sequence[int] = ()) -> Tensor:
        sizes = [self._sizes.get(size, size) for size in desc.sizes]
        return x.new_empty((*batch, *sizes), dtype=torch_dtype(desc.data_type))


def _equated(where: str, desc: TensorDesc, shape: Any, other: Sequence[int], other_shape: Any) -> TensorDesc:
    """Return the description of a tensor with the unknown ones of its leading sizes replaced by another's."""
    sizes_differ = f"{where}: got shape {tuple(shape)}, but x has sizes {tuple(other_shape)} there"
    sizes = [*desc.sizes]
    for d, (ours, theirs) in enumerate(zip(shape, other_shape, strict=False)):
        if not (isinstance(ours, int) and isinstance(theirs, int)):
            torch._check(ours == theirs, lambda: sizes_differ)
            sizes[d] = other[d]
    return TensorDesc(desc.data_type, tuple(sizes))


def _broadcast(
    where: str, desc: TensorDesc, shape: Sequence[Any], others: list[int], other_shape: list[Any]
) -> TensorDesc:
    """Return the description of a tensor with the unknown ones of its last sizes replaced by another's.

    Sizes that are not known to be 1 are taken to be equal. `others` and `other_shape` become those to which
    both tensors broadcast.
    """
    sizes_differ = f"{where}: got shape {tuple(shape)}, but x has sizes {tuple(other_shape)} there"
    sizes = [*desc.sizes]
    for d in range(1, len(shape) + 1):
        ours = shape[-d]
        if d > len(others):
            others.insert(0, sizes[-d])
            other_shape.insert(0, ours)
            continue
        theirs = other_shape[-d]
        if is_known(ours == 1):
            sizes[-d] = 1
        elif is_known(theirs == 1):
            others[-d], other_shape[-d] = sizes[-d], ours
        elif not (isinstance(ours, int) and isinstance(theirs, int)):
            torch._check(ours == theirs, lambda: sizes_differ)
            sizes[-d] = others[-d]
    return TensorDesc(desc.data_type, tuple(sizes))


def _described_rows(symbols: _Symbols, x: Tensor, axis: int, given: dict[str, Tensor]) -> Rows:
    """Return the descriptions of a call's tensors, with numbers for the sizes that are unknown."""
    data = symbols.describe(x, "top_k.x")
    described = {}
    rows, row_sizes = [*x.shape], [*data.sizes]
    if x.dim() and -x.dim() <= axis < x.dim():
        del rows[axis]
        del row_sizes[axis]
    for name, tensor in given.items():
        where = f"top_k.{name}"
        check_device(where, tensor.device, x.device)
        desc = symbols.describe(tensor, where)
        if name != "indices":
            desc = _broadcast(where, desc, tensor.shape, row_sizes, rows)
        elif x.dim() and -x.dim() <= axis < x.dim():
            n_dims = tensor.dim()
            shape, sizes = [*x.shape], [*data.sizes]
            if n_dims == 1:
                shape, sizes = [shape[axis]], [sizes[axis]]
            elif len(rows) >= x.dim():
                shape, sizes = [*rows, shape[axis]], [*row_sizes, sizes[axis]]
            desc = _broadcast(where, desc, tensor.shape, sizes, shape)
        described[name] = desc
    return broadcast_rows(data, axis, described)


@sizes_stand_in()
def _fake_top_k(
    x: Tensor,
    k: int,
    axis: int,
    largest: bool,
    sorted: bool,
    lengths: Tensor | None,
    index_dtype: torch.dtype | None = None,
    starts: Tensor | None = None,
    indices: Tensor | None = None,
    max_length: int | None = None,
    nan_last: bool = False,
) -> tuple[Tensor, Tensor]:
    symbols = _Symbols()
    arrays = {"lengths": lengths, "starts": starts, "indices": indices}
    given = {name: tensor for name, tensor in arrays.items() if tensor is not None}
    rows = _described_rows(symbols, x, axis, given)
    if rows.numbers is not None:
        of_numbers = torch_dtype(rows.numbers.data_type)
        check_type_of_numbers(rows.numbers, None if index_dtype is None else index_data_type(index_dtype, ""))
        index_dtype = of_numbers
    index_dtype = index_dtype or torch.int64  # AOTInductor can leave out an argument only if it is None
    # Whether a type holds all indices is known once the sizes are.
    is_sized = rows.numbers is not None or all(isinstance(size, int) for size in x.shape)
    index_type = index_data_type(index_dtype if is_sized else torch.int64, "top_k.index_dtype")
    # torch checks a symbolic k, and then knows that it is not larger than the axis.
    known_k = k if isinstance(k, int) else 0
    values, found = infer_top_k(TOP_K_FUNCTION.words, rows, known_k, index_type)
    if not isinstance(k, int):
        torch._check(k >= 0, lambda: f"top_k.k: got {k}, but it must be >= 0")
        if not given:
            size = x.shape[axis] if x.dim() else 1
            torch._check(k <= size, lambda: f"top_k.k: got {k}, but the axis of x has {size} elements")
        values, found = symbols.resized(values, rows.axis, k), symbols.resized(found, rows.axis, k)
    return symbols.empty(x, values), symbols.empty(x, found).to(index_dtype)


def _differentiable_top_k(x: Tensor, k: int, axis: int, *others: Any) -> tuple[Tensor, Tensor]:
    given: list[Any] = [*others, *_TOP_K_DEFAULTS[len(others) :]]
    largest, is_sorted, lengths, _, starts, numbers, *last = given
    if numbers is None:
        values, indices = TOP_K(x.detach(), k, axis, *others)
        # A copy, because the caller may write to the indices before the backward pass.
        places = indices.to(torch.int64, copy=True)
    else:
        # Where an element comes by its number tells its position, too.
        _fake_top_k(x, k, axis, *others)  # this refuses arguments that do not fit
        order, ranks = order_of_numbers(numbers, x, axis)
        options = largest, is_sorted, lengths, None, starts, ranks, *last
        values, found = TOP_K(x.detach(), k, axis, *options)
        places, indices = numbered(numbers, order, found, x, axis)
    x = x if x.dim() else x.reshape(1)
    axis %= x.dim()
    if lengths is starts is numbers is None:
        return selected(
            x,
            values,
            places,
            lambda zeros, gradient, places: zeros.scatter_(axis, places, gradient),
            lambda x, places: x.gather(axis, places),
        ), indices
    if _rows_of(x, axis) != _rows_of(values, axis + values.dim() - x.dim()):
        # Rows share elements of x: it becomes a single row.
        x, places = flattened(x, axis, places)
        axis = 0

    def select(x: Tensor, places: Tensor) -> Tensor:
        is_there, places = within(x, axis, places)
        found = x.gather(axis, places if places.dim() == x.dim() else places.reshape(-1))
        return torch.where(is_there, found.reshape(places.shape), values)

    return selected(x, values, places, partial(spread_along, axis), select), indices


# Of the arguments of `_fake_top_k` after the axis.
_TOP_K_DEFAULTS = (True, True, None, None, None, None, None, False)


def _rows_of(x: Tensor, axis: int) -> tuple[Any, ...]:
    return (*x.shape[:axis], *x.shape[axis + 1 :])


def _batched_top_k(info: Any, in_dims: Any, x: Tensor, k: int, axis: int, *others: Any) -> Any:
    arguments = [x, k, axis, *others, *_TOP_K_DEFAULTS[len(others) :]]
    x_rank = max(x.dim() - (in_dims[0] is not None), 1)
    # By their places among the arguments: lengths, starts and indices.
    ranks = {
        place: arguments[place].dim() - (place < len(in_dims) and in_dims[place] is not None)
        for place in (5, 7, 8)
        if arguments[place] is not None
    }
    rank = max(x_rank, *[ranks[place] + 1 for place in (5, 7) if place in ranks], 0)
    axis = axis % x_rank + rank - x_rank
    for place, n_dims in {0: x_rank, **ranks}.items():
        d = in_dims[place] if place < len(in_dims) else None
        tensor = arguments[place]
        if place == 8 and n_dims == 1:
            if d is None:
                continue
            batch = tensor.movedim(d, 0)
            arguments[place] = batch.reshape(batch.shape[0], *(1,) * axis, -1, *(1,) * (rank - 1 - axis))
            continue
        batch = _with_batch(info, tensor, d)
        wanted = rank - (place in (5, 7))
        arguments[place] = batch.reshape(batch.shape[0], *(1,) * (wanted - batch.dim() + 1), *batch.shape[1:])
    arguments[2] = axis + 1
    return TOP_K(*arguments), (0, 0)


def _with_batch(info: Any, x: Tensor, d: int | None) -> Tensor:
    """Return a tensor whose first dimension is that of the batch, now dimension `d` or none."""
    return x.expand(info.batch_size, *x.shape) if d is None else x.movedim(d, 0)


@sizes_stand_in()
def _fake_nonzero_coordinates(x: Tensor, index_dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    if x.device.type == "meta":
        reason = "the number of rows depends on the elements, which this tensor does not have"
        refuse("nonzero_coordinates.size", None, reason, "size must be a number of rows")
    return _fake_nonzero_coordinates_static(x, torch.library.get_ctx().new_dynamic_size(), None, index_dtype)


def _refuse_batched_nonzero_coordinates(*arguments: Any) -> NoReturn:
    reason, remedy = "examples of torch.func.vmap may differ in their count", "size must be a number of rows"
    refuse("nonzero_coordinates.size", None, reason, remedy)


@sizes_stand_in()
def _fake_nonzero_coordinates_static(
    x: Tensor,
    size: int,
    fill_value: Sequence[int] | None,
    index_dtype: torch.dtype | None = None,
    batch_dims: int = 0,
) -> tuple[Tensor, Tensor]:
    symbols = _Symbols()
    index_type = index_data_type(index_dtype or torch.int64, "nonzero_coordinates.index_dtype")
    # Neither result depends on the sizes of x.
    data = TensorDesc(data_type_of(x.dtype, "nonzero_coordinates.x"), (1,) * (x.dim() - batch_dims))
    words, capacity = NONZERO_FUNCTION.words, symbols.number(size)
    coordinates, count = infer_nonzero_coordinates(words, data, capacity, index_type)
    batch = x.shape[:batch_dims]
    return symbols.empty(x, coordinates, batch), symbols.empty(x, count, batch)


def _batched_nonzero_coordinates_static(
    info: Any, in_dims: Any, x: Tensor, size: int, fill: Any, index_dtype: Any = None, batch_dims: int = 0
) -> Any:
    x = x.movedim(in_dims[0], 0)
    return NONZERO_COORDINATES_STATIC(x, size, fill, index_dtype, batch_dims + 1), (0, 0)


def _nonzero_coordinates_static(
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


@sizes_stand_in()
def _fake_sample(
    logits: Tensor,
    given: Sequence[Tensor | None],
    seed: int,
    step: int,
    temperature: float,
    k: int,
    top_p: float,
    min_p: float,
    index_dtype: torch.dtype | None = None,
) -> Tensor:
    symbols = _Symbols()
    data, arrays = symbols.describe(logits, "sample.logits"), {}
    for name, array in zip(PARAMETERS, given, strict=True):
        if array is None:
            continue
        where = f"sample.{name}"
        check_device(where, array.device, logits.device)
        # The sizes of rows, where they are not known, are those of the logits.
        first = max(logits.dim() - 1 - array.dim(), 0)
        sizes, shape = data.sizes[first:-1], logits.shape[first:-1]
        described = symbols.describe(array, where)
        arrays[name] = _equated(where, described, array.shape, sizes, shape)
    is_sized = all(isinstance(size, int) for size in logits.shape[-1:])
    index_type = index_data_type((index_dtype if is_sized else None) or torch.int64, "sample.index_dtype")
    if not is_sized:
        data = TensorDesc(data.data_type, (*data.sizes[:-1], 1))
    tokens = infer_sample(SAMPLE_FUNCTION.words, data, index_type, arrays)
    return symbols.empty(logits, tokens).to(index_dtype or torch.int64)


def _sample(
    logits: Tensor,
    /,
    *,
    given: Sequence[Tensor | None],
    seed: int,
    step: int,
    temperature: float,
    k: int,
    top_p: float,
    min_p: float,
    index_dtype: torch.dtype,
) -> Any:
    """Run `dmlops.sample` with arrays where there are some, and numbers for the other parameters."""
    numbers = seed, step, temperature, k, top_p, min_p
    chosen = [number if array is None else array for array, number in zip(given, numbers, strict=True)]
    return functions.sample(logits, **dict(zip(PARAMETERS, chosen, strict=True)), index_dtype=index_dtype)


def _batched_sample(
    info: Any, in_dims: Any, logits: Tensor, given: Sequence[Tensor | None], *others: Any
) -> tuple[Tensor, int]:
    of_logits, of_given, *_ = in_dims
    # Arguments that do not fit are refused in terms of one example.
    example = logits if of_logits is None else _example(logits, of_logits)
    dims = of_given or [None] * len(given)
    pairs = list(zip(given, dims, strict=True))
    _fake_sample(
        example, [array if d is None or array is None else _example(array, d) for array, d in pairs], *others
    )
    logits = _with_batch(info, logits, of_logits)

    def with_batch(array: Tensor, d: int) -> Tensor:
        moved = array.movedim(d, 0)
        return moved.reshape(moved.shape[0], *(1,) * (logits.dim() - 1 - moved.dim()), *moved.shape[1:])

    batched = [array if d is None or array is None else with_batch(array, d) for array, d in pairs]
    return SAMPLE(logits, batched, *others), 0


@sizes_stand_in()
def _fake_gather_nd(
    x: Tensor,
    indices: Tensor,
    batch_dims: int,
    mode: str,
    fill_value: torch.types.Number,
    wrap_negative: bool,
) -> Tensor:
    symbols = _Symbols()
    check_device("gather_nd.indices", indices.device, x.device)
    data, tuples = symbols.describe(x, "gather_nd.x"), symbols.describe(indices, "gather_nd.indices")
    tuples = TensorDesc(tuples.data_type, (*tuples.sizes[:-1], *map(int, indices.shape[-1:])))
    tuples = _equated(
        "gather_nd.indices", tuples, indices.shape[:batch_dims], data.sizes, x.shape[:batch_dims]
    )
    check_mode(mode)
    if isinstance(fill_value, (int, float, complex)):
        check_use(fill_value, mode)
        held_value("gather_nd.fill_value", fill_value, data.data_type)
    return symbols.empty(x, infer_gather_nd(GATHER_ND_FUNCTION.words, data, tuples, batch_dims))


def _differentiable_gather_nd(
    x: Tensor,
    indices: Tensor,
    batch_dims: int,
    mode: str,
    fill_value: torch.types.Number,
    wrap_negative: bool,
) -> Any:
    # This refuses arguments that do not fit.
    values = GATHER_ND(x.detach(), indices, batch_dims, mode, fill_value, wrap_negative)
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


def _blocks(shape: Any, indices: Tensor, *, batch_dims: int, wraps: bool) -> tuple[Tensor, Tensor]:
    """Return the number of the block that each tuple points at, or of the nearest, and whether it is one."""
    numbers = torch.arange(math.prod(shape[:batch_dims]), device=indices.device)
    numbers = numbers.reshape((*shape[:batch_dims], *(1,) * (indices.dim() - 1 - batch_dims)))
    found = torch.ones_like(numbers, dtype=torch.bool)
    for size, index in zip(shape[batch_dims:], as_int64(indices).unbind(-1), strict=False):
        place = torch.where(index < 0, index + size, index) if wraps else index
        found = found & (place >= 0) & (place < size)
        numbers = numbers * size + place.clamp(0, size - 1)
    return numbers.expand(indices.shape[:-1]).reshape(-1), found.expand(indices.shape[:-1])


def gather_range(x: Tensor, indices: Tensor, batch_dims: int, wraps: bool) -> Tensor:
    """Return whether each slice of a gather is in range, in a shape that broadcasts with the result."""
    _, found = _blocks(x.shape, indices, batch_dims=batch_dims, wraps=wraps)
    return found.reshape(*found.shape, *(1,) * (x.dim() - batch_dims - indices.shape[-1]))


def _batched_gather_nd(
    info: Any, in_dims: Any, x: Tensor, indices: Tensor, batch_dims: int, *options: Any
) -> tuple[Tensor, int]:
    of_x, of_indices = in_dims[:2]
    if of_indices is None:
        # The batch is copied as the first dimension of the blocks.
        x = x.movedim(of_x, batch_dims + indices.shape[-1])
        return GATHER_ND(x, indices, batch_dims, *options), indices.dim() - 1
    if of_x is None:
        # The batch only adds tuples.
        return GATHER_ND(x, indices.movedim(of_indices, batch_dims), batch_dims, *options), batch_dims
    return GATHER_ND(x.movedim(of_x, 0), indices.movedim(of_indices, 0), batch_dims + 1, *options), 0


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


def _batched_diagonal_matrix(info: Any, in_dims: Any, x: Tensor, *arguments: Any) -> tuple[Tensor, int]:
    return DIAGONAL_MATRIX(x.movedim(in_dims[0], 0), *arguments), 0


def _let_run(
    what: str, name: str, function: Callable[..., Any], register: Callable[[Callable[..., Any]], object]
) -> None:
    """Let torch call a function, in the place of that of an earlier import of dmlops."""

    def run(*arguments: Any) -> Any:
        return _code[what, name](*arguments)

    _code[what, name] = function
    registered("torch", (what, name), lambda: register(run))


def _check_memory_of_batch(
    info: Any, in_dims: Any, read: Sequence[Tensor], written: Sequence[Tensor], names: str
) -> tuple[Tensor, None]:
    for array, d, name in zip(written, in_dims[1], names.split(",")[len(read) :], strict=True):
        if d is None:
            got, reason = f"shape {tuple(array.shape)}", "all examples of torch.func.vmap would write to it"
            refuse(name, got, reason, "out must have a part for each example")
    return CHECK_MEMORY(read, written, names), None


def _implement(name: str, function: Callable[..., Any], key: str) -> None:
    with_keyset = key == "Autograd"
    _let_run(key, name, function, lambda run: _LIBRARY.impl(name, run, key, with_keyset=with_keyset))


@cache
def hide_from_compiler() -> None:
    """Make torch's compiler see calls of the operators rather than the code that runs them.

    It would trace that code where a graph breaks at such a call, and find a call of the same operator there.
    """
    for place, function in _code.items():
        if place[0] in _DISPATCH_KEYS:
            _code[place] = torch.compiler.disable(function)
    torch.compiler.assume_constant_result(dtype_name)  # it could not trace NumPy's error


def _operator(name: str, function: Callable[..., Any], fake: Callable[..., Any], *tags: Any) -> Any:
    """Register an operator, which takes tensors of any strides.

    Its parameters are those of `fake`, and have the names of the function that runs it.
    """
    names = [*inspect.signature(fake).parameters]
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    n_leading = kinds.count(inspect.Parameter.POSITIONAL_ONLY)

    def run(*arguments: Any) -> Any:
        plain = [
            value.detach().as_subclass(Tensor) if isinstance(value, Tensor) else value for value in arguments
        ]
        options = dict(zip(names[n_leading:], plain[n_leading:], strict=False))
        if "index_dtype" in names and (n_leading == 0 or options.get("indices") is None):
            options["index_dtype"] = options.get("index_dtype") or torch.int64
        results = function(*plain[:n_leading], **options)
        return results if isinstance(results, Tensor) else tuple(results)

    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout, *tags)
    schema = torch.library.infer_schema(fake, mutates_args=(), op_name=name)
    registered("torch", schema, lambda: _LIBRARY.define(schema, tags=tags))
    _implement(name, run, "CompositeExplicitAutograd")
    described = partial(torch.library.register_fake, f"dmlops::{name}", lib=_LIBRARY)
    _let_run("fake", name, fake, described)
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
        fake(*[_example(argument, d) if isinstance(d, int) else argument for argument, d in pairs])
        return batched(info, in_dims, *arguments)

    _implement_vmap(operator, run_batch)


def _implement_vmap(operator: Any, run_batch: Callable[..., Any]) -> None:
    _let_run(
        "vmap",
        operator.name(),
        run_batch,
        lambda run: torch.library.register_vmap(operator, run, lib=_LIBRARY),
    )


def _example(batch: Tensor, d: int) -> Tensor:
    """Return a stand-in for one example of a batch along dimension `d`."""
    return batch.new_empty(()).expand(batch.shape[:d] + batch.shape[d + 1 :])


# Exported programs that return these can be saved.
_register: Any = getattr(torch.utils._pytree, "_register_namedtuple", None)
if _register is not None:
    for _result in (TopKResult, NonzeroResult):
        _register(_result, serialized_type_name=f"dmlops.{_result.__name__}")

TOP_K = _operator("top_k", functions.top_k, _fake_top_k)
_register_derivatives(TOP_K, _differentiable_top_k)
_register_vmap(TOP_K, _fake_top_k, _batched_top_k)

_DYNAMIC = torch.Tag.dynamic_output_shape, torch.Tag.cudagraph_unsafe
NONZERO_COORDINATES = _operator(
    "nonzero_coordinates", functions.nonzero_coordinates, _fake_nonzero_coordinates, *_DYNAMIC
)
_implement_vmap(NONZERO_COORDINATES, _refuse_batched_nonzero_coordinates)

NONZERO_COORDINATES_STATIC = _operator(
    "nonzero_coordinates_static", _nonzero_coordinates_static, _fake_nonzero_coordinates_static
)
_register_vmap(
    NONZERO_COORDINATES_STATIC, _fake_nonzero_coordinates_static, _batched_nonzero_coordinates_static
)

SAMPLE = _operator("sample", _sample, _fake_sample)
_implement_vmap(SAMPLE, _batched_sample)

GATHER_ND = _operator("gather_nd", functions.gather_nd, _fake_gather_nd)
_register_derivatives(GATHER_ND, _differentiable_gather_nd)
_register_vmap(GATHER_ND, _fake_gather_nd, _batched_gather_nd)

DIAGONAL_MATRIX = _operator("diagonal_matrix", functions.diagonal_matrix, _fake_diagonal_matrix)
_register_derivatives(DIAGONAL_MATRIX, _differentiable_diagonal_matrix)
_register_vmap(DIAGONAL_MATRIX, _fake_diagonal_matrix, _batched_diagonal_matrix)

CHECK_MEMORY = _operator("check_memory", check_memory, check_known_strides)
"""Checks the memory of outputs before anything is written to them; graphs leave it out, once it is traced."""
_implement_vmap(CHECK_MEMORY, _check_memory_of_batch)

OPERATORS = TOP_K, NONZERO_COORDINATES, NONZERO_COORDINATES_STATIC, SAMPLE, GATHER_ND, DIAGONAL_MATRIX
"""The operators of ``torch.ops.dmlops`` that compute something."""
