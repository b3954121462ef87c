"""The dimension counts and data types that an operator supports at each feature level."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dmlops.types.enums import FeatureLevel, TensorDataType

SMALL_TYPES = frozenset(
    {
        TensorDataType.FLOAT32,
        TensorDataType.FLOAT16,
        TensorDataType.INT32,
        TensorDataType.INT16,
        TensorDataType.INT8,
        TensorDataType.UINT32,
        TensorDataType.UINT16,
        TensorDataType.UINT8,
    }
)
INTEGERS_64 = frozenset({TensorDataType.INT64, TensorDataType.UINT64})
FLOATS_64 = frozenset({TensorDataType.FLOAT64})
UINT32_ONLY = frozenset({TensorDataType.UINT32})
INDEX_TYPES = frozenset({TensorDataType.UINT32, TensorDataType.INT32}) | INTEGERS_64
EVERY_TYPE = SMALL_TYPES | INTEGERS_64 | FLOATS_64 | {TensorDataType.BFLOAT16, TensorDataType.BOOL}


class Dims(NamedTuple):
    """A range of dimension counts, both ends included; `high` is None if there is no limit."""

    low: int
    high: int | None

    def allow(self, dimension_count: int) -> bool:
        """Return whether a tensor may have `dimension_count` dimensions."""
        return self.low <= dimension_count and (self.high is None or dimension_count <= self.high)

    def __str__(self) -> str:
        if self.high is None:
            return f"{self.low} or more"
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"


def dims(low: int, high: int | None = None) -> Dims:
    """Return the range [low, high] of dimension counts, or `low` alone."""
    return Dims(low, low if high is None else high)


def at_least(low: int) -> Dims:
    """Return the range of dimension counts from `low` on."""
    return Dims(low, None)


class Allowed(NamedTuple):
    """The dimension counts and types that one tensor of an operator may have at one level."""

    dims: Dims
    types: frozenset[TensorDataType]


class SupportRow(NamedTuple):
    """The tensors that an operator supports from `level` on.

    Attributes
    ----------
    level : FeatureLevel
        The first level at which the row is in force.
    dims, types : Dims, frozenset of TensorDataType
        What every tensor may be that `overrides` does not name.
    overrides : mapping of str to frozenset of TensorDataType or Allowed
        The tensors that differ.
    equal_dims : bool
        Whether all tensors must have as many dimensions as the first, where sizes do not imply it.
    """

    level: FeatureLevel
    dims: Dims
    types: frozenset[TensorDataType]
    overrides: Mapping[str, frozenset[TensorDataType] | Allowed]
    equal_dims: bool = False

    def allowed(self, field: str) -> Allowed:
        """Return the dimension counts and types of the tensor `field`."""
        override = self.overrides.get(field, self.types)
        return override if isinstance(override, Allowed) else Allowed(self.dims, override)


class SupportTable:
    """An operator's rows of support, one per feature level, lowest level first."""

    def __init__(self, *rows: SupportRow) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[SupportRow]:
        return iter(self.rows)

    @property
    def introduced(self) -> FeatureLevel:
        """The level at which the operator appeared."""
        return self.rows[0].level

    def at(self, level: FeatureLevel) -> SupportRow | None:
        """Return the row in force at `level`, or None below the operator's introduction."""
        in_force = [row for row in self.rows if row.level <= level]
        return in_force[-1] if in_force else None
