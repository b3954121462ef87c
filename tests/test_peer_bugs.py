"""Bugs that users reported against other libraries, and that these operators could have had as well.

Each test names its thread. The classes whose tests take `library` run on GPU arrays too: see
`tests/gpu/test_peer_bugs_gpu.py`.
"""

import sys

import numpy as np
import pytest
from ml_dtypes import bfloat16

import dmlops
from dmlops import (
    AxisDirection,
    FeatureLevel,
    GatherND1,
    InvalidDescriptorError,
    NonzeroCoordinates,
    TensorDataType,
    TensorDesc,
    TopK1,
    UnsupportedFeatureError,
)
from tests import reference
from tests.data import INDEX_DTYPES, as_strided, assert_same, float_from_bits, random, unaligned
from tests.libraries import execute

INT32_MAX, INT64_MIN, INT64_MAX = 2**31 - 1, -(2**63), 2**63 - 1
# Farther from the main diagonal than any element of any matrix.
FAR = 2**100
POSITIVE_NAN, NEGATIVE_NAN = float_from_bits([0x7FC00000, 0xFFC00000], "float32")


def normal(name, shape, dtype="float32"):
    """Return normally distributed values."""
    return random(name).standard_normal(shape).astype(dtype)


def skip_without(library, dtype):
    """Skip a test of a type that the library does not have."""
    if library.name == "cupy" and dtype == bfloat16:
        pytest.skip("CuPy has no bfloat16")


def top_k(library, x, k, **options):
    """Return values and indices as NumPy arrays, the indices as int64."""
    values, indices = dmlops.top_k(library.from_numpy(x), k, **options)
    return library.to_numpy(values), library.to_numpy(indices).astype(np.int64)


def check_top_k(library, x, k, **options):
    """Compare every bit of a top-k with the oracle."""
    values, indices = top_k(library, x, k, **options)
    expected_values, expected_indices = reference.top_k(x, k, **options)
    assert_same(values, expected_values)
    np.testing.assert_array_equal(indices, expected_indices)


def nonzero(library, x, **options):
    """Return the coordinates as an int64 array, and the count as an integer."""
    coordinates, count = dmlops.nonzero_coordinates(library.from_numpy(x), **options)
    return library.to_numpy(coordinates).astype(np.int64), library.to_numpy(count).item()


def check_nonzero(library, x):
    """Compare coordinates and count with NumPy's."""
    coordinates, count = nonzero(library, x)
    assert_same(coordinates, np.argwhere(x).astype(np.int64))
    assert count == np.count_nonzero(x)


def gather_nd(library, x, indices, **options):
    """Return the gathered elements as a NumPy array."""
    indices = library.from_numpy(np.asarray(indices))
    return library.to_numpy(dmlops.gather_nd(library.from_numpy(x), indices, **options))


def triu(library, x, k=0):
    """Return the elements on and above diagonal `k`, zeros below it."""
    return library.to_numpy(dmlops.diagonal_matrix(library.from_numpy(x), value=0, begin=-FAR, end=k))


def tril(library, x, k=0):
    """Return the elements on and below diagonal `k`, zeros above it."""
    return library.to_numpy(dmlops.diagonal_matrix(library.from_numpy(x), value=0, begin=k + 1, end=FAR))


class TestTopKSizes:
    """Sizes, shapes and values of k that gave zeros, garbage or a crash."""

    @pytest.mark.parametrize("k", [256, 257, 300, 2000])
    def test_k_beyond_256_selects_the_right_elements(self, library, k):
        """ArrayFire's CUDA top-k gave incorrect values for k beyond 256.

        https://github.com/arrayfire/arrayfire/issues/2283
        """
        check_top_k(library, normal("k256", (3, 5000)), k)

    def test_k_beyond_16_is_not_filled_with_zeros(self, library):
        """torch on Apple GPUs returned zeros behind the first 16 values.

        https://github.com/pytorch/pytorch/issues/78915
        """
        check_top_k(library, np.arange(30), 30)

    def test_k_of_20_along_an_axis_before_dimensions_of_one(self, library):
        """TensorRT returned NaN for k = 20 along axis 2 of (4, 128, 21128, 1, 1), though not for k = 10.

        https://github.com/NVIDIA/TensorRT/issues/216
        """
        x = random("softmax").random((2, 3, 21128, 1, 1), "float32")
        check_top_k(library, x, 20, axis=2)

    @pytest.mark.parametrize("n", [257, 300, 511, 512])
    def test_axes_between_one_and_two_blocks_of_256_threads(self, library, n):
        """ONNX Runtime's CUDA TopK returned only zeros for sizes between one and two blocks of threads.

        https://github.com/microsoft/onnxruntime/pull/3176
        """
        check_top_k(library, np.arange(n, dtype="float32"), 5)

    def test_few_values_among_a_thousand_zeros(self, library):
        """ONNX Runtime's faster CUDA TopK lost the few values of a row of 1000 that were not zero.

        https://github.com/microsoft/onnxruntime/issues/2434
        """
        x = np.zeros((1, 1000), "float32")
        x[0, :6] = 0.1, 0.3, 0.02, 0.45, 0.08, 0.05
        values, indices = top_k(library, x, 3)
        assert_same(values, np.array([[0.45, 0.3, 0.1]], "float32"))
        assert indices.tolist() == [[3, 1, 0]]

    @pytest.mark.parametrize(("n", "k"), [(100, 3), (1000, 33), (4095, 17), (257, 255), (31, 7)])
    def test_sizes_and_k_that_are_no_powers_of_two(self, library, n, k):
        """A paper's bitonic top-k exited or gave wrong results unless n and k were powers of two.

        https://github.com/anilshanbhag/gpu-topk/issues/1
        """
        check_top_k(library, normal("powers", n), k)

    def test_a_row_of_256_that_repeats_four_values(self, library):
        """IREE's CUDA top-k returned elements twice where a row of 256 repeated its values.

        https://github.com/iree-org/iree/issues/17275
        """
        x = np.tile(np.array([1, 2, 3, 4], "float32"), 64)
        x[[0, 16, 32, 48]] = 1.3
        x[135], x[169] = 123.45, 8.9
        for k in (1, 2, 10, 70):
            check_top_k(library, x[np.newaxis], k)

    def test_the_whole_row_smallest_first(self, library):
        """nnabla returned zeros for the smallest elements where k equals the size.

        https://github.com/sony/nnabla-ext-cuda/pull/485
        """
        check_top_k(library, np.arange(10, dtype="float32"), 10, largest=False)

    @pytest.mark.parametrize("n", [6139, 6140])
    def test_a_row_of_6140_doubles(self, library, n):
        """TensorFlow's GPU top-k failed for 6140 doubles and worked for 6139.

        https://github.com/tensorflow/tensorflow/issues/5719
        """
        check_top_k(library, normal("doubles", (1, n), "float64"), 1)

    @pytest.mark.parametrize("size", range(8, 16))
    def test_the_first_axis_of_a_small_tensor(self, library, size):
        """torch's CUDA top-k stopped at an assertion along axis 0 of a tensor of shape (25, 1, 9).

        https://github.com/pytorch/pytorch/issues/4490
        """
        check_top_k(library, normal("small", (25, 1, size)), 3, axis=0)

    def test_four_dimensions(self, library):
        """torch's CUDA top-k stopped at an assertion for a tensor of shape (1, 1, 128, 10).

        https://github.com/pytorch/pytorch/issues/4513
        """
        check_top_k(library, normal("four", (1, 1, 128, 10)), 5)

    def test_rows_that_fill_no_tile(self, library):
        """Tenstorrent's top-k of shape (1, 1, 24, 64) returned 32 rows, with indices beyond the axis.

        https://github.com/tenstorrent/tt-metal/issues/13233
        """
        values, indices = top_k(library, normal("tile", (1, 1, 24, 64)), 32)
        assert values.shape == indices.shape == (1, 1, 24, 32)
        check_top_k(library, normal("tile", (1, 1, 24, 64)), 32)

    def test_an_input_of_60_million_elements(self, library):
        """torch's CUDA top-k read illegal memory when its input had 60 million elements.

        https://github.com/pytorch/pytorch/issues/82569
        """
        row = random("row").permutation(1000).astype("int16")
        x = np.broadcast_to(row, (60, 1000, 1000))
        values, indices = top_k(library, x, 10)
        expected_values, expected_indices = reference.top_k(row, 10)
        assert values.shape == indices.shape == (60, 1000, 10)
        assert (values == expected_values).all()
        assert (indices == expected_indices).all()

    def test_indices_of_long_rows_stay_below_the_axis(self, library):
        """torch's CUDA top-k returned indices such as 2033619248 for rows of 500000 elements.

        https://github.com/pytorch/pytorch/issues/95455
        """
        rows = np.array([0, 250_000, 499_979])[:, np.newaxis] + np.arange(20)
        x = np.zeros((2, 3, 500_000), "float32")
        np.put_along_axis(x[1], rows, random("rows").random((3, 20), "float32") + 1, axis=-1)
        values, indices = top_k(library, x, 20, sorted=False)
        assert (np.sort(indices[1], -1) == rows).all()
        assert (np.sort(indices[0], -1) == np.arange(20)).all()
        assert_same(values, np.take_along_axis(x, indices, -1))

    @pytest.mark.parametrize("shape", [(11,), (3, 4)], ids=str)
    @pytest.mark.parametrize("dtype", ["int64", "float32"])
    def test_k_of_zero_returns_nothing(self, library, shape, dtype):
        """torch failed an assertion for k = 0 of floats, though not of integers.

        https://github.com/pytorch/pytorch/issues/49205
        """
        values, indices = top_k(library, np.ones(shape, dtype), 0, largest=False)
        assert values.shape == indices.shape == (*shape[:-1], 0)
        assert values.dtype == dtype

    def test_k_of_zero_does_not_launch_an_empty_kernel(self, library):
        """dpnp could abort the process for k = 0, because it launched a kernel over nothing.

        https://github.com/IntelPython/dpnp/pull/3022
        """
        x = np.arange(12).reshape(3, 4)
        for axis in (0, 1):
            check_top_k(library, x, 0, axis=axis)

    @pytest.mark.parametrize("k", [-1, -100, 101, 2**31, 2**63, -(2**63)])
    def test_k_outside_the_axis_is_an_error(self, library, k):
        """OneFlow ended the process for k = -100.

        https://github.com/Oneflow-Inc/oneflow/issues/10624
        """
        with pytest.raises(
            InvalidDescriptorError, match=rf"^top_k\.k: got {k}, but .*; k must be in \[0, 100\]"
        ):
            dmlops.top_k(library.from_numpy(np.ones((2, 100))), k)

    def test_a_row_of_no_elements(self, library):
        """CuPy raised an error where NumPy partitions an empty array to an empty array.

        https://github.com/cupy/cupy/issues/6812
        """
        values, indices = top_k(library, np.zeros(0), 0)
        assert values.shape == indices.shape == (0,)


