"""DirectML's enumerations with their numeric values, and dmlops' additions to them."""

import enum
import re


class IntEnum(enum.IntEnum):
    """An integer enumeration that hashes like its integer, for the look-ups of every call.

    Members print as their names. They are found by these too, and by DirectML's full names.

    Examples
    --------
    >>> TensorDataType("DML_TENSOR_DATA_TYPE_FLOAT32"), f"{FeatureLevel('DML_FEATURE_LEVEL_6_4')}"
    (<TensorDataType.FLOAT32: 1>, 'DML_6_4')
    """

    __hash__ = int.__hash__

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return format(int(self) if spec.endswith(tuple("bdoxXn")) else self.name, spec)

    @classmethod
    def _missing_(cls, value: object) -> "IntEnum | None":
        if not isinstance(value, str):
            return None
        own = re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper()
        short = "DML_" if own == "FEATURE_LEVEL" else ""
        name = value.replace(f"DML_{own}_", short, 1) if value.startswith(f"DML_{own}_") else value
        return cls.__members__.get(name)


class TensorDataType(IntEnum):
    """Element types: DML_TENSOR_DATA_TYPE, and two of dmlops' own (``BFLOAT16``, ``BOOL``).

    References
    ----------
    DML_TENSOR_DATA_TYPE enumeration (directml.h).
    """

    UNKNOWN = 0
    FLOAT32 = 1
    FLOAT16 = 2
    UINT32 = 3
    UINT16 = 4
    UINT8 = 5
    INT32 = 6
    INT16 = 7
    INT8 = 8
    FLOAT64 = 9
    UINT64 = 10
    INT64 = 11
    UINT4 = 12
    INT4 = 13
    BFLOAT16 = 0x1000
    BOOL = 0x1001

    @property
    def bits(self) -> int:
        """Size of one element in bits; 0 for ``UNKNOWN``."""
        return _BITS[self]

    @property
    def bytes(self) -> int:
        """Size of one element in bytes; 0 for types that do not fill a byte."""
        return _BITS[self] // 8

    @property
    def is_float(self) -> bool:
        """Whether the type is a floating-point format."""
        return self in _INFINITY

    @property
    def is_signed(self) -> bool:
        """Whether the type holds negative values."""
        return self in _SIGNED

    @property
    def infinity(self) -> int:
        """Bits of positive infinity; for integers all ones, which no magnitude exceeds."""
        return _INFINITY.get(self, (1 << self.bits) - 1)

    @property
    def integer_range(self) -> tuple[int, int]:
        """Lowest and highest value of an integer type."""
        if self is TensorDataType.BOOL:
            return 0, 1
        low = -(2 ** (self.bits - 1)) if self.is_signed else 0
        return low, low + 2**self.bits - 1

    @property
    def lowest_bits(self) -> int:
        """Bits of the lowest value: of minus infinity, or of the lowest integer."""
        if self.is_float:
            return self.infinity | 1 << (self.bits - 1)
        return self.integer_range[0] % (1 << self.bits)

    @property
    def highest_bits(self) -> int:
        """Bits of the highest value: of plus infinity, or of the highest integer."""
        return self.infinity if self.is_float else self.integer_range[1]


_BITS = {data_type: int(re.sub(r"\D", "", data_type.name) or 0) for data_type in TensorDataType}
_BITS[TensorDataType.BOOL] = 8

_INFINITY = {
    TensorDataType.FLOAT16: 0x7C00,
    TensorDataType.BFLOAT16: 0x7F80,
    TensorDataType.FLOAT32: 0x7F800000,
    TensorDataType.FLOAT64: 0x7FF0000000000000,
}


_SIGNED = frozenset(
    [*_INFINITY, *(data_type for data_type in TensorDataType if data_type.name.startswith("INT"))]
)


class AxisDirection(IntEnum):
    """The end of a sequence that TOP_K1 selects: DML_AXIS_DIRECTION.

    References
    ----------
    DML_AXIS_DIRECTION enumeration (directml.h). Zero means smallest first.
    """

    INCREASING = 0
    DECREASING = 1


class FeatureLevel(IntEnum):
    """DirectML's feature levels, each a superset of the one before, and dmlops' own above them.

    ``EXTENDED`` has none of DirectML's limits on sizes, ranks and types.

    References
    ----------
    DML_FEATURE_LEVEL enumeration (directml.h); DirectML feature level history.
    """

    DML_1_0 = 0x1000
    DML_2_0 = 0x2000
    DML_2_1 = 0x2100
    DML_3_0 = 0x3000
    DML_3_1 = 0x3100
    DML_4_0 = 0x4000
    DML_4_1 = 0x4100
    DML_5_0 = 0x5000
    DML_5_1 = 0x5100
    DML_5_2 = 0x5200
    DML_6_0 = 0x6000
    DML_6_1 = 0x6100
    DML_6_2 = 0x6200
    DML_6_3 = 0x6300
    DML_6_4 = 0x6400
    EXTENDED = 0x10000


class Feature(IntEnum):
    """The queries of `check_feature_support`: DML_FEATURE.

    References
    ----------
    DML_FEATURE enumeration (directml.h); it has these two members only.
    """

    TENSOR_DATA_TYPE_SUPPORT = 0
    FEATURE_LEVELS = 1
