"""DIAGONAL_MATRIX and DIAGONAL_MATRIX1: matrices filled along a band of diagonals."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dmlops.operators.descriptor import INFERRED, Descriptor, Objection, result
from dmlops.operators.fill_values import held_value
from dmlops.operators.layout import merge, part_of, parts_as_batch
from dmlops.operators.problem import Operator, Options
from dmlops.operators.support import DML_TYPES, EVERY_TYPE, SMALL_TYPES, SupportRow, SupportTable
from dmlops.types.arguments import integer
from dmlops.types.enums import FeatureLevel, TensorDataType
from dmlops.types.errors import InvalidDescriptorError, Words, counted, refuse
from dmlops.types.opaque_types import ElementType, part_bytes, type_name
from dmlops.types.scalars import scalar_bits
from dmlops.types.tensor import TensorDesc
from kernels_cpu.problems import DiagonalProblem

# No matrix has a diagonal so far out.
_FARTHEST = 2**63 - 1
_FLOATS = frozenset({TensorDataType.FLOAT32, TensorDataType.FLOAT16})
_FROM_5_1 = (
    (FeatureLevel.DML_5_1, (2, 4), DML_TYPES),
    (FeatureLevel.EXTENDED, (2, None), EVERY_TYPE),
)


def check_matrices(where: str, sizes: tuple[int, ...]) -> None:
    """Refuse sizes that are not those of matrices, {batch..., height, width}."""
    if len(sizes) < 2:
        got, reason = counted(len(sizes), "dimension"), "a matrix has height and width"
        refuse(where, got, reason, "it must have at least 2")


def infer_diagonal_matrix(
    words: Words, data_type: ElementType, sizes: tuple[int, ...], value: object
) -> TensorDesc:
    """Return the result of the function `diagonal_matrix`; refuse a `value` that the type does not hold.

    Type and sizes are those of the input, or those that were asked for.
    """
    where = words.where("output_tensor", ".sizes")
    check_matrices(where, sizes)
    held_value(words.where("value"), value, data_type)
    return result(where, data_type, sizes)


def band_bounds(function: str, begin: object, end: object) -> tuple[int, int]:
    """Return the bounds of a band, which may be infinite, as integers; without an `end`, it is one diagonal.

    Examples
    --------
    >>> band_bounds("f", 2, None)
    (2, 3)
    >>> band_bounds("f", 2**70, math.inf) == (2**70, 2**70 + 1)
    True
    """
    first = _bound(begin, f"{function}.begin")
    last = first if end is None else _bound(end, f"{function}.end")
    # Farther out than all matrices, and than the other bound.
    far = max(_FARTHEST, *(abs(bound) + 1 for bound in (first, last, 0) if type(bound) is int))
    is_infinite = isinstance(first, float)
    first, last = (
        (far if bound > 0 else -far) if isinstance(bound, float) else bound for bound in (first, last)
    )
    return first, last + 1 if end is None and not is_infinite else last


def _bound(value: object, where: str) -> float:
    """Return a bound of a band as an integer, which may be a symbol, or as infinity."""
    if isinstance(value, float) and math.isinf(value):
        return float(value)
    return integer(value, where, "an integer, math.inf or -math.inf")


def near_band(begin: int, end: int, farthest: int = _FARTHEST) -> tuple[int, int]:
    """Return bounds of the same band, clamped to a diagonal, on either side, that no matrix has."""
    is_inverted = begin > end
    # Symbols stand for sizes, which are not so large.
    begin, end = (
        max(min(bound, farthest), -farthest) if isinstance(bound, int) else bound for bound in (begin, end)
    )
    # An inverted band with both bounds beyond the same end leaves nothing out.
    return (end + 1 if is_inverted and begin == end else begin), end


class _DiagonalDescriptor(Descriptor):
    """Base class of both forms: matrices, and bounds that DirectML keeps in an INT."""

    __slots__ = ()
    _bounds: ClassVar[tuple[str, ...]]

    def _objection(self, row: SupportRow, level: FeatureLevel) -> Objection | None:
        if row.level < FeatureLevel.EXTENDED:
            for field in self._bounds:
                if not -(2**31) <= getattr(self, field) < 2**31:
                    return Objection(field, getattr(self, field), f"{level} takes 32-bit integers")
        return Descriptor._objection(self, row, level)

    def _check_matrices(self) -> TensorDesc:
        output = self._tensor("output_tensor")
        check_matrices(f"{self.name}.output_tensor.sizes", output.sizes)
        return self._check_output("output_tensor", output)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class DiagonalMatrix(_DiagonalDescriptor):
    """Make matrices with a value on one diagonal and zeros elsewhere.

    Parameters
    ----------
    output_tensor : TensorDesc
        The matrices, of sizes {batch..., height, width}.
    offset : int
        The number of the diagonal; those above the main diagonal are positive.
    value : float
        The value, a FLOAT for every type of matrix: 16777217 becomes 16777216, and an integer matrix gets the
        value without its fraction.

    Raises
    ------
    InvalidDescriptorError
        If the output has fewer than two dimensions, or its type does not hold `value`.

    References
    ----------
    DML_DIAGONAL_MATRIX_OPERATOR_DESC structure (directml.h).
    """

    output_tensor: TensorDesc
    offset: int
    value: float

    _bounds: ClassVar[tuple[str, ...]] = ("offset",)
    support: ClassVar[SupportTable] = SupportTable(
        (FeatureLevel.DML_2_0, (4, 4), _FLOATS),
        (FeatureLevel.DML_2_1, (4, 4), SMALL_TYPES),
        (FeatureLevel.DML_4_0, (2, 4), SMALL_TYPES),
        *_FROM_5_1,
    )

    def __post_init__(self) -> None:
        output = self._check_matrices()
        self._integer("offset")
        self._set("value", held_value(self.words.where("value"), self.value, TensorDataType.FLOAT32))
        if output.data_type.is_float:
            held_value(self.words.where("value"), self.value, output.data_type)
        elif isinstance(output.data_type, TensorDataType):
            low, high = output.data_type.integer_range
            if not low - 1 < self.value < high + 1:
                allowed = f"value must be in [{low}, {high}] when its fraction is dropped"
                self._refuse("value", self.value, f"it fills {type_name(output.data_type)}", allowed)

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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class DiagonalMatrix1(_DiagonalDescriptor):
    """Copy matrices, or make matrices of zeros, and fill a band of their diagonals with a value.

    Parameters
    ----------
    input_tensor : TensorDesc, optional
        The matrices to copy, of sizes {batch..., height, width}. Without it, elements outside the band are
        zero.
    output_tensor : TensorDesc, optional
        The result. It may be left out if there is an input.
    value_data_type : TensorDataType, optional
        The type of the value, which is that of the output.
    value : number
        The value, rounded to its type: 0.1 in FLOAT32 is 0.10000000149011612.
    diagonal_fill_begin, diagonal_fill_end : int
        The band is ``begin <= column - row < end``. If begin is greater than end, everything is filled except
        ``end <= column - row < begin``. If they are equal, nothing is filled.

    Raises
    ------
    InvalidDescriptorError
        If types or sizes disagree, or `value` does not fit its type.

    Notes
    -----
    Descriptors compare the bits of their values: 0.0 and -0.0 differ, and NaNs of the same sign and payload
    are equal. A NaN keeps its bits if it is given as a Python float, a scalar of NumPy or ml_dtypes, or a 0-d
    array.

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
    output_tensor: TensorDesc = INFERRED
    value_data_type: ElementType | int | str | None = None
    value: Any
    diagonal_fill_begin: int
    diagonal_fill_end: int

    _bounds: ClassVar[tuple[str, ...]] = ("diagonal_fill_begin", "diagonal_fill_end")
    support: ClassVar[SupportTable] = SupportTable(*_FROM_5_1)

    def __post_init__(self) -> None:
        if self.input_tensor is not None:
            data = self._tensor("input_tensor")
            sizes = self.words.where("output_tensor", ".sizes")
            self._check_output("output_tensor", result(sizes, data.data_type, data.sizes))
            self._same_type("output_tensor", "input_tensor")
        output = self._check_matrices()
        if self.value_data_type is None:
            self._set("value_data_type", output.data_type)
        value_type = self._data_type("value_data_type")
        if value_type != output.data_type:
            expected = type_name(output.data_type)
            reason = f"output_tensor is {expected}"
            self._refuse("value_data_type", type_name(value_type), reason, f"it must be {expected}")
        for field in self._bounds:
            self._integer(field)
        self._set("value", held_value(self.words.where("value"), self.value, output.data_type))

    def parts(self, options: Options) -> "Sequence[tuple[DiagonalMatrix1, Options]]":
        """Return the same on unsigned integers; see `Descriptor.parts`.

        Parts that are filled with the same bits are matrices of one batch, and others are each a computation.
        """
        if not isinstance(self.value, bytes):
            return ((self, options),)
        size = part_bytes(self.output_tensor.data_type)
        values = [self.value[at : at + size] for at in range(0, len(self.value), size)]
        n_values = len(set(values))
        arrange = part_of if n_values > 1 else parts_as_batch
        x, output = self.input_tensor, arrange(self.output_tensor)
        part = self._inferred_with(
            input_tensor=None if x is None else arrange(x),
            output_tensor=output,
            value_data_type=output.data_type,
        )
        numbers = [int.from_bytes(value, sys.byteorder) for value in values]
        return [
            (part._inferred_with(value=number), options)
            for number in numbers[: n_values if n_values == 1 else None]
        ]

    def older_form(self) -> DiagonalMatrix | None:
        """Return the DiagonalMatrix that computes the same, or None.

        That form has no input, fills one diagonal, and holds its value as a FLOAT.
        """
        one_diagonal = self.diagonal_fill_end == self.diagonal_fill_begin + 1
        if self.input_tensor is not None or self.output_tensor is None or not one_diagonal:
            return None
        try:
            older = DiagonalMatrix(
                output_tensor=self.output_tensor, offset=self.diagonal_fill_begin, value=self.value
            )
        except InvalidDescriptorError:  # the FLOAT that is nearest to the value is outside the type's range
            return None
        return older if older.lower() == self else None