class TestTopKInfinity:
    """Infinities are values like any other, and padding must never look like them."""

    @pytest.mark.parametrize("largest", [True, False])
    def test_infinity_as_the_kth_value_keeps_real_values(self, library, largest):
        """ONNX Runtime's CUDA TopK returned random values and indices where the k-th value is infinite.

        https://github.com/microsoft/onnxruntime/issues/9843
        """
        x = normal("inf", (1, 10000))
        x[:, ::3] = np.inf if largest else -np.inf
        check_top_k(library, x, 1000, largest=largest)

    def test_fewer_finite_values_than_k_keep_their_indices(self, library):
        """RAFT's select_k returned index 0 for every infinity of a row with fewer finite values than k.

        https://github.com/NVIDIA/raft/issues/2801
        """
        x = np.array([0.5, -np.inf, -np.inf, -np.inf, -np.inf], "float32")
        values, indices = top_k(library, x, 3)
        assert_same(values, np.array([0.5, -np.inf, -np.inf], "float32"))
        assert indices.tolist() == [0, 1, 2]

    @pytest.mark.parametrize(("n", "k"), [(20, 10), (300, 40), (5000, 256), (5000, 2049), (90_000, 100)])
    def test_infinities_keep_their_indices_in_every_algorithm(self, library, n, k):
        """Some algorithms of RAFT's select_k replaced the indices of infinities, and others did not.

        https://github.com/NVIDIA/raft/issues/1822
        """
        x = np.full((2, n), np.inf, "float32")
        x[:, n // 2 :: n // 3] = 1
        check_top_k(library, x, k, largest=False)

    def test_infinities_do_not_change_other_rows(self, library):
        """Tenstorrent's top-k returned wrong rows of finite values next to a row of infinities.

        https://github.com/tenstorrent/tt-llk/issues/599
        """
        skip_without(library, bfloat16)
        x = normal("rows", (1, 1, 4, 16 * 1024)).astype(bfloat16)
        x[:, :, 1] = np.inf
        check_top_k(library, x, 32)

    @pytest.mark.parametrize(
        "x",
        [
            np.array([True, False, True, False, True]),
            np.array([1, np.nan, 2, np.nan, 3], "float32"),
            np.array([1, INT32_MAX, 2], "int32"),
            np.array([np.inf, 0, np.inf], "float32"),
        ],
        ids=["bool", "nan", "int32 maximum", "infinity"],
    )
    def test_padding_never_shows_among_equal_values(self, library, x):
        """torch's sort on Apple GPUs returned indices of its padding, which ties with the largest value.

        https://github.com/pytorch/pytorch/pull/184620
        """
        for largest in (True, False):
            check_top_k(library, x, len(x), largest=largest)


class TestTopKNaN:
    """NaN is the largest value, whatever its sign, and all NaNs tie."""

    @pytest.mark.parametrize("k", [1, 50, 300])
    def test_rows_of_nothing_but_nan_give_valid_indices(self, library, k):
        """onnxruntime-genai wrote to index INT_MAX where all logits are NaN.

        https://github.com/microsoft/onnxruntime-genai/pull/2195
        """
        x = np.full((2, 50257), np.nan, "float32")
        values, indices = top_k(library, x, k)
        assert np.isnan(values).all()
        assert (indices == np.arange(k)).all()

    @pytest.mark.parametrize("dtype", [bfloat16, "float32"], ids=["bfloat16", "float32"])
    def test_one_row_of_nan_among_512(self, library, dtype):
        """torch's XPU top-k returned index -1 for a row of NaN in a batch of 512.

        https://github.com/intel/torch-xpu-ops/issues/4839
        """
        skip_without(library, dtype)
        x = normal("512", (512, 32)).astype(dtype)
        x[0] = np.nan
        check_top_k(library, x, 4)

    @pytest.mark.parametrize("n", [1, 5, 1000])
    def test_the_first_of_all_nans_is_selected(self, library, n):
        """TensorFlow's own test of the top 1 of NaNs had to be disabled on DirectML.

        https://github.com/microsoft/tensorflow-directml/pull/44
        """
        values, indices = top_k(library, np.full(n, np.nan), 1)
        assert np.isnan(values).all()
        assert indices.tolist() == [0]

    def test_one_nan_gives_an_index_in_range(self, library):
        """torch's CUDA top-k returned index 9.2e18 for a NaN, and its CPU top-k left it out.

        https://github.com/pytorch/pytorch/issues/1810
        """
        values, indices = top_k(library, np.array([-1, np.nan, 2, 1], "float32"), 1)
        assert np.isnan(values).all()
        assert indices.tolist() == [1]

    def test_nan_and_infinities_in_both_directions(self, library):
        """torch's top-k had trouble with rows that hold both infinities and NaN.

        https://github.com/pytorch/pytorch/issues/16762
        """
        x = np.full(10, np.inf, "float32")
        x[0], x[3] = np.nan, 3
        assert top_k(library, x, 2)[1].tolist() == [0, 1]
        assert top_k(library, x, 2, largest=False)[1].tolist() == [3, 1]

    def test_nan_is_not_replaced(self, library):
        """JAX on Apple GPUs left NaN out of the top-k and returned 0 in its place.

        https://github.com/jax-ml/jax/issues/21397
        """
        values, indices = top_k(library, np.array([np.nan, -np.inf, np.inf, 0], "float32"), 3)
        assert_same(values, np.array([np.nan, np.inf, 0], "float32"))
        assert indices.tolist() == [0, 2, 3]

    def test_nan_does_not_become_infinity(self, library):
        """RAFT's select_k turned NaN into -inf.

        https://github.com/NVIDIA/raft/issues/2801
        """
        values, indices = top_k(library, np.array([0.5, np.nan, np.nan, np.nan], "float32"), 3)
        assert np.isnan(values).all()
        assert indices.tolist() == [1, 2, 3]

    def test_nans_of_both_signs_tie(self, library):
        """torch's CUDA top-k took -NaN for the largest value in one place and for the smallest in another.

        https://github.com/pytorch/pytorch/issues/117617
        """
        x = random("signs").random((8, 4), "float32")
        x[:4, 0], x[:4, 2] = POSITIVE_NAN, NEGATIVE_NAN
        x[4:, 0], x[4:, 2] = NEGATIVE_NAN, POSITIVE_NAN
        assert (top_k(library, x, 4)[1][:, :2] == [0, 2]).all()
        check_top_k(library, x, 4)

    @pytest.mark.parametrize("dtype", ["float32", bfloat16], ids=["float32", "bfloat16"])
    def test_a_nan_with_the_sign_bit_does_not_drop_out(self, library, dtype):
        """Tenstorrent's top-k ordered NaN by its bits: -NaN came below -inf and dropped out.

        https://github.com/tenstorrent/tt-metal/issues/56626
        """
        skip_without(library, dtype)
        x = np.arange(1, 65).astype(dtype)
        x[17], x[61], x[63] = NEGATIVE_NAN, np.inf, -np.inf
        assert top_k(library, x, 16)[1].tolist()[:3] == [17, 61, 62]
        check_top_k(library, x, 16)
        check_top_k(library, x, 16, largest=False)

    def test_few_negative_nans_in_a_row_of_1024_are_not_repeated(self, library):
        """XLA's GPU top-k for k up to 16 corrupted its output where -NaN is present.

        https://github.com/openxla/xla/issues/48119
        """
        x = normal("1024", 1024)
        x[[3, 500]] = NEGATIVE_NAN
        x[[4, 19]] = POSITIVE_NAN
        x[1] = np.inf
        assert top_k(library, x, 16)[1].tolist()[:5] == [3, 4, 19, 500, 1]
        check_top_k(library, x, 16)

    def test_a_negative_nan_comes_last_in_ascending_order(self, library):
        """JAX sorted -NaN before -inf, where NumPy has it at the end.

        https://github.com/jax-ml/jax/issues/6443
        """
        x = np.array([NEGATIVE_NAN, POSITIVE_NAN, -np.inf, np.inf, -1, 1], "float32")
        assert top_k(library, x, 6, largest=False)[1].tolist() == [2, 4, 5, 3, 0, 1]

    def test_float16_nan_has_its_place(self, library):
        """NumPy 1.23 looked float16 up under another type's number, and lost values next to a NaN.

        https://github.com/numpy/numpy/issues/21838
        """
        x = np.array([1, np.nan, 0, -1, -np.nan], "float16")
        assert top_k(library, x, 5)[1].tolist() == [1, 4, 0, 2, 3]
        assert top_k(library, x, 5, largest=False)[1].tolist() == [3, 2, 0, 1, 4]


class TestTopKTies:
    """Equal values come by ascending index, at the cut too, whatever k and the direction."""

    def test_ties_do_not_depend_on_k(self, library):
        """Which of two equal values torch's top-k put first depended on k and on the device.

        https://github.com/pytorch/pytorch/issues/27542
        """
        x = np.array([1, 2, 5, 4, 5], "float32")
        for k in range(1, 6):
            assert top_k(library, x, k)[1].tolist() == [2, 4, 3, 1, 0][:k]

    def test_tied_integers_come_by_ascending_index(self, library):
        """torch's top-k returned tied indices in ascending order on the CPU, in descending order on CUDA.

        https://github.com/pytorch/pytorch/issues/127196
        """
        assert top_k(library, np.array([3, 2, 3, 2, 1, 1]), 4)[1].tolist() == [0, 2, 1, 3]

    def test_a_tie_at_the_cut_takes_the_lower_index(self, library):
        """nGraph's TopK selected the last of two equal values that compete for the last place.

        https://github.com/NervanaSystems/ngraph/pull/2710
        """
        x = np.array([[1, 2, 2, 3], [3, 4, 5, 5], [6, 6, 6, 6]], "float32")
        assert top_k(library, x, 2)[1].tolist() == [[3, 1], [2, 3], [0, 1]]
        assert top_k(library, x, 1, largest=False)[1].tolist() == [[0], [0], [0]]

    def test_tied_rows_of_three_dimensions(self, library):
        """PaddlePaddle's top-k, an unstable sort, ordered ties differently on each machine.

        https://github.com/PaddlePaddle/Paddle/issues/25626
        """
        x = np.array(
            [[[2, 2, 2, 2], [3, 3, 2, 3], [4, 4, 3, 4]], [[5, 5, 6, 6], [7, 7, 7, 7], [6, 7, 10, 8]]],
            "float32",
        )
        expected = [[[0, 1], [0, 1], [0, 1]], [[2, 3], [0, 1], [2, 3]]]
        assert top_k(library, x, 2)[1].tolist() == expected

    def test_more_ties_than_a_buffer_holds(self, library):
        """SGLang's top-k of 2048 left output slots unwritten where more than 1024 values tied at the cut.

        https://github.com/sgl-project/sglang/pull/30512
        """
        for above, ties, n in ((889, 1536, 7613), (925, 1191, 5328)):
            x = np.zeros(n, "float32")
            x[:above] = np.arange(above) + 2
            x[above : above + ties] = 1
            x = random(n).permutation(x)
            check_top_k(library, x, 2048)

    def test_a_bucket_of_more_than_4096_candidates(self, library):
        """SGLang's top-k lost elements where more than 4096 shared the leading bits of the k-th value.

        https://github.com/sgl-project/sglang/issues/36807
        """
        x = 1 + random("bucket").random((2, 65_536), "float32") / 1024
        check_top_k(library, x, 2048)

    def test_ties_at_the_cut_across_blocks(self, library):
        """CUB's device-wide top-k selects any of the keys that tie at the cut, others in each run.

        https://github.com/NVIDIA/cccl/pull/5677
        """
        x = np.zeros(200_000, "int32")
        x[1000::1000] = 1
        values, indices = top_k(library, x, 300)
        assert values.sum() == 199
        assert indices.tolist() == [*range(1000, 200_000, 1000), *range(101)]

    def test_equal_integers_do_not_hide_larger_ones(self, library):
        """nnabla's CUDA top-k of [2, 2, 2, 3, 4] was [2, 2, 2].

        https://github.com/sony/nnabla/issues/1204
        """
        values, indices = top_k(library, np.array([2, 2, 2, 3, 4], "float32"), 3)
        assert values.tolist() == [4, 3, 2]
        assert indices.tolist() == [4, 3, 0]

    @pytest.mark.parametrize("largest", [True, False])
    def test_zeros_of_both_signs_tie(self, library, largest):
        """CUB's BlockTopK lost keys where -0.0 and 0.0 tied among the largest.

        https://github.com/NVIDIA/cccl/pull/9470
        """
        zeros = np.where(random("zeros").random(500) < 0.5, -0.0, 0.0).astype("float32")
        x = np.concatenate([zeros, [-1, 1]]).astype("float32")
        others = [501] if largest else [500]
        assert top_k(library, x, 200, largest=largest)[1].tolist() == others + list(range(199))
        check_top_k(library, x, 200, largest=largest)

    def test_negative_zero_is_not_below_zero(self, library):
        """JAX sorted [0.0, -0.0] to [-0.0, 0.0], where NumPy keeps the order.

        https://github.com/jax-ml/jax/issues/6443
        """
        x = np.array([0.0, -0.0], "float32")
        for largest in (True, False):
            assert top_k(library, x, 2, largest=largest)[1].tolist() == [0, 1]

    def test_unsorted_indices_belong_to_their_values(self, library):
        """TensorFlow's top_k with sorted=False shuffled values and indices of floats differently.

        https://github.com/tensorflow/tensorflow/issues/22383
        """
        x = normal("unsorted", (4, 300))
        values, indices = top_k(library, x, 40, sorted=False)
        assert_same(values, np.take_along_axis(x, indices, -1))
        np.testing.assert_array_equal(np.sort(indices, -1), np.sort(reference.top_k(x, 40)[1], -1))

    def test_same_bytes_in_every_run(self, library):
        """ONNX Runtime's CUDA TopK of the same data differed from run to run.

        https://github.com/microsoft/onnxruntime/issues/3391
        """
        x = library.from_numpy(normal("runs", (5, 7175)).round(1))
        first = [library.to_numpy(array).tobytes() for array in dmlops.top_k(x, 50)]
        for _ in range(20):
            assert [library.to_numpy(array).tobytes() for array in dmlops.top_k(x, 50)] == first


class TestTopKTypes:
    """Types of few bits, of many bits, and unsigned ones."""

    def test_float16_values_and_indices_agree(self, library):
        """torch's CUDA top-k of float16 returned values that were not there, and indices such as 4e18.

        https://github.com/pytorch/pytorch/issues/35584
        """
        x = np.array(
            [-2.119, -1.93, -1.861, -0.817, -0.512, -0.494, -0.237, 0.04, 0.452, 0.961, -np.inf], "float16"
        )
        check_top_k(library, x, 5)
        check_top_k(library, x, 11, largest=False)

    def test_float16_scalars_and_matrices_alike(self, library):
        """torch's CPU top-k took float16 scalars, and refused float16 matrices.

        https://github.com/pytorch/pytorch/issues/58841
        """
        values, indices = top_k(library, np.array(2.5, "float16"), 1, axis=0)
        assert_same(values, np.array([2.5], "float16"))
        assert indices.tolist() == [0]
        check_top_k(library, np.array([[1, 2.5]], "float16"), 1)

    @pytest.mark.parametrize("n", [2048, 2049, 3072])
    def test_bfloat16_beyond_2048_elements(self, library, n):
        """torch's CUDA top-k of bfloat16 was implemented for rows of up to 2048 elements only.

        https://github.com/pytorch/pytorch/issues/56176
        """
        skip_without(library, bfloat16)
        check_top_k(library, normal("bfloat16", n).astype(bfloat16), 5)

    @pytest.mark.parametrize("dtype", [bfloat16, "float16"], ids=["bfloat16", "float16"])
    def test_half_of_a_row_of_16_bit_floats(self, library, dtype):
        """torch's XPU top-k selected wrong elements for the larger half of 2000 16-bit floats.

        https://github.com/intel/torch-xpu-ops/issues/1147
        """
        skip_without(library, dtype)
        check_top_k(library, random("half").random((1, 2000)).astype(dtype), 1000)

    @pytest.mark.parametrize("n", [*range(1, 40), 63, 64, 65])
    def test_short_rows_of_float16(self, library, n):
        """NumPy's vectorised float16 sort read out of bounds, because "size - 16" wrapped for short arrays.

        https://github.com/numpy/numpy/issues/25382
        """
        check_top_k(library, normal("short", n, "float16"), n)

    @pytest.mark.parametrize("dtype", ["int8", "int16", "uint8"])
    def test_small_integers(self, library, dtype):
        """ONNX Runtime's TopK had no int8, int16 and uint8.

        https://github.com/microsoft/onnxruntime/pull/27860
        """
        info = np.iinfo(dtype)
        x = random("small").integers(info.min, info.max + 1, (3, 400)).astype(dtype)
        x[:, 7], x[:, 300] = info.min, info.max
        for largest in (True, False):
            check_top_k(library, x, 60, largest=largest)

    def test_uint64_above_the_range_of_int64(self, library):
        """ONNX Runtime's TopK has no uint64.

        https://github.com/microsoft/onnxruntime/pull/25084
        """
        x = np.array([0, 2**63 - 1, 2**63, 2**64 - 1, 1, 2**63 + 1, 2**64 - 2], "uint64")
        assert top_k(library, x, 7)[1].tolist() == [3, 6, 5, 2, 1, 4, 0]
        assert top_k(library, x, 7, largest=False)[1].tolist() == [0, 4, 1, 2, 5, 6, 3]

    def test_unsigned_zero_is_not_negated(self, library):
        """ONNX's reference TopK negated the values to sort them, which overflowed for unsigned types.

        https://github.com/onnx/onnx/pull/6593
        """
        x = np.array([[0, 255, 128, 0, 1]], "uint8")
        assert top_k(library, x, 5)[1].tolist() == [[1, 2, 4, 0, 3]]
        assert top_k(library, x, 5, largest=False)[1].tolist() == [[0, 3, 4, 2, 1]]

    @pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
    def test_signed_integers_of_two_passes(self, library, dtype):
        """CUB's radix sort in two passes mishandled the end of the key for signed types.

        https://github.com/NVIDIA/cub/issues/310
        """
        info = np.iinfo(dtype)
        x = random("signed").integers(info.min, info.max, 3000, dtype, endpoint=True)
        x[[5, 2000]] = info.min
        x[[9, 1000]] = info.max
        check_top_k(library, x, 3000, largest=False)
        check_top_k(library, x, 3000)

    def test_int64_is_not_compared_as_float(self, library):
        """Tenstorrent's top-k of int64 was off by several units in the last place, as floats are.

        https://github.com/tenstorrent/tt-metal/issues/25783
        """
        x = np.array([2**53, 2**53 + 1, 2**53 - 1, INT64_MAX, INT64_MAX - 1, INT64_MIN, INT64_MIN + 1])
        assert top_k(library, x, 7)[1].tolist() == [3, 4, 1, 0, 2, 6, 5]

    @pytest.mark.parametrize("shape", [(1024, 3), (1023, 3), (1024, 2)], ids=str)
    def test_int32_indices_of_a_transposed_matrix(self, library, shape):
        """TensorFlow's compiled top_k with int32 indices returned other values than the maximum.

        https://github.com/tensorflow/tensorflow/issues/61692
        """
        x = normal("transposed", shape).T
        values, indices = top_k(library, x, 1, index_dtype=library.dtype("int32"))
        assert_same(values, x.max(1, keepdims=True))
        np.testing.assert_array_equal(indices, x.argmax(1, keepdims=True))


class TestTopKLayouts:
    """Strides of inputs and outputs."""

    def test_a_transposed_matrix(self, library):
        """FlagGems' top-k assumed contiguous rows, and silently gave wrong values for a transposed matrix.

        https://github.com/flagos-ai/FlagGems/pull/5725
        """
        check_top_k(library, normal("transpose", (32, 32)).T, 5)

    def test_rows_with_padding_between_them(self, library):
        """torch's CUDA top-k was wrong for non-contiguous tensors, and a proposed fix was to refuse them.

        https://github.com/pytorch/pytorch/pull/9441
        """
        x = normal("padding", (6, 90))
        x[:, :3] = x[:, 80:] = 1e30
        check_top_k(library, x[:, 3:80], 9)

    def test_a_reversed_row(self, library):
        """A CuPy view claimed to be contiguous but had a stride of -1, and was read backwards.

        https://github.com/cupy/cupy/issues/5427
        """
        x = np.arange(60, dtype="uint16").reshape(3, 20)
        assert top_k(library, x[:, ::-1], 2)[1].tolist() == [[0, 1]] * 3
        check_top_k(library, x[::-1, 1:0:-1], 1)

    def test_a_scalar_expanded_to_three_dimensions(self, library):
        """torch crashed in a stable sort of a scalar that was expanded to (1, 1, 1).

        https://github.com/pytorch/pytorch/issues/91420
        """
        check_top_k(library, np.broadcast_to(np.float32(1), (1, 1, 1)), 1, axis=1)

    def test_outputs_of_every_fourth_element(self, library):
        """torch's CUDA top-k ignored the strides of its outputs.

        https://github.com/pytorch/pytorch/issues/62940
        """
        x = library.from_numpy(np.arange(12))
        values, indices = (library.from_numpy(np.zeros(12, "int64")) for _ in range(2))
        dmlops.top_k(x, 3, out=(values[::4], indices[::4]))
        for array in (values, indices):
            assert library.to_numpy(array).tolist() == [11, 0, 0, 0, 10, 0, 0, 0, 9, 0, 0, 0]

    @pytest.mark.parametrize("k", [3000, 10_000])
    def test_large_k_does_not_sort_in_place(self, library, k):
        """torch's CUDA top-k sorted the selected values in place, which the sort behind it cannot do.

        https://github.com/pytorch/pytorch/pull/58318
        """
        check_top_k(library, normal("in place", 10_000), k)

    def test_an_output_that_is_the_input_is_refused(self, library):
        """torch's CUDA sort into its own input silently corrupted the indices.

        https://github.com/pytorch/pytorch/pull/58327
        """
        before = normal("overlap", 5000)
        x = library.from_numpy(before.copy())
        indices = library.from_numpy(np.full(5000, 77, "int64"))
        with pytest.raises(InvalidDescriptorError, match=r"^top_k\.out\[0\]: .*shares memory with top_k\.x"):
            dmlops.top_k(x, 5000, out=(x, indices))
        assert_same(library.to_numpy(x), before)
        assert (library.to_numpy(indices) == 77).all()


class TestNonzero:
    """Counts, coordinates and shapes of `nonzero_coordinates`."""

    @pytest.mark.parametrize("value", [0, 3])
    def test_zero_dimensions_have_no_columns(self, library, value):
        """CuPy's argwhere gave a 0-d array one column.

        https://github.com/cupy/cupy/issues/4166
        """
        coordinates, count = nonzero(library, np.array(value, "int32"))
        assert coordinates.shape == (int(value != 0), 0)
        assert count == (value != 0)

    def test_a_scalar_that_is_not_zero_is_found(self, library):
        """CuPy's nonzero found nothing in a 0-d array of 3.

        https://github.com/cupy/cupy/issues/4165
        """
        coordinates, count = nonzero(library, np.array(3, "int32"), size=2, fill_value=0)
        assert coordinates.shape == (2, 0)
        assert count == 1

    @pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 2), (0, 0, 2, 0)], ids=str)
    def test_empty_shapes(self, library, shape):
        """CuPy's nonzero launched an invalid kernel for arrays without elements.

        https://github.com/cupy/cupy/issues/252
        """
        check_nonzero(library, np.ones(shape))

    def test_the_last_elements_behind_128_times_65536(self, library):
        """CuPy's nonzero returned wrong coordinates beyond 128 * 65536 elements, where its grid ended.

        https://github.com/cupy/cupy/issues/569
        """
        x = np.zeros(128 * 65536 + 1)
        x[-2:] = 1
        coordinates, count = nonzero(library, x)
        assert coordinates.tolist() == [[8388607], [8388608]]
        assert count == 2

    def test_an_identity_matrix_of_four_has_four(self, library):
        """CuPy's count_nonzero counted one element in an identity matrix of four rows.

        https://github.com/chainer/chainer/issues/585
        """
        check_nonzero(library, np.eye(4))

    def test_six_dimensions_in_every_run(self, library):
        """NumPy's nonzero of six dimensions gave other coordinates from run to run.

        https://github.com/numpy/numpy/issues/9304
        """
        x = library.from_numpy(random(2).random((10, 2, 3, 4, 5, 6)))
        expected = np.argwhere(np.ones((10, 2, 3, 4, 5, 6)))
        for _ in range(10):
            coordinates, _ = dmlops.nonzero_coordinates(x)
            np.testing.assert_array_equal(library.to_numpy(coordinates), expected)

    def test_coordinates_of_a_full_matrix_stay_inside(self, library):
        """NumPy's nonzero of large matrices returned columns such as 1152921504606848384.

        https://github.com/numpy/numpy/issues/23196
        """
        coordinates, count = nonzero(library, np.ones((4000, 3000), bool))
        assert count == 12_000_000
        rows, columns = coordinates.reshape(4000, 3000, 2).transpose(2, 0, 1)
        assert (rows == np.arange(4000)[:, np.newaxis]).all()
        assert (columns == np.arange(3000)).all()

    @pytest.mark.parametrize("found", [100, 600, 1_000_000])
    def test_no_row_of_a_mask_is_lost(self, library, found):
        """torch's XPU nonzero returned 0 of 100, some 307 of 600 and 37824 of 1000000 rows.

        https://github.com/intel/torch-xpu-ops/issues/4396
        """
        mask = random(found).permutation(2 * found) < found
        coordinates, count = nonzero(library, mask)
        assert count == found
        np.testing.assert_array_equal(coordinates[:, 0], np.flatnonzero(mask))

    def test_a_transposed_matrix(self, library):
        """A first port of torch's CPU nonzero was wrong for transposed tensors.

        https://github.com/pytorch/pytorch/pull/27217
        """
        check_nonzero(library, (normal("nonzero", (2, 5)) < 0.5).astype("float64").T)

    def test_channels_last_come_in_element_order(self, library):
        """A first port of torch's CPU nonzero visited channels-last tensors in the order of their memory.

        https://github.com/pytorch/pytorch/pull/59149
        """
        x = random("channels").integers(0, 2, (2, 5, 6, 3)).astype("float32")
        check_nonzero(library, x.transpose(0, 3, 1, 2))

    def test_strided_outputs(self, library):
        """torch's XPU nonzero had an error in the strides of its output.

        https://github.com/intel/torch-xpu-ops/pull/1366
        """
        x = np.array([[1, 0, 2], [0, 3, 0]], "int32")
        memory = library.from_numpy(np.full((2, 8), 77, "int64"))
        count = library.from_numpy(np.zeros(1, "int64"))
        dmlops.nonzero_coordinates(library.from_numpy(x), out=(memory[:, ::2].T, count))
        expected = [[0, 77, 0, 77, 1, 77, 77, 77], [0, 77, 2, 77, 1, 77, 77, 77]]
        written = library.to_numpy(memory)
        written[:, 6] = 77  # undefined: there is no fourth row
        assert written.tolist() == expected
        assert library.to_numpy(count).item() == 3

    def test_the_count_tells_fill_from_element_zero(self, library):
        """JAX's nonzero of a fixed size returned the same for "only element 0" and for "nothing".

        https://github.com/jax-ml/jax/issues/7129
        """
        assert nonzero(library, np.zeros(5), size=1, fill_value=0)[1] == 0
        assert nonzero(library, np.eye(1, 5)[0], size=1, fill_value=0)[1] == 1
        options = {"size": 1, "fill_value": -1, "index_dtype": library.dtype("int64")}
        assert nonzero(library, np.zeros(5), **options)[0].tolist() == [[-1]]

    def test_rows_of_fill_gather_nothing(self, library):
        """MIGraphX padded nonzero with zeros, which the gather behind it took for element 0.

        https://github.com/ROCm/AMDMIGraphX/issues/1886
        """
        x = library.from_numpy(np.array([[9, 0], [0, 8]], "float32"))
        options = {"size": 4, "fill_value": INT32_MAX, "index_dtype": library.dtype("int32")}
        coordinates, _ = dmlops.nonzero_coordinates(x, **options)
        gathered = dmlops.gather_nd(x, coordinates, mode="fill")
        assert library.to_numpy(gathered).tolist() == [9, 8, 0, 0]

    @pytest.mark.parametrize("dtype", ["uint8", "int8", "bool"])
    def test_coordinates_are_wider_than_the_elements(self, library, dtype):
        """cuPyNumeric's nonzero made its result in the type of the input.

        https://github.com/nv-legate/cupynumeric/pull/285
        """
        x = np.zeros((300, 70_000), dtype)
        x[299, 69_999] = x[256, 65_536] = 1
        assert nonzero(library, x)[0].tolist() == [[256, 65_536], [299, 69_999]]

    def test_coordinates_are_contiguous(self, library):
        """Numba's argwhere returned an array that could not be reshaped, because it is not contiguous.

        https://github.com/numba/numba/issues/5880
        """
        x = library.from_numpy(np.array([[True, False], [False, True]]))
        coordinates, _ = dmlops.nonzero_coordinates(x)
        is_torch = library.name.startswith("torch")
        assert coordinates.is_contiguous() if is_torch else coordinates.flags.c_contiguous

    @pytest.mark.parametrize("dtype", ["int16", "float16", "uint16"])
    @pytest.mark.parametrize("n", [1, 3, 5, 7, 1001])
    def test_odd_sizes_of_16_bit_types(self, library, dtype, n):
        """TensorFlow's compiled masks and partitions silently corrupted odd sizes of 16-bit types.

        https://github.com/tensorflow/tensorflow/issues/119380
        """
        x = np.arange(n).astype(dtype) % 3
        check_nonzero(library, x)
        coordinates, _ = dmlops.nonzero_coordinates(library.from_numpy(x))
        gathered = dmlops.gather_nd(library.from_numpy(x), coordinates)
        assert_same(library.to_numpy(gathered), x[x != 0])


