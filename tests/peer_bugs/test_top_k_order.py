"""Bugs in the order of top-k in other libraries: infinities, NaN and ties."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

import dmlops
from tests import reference
from tests.data import assert_same, random
from tests.peer_bugs.calls import (
    INT32_MAX,
    NEGATIVE_NAN,
    POSITIVE_NAN,
    check_top_k,
    normal,
    skip_without,
    top_k,
)


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
