"""`tril`, `triu` and `eye`, against NumPy's."""

import inspect

import numpy as np
import pytest

import dmlops
from dmlops import InvalidDescriptorError, UnsupportedFeatureError
from tests.data import DTYPES, assert_same, sample
from tests.marks import exhaustive

KS = (0, 1, -1, 2, -3, 5, -5, 100, -100)
BEYOND = (2**31, 2**63 - 1, 2**63, 2**64, 10**40)
SHAPES = ((4, 4), (3, 5), (5, 3), (1, 1), (0, 3), (3, 0), (2, 3, 4), (2, 1, 3, 5, 4))
TRIANGLES = {"tril": (dmlops.tril, np.tril), "triu": (dmlops.triu, np.triu)}


TYPES = [dtype if dtype.itemsize in (1, 4) else exhaustive(dtype) for dtype in DTYPES]


@pytest.mark.parametrize("name", TRIANGLES)
class TestTriangles:
    @pytest.mark.parametrize("dtype", TYPES, ids=str)
    def test_types(self, name, dtype):
        ours, of_numpy = TRIANGLES[name]
        for shape in SHAPES:
            x = sample(dtype, shape, name)
            for k in KS:
                assert_same(ours(x, k), of_numpy(x, k))

    def test_no_bound_is_too_large(self, name):
        ours, _ = TRIANGLES[name]
        x = sample("float32", (3, 4), name)
        for k in BEYOND:
            kept, cleared = (k, -k) if name == "tril" else (-k, k)
            assert_same(ours(x, kept), x)
            assert_same(ours(x, cleared), np.zeros_like(x))

    def test_arguments_as_numpy_has_them(self, name):
        ours, of_numpy = TRIANGLES[name]
        parameters = [*inspect.signature(ours).parameters.values()]
        assert [(p.name, p.default) for p in parameters[:2]] == [
            (p.name, p.default) for p in inspect.signature(of_numpy).parameters.values()
        ]
        assert [p.name for p in parameters[2:] if p.kind is p.KEYWORD_ONLY] == ["out", "stream"]
        x = [[1, 2], [3, 4]]
        for k in (np.int8(1), np.array(-1), True):
            assert_same(ours(m=x, k=k), of_numpy(x, k))
        out = np.zeros((2, 2), int)
        assert ours(x, out=out) is out
        assert_same(out, of_numpy(x))

    def test_refused(self, name):
        ours, _ = TRIANGLES[name]
        x = np.ones((2, 2))
        not_an_array = "m: got None, but it is not an array; it must be an array"
        wrong = InvalidDescriptorError
        for m, k, options, error, text in (
            ([1, 2], 0, {}, wrong, "m: got 1 dimension, but a matrix has height and width; "),
            (None, 0, {"out": np.ones((2, 2))}, TypeError, not_an_array),
            (x, 0, {"out": np.ones((2, 3))}, wrong, r"out: got shape \(2, 3\), but the "),
            (x, 0, {"out": x}, wrong, f"out: got an overlapping array, .* with {name}.m; "),
            (x, 0, {"stream": 0}, wrong, "stream: got 0, but the arrays live on cpu; "),
        ):
            with pytest.raises(error, match=rf"^{name}\.{text}"):
                ours(m, k, **options)

    def test_levels(self, name):
        ours, of_numpy = TRIANGLES[name]
        x = sample("float32", (4, 5), name)
        with dmlops.feature_level("DML_5_1"):
            for k in KS:
                assert_same(ours(x, k), of_numpy(x, k))
            for k in (*BEYOND, *(-k for k in BEYOND)):
                assert_same(ours(x, k), x if (k > 0) == (name == "tril") else np.zeros_like(x))
            wide = np.lib.stride_tricks.as_strided(x, (1, 2**31), (0, 0))  # not a copy of it
            if name == "tril":  # of the other, all bounds fit
                with pytest.raises(UnsupportedFeatureError, match=r"^tril\.k: got .*32-bit integers"):
                    ours(wide)
        with (
            dmlops.feature_level("DML_5_0"),
            pytest.raises(UnsupportedFeatureError, match=f"^{name}.*DML_5_1"),
        ):
            ours(x)


class TestEye:
    @pytest.mark.parametrize(
        "dtype", [*DTYPES, "complex64", "complex128", "m8[s]", "M8[D]", float, bool], ids=str
    )
    def test_types(self, dtype):
        for rows, columns in ((3, None), (3, 5), (5, 3), (0, 2), (2, 0), (1, 1)):
            for k in KS:
                expected = np.eye(rows, columns, k, dtype)
                found = dmlops.eye(rows, columns, k, dtype)
                assert found.dtype == expected.dtype
                assert found.tolist() == expected.tolist()

    def test_arguments_as_numpy_has_them(self):
        ours = inspect.signature(dmlops.eye).parameters
        of_numpy = inspect.signature(np.eye).parameters
        assert [(p.name, p.default, p.kind) for p in [*ours.values()][:4]] == [
            (p.name, p.default, p.kind) for p in [*of_numpy.values()][:4]
        ]
        assert ours["like"].kind is of_numpy["like"].kind
        assert_same(dmlops.eye(np.int64(2), k=np.array(1)), np.eye(2, k=1))
        out = np.ones((2, 3))
        assert dmlops.eye(2, 3, out=out) is out
        assert_same(out, np.eye(2, 3))
        for k in BEYOND:
            assert not dmlops.eye(3, k=k).any()
            assert not dmlops.eye(3, k=-k).any()

    def test_refused(self):
        for arguments, options, error, text in (
            ((-1,), {}, InvalidDescriptorError, "N: got -1, but a size is negative; N must be >= 0"),
            ((2, 2, None), {}, TypeError, "k: got None, but it is not an integer; "),
            (
                (2, 2, 0, "u1,f4"),
                {},
                InvalidDescriptorError,
                r"dtype: got 1, but it fills \[.*; value must be 0",
            ),
            ((2**40, 2**40), {}, InvalidDescriptorError, r"N: got \(1099511627776, .* more than 2\*\*63"),
            ((2,), {"out": np.ones((3, 3))}, InvalidDescriptorError, r"out: got shape \(3, 3\), but "),
            ((2,), {"like": "x"}, TypeError, "like: got "),
        ):
            with pytest.raises(error, match=rf"^eye\.{text}"):
                dmlops.eye(*arguments, **options)

    def test_levels(self):
        with dmlops.feature_level("DML_2_0"):
            assert_same(dmlops.eye(2, 3, 1, "float32"), np.eye(2, 3, 1, "float32"))
        with (
            dmlops.feature_level("DML_2_0"),
            pytest.raises(UnsupportedFeatureError, match=r"^eye\..*DML_5_1"),
        ):
            dmlops.eye(2)