class TestGather:
    """Indices out of range, negative, of any type, and shapes without elements."""

    @pytest.mark.parametrize("batches", [(2, 3), (3, 2), (1, 3), (3, 1)], ids=str)
    def test_batches_that_differ_are_refused(self, library, batches):
        """ONNX Runtime's CPU GatherND divided by zero where the batch sizes differ.

        https://github.com/microsoft/onnxruntime/issues/23828
        """
        x = library.from_numpy(np.arange(3.0 * batches[0]).reshape(batches[0], 3))
        indices = library.from_numpy(np.ones((batches[1], 1), "int64"))
        with pytest.raises(InvalidDescriptorError, match="batch"):
            dmlops.gather_nd(x, indices, batch_dims=1)

    def test_an_index_beyond_every_dimension(self, library):
        """TensorFlow's GPU gather_nd returned zeros for indices out of range, where its CPU raised.

        https://github.com/tensorflow/tensorflow/issues/12608
        """
        cases = ((np.ones((5, 5, 5)), [[6, 6, 6]]), (np.ones((1, 5)), [[-50_000_000_000_000_000]]))
        for x, indices in cases:
            with pytest.raises(dmlops.IndexOutOfRangeError):
                gather_nd(library, x, indices)
            assert (gather_nd(library, x, indices, mode="clip") == 1).all()
            assert (gather_nd(library, x, indices, mode="fill") == 0).all()

    def test_the_first_bad_tuple_is_named(self, library):
        """TensorFlow's GPU gather_nd filled in zeros for [8, -1], so that the bug behind it stayed hidden.

        https://github.com/tensorflow/tensorflow/issues/15091
        """
        indices = np.stack([np.arange(10), np.full(10, 4)], -1)
        indices[8, 1] = -6
        with pytest.raises(
            IndexError, match=r"got tuple \(8, -6\) at position \(8,\), but coordinate 1 is -6"
        ):
            gather_nd(library, np.ones((10, 5)), indices)

    @pytest.mark.parametrize("dtype", ["int32", "int64"])
    def test_negative_indices_count_from_the_end(self, library, dtype):
        """ONNX Runtime's Gather refused the negative indices that ONNX allows.

        https://github.com/microsoft/onnxruntime/issues/1533
        """
        x = np.arange(12.0).reshape(3, 4)
        indices = np.array([[-1, -1], [-3, -4], [2, -2]], dtype)
        assert gather_nd(library, x, indices).tolist() == [11, 0, 10]

    def test_no_mode_reads_outside(self, library):
        """TVM's gather_nd read other memory for negative indices and for those out of range.

        https://github.com/apache/tvm/issues/20297
        """
        x = np.full((6, 9), 99, "float32")
        x[1:4, 2:7] = 1
        indices = random("tvm").integers(-20, 20, (300, 2))
        for mode in ("clip", "fill"):
            expected = reference.gather_nd(x[1:4, 2:7], indices, mode=mode)
            assert_same(gather_nd(library, x[1:4, 2:7], indices, mode=mode), expected)
            assert (expected <= 1).all()

    def test_indices_do_not_wrap_around(self, library):
        """CuPy wraps indices out of range around, so that element 5 of 5 is element 0.

        https://github.com/chainer/chainer/issues/4648
        """
        x, indices = np.arange(5) + 1, np.arange(7)[:, np.newaxis]
        assert gather_nd(library, x, indices, mode="clip").tolist() == [1, 2, 3, 4, 5, 5, 5]
        assert gather_nd(library, x, indices, mode="fill").tolist() == [1, 2, 3, 4, 5, 0, 0]
        with pytest.raises(IndexError, match=r"coordinate 0 is 5"):
            gather_nd(library, x, indices)

    @pytest.mark.parametrize("mode", ["clip", "fill"])
    def test_indices_are_not_changed(self, library, mode):
        """CuPy's indexing wrote the indices that it had brought into range back to the caller's array.

        https://github.com/cupy/cupy/issues/705
        """
        before = np.array([[10, -7], [0, -1], [1, 5]], "int32")
        indices = library.from_numpy(before.copy())
        dmlops.gather_nd(library.from_numpy(np.ones((3, 4))), indices, mode=mode)
        assert_same(library.to_numpy(indices), before)

    def test_fill_begins_beyond_the_length_from_the_end(self, library):
        """A JAX user took it for a bug that mode="fill" fills only below -n.

        https://github.com/jax-ml/jax/issues/28998
        """
        indices = np.arange(-10, 10)[:, np.newaxis]
        result = gather_nd(library, np.ones(4), indices, mode="fill")
        assert result.tolist() == [0] * 6 + [1] * 8 + [0] * 6

    @pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
    def test_index_types_too_small_to_count_are_refused(self, library, dtype):
        """JAX took element 128 of 200, asked for by a uint8, for element -128 and returned the last one.

        https://github.com/jax-ml/jax/issues/16836
        """
        x, indices = library.from_numpy(np.arange(200)), library.from_numpy(np.ones((1, 1), dtype))
        with pytest.raises(TypeError, match=dtype):
            dmlops.gather_nd(x, indices)

    @pytest.mark.parametrize("index_dtype", INDEX_DTYPES, ids=str)
    def test_every_index_type(self, library, index_dtype):
        """The ONNX-MLIR verifier of GatherND crashed for unsigned index types.

        https://github.com/Xilinx/onnx-mlir/pull/1003
        """
        x = np.arange(200, dtype="float32")
        indices = np.array([[0], [127], [128], [199]], index_dtype)
        assert gather_nd(library, x, indices).tolist() == [0, 127, 128, 199]
        with pytest.raises(IndexError, match="coordinate 0 is 200"):
            gather_nd(library, x, indices + index_dtype.type(1))

    def test_more_batches_than_an_index_type_counts(self, library):
        """JAX counted 256 batches in the int8 of the indices, and returned NaN for the second half.

        https://github.com/jax-ml/jax/issues/16557
        """
        x = np.arange(70_000, dtype="float32")[:, np.newaxis]
        indices = np.zeros((70_000, 1, 1), "int32")
        assert_same(gather_nd(library, x, indices, batch_dims=1), x)

    def test_slices_without_elements(self, library):
        """TensorFlow's gather_nd refused to take a slice without elements.

        https://github.com/tensorflow/tensorflow/issues/50246
        """
        assert gather_nd(library, np.zeros((2, 0, 5)), [[0]]).shape == (1, 0, 5)

    def test_a_batch_of_slices_without_elements(self, library):
        """MIGraphX aborted while it read a Gather from shape (1, 8400, 0).

        https://github.com/ROCm/AMDMIGraphX/issues/5246
        """
        x = np.zeros((1, 8400, 0), "float32")
        assert gather_nd(library, x, np.zeros((1, 1), "int64")).shape == (1, 8400, 0)
        assert gather_nd(library, x, np.array([0])).shape == (8400, 0)

    def test_no_index_at_all(self, library):
        """mlprodict's Gather crashed where there are no indices.

        https://github.com/sdpython/mlprodict/issues/216
        """
        assert gather_nd(library, np.ones((3, 4)), np.zeros((0, 1), "int64")).shape == (0, 4)

    @pytest.mark.parametrize("dtype", ["int32", "uint64"])
    def test_tuples_of_no_index_select_everything(self, library, dtype):
        """tensorflow-directml crashed in GatherND where the last dimension of the indices is 0.

        https://github.com/microsoft/tensorflow-directml/pull/178
        """
        x = np.array([[65, 17, 2], [-14, -25, -1], [76, 22, 3]], "float32")
        assert_same(gather_nd(library, x, np.zeros((2, 0), dtype)), np.stack([x, x]))

    def test_the_same_row_twice(self, library):
        """TensorFlow's gather_nd could not take rows, as its own documentation shows.

        https://github.com/tensorflow/tensorflow/issues/3712
        """
        x = np.array([[1, 1, 1, 1], [1, 2, 3, 4]])
        assert gather_nd(library, x, [[1], [1]]).tolist() == [[1, 2, 3, 4]] * 2

    @pytest.mark.parametrize("rows", [65_535, 65_536, 200_000])
    def test_more_than_65535_rows(self, library, rows):
        """ggml's CUDA get_rows failed beyond 65535 rows, the limit of a grid's second dimension.

        https://github.com/ggml-org/ggml/issues/877
        """
        x = np.arange(2 * rows).reshape(rows, 2)
        indices = np.arange(rows)[::-1, np.newaxis].copy()
        assert_same(gather_nd(library, x, indices), x[::-1])

    @pytest.mark.parametrize("dtype", ["int32", "int64", "uint64"])
    def test_gathered_integers_stay_exact(self, library, dtype):
        """A gather of vocabulary numbers that Tenstorrent's compiler lowered to an embedding corrupted them.

        https://github.com/tenstorrent/tt-xla/issues/4329
        """
        highest = np.iinfo(dtype).max
        x = np.array([257, 50_257, 16_777_217, highest, highest - 1], dtype)
        assert_same(gather_nd(library, x, np.arange(5)[:, np.newaxis]), x)

    def test_an_output_of_the_wrong_shape_is_refused(self, library):
        """CuPy's take crashed the process where `out` had the wrong shape.

        https://github.com/chainer/chainer/pull/1013
        """
        x = library.from_numpy(np.arange(24).reshape(2, 3, 4))
        indices = library.from_numpy(np.array([[1]]))
        for shape in ((), (1,), (3, 4), (1, 3, 5)):
            out = library.from_numpy(np.zeros(shape, "int64"))
            with pytest.raises(InvalidDescriptorError, match=r"^gather_nd\.out: got shape"):
                dmlops.gather_nd(x, indices, out=out)


