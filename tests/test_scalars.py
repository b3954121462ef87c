"""The scalar of DIAGONAL_MATRIX and DIAGONAL_MATRIX1 is rounded to its type, and keeps all bits of a NaN."""

import re
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import dmlops
from dmlops import (
    DiagonalMatrix,
    DiagonalMatrix1,
    FeatureLevel,
    InvalidDescriptorError,
    TensorDataType,
    TensorDesc,
    compile,
)
from tests.data import FLOATS, INTEGERS, bits, float_from_bits, special_values

pytestmark = pytest.mark.quick


def data_type_of(dtype):
    return TensorDataType[np.dtype(dtype).name.upper()]


def band(dtype, value, **changes):
    output = TensorDesc(data_type_of(dtype), (1, 2))
    arguments = {"output_tensor": output, "value": value, "diagonal_fill_begin": 0, "diagonal_fill_end": 1}
    return DiagonalMatrix1(**arguments | changes)


def filled(descriptor, dtype):
    """Return the bits that the operator fills the diagonal with."""
    out = np.zeros((1, 2), dtype)
    operator = compile(descriptor, feature_level=FeatureLevel.EXTENDED)
    operator.execute({"output_tensor": out})
    return int(bits(out)[0, 0])


def every_bits(dtype):
    """Return the bit patterns of a float type that are hard to keep, above all NaNs of both signs."""
    patterns = {int(pattern) for pattern in bits(special_values(dtype))}
    width = 8 * dtype.itemsize
    infinity = int(bits(np.asarray(np.inf, dtype)))
    quiet = (infinity & -infinity) >> 1
    for payload in (1, 5, quiet - 1, quiet, quiet | 1, 2 * quiet - 1):
        patterns |= {infinity | payload, 1 << (width - 1) | infinity | payload}
    return sorted(patterns)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_kernel_writes_these_bits(dtype):
    for pattern in every_bits(dtype):
        assert filled(band(dtype, float_from_bits([pattern], dtype)[0]), dtype) == pattern


def test_a_payload_that_does_not_fit_is_still_a_nan():
    value = np.uint64(0x7FF0000000000001).view(np.float64)
    assert filled(band("float64", value), "float64") == 0x7FF0000000000001
    assert filled(band("float32", value), "float32") == 0x7FC00000
    assert filled(band("float16", value), "float16") == 0x7E00


class TestEquality:
    def test_by_bits(self):
        patterns = every_bits(np.dtype("float16"))
        descriptors = [band("float16", value) for value in float_from_bits(patterns, "float16")]
        assert len(set(descriptors)) == len(patterns)
        assert descriptors == [band("float16", value) for value in float_from_bits(patterns, "float16")]

    def test_zeros_of_either_sign_differ(self):
        assert band("float32", 0.0) != band("float32", -0.0)
        older = [
            DiagonalMatrix(output_tensor=band("float32", 0).output_tensor, offset=0, value=v)
            for v in (0.0, -0.0)
        ]
        assert older[0] != older[1]

    def test_what_the_type_holds_is_what_counts(self):
        assert band("float32", 0.1) == band("float32", float(np.float32(0.1)))
        assert band("float64", 0.1) != band("float64", float(np.float32(0.1)))
        assert (
            band("float32", 1) == band("float32", True) == band("float32", np.int8(1)) == band("float32", 1.0)
        )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_largest_number(dtype):
    """Values that round to a number of the type are held; those that round to infinity are refused."""
    info = ml_dtypes.finfo(dtype)
    largest = int(float(info.max))
    half = largest - int(float(np.nextafter(info.max, dtype.type(0)))) >> 1
    for value in (largest, largest + half - 1):
        assert filled(band(dtype, value), dtype) == int(bits(info.max))
        assert filled(band(dtype, -value), dtype) == int(bits(info.min))
    far = (10**400, 2**1024, Decimal("1e999999"), Fraction(10**400), np.longdouble("1e4000"))
    text = re.escape(f"value must be a real number in [{float(info.min)}, {float(info.max)}]")
    for value in (largest + half, largest + half + 1, *far):
        for signed in (value, -value):
            with pytest.raises(InvalidDescriptorError, match=text):
                band(dtype, signed)
    for value in (float("inf"), -float("inf"), np.longdouble("inf"), Decimal("-inf")):
        assert band(dtype, value).value == float(value)


