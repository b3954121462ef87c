"""TOP_K, TOP_K1 and `top_k`."""

import numpy as np
import pytest

import dmlops
from dmlops import AxisDirection, TensorDataType, TensorDesc, TopK1
from tests import cases, reference
from tests.data import DTYPES, assert_same, bits, float_from_bits, sample
from tests.libraries import check, execute
from tests.marks import as_parameters
from tests.top_k_cases import OF_LENGTHS, OF_ROWS, UNSORTED

DISTINCT = [[0, 1, 10, 11], [3, 2, 9, 8], [4, 5, 6, 7]]
TIED = [[1, 2, 2, 3], [3, 4, 5, 5], [6, 6, 6, 6]]

PAGE_EXAMPLES = {
    "example_1": (DISTINCT, 3, 2, True, [[11, 10], [9, 8], [7, 6]], [[3, 2], [2, 3], [3, 2]]),
    "example_2_a_different_axis": (
        DISTINCT,
        2,
        2,
        True,
        [[4, 5, 10, 11], [3, 2, 9, 8]],
        [[2, 2, 0, 0], [1, 1, 1, 1]],
    ),
    "example_3_tied_values": (
        TIED,
        3,
        3,
        True,
        [[3, 2, 2], [5, 5, 4], [6, 6, 6]],
        [[3, 1, 2], [2, 3, 1], [0, 1, 2]],
    ),
    "example_4_increasing": (
        TIED,
        3,
        3,
        False,
        [[1, 2, 2], [3, 4, 5], [6, 6, 6]],
        [[0, 1, 2], [0, 1, 2], [0, 1, 2]],
    ),
}


@pytest.fixture(params=PAGE_EXAMPLES.values(), ids=PAGE_EXAMPLES)
def example(request):
    x, axis, k, largest, values, indices = request.param
    return (
        np.array([[x]], "float32"),
        {"axis": axis, "k": k},
        largest,
        np.array([[values]], "float32"),
        np.array([[indices]]),
    )


@pytest.mark.quick
class TestPageExamples:
    def test_function(self, example):
        x, arguments, largest, values, indices = example
        result = dmlops.top_k(x, arguments["k"], axis=arguments["axis"], largest=largest)
        assert_same(result.values, values)
        assert_same(result.indices, indices)

    def test_top_k1(self, example):
        x, arguments, largest, values, indices = example
        direction = AxisDirection.DECREASING if largest else AxisDirection.INCREASING
        tensor = TensorDesc(TensorDataType.FLOAT32, x.shape)
        results = execute(TopK1(input_tensor=tensor, axis_direction=direction, **arguments), input_tensor=x)
        assert_same(results["output_value_tensor"], values)
        assert_same(results["output_index_tensor"], indices.astype("uint32"))


@pytest.mark.parametrize("case", as_parameters([*cases.TOP_K, *UNSORTED, *OF_LENGTHS, *OF_ROWS]), ids=str)
def test_matches_the_oracle(case, library):
    check(library, case)


def test_order_of_floats():
    ordered = float_from_bits(
        [0xFF80, 0xFF7F, 0xBF80, 0x8001, 0x8000, 0x0000, 0x0001, 0x3F80, 0x7F7F, 0x7F80, 0x7FC0, 0xFFC1],
        DTYPES[-1],
    )
    ascending = dmlops.top_k(ordered, len(ordered), largest=False)
    np.testing.assert_array_equal(ascending.indices, np.arange(12))
    descending = dmlops.top_k(ordered, len(ordered))
    np.testing.assert_array_equal(descending.indices, [10, 11, 9, 8, 7, 6, 4, 5, 3, 2, 1, 0])
    np.testing.assert_array_equal(bits(descending.values), bits(ordered)[descending.indices])


@pytest.mark.parametrize("x", [np.float32(2.5), np.array(2.5, "float32")])
def test_zero_dimensions_count_as_one(x):
    for k in (0, 1):
        values, indices = dmlops.top_k(x, k, axis=0)
        assert_same(values, np.full(k, 2.5, "float32"))
        assert_same(indices, np.zeros(k, "int64"))


def test_largest_is_a_truth_value():
    x = sample("float32", (3, 9), "largest")
    for largest in (True, False, 1, 0, np.True_, np.False_, np.array(True), np.array(0)):
        for got, expected in zip(
            dmlops.top_k(x, 2, largest=largest), reference.top_k(x, 2, largest=bool(largest)), strict=True
        ):
            assert_same(got, expected)
    for largest in ("yes", None, [True], np.array([True]), 1.0):
        with pytest.raises(TypeError, match=r"top_k\.largest: got .* must be True or False"):
            dmlops.top_k(x, 2, largest=largest)


@pytest.mark.parametrize("largest", [True, False])
def test_the_first_of_more_are_the_results_for_fewer(largest):
    x = np.random.default_rng(4).integers(0, 20, (3, 3000)).astype(np.float32)
    most = dmlops.top_k(x, 2100, largest=largest)
    for k in (0, 1, 7, 40, 300, 2099):
        fewer = dmlops.top_k(x, k, largest=largest)
        assert_same(fewer.values, most.values[:, :k])
        assert_same(fewer.indices, most.indices[:, :k])
