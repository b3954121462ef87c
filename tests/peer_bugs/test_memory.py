"""Bugs in the handling of memory in other libraries: padding, read-only arrays, very large arrays."""

import sys

import numpy as np
import pytest

import dmlops
from dmlops import InvalidDescriptorError
from tests import reference
from tests.data import assert_same, random, unaligned
from tests.peer_bugs.calls import FAR, INT32_MAX, check_nonzero, check_top_k, gather_nd, normal, triu


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