class TestDiagonal:
    """Triangles, bands and their far ends."""

    @pytest.mark.parametrize("k", [INT64_MAX, INT64_MIN, INT64_MAX - 4, INT32_MAX, -(2**31), 2**64, -(2**64)])
    def test_diagonals_far_outside_the_matrix(self, library, k):
        """torch's triu overflowed for a diagonal of 2^63 - 1, and left ones behind.

        https://github.com/pytorch/pytorch/pull/153240
        """
        x = np.ones((5, 5), "float32")
        assert_same(triu(library, x, k), x if k < 0 else 0 * x)
        assert_same(tril(library, x, k), 0 * x if k < 0 else x)

    @pytest.mark.parametrize("k", [-6, -3, -2, 2, 3, 6])
    def test_bands_wider_than_the_matrix(self, library, k):
        """TensorFlow's band_part raised for a band wider than the matrix, and compiled it returned all.

        https://github.com/tensorflow/tensorflow/issues/110316
        """
        x = np.full((2, 2), 17, "int32")
        assert_same(triu(library, x, k), np.triu(x, k))
        assert_same(tril(library, x, k), np.tril(x, k))

    def test_unsigned_numbers_as_begin_and_end(self, library):
        """NumPy's triu_indices overflowed for bounds of type uint64.

        https://github.com/numpy/numpy/pull/29491
        """
        x = library.from_numpy(np.ones((4, 5)))
        result = dmlops.diagonal_matrix(x, value=0, begin=np.uint64(1), end=np.uint64(2**64 - 1))
        assert_same(library.to_numpy(result), np.tril(np.ones((4, 5))))

    def test_infinity_outside_a_triangle_becomes_zero(self, library):
        """NumPy's triu and tril multiplied by 0, which turned infinity into NaN.

        https://github.com/numpy/numpy/pull/4861
        """
        x = np.full((3, 3), np.inf)
        assert_same(triu(library, x), np.where(np.tri(3, k=-1, dtype=bool), 0, np.inf))
        assert_same(tril(library, x), np.where(np.tri(3, dtype=bool), np.inf, 0))

    def test_nan_and_infinity_of_one_row(self, library):
        """MindSpore's tril left NaN in place of the infinities that it should have removed.

        https://github.com/mindspore-ai/mindspore/issues/372
        """
        x = np.array([[np.nan, np.inf, -np.inf], [-1, 1, 1e-6]], "float32")
        assert_same(tril(library, x), np.array([[np.nan, 0, 0], [-1, 1, 0]], "float32"))

    def test_a_mask_of_negative_infinity(self, library):
        """TensorRT gave a wrong attention mask for triu of -inf.

        https://github.com/NVIDIA/trt-samples-for-hackathon-cn/issues/84
        """
        options = {"shape": (1, 2, 2), "dtype": library.dtype("float32"), "value": -np.inf}
        mask = dmlops.diagonal_matrix(**options, begin=1, end=FAR, like=library.from_numpy(np.zeros(1)))
        assert_same(library.to_numpy(mask), np.array([[[0, -np.inf], [0, 0]]], "float32"))

    def test_boolean_matrices_stay_boolean(self, library):
        """NumPy's triu of booleans returned integers.

        https://github.com/numpy/numpy/pull/4916
        """
        x = np.array([[False, True], [True, False]])
        assert_same(triu(library, x), np.array([[False, True], [False, False]]))

    def test_a_batch_whose_first_axes_are_exchanged(self, library):
        """torch's CPU triu read outside a tensor of shape (1, 4, 4, 4) with exchanged axes.

        https://github.com/pytorch/pytorch/issues/22581
        """
        x = normal("batch", (1, 4, 4, 4)).transpose(1, 0, 2, 3)
        for k in (-1, 0, 2):
            assert_same(triu(library, x, k), np.triu(x, k))
            assert_same(tril(library, x, k), np.tril(x, k))

    def test_one_matrix_of_a_batch(self, library):
        """torch's CUDA triu of one matrix of a batch was shifted, because it ignored where the matrix begins.

        https://github.com/pytorch/pytorch/issues/2749
        """
        x = library.from_numpy(np.ones((3, 4, 4), "float32"))
        for place in range(3):
            result = dmlops.diagonal_matrix(x[place], value=0, begin=-FAR, end=0)
            assert_same(library.to_numpy(result), np.triu(np.ones((4, 4), "float32")))

    @pytest.mark.parametrize("shape", [(2028, 1), (1, 2028)], ids=str)
    def test_matrices_of_one_column(self, library, shape):
        """torch's CUDA triu of a matrix of 2028 rows and one column kept the wrong side.

        https://github.com/pytorch/pytorch/issues/15226
        """
        x = np.ones(shape, "int64")
        for k in (-2, 0, 2):
            assert_same(triu(library, x, k), np.triu(x, k))
            assert_same(tril(library, x, k), np.tril(x, k))

    @pytest.mark.parametrize("batch", [65_535, 65_536, 70_000])
    def test_more_than_65535_matrices(self, library, batch):
        """torch's CUDA triu failed for more than 65535 matrices, the limit of a grid's second dimension.

        https://github.com/pytorch/pytorch/pull/21067
        """
        x = np.arange(4 * batch).reshape(batch, 2, 2)
        assert_same(triu(library, x, 1), np.triu(x, 1))
        assert_same(tril(library, x.swapaxes(1, 2)), np.tril(x.swapaxes(1, 2)))

    @pytest.mark.parametrize("shape", [(2, 3, 4, 4), (2, 1, 3, 4, 5)], ids=str)
    def test_more_than_three_dimensions(self, library, shape):
        """torch's triu on Apple GPUs was wrong for tensors of more than three dimensions.

        https://github.com/pytorch/pytorch/pull/144545
        """
        x = normal("dimensions", shape)
        for k in (-1, 0, 1):
            assert_same(triu(library, x, k), np.triu(x, k))
            assert_same(tril(library, x, k), np.tril(x, k))

    def test_an_output_that_overlaps_itself_is_refused(self, library):
        """torch's triu_ of an expanded scalar silently gave a wrong matrix.

        https://github.com/pytorch/pytorch/issues/165987
        """
        expanded = library.from_numpy(as_strided(np.full(1, 77.0), (3, 3), (0, 0)))
        with pytest.raises(InvalidDescriptorError, match="strides of an output must not overlap"):
            dmlops.diagonal_matrix(library.from_numpy(np.ones((3, 3))), out=expanded)
        assert (library.to_numpy(expanded) == 77).all()


