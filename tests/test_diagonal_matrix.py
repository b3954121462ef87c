"""DIAGONAL_MATRIX, DIAGONAL_MATRIX1 and `diagonal_matrix`."""

import numpy as np
import pytest

import dmlops
from dmlops import DiagonalMatrix, DiagonalMatrix1, InvalidDescriptorError, TensorDataType, TensorDesc
from tests import cases
from tests.data import assert_same
from tests.libraries import check, execute
from tests.marks import as_parameters, exhaustive

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
PAGE_INPUT = np.array([[4, 7, 3, 7, 9], [1, 2, 8, 6, 9], [9, 4, 1, 8, 7], [4, 3, 4, 2, 4]], "float32")

PAGE_EXAMPLES = {
    # Erratum: the page prints Value 7 above an output of ones.
    "basic_identity_matrix": (
        None,
        1,
        0,
        1,
        [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0]],
    ),
    "three_element_wide_diagonal_strip": (
        None,
        7,
        0,
        3,
        [[7, 7, 7, 0, 0], [0, 7, 7, 7, 0], [0, 0, 7, 7, 7], [0, 0, 0, 7, 7]],
    ),
    "keep_top_right_diagonal_half": (
        PAGE_INPUT,
        0,
        INT32_MIN,
        1,
        [[0, 7, 3, 7, 9], [0, 0, 8, 6, 9], [0, 0, 0, 8, 7], [0, 0, 0, 0, 4]],
    ),
    "keep_only_values_along_the_diagonal": (
        PAGE_INPUT,
        0,
        1,
        0,
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


@pytest.mark.parametrize("case", as_parameters(cases.DIAGONAL), ids=str)
def test_matches_the_oracle(case, library):
    check(library, case)


@pytest.mark.quick
def test_one_diagonal_is_filled_if_no_end_is_given():
    for begin in (2, -1, np.int64(1)):
        expected = np.eye(3, 4, k=begin)
        for shape in ((3, 4), (3, 4)):  # the second call repeats the first
            assert_same(dmlops.diagonal_matrix(shape=shape, begin=begin), expected)
            assert_same(dmlops.diagonal_matrix(np.ones(shape), value=0, begin=begin), 1 - expected)


@pytest.mark.quick
def test_bounds_that_are_no_integers():
    x = np.eye(3)
    for bad in (0.5, np.nan, "1", [1], 1j):
        for name in ("begin", "end"):
            with pytest.raises(
                TypeError, match=rf"^diagonal_matrix\.{name}: got .* {name} must be an integer, m"
            ):
                dmlops.diagonal_matrix(x, **{name: bad})
    with pytest.raises(TypeError, match=r"^diagonal_matrix\.begin: got None"):
        dmlops.diagonal_matrix(x, begin=None)


def test_builds_numpy_arrays_of_float64_or_of_the_type_asked_for():
    assert_same(dmlops.diagonal_matrix(shape=(2, 3)), np.eye(2, 3))
    assert type(dmlops.diagonal_matrix(shape=(2, 3), dtype="int8")) is np.ndarray
    assert dmlops.diagonal_matrix(shape=(2, 3), dtype="int8").dtype == np.int8


def test_builds_what_is_asked_in_the_library_of_like(library):
    like = library.from_numpy(np.zeros(3))
    result = dmlops.diagonal_matrix(shape=(2, 3), dtype=library.dtype("int32"), like=like)
    assert_same(library.to_numpy(result), np.eye(2, 3, dtype="int32"))


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


@pytest.mark.parametrize(("height", "width"), [(1, 5), (5, 3), (34, 33), (3, 300)])
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("kind", [exhaustive("complex128"), "channels"])
def test_bands_of_adjacent_numbers(kind, height, width, is_transposed):
    """The parts of complex128, and channels that come last, lie side by side in memory."""
    numbers = np.random.default_rng(width).standard_normal((2, height, width, 2))
    channels = numbers.astype("float32")[0].transpose(2, 0, 1)
    x = channels if kind == "channels" else numbers.view("complex128")[..., 0]
    out = np.zeros_like(x)
    if is_transposed:
        out = np.zeros_like(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    for k in (-3, 0, 2, 40):
        assert np.array_equal(dmlops.tril(x, k, out=out), np.tril(x, k))
        assert np.array_equal(dmlops.triu(x, k, out=out), np.triu(x, k))
        dmlops.diagonal_matrix(x, value=0, begin=k + 2, end=k, out=out)
        assert np.array_equal(out, np.triu(np.tril(x, k + 1), k))
