"""Complex, date, duration, structured and float8 elements, of which kernels only move the bits."""

import datetime
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import dmlops
from dmlops import InvalidDescriptorError, TensorDesc, UnsupportedFeatureError
from tests import reference
from tests.data import LAYOUTS, OUTPUT_LAYOUTS, random
from tests.libraries import Torch
from tests.marks import exhaustive
from tests.opaque_data import (
    ALL,
    COMPLEX,
    FLOAT8,
    FLOAT8_OF_TORCH,
    STRUCTURED,
    TIMES,
    band,
    filled,
    is_nonzero,
    numpy_type,
    raw,
    same,
    sample,
)

SHAPE = (3, 5, 7)


def check_coordinates(x):
    """Check the coordinates of nonzero elements; structured types are refused."""
    if x.dtype.names is not None:
        with pytest.raises(TypeError, match=r'nonzero_coordinates\.x: got .* such as x\["name"\] != 0$'):
            dmlops.nonzero_coordinates(x)
        return
    coordinates, count = dmlops.nonzero_coordinates(x)
    expected = np.argwhere(is_nonzero(x))
    np.testing.assert_array_equal(coordinates, expected)
    assert count == len(expected)


ORDINARY = FLOAT8[0], STRUCTURED[0]
OTHERS = [exhaustive(dtype) for dtype in ALL if dtype not in ORDINARY]


@pytest.mark.parametrize("dtype", [*ORDINARY, *OTHERS], ids=lambda dtype: dtype.name)
class TestEveryType:
    @pytest.mark.parametrize("layout", ["packed", *LAYOUTS])
    def test_layouts(self, dtype, layout):
        x = sample(dtype, SHAPE)
        x = x if layout == "packed" else LAYOUTS[layout](x)
        indices = np.array([[2, 4], [-1, 0], [0, 3]])
        same(dmlops.gather_nd(x, indices), dtype, reference.gather_nd(raw(x), indices))
        check_coordinates(x)
        same(dmlops.diagonal_matrix(x, value=0, begin=-1, end=2), dtype, filled(x, 0, -1, 2))
        if dtype not in FLOAT8:  # the NaN of ml_dtypes has no payload
            value = x[1, 2, 3]
            same(dmlops.diagonal_matrix(x, value=value, begin=-1, end=2), dtype, filled(x, value, -1, 2))

    @pytest.mark.parametrize("layout", OUTPUT_LAYOUTS)
    def test_outputs(self, dtype, layout):
        x = sample(dtype, SHAPE)
        indices = np.array([[2], [1], [0]])
        out = LAYOUTS[layout](np.zeros_like(x))
        assert dmlops.gather_nd(x, indices, out=out) is out
        same(out, dtype, raw(x)[::-1])
        dmlops.diagonal_matrix(x, value=0, out=out)
        same(out, dtype, filled(x, 0))

    def test_large_arrays(self, dtype):
        """For several threads, and past the cache."""
        x = sample(dtype, (300, 700))
        indices = random("large").integers(-300, 300, (700, 1))
        same(dmlops.gather_nd(x, indices), dtype, raw(x)[indices[:, 0]])
        same(dmlops.diagonal_matrix(x, value=0, begin=3, end=2**70), dtype, filled(x, 0, 3, 999))
        check_coordinates(x[:90])

    def test_directml_has_no_such_type(self, dtype):
        x = sample(dtype, (3, 4))
        text = r"got .*, but DirectML has no such type; .* EXTENDED"
        for level in ("DML_2_1", "DML_6_4"):
            with dmlops.feature_level(level):
                for name, call in CALLS.items():
                    with pytest.raises(UnsupportedFeatureError, match=rf"^{name}\.x: {text}"):
                        call(x)
                with pytest.raises(UnsupportedFeatureError, match=rf"^diagonal_matrix\.dtype: {text}"):
                    dmlops.diagonal_matrix(shape=(2, 2), dtype=dtype, value=0)
        with pytest.raises(TypeError, match=r"array: got .*, but descriptors have no such type; "):
            TensorDesc.from_array(x)

    def test_outputs_have_the_same_type(self, dtype):
        x = sample(dtype, (4, 4))
        widths = {1: "uint8", 8: "uint64"}
        for other in (widths.get(dtype.itemsize, f"V{dtype.itemsize}"), "float64", "c16,c8", "M8[ms]"):
            with pytest.raises((InvalidDescriptorError, TypeError), match=r"^diagonal_matrix\.out: got "):
                dmlops.diagonal_matrix(x, value=0, out=np.zeros((4, 4), other))