class TestMemoryAroundInputs:
    """What lies next to the elements has no influence, and nothing writes there."""

    @pytest.mark.parametrize("gap", [0.0, np.nan, np.inf, -np.inf])
    def test_gaps_between_rows_do_not_show(self, library, gap):
        """A CuPy kernel read next to its input, so that its result depended on other arrays.

        https://github.com/cupy/cupy/issues/10165
        """
        whole = np.full((12, 50), gap, "float32")
        whole[1:-1, 3:41] = normal("gap", (10, 38)).round()
        x = whole[1:-1, 3:41]
        check_top_k(library, x, 20)
        check_top_k(library, x, 4, axis=0)
        check_nonzero(library, x)
        assert_same(triu(library, x, 2), np.triu(x, 2))
        indices = random("gap").integers(-60, 60, (50, 2))
        expected = reference.gather_nd(x, indices, mode="clip")
        assert_same(gather_nd(library, x, indices, mode="clip"), expected)

    def test_results_have_memory_of_their_own_and_outputs_keep_theirs(self, library):
        """torch's triu_ gave a non-contiguous tensor new memory, unseen by other views of the old one.

        https://github.com/pytorch/pytorch/pull/17031
        """
        before = np.arange(1.0, 10).reshape(3, 3)
        x, memory = library.from_numpy(before.copy()), library.from_numpy(np.zeros((3, 6)))
        out = memory[:, ::2]
        assert dmlops.diagonal_matrix(x, value=0, begin=-FAR, end=0, out=out) is out
        assert_same(library.to_numpy(memory)[:, ::2], np.triu(before))
        assert not library.to_numpy(memory)[:, 1::2].any()
        every_row = library.from_numpy(np.arange(3)[:, np.newaxis])
        results = [
            dmlops.gather_nd(x, every_row),
            dmlops.diagonal_matrix(x, begin=1, end=1),
            dmlops.top_k(x, 3, largest=False).values,
        ]
        for result in results:
            assert_same(library.to_numpy(result), before)
            result[...] = 77
        assert_same(library.to_numpy(x), before)


