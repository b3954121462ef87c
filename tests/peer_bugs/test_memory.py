"""Bugs of other libraries in very large arrays."""

import sys

import numpy as np
import pytest

import dmlops
from dmlops import InvalidDescriptorError
from tests.marks import exhaustive
from tests.peer_bugs.reports import INT32_MAX


@pytest.mark.skipif(sys.platform != "linux", reason="zeros take memory here before they are written to")
class TestMoreElementsThan32BitsCount:
    """Arrays of more than 2^31 bytes, nearly all of them zeros that Linux keeps no memory for."""

    @pytest.mark.parametrize("n", [exhaustive(INT32_MAX), 2**31 + 5])
    def test_top_k_of_more_than_int_max_elements(self, n):
        """torch refused to sort dimensions longer than INT_MAX, and its arithmetic below was 32 bits wide.

        https://github.com/pytorch/pytorch/pull/197470
        """
        x = np.zeros(n, "uint8")
        x[[n - 1, n // 2, 5]] = 9, 7, 8
        values, indices = dmlops.top_k(x, 4)
        assert values.tolist() == [9, 8, 7, 0]
        assert indices.tolist() == [n - 1, 5, n // 2, 0]

    @pytest.mark.exhaustive
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

    @pytest.mark.exhaustive
    def test_top_k_ends_at_int_max(self):
        """TensorFlow's GPU top-k read outside a row of INT_MAX elements, because its index wrapped.

        https://github.com/tensorflow/tensorflow/issues/109523
        """
        values, indices = dmlops.top_k(np.zeros(INT32_MAX, "int8"), 3, largest=False)
        assert values.tolist() == [0, 0, 0]
        assert indices.tolist() == [0, 1, 2]

    @pytest.mark.parametrize("n", [exhaustive(2**32 - 1), exhaustive(2**32), 2**32 + 5])
    def test_the_largest_is_the_last_of_2_to_the_32(self, n):
        """CuPy's argmax of 2^32 elements returned a negative index.

        https://github.com/cupy/cupy/issues/8014
        """
        x = np.zeros(n, "uint8")
        x[-1] = 1
        values, indices = dmlops.top_k(x, 1, index_dtype="uint64")
        assert values.tolist() == [1]
        assert indices.tolist() == [n - 1]

    @pytest.mark.exhaustive
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

    @pytest.mark.exhaustive
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

    @pytest.mark.parametrize("dtype", ["uint32", exhaustive("int64")])
    def test_an_unsigned_index_above_int_max_is_not_negative(self, dtype):
        """JAX's take_along_axis overflowed in the type of its unsigned indices.

        https://github.com/jax-ml/jax/issues/5088
        """
        x = np.zeros(2**31 + 10, "uint8")
        x[[2**31 - 1, 2**31, 2**31 + 3]] = 1, 2, 3
        indices = np.array([[2**31 - 1], [2**31], [2**31 + 3], [2**31 + 4]], dtype)
        assert dmlops.gather_nd(x, indices).tolist() == [1, 2, 3, 0]
