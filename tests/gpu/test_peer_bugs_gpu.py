"""The bugs of `tests/peer_bugs/` on GPU arrays, and bugs that take gigabytes to reproduce."""

import importlib

import numpy as np
import pytest

import dmlops
from tests.gpu.conftest import LIBRARIES

# Pytest collects these tests here as well, with GPU arrays in place of host arrays.
from tests.peer_bugs.reports import FAR, INT32_MAX
from tests.peer_bugs.test_reports import TestMemory, test_answers, test_refusals  # noqa: F401

GB = 10**9
CHUNK = 2**28


@pytest.fixture(params=LIBRARIES)
def library(request):
    """Serve each array library with GPU arrays in turn."""
    return LIBRARIES[request.param]


@pytest.fixture(autouse=True)
def _give_memory_back():
    yield
    for library in LIBRARIES.values():
        if library.name == "cupy":
            library.cupy.get_default_memory_pool().free_all_blocks()
        else:
            library.torch.cuda.empty_cache()


def needs(gigabytes):
    """Skip a test for which the GPU has not enough memory."""
    error, free, _ = importlib.import_module("cuda.bindings.runtime").cudaMemGetInfo()
    assert error == 0
    if free < gigabytes * GB:
        pytest.skip(f"needs {gigabytes} GB of GPU memory, {free / GB:.0f} GB are free")


def filled(library, shape, value=0, dtype="uint8"):
    """Return an array of one value that is made on the GPU."""
    if library.name == "cupy":
        return library.cupy.full(shape, value, dtype)
    return library.torch.full(shape, value, dtype=library.dtype(dtype), device=library.device)


def top_k(library, x, k, **options):
    """Return values and indices of a small top-k as lists."""
    values, indices = dmlops.top_k(x, k, **options)
    return library.to_numpy(values).tolist(), library.to_numpy(indices).tolist()


def chunks(array):
    """Go through the elements in parts small enough for any reduction of any library."""
    flat = array.reshape(-1)
    for first in range(0, flat.shape[0], CHUNK):
        yield flat[first : first + CHUNK]


def total(array):
    """Return the sum of the elements."""
    return sum(int(part.sum()) for part in chunks(array))


class TestTopKOfManyElements:
    """Rows, slices and k beyond what 31 and 32 bits count."""

    def test_60_million_slices_of_one_element(self, library):
        """torch's CUDA top-k read illegal memory when its input had 60 million elements.

        https://github.com/pytorch/pytorch/issues/82569
        """
        needs(3)
        x = filled(library, (60_000_000, 1))
        x[-1] = 9
        values, indices = dmlops.top_k(x, 1)
        assert values[-1].item() == 9
        assert total(values) == 9
        assert total(indices) == 0

    def test_indices_of_2120_rows_of_500000_stay_below_the_axis(self, library):
        """torch's CUDA top-k returned indices such as 2033619248 for shape (10, 212, 500000).

        https://github.com/pytorch/pytorch/issues/95455
        """
        needs(6)
        x = filled(library, (10, 212, 500_000), dtype="float32")
        x[..., 499_000] = 2
        x[9, 211, 499_999] = 3
        values, indices = dmlops.top_k(x, 20, sorted=False)
        values, indices = library.to_numpy(values), np.sort(library.to_numpy(indices), -1)
        assert (np.sort(values, -1)[..., -1] == [[2] * 212] * 9 + [[2] * 211 + [3]]).all()
        assert (indices.reshape(2120, 20)[:-1] == [*range(19), 499_000]).all()
        assert indices[9, 211].tolist() == [*range(18), 499_000, 499_999]

    @pytest.mark.parametrize(("dtype", "gigabytes"), [("int8", 7), ("float64", 26)])
    def test_top_k_ends_at_int_max(self, library, dtype, gigabytes):
        """TensorFlow's GPU top-k read outside a row of INT_MAX doubles, because its index wrapped.

        https://github.com/tensorflow/tensorflow/issues/109523
        """
        needs(gigabytes)
        x = filled(library, (INT32_MAX,), 1, dtype)
        assert top_k(library, x, 1) == ([1], [0])
        x[-1] = 2
        assert top_k(library, x, 2) == ([2, 1], [INT32_MAX - 1, 0])

    @pytest.mark.parametrize("dtype", ["float16", "uint8"])
    def test_dimensions_longer_than_int_max(self, library, dtype):
        """torch refused to sort dimensions longer than INT_MAX, and its arithmetic below was 32 bits wide.

        https://github.com/pytorch/pytorch/pull/197470
        """
        needs(14)
        n = 2**31 + 1000
        x = filled(library, (1, n), dtype=dtype)
        x[0, n - 1], x[0, 2**31], x[0, 2**31 - 1] = 3, 2, 2
        expected = [[3, 2, 2, 0]], [[n - 1, 2**31 - 1, 2**31, 0]]
        assert top_k(library, x, 4, index_dtype=library.dtype("int64")) == expected

    def test_the_largest_is_the_last_of_2_to_the_32(self, library):
        """CuPy's argmax of 2^32 elements returned a negative index.

        https://github.com/cupy/cupy/issues/8014
        """
        needs(12)
        x = filled(library, (2**32,))
        x[-1] = 1
        assert top_k(library, x, 1, index_dtype=library.dtype("int64")) == ([1], [2**32 - 1])

    def test_k_beyond_2_to_the_32_repeats_no_index(self, library):
        """torch's CUDA top-k returned index 0 many times where k exceeds 2^32.

        https://github.com/pytorch/pytorch/issues/173622
        """
        needs(56)
        n, k = 2**32 + 1000, 2**32 + 530
        x = filled(library, (1, n))
        x[0, -1] = 1
        values, indices = dmlops.top_k(x, k, index_dtype=library.dtype("int64"))
        assert total(values) == 1
        assert indices[0, :3].tolist() == [n - 1, 0, 1]
        assert indices[0, -1000:].tolist() == list(range(k - 1001, k - 1))