@pytest.fixture
def restore_num_threads():
    yield
    dmlops.set_num_threads(None)


def read_only(x):
    x.flags.writeable = False
    return x


class TestHostMemory:
    """What only NumPy arrays can be: read-only, not aligned, shared by several threads."""

    def test_read_only_inputs_are_taken(self):
        """Numba's median failed for read-only arrays.

        https://github.com/numba/numba/issues/3070
        """
        x, indices = read_only(normal("read", (5, 40))), read_only(np.array([[4], [0]]))
        assert_same(dmlops.top_k(x, 3).values, reference.top_k(x, 3)[0])
        np.testing.assert_array_equal(dmlops.nonzero_coordinates(x).coordinates, np.argwhere(x))
        assert_same(dmlops.gather_nd(x, indices), x[[4, 0]])
        assert_same(dmlops.diagonal_matrix(x, value=0, begin=-FAR, end=0), np.triu(x))

    def test_read_only_outputs_are_refused(self):
        """Numba wrote to arrays that are marked as read-only.

        https://github.com/numba/numba/issues/1229
        """
        out = read_only(np.full((3, 3), 77.0))
        with pytest.raises(InvalidDescriptorError, match="got a read-only array"):
            dmlops.diagonal_matrix(np.ones((3, 3)), out=out)
        assert (out == 77).all()

    @pytest.mark.parametrize("dtype", ["int16", "int32", "float64"])
    def test_unaligned_inputs(self, dtype):
        """NumPy's nonzero read unaligned elements as if they were aligned, a bus error on some machines.

        https://github.com/numpy/numpy/issues/19592
        """
        x = unaligned(random("unaligned").integers(0, 3, (7, 33)).astype(dtype))
        np.testing.assert_array_equal(dmlops.nonzero_coordinates(x).coordinates, np.argwhere(x))
        assert_same(dmlops.top_k(x, 5).values, reference.top_k(x, 5)[0])
        assert_same(dmlops.gather_nd(x, unaligned(np.array([[3]]))), x[[3]])

    @pytest.mark.usefixtures("restore_num_threads")
    def test_same_bytes_for_every_number_of_threads(self):
        """torch's top-k of one tensor returned other indices from call to call.

        https://github.com/pytorch/pytorch/issues/4935
        """
        x = random("threads").integers(0, 50, (3, 120_000)).astype("float32")
        expected = [array.tobytes() for array in dmlops.top_k(x, 2500)]
        for n in (1, 2, 3, 8):
            dmlops.set_num_threads(n)
            for _ in range(5):
                assert [array.tobytes() for array in dmlops.top_k(x, 2500)] == expected


