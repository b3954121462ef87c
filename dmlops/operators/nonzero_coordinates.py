"""NONZERO_COORDINATES: the coordinates of all elements that are not zero."""

from dataclasses import dataclass
from typing import ClassVar

from dmlops.enums import FeatureLevel, TensorDataType
from dmlops.errors import counted
from dmlops.operators.descriptor import INFERRED, Descriptor
from dmlops.operators.support import (
    EVERY_TYPE,
    INDEX_TYPES,
    SMALL_TYPES,
    UINT32_ONLY,
    Allowed,
    SupportRow,
    SupportTable,
    at_least,
    dims,
)
from dmlops.tensor import TensorDesc


@dataclass(frozen=True, kw_only=True, slots=True)
class NonzeroCoordinates(Descriptor):
    """Compute the coordinates of the non-zero elements, in ascending element order, and their count.

    Both zeros of a float are zero; NaN is not. The coordinates tensor has sizes {1, ..., M, N}:
    M is the number of elements of the input, N lies between the input's effective rank and its
    dimension count, and the columns are the input's last N dimensions. Rows from the count on are
    left undefined.

    Raises
    ------
    InvalidDescriptorError
        If the count is no scalar, or the coordinates have other sizes.

    References
    ----------
    DML_NONZERO_COORDINATES_OPERATOR_DESC structure (directml.h).

    Examples
    --------
    >>> desc = NonzeroCoordinates(input_tensor=TensorDesc(TensorDataType.FLOAT32, (1, 1, 2, 4)))
    >>> desc.output_coordinates_tensor.sizes, desc.output_count_tensor.sizes
    ((1, 1, 8, 4), (1, 1, 1, 1))
    """

    input_tensor: TensorDesc
    output_count_tensor: TensorDesc = INFERRED
    output_coordinates_tensor: TensorDesc = INFERRED

    support: ClassVar[SupportTable] = SupportTable(
        SupportRow(
            FeatureLevel.DML_3_0,
            dims(4, 5),
            SMALL_TYPES,
            {"output_count_tensor": UINT32_ONLY, "output_coordinates_tensor": UINT32_ONLY},
            equal_dims=True,
        ),
        SupportRow(
            FeatureLevel.DML_4_0,
            dims(1, 8),
            SMALL_TYPES,
            {
                "output_count_tensor": UINT32_ONLY,
                "output_coordinates_tensor": Allowed(dims(2, 8), UINT32_ONLY),
            },
        ),
        SupportRow(
            FeatureLevel.EXTENDED,
            at_least(0),
            EVERY_TYPE,
            {
                "output_count_tensor": INDEX_TYPES,
                "output_coordinates_tensor": Allowed(at_least(2), INDEX_TYPES),
            },
        ),
    )

    def __post_init__(self) -> None:
        data = self._tensor("input_tensor")
        rows, rank = data.element_count, data.dimension_count
        if self.output_count_tensor is None:
            self._set("output_count_tensor", TensorDesc(TensorDataType.UINT32, (1,) * max(rank, 1)))
        if self.output_coordinates_tensor is None:
            sizes = (1,) * max(rank - 2, 0) + (rows, rank)
            inferred = self._infer("output_coordinates_tensor", TensorDataType.UINT32, sizes)
            self._set("output_coordinates_tensor", inferred)
        count = self._tensor("output_count_tensor")
        if count.element_count != 1:
            allowed = "every size must be 1"
            self._refuse("output_count_tensor.sizes", count.sizes, "the count is a scalar", allowed)
        coordinates = self._tensor("output_coordinates_tensor")
        self._check_columns(coordinates.sizes, data)
        expected = (1,) * (coordinates.dimension_count - 2) + (rows, coordinates.sizes[-1])
        inferred = self._infer("output_coordinates_tensor", coordinates.data_type, expected)
        self._check_output("output_coordinates_tensor", inferred)
        self._holds("output_count_tensor", rows, "the count")
        self._holds("output_coordinates_tensor", max(data.sizes, default=1) - 1, "a coordinate")

    def _check_columns(self, sizes: tuple[int, ...], data: TensorDesc) -> None:
        low, high = data.effective_rank, data.dimension_count
        if len(sizes) < 2:
            allowed = "sizes must be {1, ..., M, N}"
            reason = f"it has {counted(len(sizes), 'dimension')}"
            self._refuse("output_coordinates_tensor.sizes", sizes, reason, allowed)
        if not low <= sizes[-1] <= high:
            reason = f"input_tensor has effective rank {low} and {counted(high, 'dimension')}"
            allowed = f"the last size must be in [{low}, {high}]"
            self._refuse("output_coordinates_tensor.sizes", sizes, reason, allowed)
