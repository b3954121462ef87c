"""Bugs of nonzero in other libraries."""

import numpy as np
import pytest

import dmlops
from tests.data import assert_same, random
from tests.peer_bugs.calls import INT32_MAX, check_nonzero, nonzero, normal


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
