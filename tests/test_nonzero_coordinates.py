"""NONZERO_COORDINATES and `nonzero_coordinates`."""

import numpy as np
import pytest

import dmlops
from dmlops import NonzeroCoordinates, TensorDataType, TensorDesc
from tests import cases, reference
from tests.data import assert_same, sample
from tests.libraries import call, check, execute
from tests.marks import as_parameters, exhaustive

PAGE_INPUT = np.array([[[[1.0, 0.0, 0.0, 2.0], [-0.0, 3.5, 0.0, -5.2]]]], "float32")


@pytest.mark.quick
class TestPageExamples:
    def test_example_with_three_columns(self):
        # The page has N = 3 columns for an input of 4 dimensions: they are the last three.
        descriptor = NonzeroCoordinates(
            input_tensor=TensorDesc(TensorDataType.FLOAT32, (1, 1, 2, 4)),
            output_count_tensor=TensorDesc(TensorDataType.UINT32, (1, 1, 1, 1)),
            output_coordinates_tensor=TensorDesc(TensorDataType.UINT32, (1, 1, 8, 3)),
        )
        results = execute(descriptor, input_tensor=PAGE_INPUT)
        np.testing.assert_array_equal(results["output_count_tensor"], [[[[4]]]])
        np.testing.assert_array_equal(
            results["output_coordinates_tensor"][0, 0, :4], [[0, 0, 0], [0, 0, 3], [0, 1, 1], [0, 1, 3]]
        )

    def test_function(self):
        result = dmlops.nonzero_coordinates(PAGE_INPUT)
        assert_same(result.count, np.array(4))
        assert_same(result.coordinates, np.array([[0, 0, 0, 0], [0, 0, 0, 3], [0, 0, 1, 1], [0, 0, 1, 3]]))


@pytest.mark.parametrize("case", as_parameters(cases.NONZERO), ids=str)
def test_matches_the_oracle(case, library):
    check(library, case)


@pytest.mark.parametrize("size", [0, 3, 499, 500, 501, 1000, 2000])
def test_size_without_fill_value(size, library):
    x = sample("bool", (20, 50), "size")
    found, count = reference.nonzero_coordinates(x)
    case = cases.Case("nonzero_coordinates", "size", lambda: (x,), (), {"size": size})
    coordinates, actual_count = call(library, case)
    assert coordinates.shape == (size, 2)
    np.testing.assert_array_equal(coordinates[: len(found)], found[:size])
    np.testing.assert_array_equal(actual_count, count)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("rows", [0, 1, 3, 11, 12, 13])
def test_out_of_few_rows(rows, order):
    x = np.tile(np.array([[1, 0], [0, 2]], "int32"), (3, 2))
    expected, count = reference.nonzero_coordinates(x)
    out = np.full((rows, 2), 77, "uint32", order=order), np.zeros(1, "uint32")
    dmlops.nonzero_coordinates(x, out=out)
    assert_same(out[1], count.astype("uint32").reshape(1))
    assert_same(out[0][:12], expected[:rows].astype("uint32"))
    assert (out[0][12:] == 77).all()


@pytest.mark.parametrize("shape", [(1200,), (7, 50), (3, 5, 130)])
@pytest.mark.parametrize("dtype", [exhaustive("uint8"), "float32"])
def test_each_element_alone(dtype, shape):
    x = np.zeros(shape, dtype)
    for place in np.ndindex(shape):
        x[place] = 1
        assert dmlops.nonzero_coordinates(x).coordinates.tolist() == [list(place)]
        x[place] = 0


@pytest.mark.parametrize("shape", [(5, 3001), (3, 2, 2049), (4, 70_001)])
def test_long_rows_to_columns_of_any_layout(shape):
    x = sample("bool", shape, "long rows").astype("float32")
    expected, count = reference.nonzero_coordinates(x)
    out = np.empty_like(expected, order="F"), np.zeros((), "int64")
    dmlops.nonzero_coordinates(x, out=out)
    assert_same(out[0], expected)
    assert_same(out[1], count)
