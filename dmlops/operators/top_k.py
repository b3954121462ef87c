"""TOP_K and TOP_K1: the K largest or smallest elements along an axis."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

from dmlops.operators.descriptor import INFERRED, Descriptor, check_holds, check_index_type, result
from dmlops.operators.layout import Dims, merge
from dmlops.operators.problem import KeyMasks, Operator, Options, key_masks
from dmlops.operators.support import EVERY_TYPE, INDEX_TYPES, INTEGERS_64, SMALL_TYPES, UINT32, SupportTable
from dmlops.types.enums import AxisDirection, FeatureLevel, TensorDataType
from dmlops.types.errors import Words, counted, error_text, refuse
from dmlops.types.opaque_types import ElementType, OpaqueType
from dmlops.types.tensor import TensorDesc

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


def infer_top_k(
    words: Words,
    data: TensorDesc,
    k: int,
    axis: int,
    index_type: ElementType,
    lengths: TensorDesc | None = None,
    *,
    is_function: bool = True,
) -> tuple[TensorDesc, TensorDesc]:
    """Return the values and the indices of a selection.

    Parameters
    ----------
    words : Words
        The names for error texts.
    data : TensorDesc
        The input.
    k, axis : int
        The number of elements and the dimension.
    index_type : ElementType
        That of the indices.
    lengths : TensorDesc, optional
        How many elements each row has.
    is_function : bool
        Whether negative axes, a `k` of 0 and an input of 0 dimensions, which counts as one of shape (1,), are
        taken.
    """
    if isinstance(data.data_type, OpaqueType) and not data.data_type.is_time:
        reason, remedy = _NOT_ORDERED[data.data_type.family]
        raise TypeError(error_text("top_k.x", data.data_type.name, reason, remedy))
    given = data.sizes or (1,) * is_function
    rank, x = len(given), words["input_tensor"]
    lowest_axis, lowest_k = (-rank, 0) if is_function else (0, 1)
    if not lowest_axis <= axis < rank:
        allowed = f"axis must be in [{lowest_axis}, {rank - 1}]" if rank else "it must have at least 1"
        refuse(words.where("axis"), axis, f"{x} has {counted(rank, 'dimension')}", allowed)
    axis %= rank
    size, rows = given[axis], given[:axis] + given[axis + 1 :]
    if not lowest_k <= k <= size:
        allowed = f"k must be in [{lowest_k}, {size}]" if lowest_k <= size else "it must have at least 1"
        refuse(words.where("k"), k, f"axis {axis} of {x} has {counted(size, 'element')}", allowed)
    if lengths is not None:
        check_index_type("top_k.lengths", lengths.data_type)
        if lengths.sizes != rows:
            reason = f"x without axis {axis} has shape {rows}"
            refuse("top_k.lengths", f"shape {lengths.sizes}", reason, "shapes must be equal")
    sizes = (*given[:axis], k, *given[axis + 1 :])
    values = result(words.where("output_value_tensor", ".sizes"), data.data_type, sizes)
    if k:
        check_holds(words.where("output_index_tensor", ".data_type"), index_type, size - 1, "an index")
    return values, result(words.where("output_index_tensor", ".sizes"), index_type, sizes)


@dataclass(frozen=True, kw_only=True, slots=True)
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
        values, indices = infer_top_k(self.words, data, k, axis, index_type, is_function=False)
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


@dataclass(frozen=True, kw_only=True, slots=True)
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


class Problem(NamedTuple):
    """A selection as kernels see it.

    Attributes
    ----------
    element_size, index_size : int
        Bytes of an element (1, 2, 4, 8) and of an index (4, 8).
    masks : KeyMasks
        How elements compare.
    largest : bool
        Whether the largest elements come first; NaN is the largest.
    k, axis_size : int
        How many elements of how many are selected: ``0 <= k <= axis_size``.
    rows : tuple of (size, x_stride, value_stride, index_stride)
        The other dimensions, slowest first; strides in elements.
    axis_strides : tuple of int
        Strides of x, values and indices along the axis.
    is_sorted : bool
        Whether results are in order of key, equal ones by ascending position; else all by ascending position.
    length_size, length_signed : int, bool
        Bytes of a row's length (4, 8), or 0 if all rows have `axis_size` elements; whether it is signed.
    length_strides : tuple of int
        Strides of the lengths along the dimensions of `rows`.
    padding : int
        Bits of the values behind a row with fewer than `k` elements; their indices have all bits set.
    """

    element_size: int
    index_size: int
    masks: KeyMasks
    largest: bool
    k: int
    axis_size: int
    rows: Dims
    axis_strides: tuple[int, ...]
    is_sorted: bool = True
    length_size: int = 0
    length_signed: bool = True
    length_strides: tuple[int, ...] = ()
    padding: int = 0


def top_k_problem(desc: TopK1, options: Options) -> Problem:
    """Return the problem of a descriptor."""
    x, values, indices = desc.input_tensor, desc.output_value_tensor, desc.output_index_tensor
    axis, lengths = desc.axis, options.lengths
    strides = [tensor.effective_strides for tensor in (x, values, indices)]
    outer = [(*each[:axis], *each[axis + 1 :]) for each in (x.sizes, *strides)]
    is_largest = desc.axis_direction == AxisDirection.DECREASING
    problem = Problem(
        element_size=x.data_type.bytes,
        index_size=indices.data_type.bytes,
        masks=key_masks(x.data_type),
        largest=is_largest,
        k=desc.k,
        axis_size=x.sizes[axis],
        rows=merge(*outer) if lengths is None else merge(*outer, lengths.effective_strides),
        axis_strides=tuple([each[axis] for each in strides]),
        is_sorted=options.is_sorted,
    )
    if lengths is None:
        return problem
    return problem._replace(
        rows=tuple([row[:-1] for row in problem.rows]),
        length_size=lengths.data_type.bytes,
        length_signed=lengths.data_type.is_signed,
        length_strides=tuple([row[-1] for row in problem.rows]),
        padding=x.data_type.lowest_bits if is_largest else x.data_type.highest_bits,
    )


OPERATOR = Operator(
    "top_k",
    (TopK, TopK1),
    top_k_problem,
    ("input_tensor", "lengths", "output_value_tensor", "output_index_tensor"),
)
