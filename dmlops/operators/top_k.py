"""TOP_K and TOP_K1: the K largest or smallest elements along an axis."""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from dmlops.operators.batching import BATCH, Batched, Layout
from dmlops.operators.descriptor import INFERRED, Descriptor, check_holds, check_index_type, result
from dmlops.operators.layout import merge
from dmlops.operators.problem import Operator, Options, key_masks
from dmlops.operators.support import EVERY_TYPE, INDEX_TYPES, INTEGERS_64, SMALL_TYPES, UINT32, SupportTable
from dmlops.types.enums import AxisDirection, FeatureLevel, TensorDataType
from dmlops.types.errors import Words, counted, error_text, refuse
from dmlops.types.opaque_types import ElementType, OpaqueType, type_name
from dmlops.types.tensor import TensorDesc, do_sizes_stand_in
from kernels_cpu.problems import TopKProblem

# Results take up to 8 bytes each.
_MOST_RESULTS = ((1 << 63) - 1) // 8
_FLOATS = frozenset({TensorDataType.FLOAT32, TensorDataType.FLOAT16})
_FROM_2_1 = (
    (FeatureLevel.DML_2_1, (4, 4), SMALL_TYPES, {"output_index_tensor": UINT32}),
    (FeatureLevel.DML_3_1, (1, 8), SMALL_TYPES, {"output_index_tensor": UINT32}),
    (
        FeatureLevel.DML_5_0,
        (1, 8),
        SMALL_TYPES | INTEGERS_64,
        {"output_index_tensor": UINT32 | {TensorDataType.UINT64}},
    ),
    (FeatureLevel.EXTENDED, (1, None), EVERY_TYPE, {"output_index_tensor": INDEX_TYPES}),
)


# The remedies for elements without an order.
_NOT_ORDERED = {
    "complex": ("complex numbers have no order", "pass x.real, x.imag or abs(x)"),
    "structured": ("structured elements have no order", 'pass one field, such as x["name"]'),
    "float8": (
        "top_k does not know their order",
        "convert x to float16 or bfloat16, which hold all their values",
    ),
}


class Selection(NamedTuple):
    """The arguments of `top_k` that are neither arrays nor say where it runs."""

    k: int
    axis: int
    """The number of elements and the dimension."""
    largest: bool = True
    is_sorted: bool = True
    nan_last: bool = False
    """The order of elements and of results."""
    max_length: int | None = None
    """The most elements of a row that take part; None for all."""
    index_type: Any = None
    """The type of the indices, or None for the default."""
    given: tuple[str, ...] = ()
    """The parameters that are arrays beside `x`: of lengths, starts and indices those that the call has, in
    this order."""

    def arrays(self, others: Iterable[object]) -> dict[str, Any]:
        """Return the arrays beside `x` by their names."""
        return dict(zip(self.given, others, strict=True))


class Rows(NamedTuple):
    """The tensors of a call in the shape of its rows."""

    x: TensorDesc
    """The input."""
    axis: int
    """The dimension along which to select."""
    lengths: TensorDesc | None = None
    starts: TensorDesc | None = None
    """How many elements each row has, and from which position on, in the shape of `x` without the axis."""
    numbers: TensorDesc | None = None
    """The caller's numbers of the elements, in the shape of `x`."""


