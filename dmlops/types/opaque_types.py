"""Element types that DirectML does not have, and of which kernels only move the bits.

They are complex numbers, NumPy's dates and durations, structured elements, and float8. A `TensorDesc` that a
function makes for an array may have such a type. A `TensorDesc` that users make has one of DirectML's.
"""

import functools
import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dmlops.types.enums import TensorDataType

# Kernels read and write elements of 1, 2, 4 and 8 bytes.
_WIDEST = 8
_NAT_BITS = 1 << 63


@dataclass(frozen=True, slots=True, eq=False)
class OpaqueType:
    """A type of elements of which kernels only know the bits."""

    name: str
    """The name that array libraries use."""
    family: Literal["complex", "float8", "datetime64", "timedelta64", "structured"]
    """What its elements are."""
    bytes: int
    """Size of one element."""
    magnitude: int | None
    """An element is non-zero if any of these bits is set; None if the type has no such test for zero."""
    dtype: "np.dtype | None" = None
    """The type in NumPy, if `name` does not determine it."""

    def __eq__(self, other: object) -> bool:
        """Return whether elements can be moved from one type to the other; see `identity`."""
        return isinstance(other, OpaqueType) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def _compared(self) -> tuple[str, Hashable]:
        return self.family, self.name if self.dtype is None else self.dtype

    @property
    def bits(self) -> int:
        """Size of one element in bits."""
        return 8 * self.bytes

    @property
    def is_time(self) -> bool:
        """Whether the elements are 64-bit integers, the lowest of which is NaT."""
        return self.family in ("datetime64", "timedelta64")

    @property
    def is_float(self) -> bool:
        """Whether the type is one of DirectML's floating-point formats; opaque types never are."""
        return False

    @property
    def is_signed(self) -> bool:
        """Whether elements are signed integers."""
        return self.is_time

    @property
    def lowest_bits(self) -> int:
        """Bits of the earliest date, or of the lowest duration."""
        return _NAT_BITS + 1

    @property
    def highest_bits(self) -> int:
        """Bits of the latest date, or of the highest duration; NaT stands above it."""
        return _NAT_BITS - 1


ElementType = TensorDataType | OpaqueType
"""The element types of arrays that functions accept."""


def _complex(n_bytes: int) -> OpaqueType:
    part = (1 << (4 * n_bytes - 1)) - 1
    magnitude = part << 4 * n_bytes | part if n_bytes <= _WIDEST else None
    return OpaqueType(f"complex{8 * n_bytes}", "complex", n_bytes, magnitude)


# Formats with "uz" in their names have one zero, and the bits of -0.0 are their NaN.
_FLOAT8 = ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")
OPAQUE = {
    opaque.name: opaque
    for opaque in (
        _complex(8),
        _complex(16),
        *(OpaqueType(f"float8_{name}", "float8", 1, 0xFF if "uz" in name else 0x7F) for name in _FLOAT8),
    )
}
"""The types that are determined by their names, which all array libraries use."""


def opaque_of_numpy(dtype: np.dtype) -> OpaqueType | None:
    """Return the opaque type of a NumPy type that its name does not determine; None for other types."""
    if dtype.kind == "M":
        return OpaqueType(dtype.name, "datetime64", 8, (1 << 64) - 1, dtype)
    if dtype.kind == "m":
        return OpaqueType(dtype.name, "timedelta64", 8, (1 << 64) - 1, dtype)
    # Objects are counted references.
    if dtype.names is not None and dtype.itemsize and not dtype.hasobject:
        return OpaqueType(str(dtype), "structured", dtype.itemsize, None, dtype)
    return None


def identity(dtype: np.dtype) -> Hashable:
    """Return a key that tells a type from others that NumPy calls equal to it.

    Those differ in the class of their records, in alignment or in metadata, also of a field.
    """
    metadata = None if dtype.metadata is None else repr(dtype.metadata)
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return identity(base), shape, metadata
    if dtype.names is None:
        return dtype, metadata
    fields = [(name, identity(dtype.fields[name][0]), *dtype.fields[name][1:]) for name in dtype.names]  # type: ignore[index]
    return dtype.type, dtype.itemsize, dtype.isalignedstruct, tuple(fields), metadata


def type_name(element_type: ElementType) -> str:
    """Return the name of a type as array libraries spell it."""
    return element_type.name if isinstance(element_type, OpaqueType) else element_type.name.lower()


@functools.cache
def part_bytes(element_type: ElementType) -> int:
    """Return the size of the parts in which kernels move an element, which is also its alignment."""
    return math.gcd(element_type.bytes, _WIDEST)
