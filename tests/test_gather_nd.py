"""GATHER_ND, GATHER_ND1 and `gather_nd`."""

import numpy as np
import pytest

import dmlops
from dmlops import FeatureLevel, GatherND, GatherND1, TensorDataType, TensorDesc, UnsupportedFeatureError
from tests import cases, reference
from tests.data import assert_same, random, sample
from tests.libraries import check, execute
from tests.marks import as_parameters

LARGE = (1 << 22) + 1024  # elements of 4 bytes: outputs of 16 MiB and more are written past the cache


def _gather1(x, indices, input_count, indices_count, batch):
    return GatherND1(
        input_tensor=TensorDesc(TensorDataType.FLOAT32, x),
        indices_tensor=TensorDesc(TensorDataType.UINT32, indices),
        input_dimension_count=input_count,
        indices_dimension_count=indices_count,
        batch_dimension_count=batch,
    )


@pytest.mark.quick
class TestPageExamples:
    X1 = np.array([[0, 1], [2, 3]], "float32")
    X2 = np.arange(12, dtype="float32").reshape(3, 2, 2)
    TUPLES2 = np.array([[[0, 0], [1, 1]], [[1, 1], [0, 0]], [[0, 1], [1, 0]]], "uint32")

    def test_example_1_remapping(self):
        indices = np.array([[1], [0]], "uint32")
        assert_same(dmlops.gather_nd(self.X1, indices), self.X1[::-1])
        results = execute(_gather1((2, 2), (2, 1), 2, 2, 0), input_tensor=self.X1, indices_tensor=indices)
        assert_same(results["output_tensor"], self.X1[::-1])

    def test_example_1_by_gather_nd(self):
        descriptor = GatherND(
            input_tensor=TensorDesc(TensorDataType.FLOAT32, (2, 2)),
            indices_tensor=TensorDesc(TensorDataType.INT64, (2, 1)),
            input_dimension_count=2,
            indices_dimension_count=2,
        )
        indices = np.array([[-1], [-2]], "int64")
        results = execute(descriptor, input_tensor=self.X1, indices_tensor=indices)
        assert_same(results["output_tensor"], self.X1[::-1])

    def test_example_2_with_batches(self):
        expected = np.array([[0, 3], [7, 4], [9, 10]], "float32")
        assert_same(dmlops.gather_nd(self.X2, self.TUPLES2, batch_dims=1), expected)
        results = execute(
            _gather1((1, 3, 2, 2), (1, 3, 2, 2), 3, 3, 1),
            input_tensor=self.X2[np.newaxis],
            indices_tensor=self.TUPLES2[np.newaxis],
        )
        assert_same(results["output_tensor"], expected[np.newaxis, np.newaxis])


@pytest.mark.parametrize("case", as_parameters(cases.GATHER), ids=str)
def test_matches_the_oracle(case, library):
    check(library, case)


def test_execute_clamps_as_directml_does():
    x = np.arange(12, dtype="float32").reshape(4, 3)
    tuples = np.array([[3, 2], [4, 0], [0, 3], [2**32 - 1, 2**32 - 1], [2**31, 1]], "uint32")
    descriptor = _gather1((1, 4, 3), (1, 5, 2), 2, 2, 0)
    results = execute(descriptor, input_tensor=x[np.newaxis], indices_tensor=tuples[np.newaxis])
    assert_same(results["output_tensor"], np.array([[[11, 9, 2, 11, 10]]], "float32"))


def test_empty_dimension():
    for mode in ("raise", "clip"):
        with pytest.raises(IndexError, match=r"got 2 tuples, but .*; use mode"):
            dmlops.gather_nd(np.ones((0, 3)), np.zeros((2, 1), "int32"), mode=mode)


@pytest.mark.parametrize("mode", ["clip", "fill"])
@pytest.mark.parametrize(
    ("shape", "width"), [((LARGE // 4, 4), 1), ((LARGE // 1024, 1024), 2), ((LARGE // 1024, 256, 4), 3)]
)
def test_short_slices_of_an_input_larger_than_the_caches(shape, width, mode):
    # The first lines of all slices are prefetched, whether or not their tuples are in range.
    x = np.arange(LARGE, dtype="uint32").reshape(shape)
    tuples = np.stack([random(("far", n)).integers(-n - n // 9, n + n // 9, 700) for n in shape[:width]], -1)
    assert_same(dmlops.gather_nd(x, tuples, mode=mode), reference.gather_nd(x, tuples, mode=mode))


def test_tuples_without_coordinates_are_beyond_directml():
    x, tuples = sample("float32", (3, 4), "x"), np.zeros((2, 0), "uint32")
    assert_same(dmlops.gather_nd(x, []), x)
    for scalar in np.float32([0, 3]):
        found = dmlops.gather_nd(scalar, dmlops.nonzero_coordinates(scalar).coordinates)
        assert_same(found, np.float32([3])[: int(scalar > 0)])
    with (
        dmlops.feature_level("DML_6_4"),
        pytest.raises(UnsupportedFeatureError, match=r"gather_nd\.indices: .* contain a zero"),
    ):
        dmlops.gather_nd(x, tuples)
    descriptor = _gather1((1, 3, 4), (1, 2, 0), 2, 2, 0)
    assert descriptor.output_tensor.sizes == (2, 3, 4)
    results = execute(
        descriptor,
        FeatureLevel.EXTENDED,
        input_tensor=x[np.newaxis],
        indices_tensor=np.zeros((1, 2, 0), "uint32"),
    )
    assert_same(results["output_tensor"], np.stack([x, x]))


def test_tuples_without_coordinates_that_share_an_address():
    x, tuples = sample("float32", (300, 3), "x"), np.broadcast_to(np.zeros(0, "int64"), (300, 0))
    assert_same(dmlops.gather_nd(x, tuples, batch_dims=1), x)