def broadcast_rows(x: TensorDesc, axis: int, others: Mapping[str, TensorDesc]) -> Rows:
    """Return the tensors of a call of `top_k` as they lie in memory, broadcast to the shape of its rows.

    `others` are the inputs beside `x` by parameter. If they are not of index types, or shapes do not go
    together, they are refused; `infer_top_k` refuses a wrong axis.
    """
    for name, desc in others.items():
        check_index_type(f"top_k.{name}", desc.data_type)
    x = x if x.sizes else x.with_leading_ones(1)
    rank = x.dimension_count
    if not others or not -rank <= axis < rank:
        return Rows(x, axis)
    axis %= rank
    rows = rows_of_x = x.sizes[:axis] + x.sizes[axis + 1 :]
    windows = {name: others[name] for name in ("lengths", "starts") if name in others}
    for name, desc in windows.items():
        got, reason = f"shape {desc.sizes}", f"x without axis {axis} has shape {rows_of_x}"
        together = broadcast_sizes(rows, desc.sizes)
        if together is None:
            if rows != rows_of_x:
                reason = f"with lengths, rows have shape {rows}"
            refuse(f"top_k.{name}", got, reason, "shapes must broadcast")
        if len(together) >= rank and axis < rank - 1:
            refuse(f"top_k.{name}", got, reason, "more dimensions need the last axis")
        rows = together
    sizes = (*rows[:axis], x.sizes[axis], *rows[axis:]) if len(rows) < rank else (*rows, x.sizes[axis])
    numbers = others.get("indices")
    if numbers is not None:
        along = (numbers.sizes, numbers.effective_strides)
        if numbers.dimension_count == 1:  # along the axis alone
            behind = (1,) * (rank - 1 - axis)
            along = (along[0] + behind, along[1] + behind)
        if broadcast_sizes(sizes, along[0]) != sizes:
            reason = f"axis {axis} of x has {counted(x.sizes[axis], 'element')}, and x has shape {sizes}"
            allowed = "it must lie along the axis, or broadcast to the shape of x"
            refuse("top_k.indices", f"shape {numbers.sizes}", reason, allowed)
        numbers = _broadcast(TensorDesc(numbers.data_type, *along), sizes)
    windows = {name: _broadcast(desc, rows) for name, desc in windows.items()}
    return Rows(_broadcast(x, sizes), axis + len(sizes) - rank, numbers=numbers, **windows)


def batch_of_selections(shapes: Mapping[str, Sequence[int]], batched: Set[str], selection: Any) -> Batched:
    """Return the one call for a batch; see `dmlops.operators.batching`."""
    x_rank = max(len(shapes["x"]), 1)
    windows = [len(shapes[name]) + 1 for name in ("lengths", "starts") if name in shapes]
    rank = max([x_rank, *windows])
    axis = selection.axis % x_rank + rank - x_rank
    layouts: dict[str, Layout] = {}
    for name, shape in shapes.items():
        own: Layout = range(len(shape))
        if name == "indices" and len(shape) == 1:  # along the axis alone
            if name not in batched:
                continue
            own = (0, *(None,) * (rank - 1 - axis))
        missing = rank - (name in ("lengths", "starts")) - len(own)
        layouts[name] = (BATCH, *(None,) * missing, *own)
    return Batched(layouts, {"axis": axis + 1})


def check_type_of_numbers(numbers: TensorDesc, index_type: ElementType | None) -> None:
    """Refuse a type of indices other than that of the caller's numbers, which are the indices."""
    if index_type not in (None, numbers.data_type):
        of_numbers = type_name(numbers.data_type)
        reason = f"indices are {of_numbers}, and are returned as they are"
        allowed = f"index_dtype must be None or {of_numbers}"
        refuse("top_k.index_dtype", type_name(index_type), reason, allowed)


def broadcast_sizes(sizes: Sequence[int], others: Sequence[int]) -> tuple[int, ...] | None:
    """Return the sizes to which both broadcast, or None.

    Examples
    --------
    >>> broadcast_sizes((4, 1), (3,)), broadcast_sizes((2,), (3,)), broadcast_sizes((0,), (1,))
    ((4, 3), None, (0,))
    """
    n = max(len(sizes), len(others))
    found = []
    for one, other in zip(
        (1,) * (n - len(sizes)) + (*sizes,), (1,) * (n - len(others)) + (*others,), strict=True
    ):
        if 1 not in (one, other) and one != other:
            return None
        found.append(other if one == 1 else one)
    return tuple(found)


def _broadcast(desc: TensorDesc, sizes: tuple[int, ...]) -> TensorDesc:
    """Return a tensor with the stride 0 along dimensions that it does not have, or has one element of."""
    if desc.sizes == sizes:
        return desc
    missing = len(sizes) - desc.dimension_count
    strides = [
        stride if size > 1 else 0 for size, stride in zip(desc.sizes, desc.effective_strides, strict=True)
    ]
    return TensorDesc(desc.data_type, sizes, (0,) * missing + tuple(strides))