@pytest.mark.parametrize("exponent", [308, 309, 399, 400, 401, 999_999])
def test_decimals_of_any_size(exponent):
    """Also beyond all floats they are numbers, of which a type may be too small."""
    for value in (Decimal(f"1e{exponent}"), Decimal(f"-1e{exponent}")):
        if exponent == 308:
            assert dmlops.diagonal_matrix(shape=(1, 1), value=value)[0, 0] == float(value)
            continue
        with pytest.raises(
            InvalidDescriptorError, match=r"^diagonal_matrix\.value: got .*; value must be a real"
        ):
            dmlops.diagonal_matrix(shape=(1, 1), value=value)
        with pytest.raises(
            InvalidDescriptorError, match=r"^diagonal_matrix\.value: got .*; value must be an int"
        ):
            dmlops.diagonal_matrix(shape=(1, 1), value=value, dtype="int64")


class Interrupting:
    """An object that is asked for its value, when the handler of a signal raises."""

    ndim = 0

    def __index__(self):
        raise Stopped

    __float__ = __bool__ = __index__


class Stopped(Exception):  # noqa: N818
    """Raised by a handler."""


def test_exceptions_of_handlers_are_not_swallowed():
    x = np.eye(3)
    for call in (
        lambda value: dmlops.top_k(x, value),
        lambda value: dmlops.diagonal_matrix(x, value=value),
        lambda value: dmlops.diagonal_matrix(x, begin=value),
        lambda value: dmlops.TensorDesc("FLOAT32", (value, 1)),
    ):
        with pytest.raises(Stopped):
            call(Interrupting())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_numbers_are_rounded_once_to_the_nearest(dtype):
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, int(bits(ml_dtypes.finfo(dtype).max)), 100, f"u{dtype.itemsize}")
    for low, high in zip(patterns.view(dtype), (patterns + 1).view(dtype), strict=True):
        below, above = Fraction(float(low)), Fraction(float(high))
        middle = (below + above) / 2
        even = low if int(bits(low)) % 2 == 0 else high
        assert filled(band(dtype, middle), dtype) == int(bits(even))
        for value, nearest in ((below * 3 / 4 + above / 4, low), (below / 4 + above * 3 / 4, high)):
            assert filled(band(dtype, value), dtype) == int(bits(nearest))
    # One bit beyond the middle of two numbers, which a float64 in between would lose.
    assert band("float32", 2**60 + 2**36 + 1).value == 2**60 + 2**37
    assert band("float64", 2**53 + 1).value == 2**53
    assert band("float64", 2**53 + 3).value == 2**53 + 4


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(dtype):
    info = np.iinfo(dtype)
    for value in (int(info.min), int(info.max), 0, 1):
        for given in (value, np.array(value, dtype), dtype.type(value)):
            held = band(dtype, given).value
            assert (type(held), held) == (int, value)
    for given in (1.0, np.float32(1), np.array(1.0), Decimal(1), Fraction(1), True, np.True_):
        assert band(dtype, given).value == 1
        assert type(band(dtype, given).value) is int


class TestFloatOfDiagonalMatrix:
    """DML_DIAGONAL_MATRIX_OPERATOR_DESC has a FLOAT for every type of the output."""

    def test_it_is_a_float_that_the_matrix_holds(self):
        for dtype, value in (("float64", 1e300), ("int64", 1e300), ("float16", 70000)):
            with pytest.raises(InvalidDescriptorError, match=r"DiagonalMatrix\.value: got"):
                DiagonalMatrix(output_tensor=TensorDesc(data_type_of(dtype), (1, 2)), offset=0, value=value)

    def test_integers_get_it_without_its_fraction(self):
        for dtype, value, result in (
            ("int64", 16777217, 16777216),
            ("int64", -16777217, -16777216),
            ("int64", 0.1, 0),
            ("uint8", 255.9, 255),
            ("uint8", -0.9, 0),
            ("int32", -10.6, -10),
            ("uint64", 2**63, 2**63),
        ):
            descriptor = DiagonalMatrix(
                output_tensor=TensorDesc(data_type_of(dtype), (1, 2)), offset=0, value=value
            )
            assert filled(descriptor, dtype) == result % (1 << 8 * np.dtype(dtype).itemsize)
            assert descriptor.lower().value == result
