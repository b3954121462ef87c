"""What all operator descriptors share: validation by feature level, inference of outputs, JSON."""

import json
import math
from dataclasses import fields
from enum import IntEnum
from operator import index
from typing import Any, ClassVar, NamedTuple, NoReturn, Self

from dmlops.enums import AxisDirection, FeatureLevel, TensorDataType
from dmlops.errors import InvalidDescriptorError, UnsupportedFeatureError, wording
from dmlops.operators.support import SupportRow, SupportTable
from dmlops.tensor import TensorDesc

_ENUMERATIONS: dict[str, type[IntEnum]] = {
    "axis_direction": AxisDirection,
    "value_data_type": TensorDataType,
}


class Objection(NamedTuple):
    """Why a feature level does not take a descriptor."""

    field: str
    got: object
    reason: str


class Descriptor:
    """Base class of the operator descriptors.

    A descriptor checks itself when it is made, and infers the outputs that were left out.
    """

    __slots__ = ()

    support: ClassVar[SupportTable]
    _by_name: ClassVar[dict[str, type["Descriptor"]]] = {}

    def __init_subclass__(cls) -> None:
        Descriptor._by_name[cls.__name__] = cls

    @property
    def name(self) -> str:
        """The operator's name."""
        return type(self).__name__

    @property
    def tensors(self) -> dict[str, TensorDesc]:
        """The tensors that are present, by field name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if isinstance(value, TensorDesc)}

    @property
    def inputs(self) -> dict[str, TensorDesc]:
        """The tensors that are read, by field name."""
        return {name: desc for name, desc in self.tensors.items() if not name.startswith("output_")}

    @property
    def outputs(self) -> dict[str, TensorDesc]:
        """The tensors that are written, by field name."""
        return {name: desc for name, desc in self.tensors.items() if name.startswith("output_")}

    def lower(self) -> "Descriptor":
        """Return the same computation in the newest form of the operator."""
        return self

    def minimum_feature_level(self) -> FeatureLevel:
        """Return the lowest feature level that takes this descriptor.

        Raises
        ------
        UnsupportedFeatureError
            If no level does.
        """
        level = self._lowest_level()
        if level is None:
            objection = self._objection(self.support.rows[-1])
            raise UnsupportedFeatureError(self._unsupported_text(objection, None))
        return level

    def validate(self, level: FeatureLevel) -> None:
        """Return if `level` takes this descriptor.

        Raises
        ------
        UnsupportedFeatureError
            If it does not; the text says why, and the lowest level that would do.
        """
        level = FeatureLevel(level)
        row = self.support.at(level)
        if row is None:
            reason = f"the operator was introduced in {self.support.introduced.name}"
            objection: Objection | None = Objection("feature_level", level.name, reason)
        else:
            objection = self._objection(row)
        if objection is not None:
            raise UnsupportedFeatureError(self._unsupported_text(objection, self._lowest_level()))

    def to_json(self) -> str:
        """Return the descriptor as JSON text."""
        data: dict[str, Any] = {"operator": self.name}
        for field in fields(self):  # type: ignore[arg-type]
            data[field.name] = _to_plain(getattr(self, field.name))
        return json.dumps(data)

    @staticmethod
    def from_json(text: str) -> "Descriptor":
        """Return the descriptor that `to_json` wrote."""
        data = json.loads(text)
        name = data.pop("operator", None)
        if name not in Descriptor._by_name:
            allowed = f"operator must be one of {sorted(Descriptor._by_name)}"
            raise InvalidDescriptorError(
                wording("Descriptor.operator", repr(name), "no operator has that name", allowed)
            )
        cls: Any = Descriptor._by_name[name]
        return cls(**{field: _from_plain(field, value) for field, value in data.items()})  # type: ignore[no-any-return]

    def _lowest_level(self) -> FeatureLevel | None:
        return next((row.level for row in self.support if self._objection(row) is None), None)

    def _objection(self, row: SupportRow) -> Objection | None:
        for name, desc in self.tensors.items():
            allowed = row.allowed(name)
            if not allowed.dims.allow(desc.dimension_count):
                got = f"{desc.dimension_count} dimensions"
                return Objection(name, got, f"{row.level.name} takes {allowed.dims}")
            if desc.data_type not in allowed.types:
                types = ", ".join(sorted(data_type.name for data_type in allowed.types))
                return Objection(name, desc.data_type.name, f"{row.level.name} takes {types}")
            if row.level < FeatureLevel.EXTENDED and desc.extended_reason is not None:
                return Objection(name, desc.sizes, f"{desc.extended_reason}, which DirectML does not take")
        return None

    def _unsupported_text(self, objection: Objection | None, lowest: FeatureLevel | None) -> str:
        if objection is None:
            objection = Objection("feature_level", "none", "no level takes it")
        remedy = "no level would do" if lowest is None else f"the lowest level that would do is {lowest.name}"
        return wording(f"{self.name}.{objection.field}", objection.got, objection.reason, remedy)

    def _refuse(self, field: str, got: object, reason: str, allowed: str) -> NoReturn:
        raise InvalidDescriptorError(wording(f"{self.name}.{field}", got, reason, allowed))

    def _set(self, field: str, value: object) -> Self:
        object.__setattr__(self, field, value)
        return self

    def _integer(self, field: str) -> int:
        """Store the field as a plain int, and return it."""
        got = getattr(self, field)
        try:
            value = index(got)
        except TypeError:
            self._refuse(field, repr(got), "it is no integer", f"{field} must be one")
        self._set(field, value)
        return value

    def _tensor(self, field: str) -> TensorDesc:
        got = getattr(self, field)
        if not isinstance(got, TensorDesc):
            self._refuse(field, repr(got), "it is no tensor", f"{field} must be a TensorDesc")
        return got

    def _settle_output(self, field: str, inferred: TensorDesc) -> TensorDesc:
        """Fill in an output that was left out; check one that was given."""
        if getattr(self, field) is None:
            self._set(field, inferred)
        given = self._tensor(field)
        if given.sizes != inferred.sizes:
            reason = f"the inputs give {inferred.sizes}"
            self._refuse(f"{field}.sizes", given.sizes, reason, f"sizes must be {inferred.sizes}")
        if given.overlaps_itself:
            reason = f"sizes {given.sizes} then share addresses"
            allowed = "the strides of an output must not overlap"
            self._refuse(f"{field}.strides", given.effective_strides, reason, allowed)
        return given

    def _same_type(self, field: str, other: str) -> None:
        got, expected = self._tensor(field).data_type, self._tensor(other).data_type
        if got != expected:
            reason = f"{other} is {expected.name}"
            self._refuse(f"{field}.data_type", got.name, reason, f"data_type must be {expected.name}")

    def _holds(self, field: str, largest: int, what: str) -> None:
        """Check that an output of integers can hold the value `largest`."""
        data_type = self._tensor(field).data_type
        if data_type.is_float or data_type.bits == 0:
            allowed = "data_type must be an integer type"
            self._refuse(f"{field}.data_type", data_type.name, f"it holds {what}", allowed)
        limit = data_type.integer_range[1]
        if largest > limit:
            allowed = f"data_type must hold {largest}"
            self._refuse(f"{field}.data_type", data_type.name, f"{what} reaches {largest}", allowed)


def _to_plain(value: Any) -> Any:
    if isinstance(value, TensorDesc):
        return value.to_dict()
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _from_plain(field: str, value: Any) -> Any:
    if isinstance(value, dict):
        return TensorDesc.from_dict(value)
    if field in _ENUMERATIONS:
        return _ENUMERATIONS[field][value]
    return float(value) if isinstance(value, str) else value