CALLS = {
    "gather_nd": lambda x: dmlops.gather_nd(x, [[0]]),
    "nonzero_coordinates": dmlops.nonzero_coordinates,
    "diagonal_matrix": lambda x: dmlops.diagonal_matrix(x, value=0),
}


class TestZeros:
    @pytest.mark.parametrize("dtype", COMPLEX, ids=str)
    def test_complex(self, dtype):
        zeros = [complex(a, b) for a in (0.0, -0.0) for b in (0.0, -0.0)]
        others = [1e-45, 1e-45j, np.nan, complex(0, np.nan), complex(-0.0, -np.inf)]
        x = np.array([*zeros, *others], dtype)
        assert dmlops.nonzero_coordinates(x).coordinates[:, 0].tolist() == [*range(4, 9)]

    @pytest.mark.parametrize("dtype", FLOAT8, ids=str)
    def test_every_float8(self, dtype):
        x = np.arange(256, dtype=np.uint8).view(dtype)
        expected = np.flatnonzero(x.astype(np.float32) != 0)
        assert dmlops.nonzero_coordinates(x).coordinates[:, 0].tolist() == expected.tolist()

    def test_nat(self):
        x = np.array(["NaT", "1970-01-01", "1969-12-31"], "datetime64[D]")
        assert dmlops.nonzero_coordinates(x).coordinates.tolist() == [[0], [2]]


class TestTopK:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize("dtype", TIMES, ids=str)
    @pytest.mark.parametrize("largest", [True, False])
    @pytest.mark.parametrize("sorted", [True, False])
    @pytest.mark.parametrize("shape", [(9,), (4, 70), (3, 5000)])
    def test_nat_is_the_largest(self, dtype, largest, sorted, shape):
        rng = random(("dates", shape))
        patterns = rng.integers(-3, 4, shape) * rng.choice([1, 2**61, 2**40], shape)
        extremes = [-(2**63), -(2**63), -(2**63) + 1, 2**63 - 1, 0]
        patterns = np.where(rng.random(shape) < 0.2, rng.choice(extremes, shape), patterns)
        x = patterns.view(dtype)
        # NumPy sorts NaT to the end, and equal elements keep their order.
        order = np.argsort(x, axis=-1, kind="stable")
        assert (np.isnat(np.take_along_axis(x, order, -1)[..., -1]) == np.isnat(x).any(-1)).all()
        rank = np.unique(patterns - 1, return_inverse=True)[1].reshape(shape)  # NaT wraps around
        order = np.argsort(-rank if largest else rank, axis=-1, kind="stable")
        for k in (1, 5, shape[-1]):
            expected = order[..., :k] if sorted else np.sort(order[..., :k])
            values, indices = dmlops.top_k(x, k, largest=largest, sorted=sorted)
            np.testing.assert_array_equal(indices, expected)
            same(values, dtype, raw(np.take_along_axis(x, expected, -1)))

    @pytest.mark.parametrize(
        ("x", "text"),
        [
            (np.ones(3, "complex64"), r"got complex64, but complex numbers have no order; pass x\.real, "),
            (np.ones(3, ml_dtypes.float8_e5m2), "got float8_e5m2, but .*; convert x to float16"),
            (np.ones(3, "u1,f4"), r"got \[\('f0', .*, but structured elements have no order; pass one field"),
        ],
    )
    def test_what_has_no_order(self, x, text):
        for k in (0, 1):
            with pytest.raises(TypeError, match=rf"^top_k\.x: {text}"):
                dmlops.top_k(x, k)


