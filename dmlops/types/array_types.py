"""The types of the functions' arguments and results, for type checkers."""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, SupportsIndex, TypedDict, TypeVar

import numpy as np

from dmlops.types.enums import TensorDataType
from dmlops.types.opaque_types import ElementType

Element = TypeVar("Element", bound=np.generic)
"""The element type of a NumPy array."""
Array = TypeVar("Array")
"""An array of another library: results are of the same."""
Values = TypeVar("Values")
Indices = TypeVar("Indices")

Listed = bool | int | float | Sequence[object]
"""Objects that become NumPy arrays."""

Truth = bool | np.bool_
IndexTypeName = Literal["uint32", "uint64", "int32", "int64", "u4", "u8", "i4", "i8"]
Mode = Literal["raise", "clip", "fill"]


class LibraryDataType(Protocol):
    """A data type as an array library has it: ``numpy.dtype``, ``torch.dtype``."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""


IndexType = IndexTypeName | TensorDataType | LibraryDataType | type | None
DataType = str | ElementType | LibraryDataType | type | None


class OutputOptions(TypedDict, total=False):
    """The keyword arguments of all functions, and the only ones of `tril`, `triu` and `eye`."""

    out: object
    stream: object


class TopKOptions(OutputOptions, total=False):
    """The keyword arguments of `top_k`."""

    axis: SupportsIndex
    largest: Truth
    sorted: Truth
    starts: object
    lengths: object
    max_length: SupportsIndex | None
    indices: object
    nan_last: Truth
    index_dtype: IndexType


class NonzeroOptions(OutputOptions, total=False):
    """The keyword arguments of `nonzero_coordinates`."""

    size: SupportsIndex | None
    fill_value: SupportsIndex | Sequence[SupportsIndex] | None
    index_dtype: IndexType


class GatherOptions(OutputOptions, total=False):
    """The keyword arguments of `gather_nd`."""

    batch_dims: SupportsIndex
    mode: Mode
    fill_value: object
    wrap_negative: Truth


class SampleOptions(OutputOptions, total=False):
    """The keyword arguments of `sample`."""

    steps: object
    temperature: object
    k: object
    top_p: object
    min_p: object
    index_dtype: IndexType


class DiagonalOptions(OutputOptions, total=False):
    """The keyword arguments of `diagonal_matrix`, with or without an input."""

    value: object
    begin: float
    end: float | None


class MatrixOptions(DiagonalOptions, total=False):
    """The keyword arguments of `diagonal_matrix` without an input."""

    shape: Iterable[SupportsIndex] | None
    dtype: DataType
