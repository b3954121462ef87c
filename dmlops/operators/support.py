"""The dimension counts and data types that an operator supports at each feature level."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dmlops.types.enums import FeatureLevel, TensorDataType

EVERY_TYPE = frozenset(data_type for data_type in TensorDataType if data_type.bytes)
DML_TYPES = EVERY_TYPE - {TensorDataType.BFLOAT16, TensorDataType.BOOL}
SMALL_TYPES = frozenset(data_type for data_type in DML_TYPES if data_type.bytes <= 4)
INTEGERS_64 = frozenset({TensorDataType.INT64, TensorDataType.UINT64})
UINT32 = frozenset({TensorDataType.UINT32})
INDEX_TYPES = UINT32 | INTEGERS_64 | {TensorDataType.INT32}


class Ranks(NamedTuple):
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


class Allowed(NamedTuple):
    """The dimension counts and types that one tensor of an operator may have at one level."""

    dims: Ranks
    types: frozenset[TensorDataType]


class SupportRow(NamedTuple):
    """The tensors that an operator supports from `level` on."""

    level: FeatureLevel
    """The first level at which the row is in force."""
    dims: Ranks
    types: frozenset[TensorDataType]
    """What every tensor may be that `overrides` does not name."""
    overrides: Mapping[str, Allowed]
    """The tensors that differ."""
    equal_dims: bool
    """Whether all tensors must have as many dimensions as the first, where sizes do not imply it."""

    def allowed(self, field: str) -> Allowed:
        """Return the dimension counts and types of the tensor `field`."""
        return self.overrides.get(field) or Allowed(self.dims, self.types)


class SupportTable:
    """An operator's rows of support, one per feature level, lowest level first.

    Each is given as its level, the lowest and the highest number of dimensions (None if there is no limit),
    the types, and those of tensors that differ, whose numbers of dimensions may be given before their types.
    """

    def __init__(self, *rows: tuple[Any, ...]) -> None:
        self.rows = tuple(self._row(*row) for row in rows)

    @staticmethod
    def _row(
        level: FeatureLevel, ranks: Any, types: Any, others: Any = None, equal: bool = False
    ) -> SupportRow:
        overrides = {}
        for field, other in (others or {}).items():
            its_ranks, its_types = other if isinstance(other, tuple) else (ranks, other)
            overrides[field] = Allowed(Ranks(*its_ranks), its_types)
        return SupportRow(level, Ranks(*ranks), types, overrides, equal)

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