DAY = np.datetime64("2020-02-03")
HELD = [
    ("complex64", 1 - 2j, 1 - 2j),
    ("complex64", np.complex64(complex(-0.0, np.nan)), complex(-0.0, np.nan)),
    ("complex128", 2**60, 2.0**60),
    ("complex128", np.array(3j), 3j),
    ("complex64", complex(np.inf, np.nan), complex(np.inf, np.nan)),
    ("complex128", True, 1),
    ("complex64", np.float32(0.1), np.float32(0.1)),
    ("datetime64[D]", DAY, DAY),
    ("datetime64[ns]", DAY, DAY),
    ("datetime64[D]", np.datetime64("2020-02-03T00:00:00"), DAY),
    ("datetime64[D]", "NaT", np.datetime64("NaT")),
    ("timedelta64[s]", "NaT", np.timedelta64("NaT")),
    ("timedelta64[s]", np.timedelta64("NaT", "D"), np.timedelta64("NaT")),
    ("timedelta64[s]", np.array(2, "timedelta64[m]"), 120),
    ("timedelta64[s]", np.timedelta64(7), 7),
    ("timedelta64[s]", -(2**63) + 1, -(2**63) + 1),
    ("datetime64[D]", 2.0, np.datetime64("1970-01-03")),
    ("float8_e4m3fn", 1.06, 1.0),
    ("float8_e4m3fn", np.nan, np.nan),
    ("float8_e4m3fn", -0.0, -0.0),
    ("float8_e5m2", 61439, 57344),
    ("float8_e5m2", -np.inf, -np.inf),
    ("float8_e4m3fnuz", -0.0, 0.0),
]
REFUSED = [
    ("float32", 1j, InvalidDescriptorError, "it fills float32; value must be a real number"),
    ("int64", DAY, InvalidDescriptorError, r"it fills int64; value must be an integer in"),
    ("int64", np.timedelta64(3, "M"), InvalidDescriptorError, r"it fills int64; value must be an integer in"),
    ("complex64", DAY, InvalidDescriptorError, "it fills complex64; value must be a number"),
    ("complex64", "1", TypeError, "it fills an array; value must be a number, or a scalar of"),
    ("complex64", SimpleNamespace(real=1.0, imag="1"), TypeError, "it fills an array; value must be"),
    ("complex64", np.ones(1, "complex64"), TypeError, "it fills an array; value must be a number"),
    ("complex128", 10**400, InvalidDescriptorError, r"each part in \[-1.797.*, 1.797.*\] once rounded"),
    ("complex64", complex(0, -1e39), InvalidDescriptorError, r"each part in \[-3.402.*, 3.402.*\] once"),
    ("float8_e4m3fn", 465, InvalidDescriptorError, r"in \[-448.0, 448.0\] once rounded, or NaN"),
    ("float8_e4m3fn", np.inf, InvalidDescriptorError, r"in \[-448.0, 448.0\] once rounded, or NaN"),
    ("float8_e5m2", 61440, InvalidDescriptorError, r"in \[-57344.0, 57344.0\] once rounded, infinity or NaN"),
    ("datetime64[D]", np.datetime64("2020-02-03T01"), InvalidDescriptorError, "a date that the unit holds"),
    ("datetime64[ns]", np.datetime64("3000-01-01"), InvalidDescriptorError, "a date that the unit holds"),
    ("datetime64[D]", datetime.date(2020, 1, 1), TypeError, "it fills an array; value must be a number"),
    ("timedelta64[s]", 1.5, InvalidDescriptorError, "a duration that the unit holds"),
    ("timedelta64[s]", 2**63, InvalidDescriptorError, "a duration that the unit holds"),
    ("timedelta64[s]", np.timedelta64(1, "Y"), InvalidDescriptorError, "a duration that the unit holds"),
    ("u1,f4", 1, InvalidDescriptorError, "value must be 0, for all bytes, or a scalar of that type"),
    ("u1,f4", np.zeros((), "u2,f4")[()], InvalidDescriptorError, "value must be 0, for all bytes"),
]
for number in map(ml_dtypes.finfo, FLOAT8):
    extremes = map(float, (number.max, number.min, number.smallest_subnormal))
    HELD += [(number.dtype.name, extreme, extreme) for extreme in extremes]
    REFUSED.append((number.dtype.name, 2 * float(number.max), InvalidDescriptorError, "once rounded"))


