"""GATHER_ND, GATHER_ND1 and `gather_nd`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dmlops
from dmlops import FeatureLevel, GatherND, GatherND1, TensorDataType, TensorDesc, UnsupportedFeatureError
from kernels_cpu.processor import MAX_STREAMING_BYTES
from tests import cases, reference
from tests.data import DTYPES, INDEX_DTYPES, LAYOUTS, OUTPUT_LAYOUTS, assert_same, random, sample
from tests.libraries import check, execute
from tests.marks import with_quick_cases

LARGE = MAX_STREAMING_BYTES // 4 + 1024  # elements of 4 bytes


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

    def test_shape_example(self):
        # Erratum: the page's formula for the trailing sizes contradicts this example, which is right.
        assert _gather1((3, 4, 5, 6, 7), (1, 1, 1, 2, 3), 5, 3, 0).output_tensor.sizes == (1, 1, 2, 6, 7)
        x = sample("float32", (3, 4, 5, 6, 7), "shape")
        indices = np.array([[[2, 3, 4], [0, 1, 2]]], "uint32")
        assert_same(dmlops.gather_nd(x, indices), np.stack([x[2, 3, 4], x[0, 1, 2]])[np.newaxis])

    def test_batch_counts_of_the_page(self):
        # IndicesDimensionCount = 5 and BatchDimensionCount = 2: batches {3,4}, indices {5,6,7}.
        sizes = _gather1((1, 3, 4, 9, 9), (1, 1, 3, 4, 2), 4, 3, 2).output_tensor.sizes
        assert sizes == (1, 1, 1, 3, 4)


@pytest.mark.parametrize("case", with_quick_cases(cases.GATHER), ids=str)
def test_matches_the_oracle(case, library):
    check(library, case)


def test_execute_clamps_as_directml_does():
    x = np.arange(12, dtype="float32").reshape(4, 3)
    tuples = np.array([[3, 2], [4, 0], [0, 3], [2**32 - 1, 2**32 - 1], [2**31, 1]], "uint32")
    descriptor = _gather1((1, 4, 3), (1, 5, 2), 2, 2, 0)
    results = execute(descriptor, input_tensor=x[np.newaxis], indices_tensor=tuples[np.newaxis])
    assert_same(results["output_tensor"], np.array([[[11, 9, 2, 11, 10]]], "float32"))


class TestRaise:
    """`mode="raise"` names the first offender in element order, its coordinate and the bound."""

    @pytest.mark.parametrize("index_dtype", INDEX_DTYPES, ids=str)
    @pytest.mark.parametrize("count", [1, 100, 50_000])
    def test_names_the_first_offender(self, index_dtype, count, library):
        indices = random("first").integers(0, 4, (count, 2)).astype(index_dtype)
        first = count * 2 // 3
        indices[first:, 1] = 5
        with pytest.raises(dmlops.IndexOutOfRangeError) as error:
            dmlops.gather_nd(library.from_numpy(np.ones((4, 5, 2))), library.from_numpy(indices))
        offender = tuple(indices[first].tolist())
        lowest = -5 if index_dtype.kind == "i" else 0
        assert str(error.value) == (
            f"gather_nd.indices: got tuple {offender} at position ({first},), but coordinate 1 is 5, "
            f"and dimension 1 of x has 5 elements; it must be in [{lowest}, 4]"
        )

    def test_batched_position(self):
        indices = np.zeros((3, 4, 1), "int64")
        indices[1, 2, 0] = -8
        indices[2, 0, 0] = 99
        with pytest.raises(IndexError, match=r"got tuple \(-8,\) at position \(1, 2\), but"):
            dmlops.gather_nd(np.ones((3, 7)), indices, batch_dims=1)

    @pytest.mark.parametrize("index", [-(2**63), 2**63 - 1, 4, -5])
    def test_extreme_indices(self, index):
        with pytest.raises(IndexError, match=rf"coordinate 0 is {index}, and"):
            dmlops.gather_nd(np.ones(4), np.array([[0], [index]], "int64"))

    def test_unsigned_indices_never_wrap(self):
        with pytest.raises(IndexError, match=f"coordinate 0 is {2**64 - 1}, and"):
            dmlops.gather_nd(np.ones(4), np.array([[2**64 - 1]], "uint64"))

    def test_writes_nothing(self):
        out = np.full((3, 2), 77.0)
        with pytest.raises(IndexError):
            dmlops.gather_nd(np.ones((4, 2)), np.array([[0], [1], [4]]), out=out)
        assert (out == 77).all()

    def test_empty_dimension(self):
        for mode in ("raise", "clip"):
            with pytest.raises(IndexError, match=r"got 2 tuples, but .*; use mode"):
                dmlops.gather_nd(np.ones((0, 3)), np.zeros((2, 1), "int32"), mode=mode)


def test_reads_nothing_outside_the_input():
    # The elements around the input would show up in the result: clip and fill stay inside the view.
    memory = np.full((30, 30), 99, "uint8")
    x = memory[10:14, 10:15]
    x[...] = 1
    tuples = random("outside").integers(-(2**40), 2**40, (500, 2))
    assert (dmlops.gather_nd(x, tuples, mode="clip") == 1).all()
    assert (dmlops.gather_nd(x, tuples, mode="fill") == 0).all()


@pytest.mark.parametrize("mode", ["clip", "fill"])
@pytest.mark.parametrize(
    ("shape", "width"), [((LARGE // 4, 4), 1), ((LARGE // 1024, 1024), 2), ((LARGE // 1024, 256, 4), 3)]
)
def test_short_slices_of_an_input_larger_than_the_caches(shape, width, mode):
    # The first lines of all slices are prefetched, whether or not their tuples are in range.
    x = np.arange(LARGE, dtype="uint32").reshape(shape)
    tuples = np.stack([random(("far", n)).integers(-n - n // 9, n + n // 9, 700) for n in shape[:width]], -1)
    assert_same(dmlops.gather_nd(x, tuples, mode=mode), reference.gather_nd(x, tuples, mode=mode))


@pytest.mark.parametrize("width", [1, 2])
def test_one_tuple_per_batch(width):
    x = sample("float32", (300, 5, 7), "batches")
    tuples = np.stack([random(("batches", n)).integers(-n, n, 300) for n in (5, 7)[:width]], -1)
    assert_same(dmlops.gather_nd(x, tuples, batch_dims=1), reference.gather_nd(x, tuples, batch_dims=1))


def test_fill_replaces_the_whole_slice():
    x = np.ones((3, 4), "float32")
    result = dmlops.gather_nd(x, np.array([[0], [3], [-3], [-4]]), mode="fill")
    np.testing.assert_array_equal(result, [[1] * 4, [0] * 4, [1] * 4, [0] * 4])


def test_takes_lists():
    assert_same(dmlops.gather_nd([[1, 2], [3, 4]], [[0, 1], [-1, 0]]), np.array([2, 3]))


@pytest.mark.parametrize("layout", OUTPUT_LAYOUTS)
def test_out_of_any_layout(layout):
    x = sample("float32", (5, 6, 7, 3), "out")
    indices = random("out").integers(-6, 6, (5, 4, 1))
    expected = reference.gather_nd(x, indices, batch_dims=1)
    out = LAYOUTS[layout](np.zeros_like(expected))
    assert dmlops.gather_nd(x, indices, batch_dims=1, out=out) is out
    assert_same(out, expected)


def test_out_keeps_its_padding():
    x = sample("int16", (9, 6), "padding")
    indices = random("padding").integers(0, 9, (8, 1))
    whole = np.full((10, 9), 77, "int16")
    dmlops.gather_nd(x, indices, out=whole[1:9, 2:8])
    np.testing.assert_array_equal(whole[1:9, 2:8], reference.gather_nd(x, indices))
    rest = np.ones(whole.shape, bool)
    rest[1:9, 2:8] = False
    assert (whole[rest] == 77).all()


@given(data=st.data())
def test_any_shape(data):
    x_shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5)))
    batch = data.draw(st.integers(0, len(x_shape) - 1))
    tuple_size = data.draw(st.integers(1, len(x_shape) - batch))
    leading = tuple(data.draw(st.lists(st.integers(0, 4), max_size=3)))
    mode = data.draw(st.sampled_from(["raise", "clip", "fill"]))
    x = sample(data.draw(st.sampled_from(DTYPES)), x_shape, x_shape)
    bounds = np.array(x_shape[batch : batch + tuple_size])
    reach = bounds if mode == "raise" else 2 * bounds + 1
    shape = (*x_shape[:batch], *leading, tuple_size)
    indices = random(shape).integers(-reach, reach, shape)
    expected = reference.gather_nd(x, indices, batch_dims=batch, mode=mode)
    assert_same(dmlops.gather_nd(x, indices, batch_dims=batch, mode=mode), expected)


def test_slices_of_many_dimensions():
    # Sizes without a common factor would be walked completely even with wrong coordinates.
    x = sample("float32", (4, 6, 4, 2), "slices")
    indices = np.array([[1], [-1], [3]])
    for order in ((0, 1, 3, 2), (0, 3, 1, 2), (3, 2, 1, 0)):
        turned = x.transpose(order).copy().transpose(np.argsort(order))
        assert_same(dmlops.gather_nd(turned, indices), x[indices[:, 0]])


@pytest.mark.parametrize("n", [1, 5, 40])
def test_out_of_every_other_column(n):
    x = sample("float32", (9, n), "columns")
    indices = random("columns").integers(-9, 9, (20, 1))
    whole = np.full((20, 2 * n), 77, "float32")
    dmlops.gather_nd(x, indices, out=whole[:, ::2])
    assert_same(whole[:, ::2], x[indices[:, 0]])
    assert (whole[:, 1::2] == 77).all()


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
    descriptor = GatherND1(
        input_tensor=TensorDesc.from_array(x[np.newaxis]),
        indices_tensor=TensorDesc("UINT32", (1, 2, 0)),
        input_dimension_count=2,
        indices_dimension_count=2,
        batch_dimension_count=0,
    )
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
