"""DIAGONAL_MATRIX, DIAGONAL_MATRIX1 and `diagonal_matrix`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dmlops
from dmlops import DiagonalMatrix, DiagonalMatrix1, InvalidDescriptorError, TensorDataType, TensorDesc
from tests import cases, reference
from tests.data import DTYPES, LAYOUTS, OUTPUT_LAYOUTS, assert_same, bits, sample
from tests.libraries import check, execute
from tests.marks import with_quick_cases

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
PAGE_INPUT = np.array([[4, 7, 3, 7, 9], [1, 2, 8, 6, 9], [9, 4, 1, 8, 7], [4, 3, 4, 2, 4]], "float32")

PAGE_EXAMPLES = {
    # Erratum: the page prints Value 7 above an output of ones.
    "basic_identity_matrix": (
        *(None, 1, 0, 1),
        [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0]],
    ),
    "three_element_wide_diagonal_strip": (
        *(None, 7, 0, 3),
        [[7, 7, 7, 0, 0], [0, 7, 7, 7, 0], [0, 0, 7, 7, 7], [0, 0, 0, 7, 7]],
    ),
    "keep_top_right_diagonal_half": (
        *(PAGE_INPUT, 0, INT32_MIN, 1),
        [[0, 7, 3, 7, 9], [0, 0, 8, 6, 9], [0, 0, 0, 8, 7], [0, 0, 0, 0, 4]],
    ),
    "keep_only_values_along_the_diagonal": (
        *(PAGE_INPUT, 0, 1, 0),
        [[4, 0, 0, 0, 0], [0, 2, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 2, 0]],
    ),
}


@pytest.fixture(params=PAGE_EXAMPLES.values(), ids=PAGE_EXAMPLES)
def example(request):
    x, value, begin, end, output = request.param
    return x, value, begin, end, np.array(output, "float32")


@pytest.mark.quick
class TestPageExamples:
    def test_function(self, example):
        x, value, begin, end, output = example
        built = {"shape": (4, 5), "dtype": np.float32} if x is None else {}
        assert_same(dmlops.diagonal_matrix(x, value=value, begin=begin, end=end, **built), output)

    def test_descriptor(self, example):
        x, value, begin, end, output = example
        tensor = TensorDesc(TensorDataType.FLOAT32, (4, 5))
        inputs = {} if x is None else {"input_tensor": x}
        descriptor = DiagonalMatrix1(
            output_tensor=tensor,
            value_data_type=TensorDataType.FLOAT32,
            value=value,
            diagonal_fill_begin=begin,
            diagonal_fill_end=end,
            **dict.fromkeys(inputs, tensor),
        )
        assert_same(execute(descriptor, **inputs)["output_tensor"], output)

    @pytest.mark.parametrize("offset", [-9, -1, 0, 2, 9, INT32_MIN, INT32_MAX])
    def test_diagonal_matrix_is_one_diagonal_of_diagonal_matrix1(self, offset):
        descriptor = DiagonalMatrix(
            output_tensor=TensorDesc(TensorDataType.FLOAT16, (1, 2, 4, 5)), offset=offset, value=7
        )
        expected = np.zeros((1, 2, 4, 5), "float16")
        expected[...] = 7 * np.eye(4, 5, k=offset)
        assert_same(execute(descriptor)["output_tensor"], expected)


@pytest.mark.parametrize("case", with_quick_cases(cases.DIAGONAL), ids=str)
def test_matches_the_oracle(case, library):
    check(library, case)


@pytest.mark.parametrize("begin", [INT32_MIN, INT32_MIN + 1, -1, 0, 1, INT32_MAX])
@pytest.mark.parametrize("end", [INT32_MIN, INT32_MIN + 1, -1, 0, 1, INT32_MAX])
def test_top_x_does_not_overflow(begin, end):
    tensor = TensorDesc(TensorDataType.INT32, (3, 4))
    descriptor = DiagonalMatrix1(
        output_tensor=tensor,
        value_data_type=TensorDataType.INT32,
        value=9,
        diagonal_fill_begin=begin,
        diagonal_fill_end=end,
    )
    expected = reference.diagonal_matrix(shape=(3, 4), dtype="int32", value=9, begin=begin, end=end)
    assert_same(execute(descriptor)["output_tensor"], expected)


def test_every_band_of_a_small_matrix():
    x = np.arange(1, 16, dtype="int16").reshape(3, 5)
    for begin in range(-5, 8):
        for end in range(-5, 8):
            expected = reference.diagonal_matrix(x, value=-1, begin=begin, end=end)
            assert_same(dmlops.diagonal_matrix(x, value=-1, begin=begin, end=end), expected)


def test_numpy_triangles():
    x = sample("float64", (4, 30, 40), "triangles")
    for k in (-40, -3, 0, 7, 50):
        lower = dmlops.diagonal_matrix(x, value=0, begin=k + 1, end=2**40)
        upper = dmlops.diagonal_matrix(x, value=0, begin=-(2**40), end=k)
        np.testing.assert_array_equal(bits(lower), bits(np.tril(x, k)))
        np.testing.assert_array_equal(bits(upper), bits(np.triu(x, k)))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *(("uint64", 2**64 - 1), ("int64", -(2**63)), ("int64", 2**53 + 1), ("uint8", 255), ("int8", -128)),
        *(("float64", 0.1), ("float32", 0.1), ("float16", 0.1), ("bfloat16", 0.1), ("float32", np.inf)),
        *(("float32", np.nan), ("float16", -0.0), ("bool", True), ("float64", 5e-324)),
    ],
)
def test_value_is_exact(dtype, value):
    dtype = next(d for d in DTYPES if d.name == dtype)
    result = dmlops.diagonal_matrix(shape=(2, 2), dtype=dtype, value=value)
    expected = np.array([[value, 0], [0, value]], dtype)
    assert_same(result, expected)


@pytest.mark.parametrize("value", [np.float32(2.5), np.int8(2), np.array(2.0), True])
def test_value_may_be_a_numpy_scalar(value):
    result = dmlops.diagonal_matrix(shape=(1, 2), dtype=np.float64, value=value)
    assert_same(result, np.array([[float(value), 0]]))


def test_float_value_of_an_integer_diagonal_matrix_is_truncated():
    # DIAGONAL_MATRIX has a FLOAT value for every type: 10.6 becomes 10.
    descriptor = DiagonalMatrix(
        output_tensor=TensorDesc(TensorDataType.INT16, (1, 1, 2, 2)), offset=0, value=10.6
    )
    assert_same(execute(descriptor)["output_tensor"], np.array([[[[10, 0], [0, 10]]]], "int16"))


def test_bounds_are_any_integers():
    x = np.ones((3, 3), "uint8")
    result = dmlops.diagonal_matrix(x, value=0, begin=np.int64(1), end=10**30)
    assert_same(result, np.tril(x))


def test_builds_numpy_arrays_of_float64_or_of_the_type_asked_for():
    assert_same(dmlops.diagonal_matrix(shape=(2, 3)), np.eye(2, 3))
    assert type(dmlops.diagonal_matrix(shape=(2, 3), dtype="int8")) is np.ndarray
    assert dmlops.diagonal_matrix(shape=(2, 3), dtype="int8").dtype == np.int8


def test_builds_what_is_asked_in_the_library_of_like(library):
    like = library.from_numpy(np.zeros(3))
    result = dmlops.diagonal_matrix(shape=(2, 3), dtype=library.dtype("int16"), like=like)
    assert_same(library.to_numpy(result), np.eye(2, 3, dtype="int16"))


def test_takes_lists():
    assert_same(dmlops.diagonal_matrix([[1, 2], [3, 4]], value=9), np.array([[9, 2], [3, 9]]))


@pytest.mark.parametrize("layout", OUTPUT_LAYOUTS)
def test_out_of_any_layout(layout):
    for dtype in ("uint8", "float32"):
        x = sample(dtype, (3, 34, 70), "out")
        for begin, end in ((-2, 5), (1, 0)):
            expected = reference.diagonal_matrix(x, begin=begin, end=end)
            out = LAYOUTS[layout](np.zeros_like(x))
            assert dmlops.diagonal_matrix(x, begin=begin, end=end, out=out) is out
            assert_same(out, expected)


def test_out_decides_shape_and_type():
    out = np.ones((3, 4), "int32")
    assert dmlops.diagonal_matrix(out=out, value=6, begin=1, end=2) is out
    assert_same(out, 6 * np.eye(3, 4, k=1, dtype="int32"))
    assert dmlops.diagonal_matrix(shape=[3, 4], out=out) is out
    assert_same(out, np.eye(3, 4, dtype="int32"))


def test_like_decides_the_type_before_out():
    like, out = np.ones(1, "int32"), np.ones((3, 4), "int32")
    assert dmlops.diagonal_matrix(like=like, out=out) is out
    assert_same(out, np.eye(3, 4, dtype="int32"))
    with pytest.raises(InvalidDescriptorError, match="the result is int16; types must be equal"):
        dmlops.diagonal_matrix(like=like.astype("int16"), out=out)


def test_out_keeps_its_padding():
    x = sample("int16", (6, 5), "padding")
    whole = np.full((8, 9), 77, "int16")
    dmlops.diagonal_matrix(x, begin=-1, out=whole[1:7, 2:7])
    np.testing.assert_array_equal(whole[1:7, 2:7], reference.diagonal_matrix(x, begin=-1))
    rest = np.ones(whole.shape, bool)
    rest[1:7, 2:7] = False
    assert (whole[rest] == 77).all()


@given(data=st.data())
def test_any_shape(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 9), min_size=2, max_size=5)))
    begin, end = (data.draw(st.integers(-12, 12)) for _ in range(2))
    x = sample(data.draw(st.sampled_from(DTYPES)), shape, shape)
    order = data.draw(st.permutations(range(len(shape))))
    x = x.transpose(order).copy().transpose(np.argsort(order))
    expected = reference.diagonal_matrix(x, begin=begin, end=end)
    assert_same(dmlops.diagonal_matrix(x, begin=begin, end=end), expected)
    built = dmlops.diagonal_matrix(shape=shape, dtype=x.dtype, begin=begin, end=end)
    assert_same(built, reference.diagonal_matrix(shape=shape, dtype=x.dtype, begin=begin, end=end))