class TestValues:
    @pytest.mark.parametrize(("dtype", "value", "expected"), HELD)
    def test_held(self, dtype, value, expected):
        made = dmlops.diagonal_matrix(shape=(2, 2), dtype=dtype, value=value)
        dtype = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
        same(made, dtype, filled(np.zeros((2, 2), dtype), np.array(expected, dtype)[()]))

    @pytest.mark.parametrize(("dtype", "value", "error", "text"), REFUSED)
    def test_refused(self, dtype, value, error, text):
        with pytest.raises(error, match=rf"^diagonal_matrix\.value: got .*{text}"):
            dmlops.diagonal_matrix(shape=(2, 2), dtype=dtype, value=value)

    def test_bits_of_nans(self):
        patterns = np.array([0xFFC12345, 0x7F800001], np.uint32)
        value = patterns.view(np.complex64)[0]
        made = dmlops.diagonal_matrix(shape=(1, 1), dtype=np.complex64, value=value)
        assert made.view(np.uint32).tolist() == [patterns.tolist()]
        made = dmlops.diagonal_matrix(shape=(1, 1), dtype=np.complex64, value=complex(0.0, -0.0))
        assert np.signbit(made.imag).all()

    def test_values_are_told_apart(self):
        x = np.zeros((2, 2), "complex128")
        for _ in range(5):
            for value in (0, -0.0, complex(0, -0.0), 1, 1j, complex(np.nan, 1)):
                same(dmlops.diagonal_matrix(x, value=value), x.dtype, filled(x, np.complex128(value)))
        dates = np.zeros((2, 2), "datetime64[s]")
        for _ in range(5):
            for value in (np.datetime64(5, "s"), np.datetime64(5, "m"), "NaT", 5):
                same(
                    dmlops.diagonal_matrix(dates, value=value),
                    dates.dtype,
                    filled(dates, np.array(value, "M8[s]")[()]),
                )

    def test_structured_scalars(self):
        x = sample(np.dtype("f8,u1,S3"), (4, 3))
        for value in (x[2, 1], x[2:3, 1].reshape(())):
            made = dmlops.diagonal_matrix(x, value=value, begin=1, end=-1)  # inverted
            expected = np.where(band(x.shape, -1, 1)[..., None], raw(x), raw(x[2, 1]))
            same(made, x.dtype, expected)


class TestMemory:
    @pytest.mark.parametrize("odd", ["u4", "u8"])
    def test_fields_of_records(self, odd):
        """Their strides are no multiples of an element, and some are not aligned to what kernels move."""
        fields = [("flag", "f8"), ("z", "c16"), ("w", "c8"), ("s", "u4,f4"), ("odd", odd), ("t", "u1,f4")]
        records = np.zeros((5, 6), fields)
        for name in ("z", "w", "s", "t"):
            records[name] = sample(records.dtype[name], (5, 6))
            x = records[name]
            assert x.strides[1] % x.itemsize
            indices = np.array([[3, 2], [0, 0]])
            same(dmlops.gather_nd(x, indices), x.dtype, reference.gather_nd(raw(x), indices))
            check_coordinates(x)
            same(dmlops.diagonal_matrix(x, value=0), x.dtype, filled(x, 0))
            with pytest.raises((TypeError, InvalidDescriptorError), match=r"^diagonal_matrix\.out: got .*; "):
                dmlops.diagonal_matrix(x.copy(), value=0, out=x)

    def test_addresses_between_parts(self):
        memory = np.zeros(25, "f4")
        for dtype in ("c8", "f4,f4", "f4,f4,f4,f4"):
            for start in (0, 1):
                x = memory[start : start + 24].view(dtype)
                for _ in range(5):
                    x[...] = sample(x.dtype, x.shape)
                    same(dmlops.gather_nd(x, [[1], [0]]), x.dtype, raw(x)[[1, 0]])
                    check_coordinates(x)
        start = 1 if memory.ctypes.data % 8 == 0 else 0
        out = memory[start : start + 2].view("c8")
        with pytest.raises(InvalidDescriptorError, match="must be in memory, at a multiple of their size"):
            dmlops.gather_nd(np.ones(4, "c8"), [[0]], out=out)

    @pytest.mark.parametrize("dtype", STRUCTURED, ids=str)
    def test_copies_keep_bytes_between_fields(self, dtype):
        packed = sample(dtype, (300, 30))
        memory = np.zeros(packed.nbytes + 1, "u1")
        memory[1:] = raw(packed).reshape(-1)
        x = memory[1:].view(dtype).reshape(packed.shape)  # not aligned, so that kernels read a copy
        same(dmlops.gather_nd(x, [[2], [0]]), dtype, raw(packed)[[2, 0]])
        same(dmlops.diagonal_matrix(x, value=0), dtype, filled(packed, 0))

    @pytest.mark.parametrize("dtype", [[], [("a", "f4", (0,))], "O,u1", {"a": ("O", 8)}], ids=str)
    def test_structured_types_without_bytes_and_with_objects(self, dtype):
        x = np.zeros((2, 2), dtype)
        text = (
            r"got [\[{].*, but no operator takes that type; .* structured elements have bytes and no objects"
        )
        for name, call in CALLS.items():
            with pytest.raises(TypeError, match=rf"^{name}\.x: {text}"):
                call(x)