def infer_top_k(
    words: Words, rows: Rows, k: int, index_type: ElementType, *, is_function: bool = True
) -> tuple[TensorDesc, TensorDesc]:
    """Return the values and the indices of a selection.

    A function takes negative axes and a `k` of 0, and a descriptor does not.
    """
    data, axis = rows.x, rows.axis
    if isinstance(data.data_type, OpaqueType) and not data.data_type.is_time:
        reason, remedy = _NOT_ORDERED[data.data_type.family]
        raise TypeError(error_text("top_k.x", data.data_type.name, reason, remedy))
    given, x = data.sizes, words["input_tensor"]
    rank = len(given)
    lowest_axis, lowest_k = (-rank, 0) if is_function else (0, 1)
    if not lowest_axis <= axis < rank:
        allowed = f"axis must be in [{lowest_axis}, {rank - 1}]" if rank else "it must have at least 1"
        refuse(words.where("axis"), axis, f"{x} has {counted(rank, 'dimension')}", allowed)
    axis %= rank
    size = given[axis]
    if any(rows[2:]):  # rows that are too short end with padding
        if k < 0:
            refuse(words.where("k"), k, "a number of elements is negative", "k must be >= 0")
        n_results = math.prod((*given[:axis], k, *given[axis + 1 :]))
        if n_results > _MOST_RESULTS and not do_sizes_stand_in():
            reason = f"rows have shape {given[:axis] + given[axis + 1 :]}"
            refuse(words.where("k"), k, reason, "a 64-bit integer must be able to count the bytes of results")
    elif not lowest_k <= k <= size:
        allowed = f"k must be in [{lowest_k}, {size}]" if lowest_k <= size else "it must have at least 1"
        refuse(words.where("k"), k, f"axis {axis} of {x} has {counted(size, 'element')}", allowed)
    sizes = (*given[:axis], k, *given[axis + 1 :])
    values = result(words.where("output_value_tensor", ".sizes"), data.data_type, sizes)
    if k and rows.numbers is None:
        check_holds(words.where("output_index_tensor", ".data_type"), index_type, size - 1, "an index")
    return values, result(words.where("output_index_tensor", ".sizes"), index_type, sizes)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class TopK(Descriptor):
    """Select the K largest elements along an axis, sorted, with ties in ascending order of index.

    Parameters
    ----------
    input_tensor : TensorDesc
        The elements.
    axis : int
        The dimension along which to select.
    k : int
        The number of elements to select, from 1 to the size of the axis.
    output_value_tensor, output_index_tensor : TensorDesc, optional
        The results, with K for the size of the axis. By default, the indices are UINT32.

    Raises
    ------
    InvalidDescriptorError
        If the axis or K is out of range, or an output does not fit.

    References
    ----------
    DML_TOP_K_OPERATOR_DESC structure (directml.h). Its page requires K to be less than the number of
    elements. In practice, K may be equal to it, and it may be here.
    """

    input_tensor: TensorDesc
    axis: int
    k: int
    output_value_tensor: TensorDesc = INFERRED
    output_index_tensor: TensorDesc = INFERRED

    support: ClassVar[SupportTable] = SupportTable(
        (FeatureLevel.DML_2_0, (4, 4), _FLOATS, {"output_index_tensor": UINT32}),
        *_FROM_2_1,
    )

    def __post_init__(self) -> None:
        data, axis, k = self._tensor("input_tensor"), self._integer("axis"), self._integer("k")
        given = self.output_index_tensor
        index_type = TensorDataType.UINT32 if given is None else self._tensor("output_index_tensor").data_type
        values, indices = infer_top_k(self.words, Rows(data, axis), k, index_type, is_function=False)
        self._check_output("output_value_tensor", values)
        self._same_type("output_value_tensor", "input_tensor")
        self._check_output("output_index_tensor", indices)

    def padded(self, dimension_count: int) -> Self:
        """Return the same computation on tensors of `dimension_count` dimensions; see `Descriptor.padded`."""
        missing = dimension_count - self.input_tensor.dimension_count
        return self._padded(dimension_count, axis=self.axis + missing)

    def lower(self) -> "TopK1":
        """Return the TopK1 that computes the same, which may be this one."""
        if isinstance(self, TopK1):
            return self
        return TopK1(**self._fields_of(TopK1), axis_direction=AxisDirection.DECREASING)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class TopK1(TopK):
    """Select the K largest or smallest elements along an axis, sorted, with ties in ascending order of index.

    NaN is the largest value, all NaNs tie, and -0.0 ties with 0.0.

    Parameters
    ----------
    input_tensor, axis, k, output_value_tensor, output_index_tensor
        As for `TopK`.
    axis_direction : AxisDirection
        DECREASING selects the largest elements, INCREASING the smallest.

    References
    ----------
    DML_TOP_K1_OPERATOR_DESC structure (directml.h).

    Examples
    --------
    >>> desc = TopK1(input_tensor=TensorDesc(TensorDataType.FLOAT32, (1, 1, 3, 4)),
    ...              axis=3, k=2, axis_direction=AxisDirection.DECREASING)
    >>> desc.output_value_tensor.sizes
    (1, 1, 3, 2)
    >>> desc.minimum_feature_level().name
    'DML_2_1'
    """

    axis_direction: AxisDirection | int | str

    support: ClassVar[SupportTable] = SupportTable(*_FROM_2_1)

    def __post_init__(self) -> None:
        TopK.__post_init__(self)
        self._member("axis_direction", AxisDirection)

    def older_form(self) -> TopK | None:
        """Return the TopK that computes the same, or None: it selects the largest only."""
        is_largest = self.axis_direction == AxisDirection.DECREASING
        return TopK(**self._fields_of(TopK)) if is_largest else None


