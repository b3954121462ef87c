"""The types of the functions' arguments and results, for type checkers."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypedDict, TypeVar

import numpy as np

from dmlops.types.enums import TensorDataType
from dmlops.types.opaque_types import ElementType

Element = TypeVar("Element", bound=np.generic)
"""The element type of a NumPy array."""
Array = TypeVar("Array")
"""An array of another library: results are of the same."""
Values = TypeVar("Values")
Indices = TypeVar("Indices")

Listed = bool | int | float | Sequence[Any]
"""Objects that become NumPy arrays."""

IndexTypeName = Literal["uint32", "uint64", "int32", "int64"]
DataTypeName = Literal[
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
]
Mode = Literal["raise", "clip", "fill"]


class LibraryDataType(Protocol):
    """A data type as an array library has it: ``numpy.dtype``, ``torch.dtype``."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""


IndexType = IndexTypeName | TensorDataType | LibraryDataType | type[Any] | None
DataType = DataTypeName | ElementType | LibraryDataType | type[Any] | None


class TopKOptions(TypedDict, total=False):
    """The keyword arguments of `top_k`."""

    axis: int
    largest: bool
    sorted: bool
    lengths: Any
    index_dtype: IndexType
    out: Any
    stream: Any


class NonzeroOptions(TypedDict, total=False):
    """The keyword arguments of `nonzero_coordinates`."""

    size: int | None
    fill_value: int | None
    index_dtype: IndexType
    out: Any
    stream: Any


class GatherOptions(TypedDict, total=False):
    """The keyword arguments of `gather_nd`."""

    batch_dims: int
    mode: Mode
    out: Any
    stream: Any


class DiagonalOptions(TypedDict, total=False):
    """The keyword arguments of `diagonal_matrix`, with or without an input."""

    value: Any
    begin: int
    end: int
    out: Any
    stream: Any


class OutputOptions(TypedDict, total=False):
    """The keyword arguments of `tril`, `triu` and `eye`."""

    out: Any
    stream: Any


class MatrixOptions(DiagonalOptions, total=False):
    """The keyword arguments of `diagonal_matrix` without an input."""

    shape: Sequence[int] | None
    dtype: DataType
