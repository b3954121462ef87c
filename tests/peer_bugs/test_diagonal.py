"""Bugs of triangles, identities and band matrices in other libraries."""

import numpy as np
import pytest

import dmlops
from dmlops import InvalidDescriptorError
from tests.data import as_strided, assert_same
from tests.peer_bugs.calls import FAR, INT32_MAX, INT64_MAX, INT64_MIN, normal, tril, triu


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