class TestNonzeroOfManyElements:
    """Inputs of 2^31 elements, more or less."""

    def test_more_than_int_max_elements(self, library):
        """torch's CUDA nonzero refused tensors of more than INT_MAX elements.

        https://github.com/pytorch/pytorch/issues/51871
        """
        needs(11)
        x = filled(library, (2**20, 2**11), dtype="float32")
        x[0, 3] = x[2**20 - 1, 2**11 - 1] = 1
        coordinates, count = dmlops.nonzero_coordinates(x)
        assert library.to_numpy(coordinates).tolist() == [[0, 3], [2**20 - 1, 2**11 - 1]]
        assert count.item() == 2

    def test_nothing_just_below_int_max_elements(self, library):
        """torch's CUDA nonzero asked for an exabyte of memory just below INT_MAX elements.

        https://github.com/pytorch/pytorch/issues/51872
        """
        needs(11)
        coordinates, count = dmlops.nonzero_coordinates(filled(library, (2**31 - 2,), dtype="float32"))
        assert tuple(coordinates.shape) == (0, 1)
        assert count.item() == 0

    def test_2121269248_ones(self, library):
        """torch's CUDA nonzero read illegal memory for 2121269248 ones, and not for one element less.

        https://github.com/pytorch/pytorch/issues/80337
        """
        needs(30)
        n = 2_121_269_248
        coordinates, count = dmlops.nonzero_coordinates(filled(library, (n,), 1, "float32"))
        assert tuple(coordinates.shape) == (n, 1)
        assert coordinates[-3:, 0].tolist() == [n - 3, n - 2, n - 1]
        assert count.item() == n

    def test_the_diagonal_of_46000_rows(self, library):
        """torch's to_sparse read illegal memory for a matrix of 46000 rows, close to INT_MAX elements.

        https://github.com/pytorch/pytorch/issues/104107
        """
        needs(6)
        x = dmlops.diagonal_matrix(
            shape=(46_000, 46_000), dtype=library.dtype("uint8"), like=filled(library, (1,))
        )
        coordinates, count = dmlops.nonzero_coordinates(x)
        assert (library.to_numpy(coordinates) == np.arange(46_000)[:, np.newaxis]).all()
        assert count.item() == 46_000


class TestGatherOfManyElements:
    """Tables and results of more than 2^31 elements."""

    def test_rows_behind_int_max_elements(self, library):
        """ONNX Runtime's CUDA Gather read illegal memory in rows behind INT_MAX elements.

        https://github.com/microsoft/onnxruntime/issues/28107
        """
        needs(12)
        x = filled(library, (262_144, 8960), dtype="float32")
        rows = np.array([[239_673], [239_674], [255_999], [-1]])
        for row in (239_673, 239_674, 255_999, 262_143):
            x[row] = row
        result = library.to_numpy(dmlops.gather_nd(x, library.from_numpy(rows)))
        assert (result == np.array([[239_673], [239_674], [255_999], [262_143]])).all()

    def test_an_output_longer_than_the_grid_counts(self, library):
        """TensorFlow's GPU GatherNd ended the process, because it counted 6.6 billion elements in 32 bits.

        https://github.com/tensorflow/tensorflow/issues/58262
        """
        needs(8)
        x = filled(library, (1, 16, 6, 15, 16, 16), 5)
        indices = filled(library, (15, 5, 16, 15, 1, 1), 63, "int64")
        result = dmlops.gather_nd(x, indices, mode="clip")
        assert tuple(result.shape) == (15, 5, 16, 15, 1, 16, 6, 15, 16, 16)
        assert not any(bool((part != 5).any()) for part in chunks(result))

    def test_a_small_source_and_billions_of_results(self, library):
        """CuPy's take chose 32-bit indices by its source, however many elements the result has.

        https://github.com/cupy/cupy/issues/10290
        """
        needs(5)
        x = filled(library, (3, 65_536))
        x[2] = 7
        indices = filled(library, (33_000, 1), dtype="int32")
        indices[-1] = 2
        result = dmlops.gather_nd(x, indices)
        assert total(result[:-1]) == 0
        assert not (result[-1] != 7).any()


class TestDiagonalOfManyElements:
    """Matrices of more than 2^32 elements."""

    def test_both_triangles_of_65537_rows(self, library):
        """torch's CUDA tril and triu were wrong for 65537 rows and columns, where a product wrapped.

        https://github.com/pytorch/pytorch/issues/136211
        """
        needs(15)
        n = 0x10001
        x = filled(library, (n, n), 1, "bool")
        for band, corner in (({"begin": 1, "end": FAR}, False), ({"begin": -FAR, "end": 0}, True)):
            result = dmlops.diagonal_matrix(x, value=0, **band)
            assert total(result) == n * (n + 1) // 2
            assert bool(result[0, -1]) is corner
            assert bool(result[-1, 0]) is not corner

    def test_a_causal_mask_of_65600_rows(self, library):
        """torch's triu_ of a large mask left -inf in the lower triangle from row 33000 or so on.

        https://github.com/pytorch/pytorch/issues/136611
        """
        needs(10)
        n = 65_600
        options = {"shape": (n, n), "dtype": library.dtype("float16"), "like": filled(library, (1,))}
        mask = dmlops.diagonal_matrix(value=-np.inf, begin=1, end=FAR, **options)
        for row in (0, 32_800, 33_000, n - 2, n - 1):
            assert not (mask[row, : row + 1] != 0).any()
            assert not (mask[row, row + 1 :] != -np.inf).any()
