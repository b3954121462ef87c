"""DIAGONAL_MATRIX and DIAGONAL_MATRIX1: matrices filled along a band of diagonals."""

import math
from dataclasses import dataclass
from operator import index
from typing import Any, ClassVar

from dmlops.enums import FeatureLevel, TensorDataType
from dmlops.operators.descriptor import Descriptor, Objection
from dmlops.operators.support import (
    ANY_DIMS,
    EVERY_TYPE,
    FLOATS_64,
    INTEGERS_64,
    SMALL_TYPES,
    SupportRow,
    SupportRowArguments,
    SupportTable,
    dims,
)
from dmlops.tensor import TensorDesc

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
_FLOATS = frozenset({TensorDataType.FLOAT32, TensorDataType.FLOAT16})
_FROM_5_1: tuple[SupportRowArguments, ...] = (
    (FeatureLevel.DML_5_1, dims(2, 4), SMALL_TYPES | INTEGERS_64 | FLOATS_64, {}),
    (FeatureLevel.EXTENDED, ANY_DIMS, EVERY_TYPE, {}),
)


class _DiagonalDescriptor(Descriptor):
    """What the two forms share: an output of matrices, and bounds that DirectML keeps in an INT."""

    __slots__ = ()
    _bounds: ClassVar[tuple[str, ...]]

    def _objection(self, row: SupportRow) -> Objection | None:
        if row.level < FeatureLevel.EXTENDED:
            for field in self._bounds:
                if not INT32_MIN <= getattr(self, field) <= INT32_MAX:
                    return Objection(field, getattr(self, field), f"{row.level.name} takes 32-bit integers")
        return Descriptor._objection(self, row)

    def _check_matrices(self) -> TensorDesc:
        output = self._tensor("output_tensor")
        if output.dimension_count < 2:
            allowed = "it must have at least 2"
            got = f"{output.dimension_count} dimensions"
            self._refuse("output_tensor.sizes", got, "a matrix has height and width", allowed)
        return self._settle_output("output_tensor", output)


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagonalMatrix(_DiagonalDescriptor):
    """Make matrices that hold `value` on one diagonal and zeros elsewhere.

    `offset` shifts the diagonal right where it is positive. `value` is a float for every type;
    an integer output gets it truncated toward zero.

    References
    ----------
    DML_DIAGONAL_MATRIX_OPERATOR_DESC structure (directml.h).
    """

    output_tensor: TensorDesc
    offset: int
    value: float

    _bounds: ClassVar[tuple[str, ...]] = ("offset",)
    support: ClassVar[SupportTable] = SupportTable(
        (FeatureLevel.DML_2_0, dims(4), _FLOATS, {}),
        (FeatureLevel.DML_2_1, dims(4), SMALL_TYPES, {}),
        (FeatureLevel.DML_4_0, dims(2, 4), SMALL_TYPES, {}),
        *_FROM_5_1,
    )

    def __post_init__(self) -> None:
        output = self._check_matrices()
        self._integer("offset")
        self._set("value", float(self.value))
        if not output.data_type.is_float:
            if not math.isfinite(self.value):
                reason = f"output_tensor is {output.data_type.name}"
                self._refuse("value", self.value, reason, "value must be finite")
            settle_value(self, math.trunc(self.value), output.data_type)

    def lower(self) -> "DiagonalMatrix1":
        """Return the DiagonalMatrix1 that computes the same."""
        data_type = self.output_tensor.data_type
        return DiagonalMatrix1(
            output_tensor=self.output_tensor,
            value_data_type=data_type,
            value=self.value if data_type.is_float else math.trunc(self.value),
            diagonal_fill_begin=self.offset,
            diagonal_fill_end=self.offset + 1,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagonalMatrix1(_DiagonalDescriptor):
    """Fill the diagonals from `diagonal_fill_begin` up to, not including, `diagonal_fill_end`.

    With x the column and y the row, an element is filled with `value` where
    ``begin <= x - y < end``; the others come from the input, or are zero without one. Where begin
    exceeds end the fill is inverted: everything but ``end <= x - y < begin``. Equal bounds fill
    nothing. Sizes are {batch..., height, width}.

    Raises
    ------
    InvalidDescriptorError
        If types or sizes disagree, or `value` does not fit its type.

    References
    ----------
    DML_DIAGONAL_MATRIX1_OPERATOR_DESC structure (directml.h).

    Examples
    --------
    >>> desc = DiagonalMatrix1(output_tensor=TensorDesc(TensorDataType.FLOAT32, (4, 5)),
    ...                        value=1, diagonal_fill_begin=0, diagonal_fill_end=1)
    >>> desc.value_data_type.name, desc.minimum_feature_level().name
    ('FLOAT32', 'DML_5_1')
    """

    input_tensor: TensorDesc | None = None
    output_tensor: TensorDesc | None = None
    value_data_type: TensorDataType | None = None
    value: float
    diagonal_fill_begin: int
    diagonal_fill_end: int

    _bounds: ClassVar[tuple[str, ...]] = ("diagonal_fill_begin", "diagonal_fill_end")
    support: ClassVar[SupportTable] = SupportTable(*_FROM_5_1)

    def __post_init__(self) -> None:
        if self.input_tensor is not None:
            data = self._tensor("input_tensor")
            self._settle_output("output_tensor", TensorDesc(data.data_type, data.sizes))
            self._same_type("output_tensor", "input_tensor")
        output = self._check_matrices()
        if self.value_data_type is None:
            self._set("value_data_type", output.data_type)
        elif self.value_data_type != output.data_type:
            reason = f"output_tensor is {output.data_type.name}"
            got = TensorDataType(self.value_data_type).name
            self._refuse("value_data_type", got, reason, f"it must be {output.data_type.name}")
        for field in self._bounds:
            self._integer(field)
        self._set("value", settle_value(self, self.value, output.data_type))


def settle_value(desc: Descriptor, value: Any, data_type: TensorDataType) -> float:
    """Return a scalar as a plain int or float that `data_type` holds, or refuse it."""
    if data_type.is_float:
        try:
            # One NaN object, so that equal descriptors compare equal.
            return math.nan if math.isnan(float(value)) else float(value)
        except (TypeError, ValueError):
            desc._refuse("value", repr(value), f"it fills {data_type.name}", "value must be a real number")
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    low, high = data_type.integer_range
    try:
        whole = index(value) if not isinstance(value, float) else math.trunc(value)
    except (TypeError, ValueError, OverflowError):
        desc._refuse("value", repr(value), f"it fills {data_type.name}", "value must be an integer")
    if whole != value or not low <= whole <= high:
        allowed = f"value must be an integer in [{low}, {high}]"
        desc._refuse("value", value, f"it fills {data_type.name}", allowed)
    return whole
