"""TOP_K and TOP_K1: the K largest or smallest elements along an axis."""

from dataclasses import dataclass
from typing import ClassVar

from dmlops.enums import AxisDirection, FeatureLevel, TensorDataType
from dmlops.operators.descriptor import Descriptor
from dmlops.operators.support import (
    ANY_DIMS,
    EVERY_TYPE,
    INDEX_TYPES,
    INTEGERS_64,
    SMALL_TYPES,
    UINT32_ONLY,
    SupportTable,
    dims,
)
from dmlops.tensor import TensorDesc

_FLOATS = frozenset({TensorDataType.FLOAT32, TensorDataType.FLOAT16})
_FROM_2_1 = (
    (FeatureLevel.DML_2_1, dims(4), SMALL_TYPES, {"output_index_tensor": UINT32_ONLY}),
    (FeatureLevel.DML_3_1, dims(1, 8), SMALL_TYPES, {"output_index_tensor": UINT32_ONLY}),
    (
        FeatureLevel.DML_5_0,
        dims(1, 8),
        SMALL_TYPES | INTEGERS_64,
        {"output_index_tensor": UINT32_ONLY | {TensorDataType.UINT64}},
    ),
    (FeatureLevel.EXTENDED, ANY_DIMS, EVERY_TYPE, {"output_index_tensor": INDEX_TYPES}),
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
    output_value_tensor: TensorDesc | None = None
    output_index_tensor: TensorDesc | None = None

    support: ClassVar[SupportTable] = SupportTable(
        (FeatureLevel.DML_2_0, dims(4), _FLOATS, {"output_index_tensor": UINT32_ONLY}),
        *_FROM_2_1,
    )

    def __post_init__(self) -> None:
        data, axis, k = self._tensor("input_tensor"), self._integer("axis"), self._integer("k")
        if not 0 <= axis < data.dimension_count:
            reason = f"input_tensor has {data.dimension_count} dimensions"
            self._refuse("axis", axis, reason, f"axis must be in [0, {data.dimension_count - 1}]")
        size = data.sizes[axis]
        if not 1 <= k <= size:
            reason = f"axis {axis} of input_tensor has {size} elements"
            self._refuse("k", k, reason, f"k must be in [1, {size}]")
        sizes = (*data.sizes[:axis], k, *data.sizes[axis + 1 :])
        self._settle_output("output_value_tensor", TensorDesc(data.data_type, sizes))
        self._same_type("output_value_tensor", "input_tensor")
        self._settle_output("output_index_tensor", TensorDesc(TensorDataType.UINT32, sizes))
        self._holds("output_index_tensor", size - 1, "an index")

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
        try:
            self._set("axis_direction", AxisDirection(self.axis_direction))
        except ValueError:
            allowed = "axis_direction must be an AxisDirection"
            self._refuse("axis_direction", repr(self.axis_direction), "it is no direction", allowed)

    def lower(self) -> "TopK1":
        """Return the descriptor itself: it is the newest form."""
        return self