def top_k_problem(desc: TopK1, options: Options) -> TopKProblem:
    """Return the problem of a descriptor."""
    x, values, indices = desc.input_tensor, desc.output_value_tensor, desc.output_index_tensor
    axis, lengths, starts, numbers = desc.axis, options.lengths, options.starts, options.numbers
    strides = [tensor.effective_strides for tensor in (x, values, indices)]
    outer = [(*each[:axis], *each[axis + 1 :]) for each in (x.sizes, *strides)]
    none = (0,) * len(outer[0])
    outer += [none if tensor is None else tensor.effective_strides for tensor in (lengths, starts)]
    step, number_strides = 0, none
    if numbers is not None:
        step = numbers.effective_strides[axis]
        number_strides = (*numbers.effective_strides[:axis], *numbers.effective_strides[axis + 1 :])
    dims = merge(*outer, number_strides)
    is_largest = desc.axis_direction == AxisDirection.DECREASING
    puts_nan_last = options.nan_last and is_largest
    size = x.sizes[axis]
    longest = size if options.max_length is None else min(options.max_length, size)
    problem = TopKProblem(
        element_size=x.data_type.bytes,
        index_size=indices.data_type.bytes,
        masks=key_masks(x.data_type, nat_last=puts_nan_last),
        largest=is_largest,
        k=desc.k,
        # Without starts, only the first elements of a row take part.
        axis_size=longest if starts is None else size,
        rows=tuple([dim[:4] for dim in dims]),
        axis_strides=tuple([each[axis] for each in strides]),
        is_sorted=options.is_sorted,
        max_length=longest,
        nan_last=puts_nan_last and x.data_type.is_float,
    )
    if lengths is None and starts is None and numbers is None:
        return problem
    return problem._replace(
        padding=x.data_type.lowest_bits if is_largest else x.data_type.highest_bits,
        length_size=_bytes_of(lengths),
        length_signed=_is_signed(lengths),
        length_strides=tuple([dim[4] for dim in dims]),
        start_size=_bytes_of(starts),
        start_signed=_is_signed(starts),
        start_strides=tuple([dim[5] for dim in dims]),
        number_size=_bytes_of(numbers),
        number_signed=_is_signed(numbers),
        number_strides=tuple([dim[6] for dim in dims]),
        number_step=step,
    )


def _bytes_of(tensor: TensorDesc | None) -> int:
    return 0 if tensor is None else tensor.data_type.bytes


def _is_signed(tensor: TensorDesc | None) -> bool:
    return tensor is None or tensor.data_type.is_signed


OPERATOR = Operator(
    "top_k",
    (TopK, TopK1),
    top_k_problem,
    ("input_tensor", "lengths", "starts", "numbers", "output_value_tensor", "output_index_tensor"),
)
