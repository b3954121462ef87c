"""TOP_K and TOP_K1: the K largest or smallest elements along an axis."""

from dataclasses import dataclass
from typing import ClassVar, Self

from dmlops.enums import AxisDirection, FeatureLevel, TensorDataType
from dmlops.errors import counted
from dmlops.operators.descriptor import INFERRED, Descriptor
from dmlops.operators.support import (
    EVERY_TYPE,
    INDEX_TYPES,
    INTEGERS_64,
    SMALL_TYPES,
    UINT32_ONLY,
    SupportRow,
    SupportTable,
    at_least,
    dims,
)
from dmlops.tensor import TensorDesc

_FLOATS = frozenset({TensorDataType.FLOAT32, TensorDataType.FLOAT16})
_FROM_2_1 = (
    SupportRow(FeatureLevel.DML_2_1, dims(4), SMALL_TYPES, {"output_index_tensor": UINT32_ONLY}),
    SupportRow(FeatureLevel.DML_3_1, dims(1, 8), SMALL_TYPES, {"output_index_tensor": UINT32_ONLY}),
    SupportRow(
        FeatureLevel.DML_5_0,
        dims(1, 8),
        SMALL_TYPES | INTEGERS_64,
        {"output_index_tensor": UINT32_ONLY | {TensorDataType.UINT64}},
    ),
    SupportRow(FeatureLevel.EXTENDED, at_least(1), EVERY_TYPE, {"output_index_tensor": INDEX_TYPES}),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TopK(Descriptor):
    """Select the K largest elements along an axis, sorted, ties by ascending index.

    Raises
    ------
    InvalidDescriptorError
        If the axis or K is out of range, or an output does not fit.

    References
    ----------
    DML_TOP_K_OPERATOR_DESC structure (directml.h). Its page asks for K below the number of
    elements; K equal to it is used in practice, and taken here.
    """

    input_tensor: TensorDesc
    axis: int
    k: int
    output_value_tensor: TensorDesc = INFERRED
    output_index_tensor: TensorDesc = INFERRED

    support: ClassVar[SupportTable] = SupportTable(
        SupportRow(FeatureLevel.DML_2_0, dims(4), _FLOATS, {"output_index_tensor": UINT32_ONLY}),
        *_FROM_2_1,
    )

    def __post_init__(self) -> None:
        data, axis, k = self._tensor("input_tensor"), self._integer("axis"), self._integer("k")
        if not 0 <= axis < data.dimension_count:
            reason = f"input_tensor has {counted(data.dimension_count, 'dimension')}"
            allowed = f"axis must be in [0, {data.dimension_count - 1}]"
            self._refuse("axis", axis, reason, allowed if data.sizes else "it must have at least 1")
        size = data.sizes[axis]
        if not 1 <= k <= size:
            reason = f"axis {axis} of input_tensor has {counted(size, 'element')}"
            self._refuse("k", k, reason, f"k must be in [1, {size}]" if size else "it must have at least 1")
        sizes = (*data.sizes[:axis], k, *data.sizes[axis + 1 :])
        self._check_output("output_value_tensor", self._infer("output_value_tensor", data.data_type, sizes))
        self._same_type("output_value_tensor", "input_tensor")
        indices = self._infer("output_index_tensor", TensorDataType.UINT32, sizes)
        self._check_output("output_index_tensor", indices)
        self._holds("output_index_tensor", size - 1, "an index")

    def padded(self, dimension_count: int) -> Self:
        """Return the same computation on tensors of `dimension_count` dimensions; see `Descriptor.padded`."""
        missing = dimension_count - self.input_tensor.dimension_count
        return self._padded(dimension_count, axis=self.axis + missing)

    def lower(self) -> "TopK1":
        """Return the TopK1 that computes the same."""
        return TopK1(
            input_tensor=self.input_tensor,
            axis=self.axis,
            k=self.k,
            axis_direction=AxisDirection.DECREASING,
            output_value_tensor=self.output_value_tensor,
            output_index_tensor=self.output_index_tensor,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TopK1(TopK):
    """Select the K largest or smallest elements along an axis, sorted, ties by ascending index.

    NaN is the largest value and all NaNs tie; -0.0 ties with +0.0.

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

    axis_direction: AxisDirection

    support: ClassVar[SupportTable] = SupportTable(*_FROM_2_1)

    def __post_init__(self) -> None:
        TopK.__post_init__(self)
        self._member("axis_direction", AxisDirection)

    def lower(self) -> "TopK1":
        """Return the descriptor itself: it is the newest form."""
        return self

    def older_form(self) -> TopK | None:
        """Return the TopK that computes the same, or None: it selects the largest only."""
        if self.axis_direction == AxisDirection.INCREASING:
            return None
        return TopK(
            input_tensor=self.input_tensor,
            axis=self.axis,
            k=self.k,
            output_value_tensor=self.output_value_tensor,
            output_index_tensor=self.output_index_tensor,
        )