@pytest.mark.skipif(sys.platform != "linux", reason="zeros take memory here before they are written to")
class TestMoreElementsThan32BitsCount:
    """Arrays of more than 2^31 bytes, nearly all of them zeros that Linux keeps no memory for."""

    @pytest.mark.parametrize("n", [INT32_MAX, 2**31 + 5])
    def test_top_k_of_more_than_int_max_elements(self, n):
        """torch refused to sort dimensions longer than INT_MAX, and its arithmetic below was 32 bits wide.

        https://github.com/pytorch/pytorch/pull/197470
        """
        x = np.zeros(n, "uint8")
        x[[n - 1, n // 2, 5]] = 9, 7, 8
        values, indices = dmlops.top_k(x, 4)
        assert values.tolist() == [9, 8, 7, 0]
        assert indices.tolist() == [n - 1, 5, n // 2, 0]

    def test_60_million_slices_of_one_element(self):
        """torch's CUDA top-k read illegal memory when its input had 60 million elements.

        https://github.com/pytorch/pytorch/issues/82569
        """
        x = np.zeros((60_000_000, 1), "uint8")
        x[-1] = 9
        values, indices = dmlops.top_k(x, 1, index_dtype="uint32")
        assert values.shape == indices.shape == x.shape
        assert values[-1].item() == 9
        assert not values[:-1].any()
        assert not indices.any()

    def test_top_k_ends_at_int_max(self):
        """TensorFlow's GPU top-k read outside a row of INT_MAX elements, because its index wrapped.

        https://github.com/tensorflow/tensorflow/issues/109523
        """
        values, indices = dmlops.top_k(np.zeros(INT32_MAX, "int8"), 3, largest=False)
        assert values.tolist() == [0, 0, 0]
        assert indices.tolist() == [0, 1, 2]

    @pytest.mark.parametrize("n", [2**32 - 1, 2**32, 2**32 + 5])
    def test_the_largest_is_the_last_of_2_to_the_32(self, n):
        """CuPy's argmax of 2^32 elements returned a negative index.

        https://github.com/cupy/cupy/issues/8014
        """
        x = np.zeros(n, "uint8")
        x[-1] = 1
        values, indices = dmlops.top_k(x, 1, index_dtype="uint64")
        assert values.tolist() == [1]
        assert indices.tolist() == [n - 1]

    def test_indices_that_uint32_cannot_count_are_an_error(self):
        """CUB's radix sort hung where a 32-bit count of elements came close to 2^32.

        https://github.com/NVIDIA/cub/issues/459
        """
        x = np.zeros(2**32 + 1, "uint8")
        with pytest.raises(InvalidDescriptorError, match="an index reaches 4294967296"):
            dmlops.top_k(x, 1, index_dtype="uint32")
        x[2**32 - 1] = 1
        assert dmlops.top_k(x[:-1], 1, index_dtype="uint32").indices.tolist() == [2**32 - 1]

    def test_nonzero_of_more_than_int_max_elements(self):
        """torch's CUDA nonzero refused tensors of more than INT_MAX elements.

        https://github.com/pytorch/pytorch/issues/51871
        """
        x = np.zeros((2**20, 2**11), "uint8")
        x[0, 3] = x[2**20 - 1, 2**11 - 1] = 1
        coordinates, count = dmlops.nonzero_coordinates(x)
        assert coordinates.tolist() == [[0, 3], [2**20 - 1, 2**11 - 1]]
        assert count.item() == 2

    def test_nonzero_just_below_int_max_finds_nothing(self):
        """torch's CUDA nonzero asked for an exabyte of memory just below INT_MAX elements.

        https://github.com/pytorch/pytorch/issues/51872
        """
        coordinates, count = dmlops.nonzero_coordinates(np.zeros(2**31 - 2, "uint8"))
        assert coordinates.shape == (0, 1)
        assert count.item() == 0

    def test_nonzero_of_2121269248_ones(self):
        """torch's CUDA nonzero read illegal memory for 2121269248 ones, and not for one element less.

        https://github.com/pytorch/pytorch/issues/80337
        """
        x = np.broadcast_to(np.uint8(1), 2_121_269_248)
        coordinates, count = dmlops.nonzero_coordinates(x, size=3)
        assert coordinates.tolist() == [[0], [1], [2]]
        assert count.item() == x.size

    def test_gather_from_a_table_of_more_than_int_max_elements(self):
        """ONNX Runtime's CUDA Gather read illegal memory in rows behind INT_MAX elements.

        https://github.com/microsoft/onnxruntime/issues/28107
        """
        x = np.zeros((262_144, 8960), "uint8")
        for row in (239_673, 239_674, 255_999, 262_143):
            x[row] = row % 251
        rows = np.array([[239_673], [239_674], [255_999], [-1], [239_675]])
        expected = [239_673 % 251, 239_674 % 251, 255_999 % 251, 262_143 % 251, 0]
        result = dmlops.gather_nd(x, rows)
        assert (result == np.array(expected)[:, np.newaxis]).all()

    @pytest.mark.parametrize("dtype", ["uint32", "int64"])
    def test_an_unsigned_index_above_int_max_is_not_negative(self, dtype):
        """JAX's take_along_axis overflowed in the type of its unsigned indices.

        https://github.com/jax-ml/jax/issues/5088
        """
        x = np.zeros(2**31 + 10, "uint8")
        x[[2**31 - 1, 2**31, 2**31 + 3]] = 1, 2, 3
        indices = np.array([[2**31 - 1], [2**31], [2**31 + 3], [2**31 + 4]], dtype)
        assert dmlops.gather_nd(x, indices).tolist() == [1, 2, 3, 0]


class TestDescriptors:
    """What users of DirectML reported."""

    def test_k_beyond_the_size_is_refused(self):
        """TensorFlow's InTopK crashed on DirectML, which takes no k beyond the size of the axis.

        https://github.com/microsoft/tensorflow-directml-plugin/pull/300
        """
        tensor = TensorDesc(TensorDataType.FLOAT32, (1, 1, 3, 4))
        for k in (0, 5):
            with pytest.raises(
                InvalidDescriptorError, match=rf"TopK1\.k: got {k}, .*; k must be in \[1, 4\]"
            ):
                TopK1(input_tensor=tensor, axis=3, k=k, axis_direction=AxisDirection.DECREASING)

    def test_k_beyond_the_size_is_not_cut(self):
        """ONNX left open whether k beyond the size of the axis is cut or refused.

        https://github.com/onnx/onnx/issues/2075
        """
        with pytest.raises(InvalidDescriptorError, match=r"top_k\.k: got 4, but axis 0 of x has 3 elements"):
            dmlops.top_k(np.ones((3, 5)), 4, axis=0)

    def test_64_bit_indices(self):
        """A model whose Gather, TopK and NonZero use 64-bit indices failed on DirectML with E_INVALIDARG.

        https://github.com/microsoft/onnxruntime/issues/27118
        """
        x = np.array([[3, 1, 2]], "float32")
        tensor = TensorDesc(TensorDataType.FLOAT32, x.shape)
        results = execute(
            TopK1(
                input_tensor=tensor,
                axis=1,
                k=3,
                axis_direction=AxisDirection.DECREASING,
                output_index_tensor=TensorDesc(TensorDataType.UINT64, x.shape),
            ),
            input_tensor=x,
        )
        assert_same(results["output_index_tensor"], np.array([[0, 2, 1]], "uint64"))
        gather = GatherND1(
            input_tensor=tensor,
            indices_tensor=TensorDesc(TensorDataType.INT64, (2, 2)),
            input_dimension_count=2,
            indices_dimension_count=2,
            batch_dimension_count=0,
        )
        results = execute(gather, input_tensor=x, indices_tensor=np.array([[0, -1], [-1, 0]]))
        assert_same(results["output_tensor"].ravel(), np.array([2, 3], "float32"))

    def test_sizes_of_zero_are_refused_by_name_and_empty_arrays_are_taken(self):
        """Callers of DirectML's nonzero have to work round its refusal of empty tensors.

        https://github.com/microsoft/onnxruntime/pull/13768
        """
        descriptor = NonzeroCoordinates(input_tensor=TensorDesc(TensorDataType.FLOAT32, (3, 0)))
        with pytest.raises(UnsupportedFeatureError, match=r"input_tensor: got \(3, 0\), .*; .* is EXTENDED$"):
            descriptor.validate(FeatureLevel.DML_6_4)
        coordinates, count = dmlops.nonzero_coordinates(np.zeros((3, 0), "float32"))
        assert coordinates.shape == (0, 2)
        assert count.item() == 0

    def test_indices_out_of_range_are_clamped(self):
        """ONNX Runtime raised, returned zeros or clamped indices out of range, depending on where it ran.

        https://github.com/microsoft/onnxruntime/issues/25251
        """
        x, indices = np.array([10, 20, 30], "float32"), np.array([[3], [-4], [INT64_MAX], [INT64_MIN], [-1]])
        gather = GatherND1(
            input_tensor=TensorDesc(TensorDataType.FLOAT32, (1, 3)),
            indices_tensor=TensorDesc(TensorDataType.INT64, (5, 1)),
            input_dimension_count=1,
            indices_dimension_count=2,
            batch_dimension_count=0,
        )
        results = execute(gather, input_tensor=x[np.newaxis], indices_tensor=indices)
        assert results["output_tensor"].ravel().tolist() == [30, 10, 30, 10, 30]
        assert dmlops.gather_nd(x, indices, mode="clip").tolist() == [30, 10, 30, 10, 30]
        with pytest.raises(dmlops.IndexOutOfRangeError):
            dmlops.gather_nd(x, indices)
