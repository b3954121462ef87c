"""NONZERO_COORDINATES: the coordinates of all non-zero elements."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from dmlops.operators.descriptor import INFERRED, Descriptor, check_holds, result
from dmlops.operators.layout import merge
from dmlops.operators.problem import Operator, Options, key_masks
from dmlops.operators.support import EVERY_TYPE, INDEX_TYPES, SMALL_TYPES, UINT32, SupportTable
from dmlops.types import arguments
from dmlops.types.enums import FeatureLevel, TensorDataType
from dmlops.types.errors import Words, counted, error_text, refuse
from dmlops.types.opaque_types import ElementType, OpaqueType, type_name
from dmlops.types.tensor import TensorDesc
from kernels_cpu.problems import NonzeroProblem

Fill = int | tuple[int, ...] | None
"""What fills the rows from the count on: one value, or one for each column."""


def check_held(words: Words, data: TensorDesc, count_type: ElementType, coordinate_type: ElementType) -> None:
    """Refuse types that cannot hold the count or a coordinate."""
    count, coordinates = (
        words.where(f"output_{name}_tensor", ".data_type") for name in ("count", "coordinates")
    )
    check_holds(count, count_type, data.element_count, "the count")
    check_holds(coordinates, coordinate_type, max(data.sizes, default=1) - 1, "a coordinate")


def infer_nonzero_coordinates(
    words: Words,
    data: TensorDesc,
    capacity: int,
    index_type: TensorDataType,
    count_type: TensorDataType | None = None,
) -> tuple[TensorDesc, TensorDesc]:
    """Return the coordinates and the count that the function `nonzero_coordinates` returns.

    The coordinates have `capacity` rows, and the count has their type unless `count_type` is given.
    """
    count_type = count_type or index_type
    if isinstance(data.data_type, OpaqueType) and data.data_type.family == "structured":
        reason, allowed = "structured elements are not tested for zero", 'pass bools, such as x["name"] != 0'
        raise TypeError(error_text("nonzero_coordinates.x", data.data_type.name, reason, allowed))
    if capacity < 0:
        reason, allowed = "a result cannot have fewer than 0 rows", "size must be >= 0"
        refuse("nonzero_coordinates.size", capacity, reason, allowed)
    check_held(words, data, count_type, index_type)
    sizes = capacity, data.dimension_count
    coordinates = result(words.where("output_coordinates_tensor", ".sizes"), index_type, sizes)
    return coordinates, TensorDesc(count_type, ())


def row_fill(value: object, integer: Callable[[object, str], int] = arguments.integer) -> Fill:
    """Return what fills the rows from the count on: an integer, one for each column, or None.

    `integer` refuses other numbers, by a TypeError.
    """
    where = "nonzero_coordinates.fill_value"
    if isinstance(value, (tuple, list)):
        return tuple([integer(number, where) for number in value])
    return None if value is None else integer(value, where)


def check_fill(fill: Fill, index_type: TensorDataType, n_columns: int, *, is_trimmed: bool) -> None:
    """Refuse values for rows from the count on if there are none, and values that do not fit the columns."""
    where = "nonzero_coordinates.fill_value"
    if fill is None:
        return
    if is_trimmed:
        refuse(where, fill, "size is left out", "fill_value needs size")
    if isinstance(fill, tuple) and len(fill) != n_columns:
        reason = f"the coordinates have {counted(n_columns, 'column')}"
        refuse(where, fill, reason, "it must be an integer, or one for each column")
    low, high = index_type.integer_range
    for value in fill if isinstance(fill, tuple) else (fill,):
        if not low <= value <= high:
            refuse(where, fill, f"coordinates are {type_name(index_type)}", f"it must be in [{low}, {high}]")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class NonzeroCoordinates(Descriptor):
    """Compute the coordinates of the non-zero elements, in ascending element order, and their count.

    0.0 and -0.0 are zero, and NaN is not.

    Parameters
    ----------
    input_tensor : TensorDesc
        The elements.
    output_count_tensor : TensorDesc, optional
        The count, one element.
    output_coordinates_tensor : TensorDesc, optional
        The coordinates, of sizes {1, ..., M, N}. M is the number of elements of the input. N is between the
        input's effective rank and its dimension count, which is the default. The columns stand for the last N
        dimensions of the input. Rows from the count on are undefined.

    Raises
    ------
    InvalidDescriptorError
        If the count is more than one element, or the coordinates have other sizes.

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
        (
            FeatureLevel.DML_3_0,
            (4, 5),
            SMALL_TYPES,
            {"output_count_tensor": UINT32, "output_coordinates_tensor": UINT32},
            True,  # all tensors have as many dimensions
        ),
        (
            FeatureLevel.DML_4_0,
            (1, 8),
            SMALL_TYPES,
            {"output_count_tensor": UINT32, "output_coordinates_tensor": ((2, 8), UINT32)},
        ),
        (
            FeatureLevel.EXTENDED,
            (0, None),
            EVERY_TYPE,
            {"output_count_tensor": INDEX_TYPES, "output_coordinates_tensor": ((2, None), INDEX_TYPES)},
        ),
    )

    def __post_init__(self) -> None:
        data = self._tensor("input_tensor")
        rows, rank = data.element_count, data.dimension_count
        if self.output_count_tensor is None:
            self._set("output_count_tensor", TensorDesc(TensorDataType.UINT32, (1,) * max(rank, 1)))
        count = self._tensor("output_count_tensor")
        if count.element_count != 1:
            allowed = "every size must be 1"
            self._refuse("output_count_tensor.sizes", count.sizes, "the count is a scalar", allowed)
        sizes = (1,) * max(rank - 2, 0) + (rows, rank)
        if self.output_coordinates_tensor is not None:
            given, lowest = self._tensor("output_coordinates_tensor").sizes, data.effective_rank
            if len(given) < 2:
                reason = f"it has {counted(len(given), 'dimension')}"
                allowed = "sizes must be {1, ..., M, N}"
                self._refuse("output_coordinates_tensor.sizes", given, reason, allowed)
            if not lowest <= given[-1] <= rank:
                reason = f"input_tensor has effective rank {lowest} and {counted(rank, 'dimension')}"
                allowed = f"the last size must be in [{lowest}, {rank}]"
                self._refuse("output_coordinates_tensor.sizes", given, reason, allowed)
            sizes = (1,) * (len(given) - 2) + (rows, given[-1])
        where = self.words.where("output_coordinates_tensor", ".sizes")
        inferred = result(where, TensorDataType.UINT32, sizes)
        coordinates = self._check_output("output_coordinates_tensor", inferred)
        check_held(self.words, data, count.data_type, coordinates.data_type)


