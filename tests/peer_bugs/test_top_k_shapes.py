"""Bugs of top-k in other libraries that depend on sizes, data types and layouts."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

import dmlops
from dmlops import InvalidDescriptorError
from tests import reference
from tests.data import assert_same, random
from tests.peer_bugs.calls import INT64_MAX, INT64_MIN, check_top_k, normal, skip_without, top_k


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