def diagonal_matrix_problem(desc: DiagonalMatrix1, options: Options) -> DiagonalProblem:
    """Return the problem of a descriptor."""
    x, output = desc.input_tensor, desc.output_tensor
    x_strides = output.effective_strides if x is None else x.effective_strides
    height, width = output.sizes[-2:]
    data_type = output.data_type
    assert isinstance(data_type, TensorDataType)  # `parts` have no other
    first, last = sorted((desc.diagonal_fill_begin, desc.diagonal_fill_end))
    return DiagonalProblem(
        element_size=data_type.bytes,
        has_input=x is not None,
        value=scalar_bits(desc.value, data_type),
        batch=merge(output.sizes[:-2], x_strides[:-2], output.effective_strides[:-2]),
        height=height,
        width=width,
        x_strides=x_strides[-2:],
        output_strides=output.effective_strides[-2:],
        # All bounds beyond the matrix mean the same. Close to it, none can overflow.
        begin=min(max(first, -height), width),
        end=min(max(last, -height), width),
        inverted=desc.diagonal_fill_begin > desc.diagonal_fill_end,
    )


OPERATOR = Operator(
    "diagonal_matrix",
    (DiagonalMatrix, DiagonalMatrix1),
    diagonal_matrix_problem,
    ("input_tensor", "output_tensor"),
)
