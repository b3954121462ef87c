"""Which dimension counts and data types an operator takes at each feature level."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dmlops.enums import FeatureLevel, TensorDataType

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
    """A range of dimension counts, both ends included; `high` is None where there is no limit."""

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


ANY_DIMS = Dims(0, None)


class Allowed(NamedTuple):
    """What one tensor of an operator may be at one level."""

    dims: Dims
    types: frozenset[TensorDataType]


class SupportRow(NamedTuple):
    """What an operator takes from `level` on; `overrides` names the tensors that differ."""

    level: FeatureLevel
    dims: Dims
    types: frozenset[TensorDataType]
    overrides: Mapping[str, frozenset[TensorDataType] | Allowed]

    def allowed(self, field: str) -> Allowed:
        """Return what the tensor `field` may be."""
        override = self.overrides.get(field, self.types)
        return override if isinstance(override, Allowed) else Allowed(self.dims, override)


SupportRowArguments = tuple[
    FeatureLevel,
    Dims,
    frozenset[TensorDataType],
    Mapping[str, frozenset[TensorDataType] | Allowed],
]


class SupportTable:
    """An operator's rows of support, one a feature level, lowest level first."""

    def __init__(self, *rows: SupportRowArguments) -> None:
        self.rows = tuple(SupportRow(*row) for row in rows)

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