class TestTorch:
    def tensor(self, x):
        """Return a tensor of the same bits."""
        plain = x.view("uint8") if x.dtype in FLOAT8 else x
        return Torch("cpu").from_numpy(plain).view(Torch("cpu").dtype(x.dtype))

    def check(self, tensor, dtype, expected):
        """Check type and bytes of a tensor."""
        assert str(tensor.dtype) == f"torch.{dtype.name}"
        found = tensor.resolve_conj().contiguous().unsqueeze(-1).view(Torch("cpu").dtype("uint8"))
        np.testing.assert_array_equal(found.numpy(), expected)

    @pytest.mark.parametrize("name", ["complex64", "complex128", *FLOAT8_OF_TORCH])
    def test_types(self, torch, name):
        dtype = numpy_type(name)
        x = sample(dtype, (4, 6))
        tensor = self.tensor(x)
        for _ in range(4):
            self.check(dmlops.gather_nd(tensor, torch.tensor([[2], [0]])), dtype, raw(x)[[2, 0]])
            self.check(dmlops.diagonal_matrix(tensor, value=0, end=9), dtype, filled(x, 0, 0, 9))
            self.check(dmlops.diagonal_matrix(tensor.T, value=1), dtype, filled(x.T, 1))
            coordinates, count = dmlops.nonzero_coordinates(tensor)
            np.testing.assert_array_equal(coordinates, np.argwhere(is_nonzero(x)))
            assert count == is_nonzero(x).sum()
        made = dmlops.diagonal_matrix(shape=(2, 3), dtype=tensor.dtype, like=tensor, value=1)
        self.check(made, dtype, filled(np.zeros((2, 3), dtype), 1))
        out = torch.zeros_like(tensor)
        assert dmlops.diagonal_matrix(tensor, value=0, out=out) is out
        self.check(out, dtype, filled(x, 0))

    @pytest.mark.parametrize("name", ["complex64", "complex128"])
    def test_conjugate_bit(self, torch, name):
        x = np.array([[1 + 2j, 3j], [4, complex(5, -0.0)]], name)
        for _ in range(4):
            # A call that is kept for plain tensors must see the bit.
            self.check(dmlops.gather_nd(self.tensor(x), torch.tensor([[1]])), x.dtype, raw(x[[1]]))
            self.check(dmlops.diagonal_matrix(self.tensor(x), value=2j), x.dtype, filled(x, 2j))
            out = torch.zeros_like(self.tensor(x))
            dmlops.diagonal_matrix(self.tensor(x), out=out)
            lazy = self.tensor(x).conj()
            assert lazy.is_conj()
            self.check(dmlops.gather_nd(lazy, torch.tensor([[1]])), x.dtype, raw(x.conj()[[1]]))
            self.check(dmlops.diagonal_matrix(lazy, value=2j), x.dtype, filled(x.conj(), 2j))
            assert dmlops.nonzero_coordinates(lazy).count == 4
            with pytest.raises(InvalidDescriptorError, match="conjugate bit"):
                dmlops.diagonal_matrix(self.tensor(x), out=self.tensor(x).conj())
