"""`TensorDesc`, the description of a tensor: data type, sizes and strides, as in DML_BUFFER_TENSOR_DESC."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from dmlops.types.arguments import as_integer, as_tuple, check_dimensions
from dmlops.types.array_types import DataType
from dmlops.types.data_types import SUPPORTED, member_named
from dmlops.types.enums import TensorDataType
from dmlops.types.errors import InvalidDescriptorError, counted, error_text, refuse, shown
from dmlops.types.opaque_types import ElementType, OpaqueType, type_name

MAX_DML_ELEMENTS = 2**32 - 1
# DirectML stores sizes and strides in a UINT.
_MAX_UINT = 2**32 - 1
# The limit of elements, bytes, sizes and strides: kernels count in 64-bit integers.
_MAX_INT64 = 2**63 - 1
_sizes_stand_in: ContextVar[bool] = ContextVar("dmlops_sizes_stand_in", default=False)
do_sizes_stand_in: Callable[[], bool] = _sizes_stand_in.get
"""Returns whether sizes may be numbers that stand in for others; see `sizes_stand_in`."""


def describe_arrays_by(describe: "Callable[[object, str], TensorDesc]") -> None:
    """Set how `TensorDesc.from_array` describes an array: array libraries import this module."""
    global _describe_array  # noqa: PLW0603
    _describe_array = describe


_describe_array: "Callable[[object, str], TensorDesc]"


@contextmanager
def sizes_stand_in() -> Iterator[None]:
    """Allow any sizes in a ``with`` block, or in a function that this decorates.

    A traced call may not know its sizes yet. Numbers that no tensor has then stand in for them, and their
    product may exceed a 64-bit integer.
    """
    token = _sizes_stand_in.set(True)
    try:
        yield
    finally:
        _sizes_stand_in.reset(token)


@dataclass(frozen=True, slots=True, init=False)
class TensorDesc:
    """Describe a tensor in memory.

    Parameters
    ----------
    data_type : TensorDataType
        The type of the elements: a member, its number or its name, or a type of an array library.
    sizes : sequence of int
        The number of elements along each dimension.
    strides : sequence of int, optional
        The distance in elements between neighbours along each dimension. A stride of 0 broadcasts an input;
        larger strides leave padding. By default, the tensor is packed.

    Raises
    ------
    InvalidDescriptorError
        If sizes are negative, sizes and strides differ in length, there are more than 64 dimensions, or
        more elements or bytes than a 64-bit integer can count.

    Notes
    -----
    DirectML supports no empty tensors, no negative strides, no scalars, at most 8 dimensions, at most
    2**32 - 1 elements and no larger stride. Other tensors need `FeatureLevel.EXTENDED`.

    References
    ----------
    DML_BUFFER_TENSOR_DESC structure (directml.h).

    Examples
    --------
    >>> desc = TensorDesc(TensorDataType.FLOAT16, (1, 2, 3), strides=(6, 4, 1))
    >>> desc.dimension_count, desc.element_count, desc.effective_rank
    (3, 6, 2)
    >>> desc.total_tensor_size_in_bytes
    16
    """

    data_type: ElementType
    sizes: tuple[int, ...]
    strides: tuple[int, ...] | None
    element_count: int = field(repr=False, compare=False)
    """Number of elements, broadcast ones counted as often as they appear."""
    effective_strides: tuple[int, ...] = field(repr=False, compare=False)
    """The strides in elements; those of a packed tensor where none were given."""
    extent: int = field(repr=False, compare=False)
    """Distance in elements from the lowest-addressed element to one past the highest."""
    offset: int = field(repr=False, compare=False)
    """Distance in elements from the lowest-addressed element to element [0, ..., 0]."""

    def __init__(
        self, data_type: DataType | int, sizes: Sequence[int], strides: Sequence[int] | None = None
    ) -> None:
        if not isinstance(data_type, (TensorDataType, OpaqueType)):
            member = member_named(data_type)
            if member is None:
                allowed = f"data_type must be one of {', '.join(SUPPORTED)}"
                refuse("TensorDesc.data_type", shown(data_type), "there is no such data type", allowed)
            data_type = member
        sizes = _integers("sizes", sizes)
        element_count = extent = math.prod(sizes)
        # A size of 0 must not hide that others are too large.
        span = element_count or math.prod([size or 1 for size in sizes])
        if sizes and min(sizes) < 0:
            refuse("TensorDesc.sizes", sizes, "a size is negative", "sizes must be >= 0")
        if span > _MAX_INT64 and not _sizes_stand_in.get():
            reason = "these are more than 2**63 - 1 elements"
            refuse("TensorDesc.sizes", sizes, reason, "a 64-bit integer must be able to count them")
        offset = 0
        if strides is None:
            effective_strides = packed_strides(sizes)
        else:
            effective_strides = strides = _integers("strides", strides)
            if len(strides) != len(sizes):
                reason = f"sizes has {counted(len(sizes), 'dimension')}"
                refuse("TensorDesc.strides", strides, reason, "strides must have as many")
            if strides and not -_MAX_INT64 <= min(strides) <= max(strides) <= _MAX_INT64:
                allowed = "strides must be in [1 - 2**63, 2**63 - 1]"
                refuse("TensorDesc.strides", strides, "one needs more than 64 bits", allowed)
            if element_count:
                extent, offset = _extent(sizes, strides)
            span = extent
        if span > _MAX_INT64 >> 3 and span * data_type.bits > 8 * _MAX_INT64 and not _sizes_stand_in.get():
            field_name, got = ("sizes", sizes) if strides is None else ("strides", strides)
            reason = f"{type_name(data_type)} elements then span more than 2**63 - 1 bytes"
            refuse(f"TensorDesc.{field_name}", got, reason, "a 64-bit integer must be able to count them")
        put = object.__setattr__
        put(self, "data_type", data_type)
        put(self, "sizes", sizes)
        put(self, "strides", strides)
        put(self, "element_count", element_count)
        put(self, "effective_strides", effective_strides)
        put(self, "extent", extent)
        put(self, "offset", offset)

    @property
    def dimension_count(self) -> int:
        """Number of dimensions."""
        return len(self.sizes)

    @property
    def effective_rank(self) -> int:
        """Number of dimensions after the leading ones of size 1."""
        leading = 0
        while leading < len(self.sizes) and self.sizes[leading] == 1:
            leading += 1
        return len(self.sizes) - leading

    @property
    def total_tensor_size_in_bytes(self) -> int:
        """The bytes that the tensor occupies by DirectML's rule, a multiple of 4.

        References
        ----------
        DMLCalcBufferTensorSize (DirectML's helper functions page). Its index sum wraps at 2**32;
        this one does not.
        """
        whole_bytes = (self.extent * self.data_type.bits + 7) // 8
        return (whole_bytes + 3) // 4 * 4

    @property
    def overlaps_itself(self) -> bool:
        """Whether two elements may share an address, so that the tensor cannot be written to.

        Dimensions that interleave count as such, even if no two elements meet.
        """
        if self.strides is None or self.element_count <= 1:
            return False
        dims = sorted(
            (abs(stride), size) for size, stride in zip(self.sizes, self.strides, strict=True) if size > 1
        )
        reach = 0
        for stride, size in dims:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
        return False

    @property
    def extended_reason(self) -> str | None:
        """The reason why the tensor breaks DirectML's rules, or None."""
        if any(size == 0 for size in self.sizes):
            return f"sizes {self.sizes} contain a zero"
        if self.strides is not None and any(stride < 0 for stride in self.strides):
            return f"strides {self.strides} contain a negative one"
        if max(self.element_count, self.extent) > MAX_DML_ELEMENTS:
            return f"sizes {self.sizes} span more than {MAX_DML_ELEMENTS} elements"
        if self.strides is not None and any(stride > _MAX_UINT for stride in self.strides):
            return f"strides {self.strides} contain one above {_MAX_UINT}"
        return None

    def with_leading_ones(self, dimension_count: int) -> "TensorDesc":
        """Return the same tensor with dimensions of size 1 in front, `dimension_count` in all."""
        missing = dimension_count - self.dimension_count
        strides = None if self.strides is None else (0,) * missing + self.strides
        return TensorDesc(self.data_type, (1,) * missing + self.sizes, strides)

    @classmethod
    def from_array(cls, array: object) -> "TensorDesc":
        """Return the description of an array of any library that dmlops knows.

        Parameters
        ----------
        array : array
            The array, whose elements are not read. Lists and numbers are converted with `numpy.asarray`.

        Returns
        -------
        TensorDesc
            The description, without strides if the array is packed.

        Raises
        ------
        TypeError
            If it is not an array, is of an unsupported type, or holds more than plain elements; or if its
            strides are no multiples of its elements, which no description can say.

        Examples
        --------
        >>> import numpy as np
        >>> TensorDesc.from_array(np.zeros((2, 3), np.float16)).sizes
        (2, 3)
        >>> TensorDesc.from_array(np.zeros((4, 6), np.float16)[:, ::2]).strides
        (6, 2)
        """
        where = "TensorDesc.from_array.array"
        found = _describe_array(array, where)
        if isinstance(found.data_type, OpaqueType):
            allowed = f"it must be one of {', '.join(SUPPORTED)}"
            raise TypeError(error_text(where, found.data_type.name, "descriptors have no such type", allowed))
        packed = packed_strides(found.sizes)
        apart = zip(found.sizes, found.effective_strides, packed, strict=True)
        if 0 in found.sizes or all(stride == step for size, stride, step in apart if size > 1):
            return cls(found.data_type, found.sizes)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the description as JSON-ready data."""
        strides = None if self.strides is None else list(self.strides)
        return {"data_type": self.data_type.name, "sizes": list(self.sizes), "strides": strides}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "TensorDesc":
        """Return the tensor that `to_dict` described.

        Raises
        ------
        InvalidDescriptorError
            If a member is missing, unknown or of a wrong type.
        """
        if not isinstance(data, Mapping):
            reason, allowed = "it does not describe a tensor", f"it must be an object with {_MEMBERS}"
            refuse("TensorDesc", shown(data), reason, allowed)
        for name in ("data_type", "sizes"):
            if name not in data:
                refuse(f"TensorDesc.{name}", "nothing", "it is missing", f"a tensor must have {_MEMBERS}")
        for name in data:
            if name not in ("data_type", "sizes", "strides"):
                refuse("TensorDesc", f"member {shown(name)}", "a tensor has none", f"it has {_MEMBERS}")
        for name in ("sizes", "strides"):
            values = data.get(name)
            if values is None and name == "strides":
                continue
            if isinstance(values, (list, tuple)):
                check_dimensions(f"TensorDesc.{name}", len(values))
            if not isinstance(values, (list, tuple)) or bool in map(type, values):
                reason, allowed = "it is not an array of integers", f"{name} must be one"
                refuse(f"TensorDesc.{name}", shown(values), reason, allowed)
        return cls(data["data_type"], data["sizes"], data.get("strides"))


_INT = frozenset((int,))
_NO_SEQUENCES = (str, bytes, bytearray, Mapping, Set)
_MEMBERS = "data_type, sizes and, where it is not packed, strides"


def _extent(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """Return the extent of a tensor that has elements, and the offset of its first one."""
    below = above = 0
    for size, stride in zip(sizes, strides):  # noqa: B905 - slow with strict
        distance = (size - 1) * stride
        if distance < 0:
            below -= distance
        else:
            above += distance
    return below + above + 1, below


def packed_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a packed tensor of these sizes."""
    strides = []
    stride = 1
    for size in sizes[::-1]:
        strides.append(stride)
        stride *= size or 1
    return tuple(strides[::-1])


def _integers(field: str, values: object) -> tuple[int, ...]:
    if type(values) is tuple:
        check_dimensions(f"TensorDesc.{field}", len(values))
        if _INT.issuperset(map(type, values)):
            return values
    try:
        # Empty text would pass below, and mappings and sets have no meaningful order.
        is_sequence = not isinstance(values, _NO_SEQUENCES)
        numbers = as_tuple(values, f"TensorDesc.{field}") if is_sequence else (None,)
    except TypeError:
        numbers = (None,)
    numbers = tuple([as_integer(number) for number in numbers])
    if None in numbers:
        reason, allowed = "it is not a sequence of integers", f"{field} must be one"
        refuse(f"TensorDesc.{field}", shown(values), reason, allowed)
    return numbers


def tensor_for(where: str, name: str, make: Callable[..., TensorDesc], *arguments: object) -> TensorDesc:
    """Return a tensor that `make` makes; its errors begin with `where` in the place of `name`."""
    try:
        return make(*arguments)
    except InvalidDescriptorError as error:
        raise InvalidDescriptorError(where + str(error).removeprefix(name)) from None