def nonzero_coordinates_problem(desc: NonzeroCoordinates, options: Options) -> NonzeroProblem:
    """Return the problem of a descriptor."""
    x, fill = desc.input_tensor, () if options.fill is None else options.fill
    values = fill if isinstance(fill, tuple) else (fill,)
    coordinates = options.coordinates or desc.output_coordinates_tensor
    columns, data_type = coordinates.sizes[-1], x.data_type
    if isinstance(data_type, OpaqueType):
        assert data_type.magnitude is not None  # others are refused, or bools stand for them
        magnitude = data_type.magnitude
    else:
        magnitude = key_masks(data_type).flip or (1 << data_type.bits) - 1
    return NonzeroProblem(
        element_size=data_type.bytes,
        magnitude=magnitude,
        sizes=x.sizes[x.dimension_count - columns :],
        dims=merge(x.sizes, x.effective_strides),
        x_offset=x.offset,
        capacity=coordinates.sizes[-2],
        coordinate_strides=coordinates.effective_strides[-2:],
        coordinate_size=coordinates.data_type.bytes,
        count_size=desc.output_count_tensor.data_type.bytes,
        fill=tuple([value % (1 << coordinates.data_type.bits) for value in values]),
        fills_columns=isinstance(fill, tuple) and len(fill) > 0,
    )


OPERATOR = Operator(
    "nonzero_coordinates",
    (NonzeroCoordinates,),
    nonzero_coordinates_problem,
    ("input_tensor", "output_coordinates_tensor", "output_count_tensor"),
)
