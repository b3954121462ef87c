"""Reports against other libraries: the table of `reports`, and those that take more than an answer.

Tests that take `library` run on GPU arrays too: see `tests/gpu/test_peer_bugs_gpu.py`.
"""

import numpy as np
import pytest

import dmlops
from dmlops import InvalidDescriptorError
from tests import reference
from tests.data import as_strided, assert_same, random, unaligned
from tests.libraries import check
from tests.peer_bugs.reports import ANSWERED, FAR, INF, INT32_MAX, normal


@pytest.mark.parametrize("report", ANSWERED)
def test_answers(library, report):
    _, make_cases = ANSWERED[report]
    for case in make_cases():
        if library.name != "cupy" or library.supports(case):
            check(library, case)


# By the page on GitHub: what was wrong, a call on arrays that `make` converts, the error and its text.
REFUSED = {
    "onnx/onnx/issues/2075": (
        "ONNX left open whether k beyond the size of the axis is cut or refused",
        lambda make: [dmlops.top_k(make(np.ones((3, 5))), 4, axis=0)],
        *(InvalidDescriptorError, r"top_k\.k: got 4, but axis 0 of x has 3 elements"),
    ),
    **{
        f"Oneflow-Inc/oneflow/issues/10624, k = {k}": (
            "OneFlow ended the process for k = -100",
            lambda make, k=k: dmlops.top_k(make(np.ones((2, 100))), k),
            *(InvalidDescriptorError, rf"^top_k\.k: got {k}, but .*; k must be in \[0, 100\]"),
        )
        for k in (-1, -100, 101, 2**31, 2**63, -(2**63))
    },
    **{
        f"microsoft/onnxruntime/issues/23828, {batches}": (
            "ONNX Runtime's CPU GatherND divided by zero where the batch sizes differ",
            lambda make, n=batches: dmlops.gather_nd(
                make(np.ones((n[0], 3))), make(np.ones((n[1], 1), int)), batch_dims=1
            ),
            *(InvalidDescriptorError, "batch"),
        )
        for batches in ((2, 3), (3, 2), (1, 3), (3, 1))
    },
    "tensorflow/tensorflow/issues/15091": (
        "TensorFlow's GPU gather_nd filled in zeros for [8, -1], so that the bug behind it stayed hidden",
        lambda make: dmlops.gather_nd(
            make(np.ones((10, 5))), make(np.array([[0, 4]] * 8 + [[8, -6], [9, 7]]))
        ),
        *(IndexError, r"got tuple \(8, -6\) at position \(8,\), but coordinate 1 is -6"),
    ),
    "chainer/chainer/issues/4648": (
        "CuPy wraps indices out of range around, so that element 5 of 5 is element 0",
        lambda make: dmlops.gather_nd(make(np.arange(5)), make(np.arange(7)[:, None])),
        *(IndexError, r"coordinate 0 is 5"),
    ),
    **{
        f"jax-ml/jax/issues/16836, {dtype}": (
            "JAX took element 128 of 200, asked for by a uint8, for element -128 and returned the last one",
            lambda make, dtype=dtype: dmlops.gather_nd(make(np.arange(200)), make(np.ones((1, 1), dtype))),
            *(TypeError, dtype),
        )
        for dtype in ("uint8", "int8", "int16")
    },
    **{
        f"chainer/chainer/pull/1013, {shape}": (
            "CuPy's take crashed the process where `out` had the wrong shape",
            lambda make, shape=shape: dmlops.gather_nd(
                make(np.ones((2, 3, 4))), make(np.array([[1]])), out=make(np.zeros(shape))
            ),
            *(InvalidDescriptorError, r"^gather_nd\.out: got shape"),
        )
        for shape in ((), (1,), (3, 4), (1, 3, 5))
    },
    "pytorch/pytorch/issues/165987": (
        "torch's triu_ of an expanded scalar silently gave a wrong matrix",
        lambda make: dmlops.diagonal_matrix(
            make(np.ones((3, 3))), out=make(as_strided(np.ones(1), (3, 3), (0, 0)))
        ),
        *(InvalidDescriptorError, "strides of an output must not overlap"),
    ),
}


@pytest.mark.parametrize("report", REFUSED)
def test_refusals(library, report):
    _, call, error, text = REFUSED[report]
    with pytest.raises(error, match=text):
        call(library.from_numpy)


class TestMemory:
    """What lies next to the elements has no influence, and nothing writes there."""

    @pytest.mark.parametrize("gap", [0.0, np.nan, INF, -INF])
    def test_gaps_between_rows_do_not_show(self, library, gap):
        """A CuPy kernel read next to its input: https://github.com/cupy/cupy/issues/10165."""
        whole = np.full((12, 50), gap, "float32")
        whole[1:-1, 3:41] = normal("gap", (10, 38)).round()
        host = whole[1:-1, 3:41]
        x, picks = library.from_numpy(host), random("gap").integers(-60, 60, (50, 2))
        results = (
            *dmlops.top_k(x, 20),
            *dmlops.top_k(x, 4, axis=0),
            *dmlops.nonzero_coordinates(x),
            dmlops.diagonal_matrix(x, value=0, begin=-FAR, end=2),
            dmlops.gather_nd(x, library.from_numpy(picks), mode="clip"),
        )
        expected = (
            *reference.top_k(host, 20),
            *reference.top_k(host, 4, axis=0),
            *reference.nonzero_coordinates(host),
            np.triu(host, 2),
            reference.gather_nd(host, picks, mode="clip"),
        )
        for result, answer in zip(results, expected, strict=True):
            np.testing.assert_array_equal(library.to_numpy(result), answer)

    def test_results_have_memory_of_their_own_and_outputs_keep_theirs(self, library):
        """torch's triu_ gave a tensor new memory: https://github.com/pytorch/pytorch/pull/17031."""
        before = np.arange(1.0, 10).reshape(3, 3)
        x, memory = library.from_numpy(before.copy()), library.from_numpy(np.zeros((3, 6)))
        out = memory[:, ::2]
        assert dmlops.diagonal_matrix(x, value=0, begin=-FAR, end=0, out=out) is out
        assert_same(library.to_numpy(memory)[:, ::2], np.triu(before))
        assert not library.to_numpy(memory)[:, 1::2].any()
        every_row = library.from_numpy(np.arange(3)[:, np.newaxis])
        for result in (
            dmlops.gather_nd(x, every_row),
            dmlops.diagonal_matrix(x, begin=1, end=1),
            dmlops.top_k(x, 3, largest=False).values,
        ):
            assert_same(library.to_numpy(result), before)
            result[...] = 77
        assert_same(library.to_numpy(x), before)

    @pytest.mark.parametrize("mode", ["clip", "fill"])
    def test_indices_are_not_changed(self, library, mode):
        """CuPy's indexing wrote indices back to the caller's array: https://github.com/cupy/cupy/issues/705."""
        before = np.array([[10, -7], [0, -1], [1, 5]], "int32")
        indices = library.from_numpy(before.copy())
        dmlops.gather_nd(library.from_numpy(np.ones((3, 4))), indices, mode=mode)
        assert_same(library.to_numpy(indices), before)

    def test_strided_outputs(self, library):
        """torch's XPU nonzero and CUDA top-k ignored the strides of their outputs.

        https://github.com/intel/torch-xpu-ops/pull/1366, https://github.com/pytorch/pytorch/issues/62940
        """
        x = library.from_numpy(np.array([[1, 0, 2], [0, 3, 0]], "int32"))
        memory, count = (library.from_numpy(np.full(n, 77)) for n in ((2, 8), 1))
        dmlops.nonzero_coordinates(x, out=(memory[:, ::2].T, count))
        written = library.to_numpy(memory)
        written[:, 6] = 77  # undefined: there is no fourth row
        assert written.tolist() == [[0, 77, 0, 77, 1, 77, 77, 77], [0, 77, 2, 77, 1, 77, 77, 77]]
        assert library.to_numpy(count).item() == 3
        values, indices = (library.from_numpy(np.zeros(12, "int64")) for _ in range(2))
        dmlops.top_k(library.from_numpy(np.arange(12)), 3, out=(values[::4], indices[::4]))
        for array in (values, indices):
            assert library.to_numpy(array).tolist() == [11, 0, 0, 0, 10, 0, 0, 0, 9, 0, 0, 0]

    def test_rows_of_fill_gather_nothing(self, library):
        """MIGraphX took padding for element 0: https://github.com/ROCm/AMDMIGraphX/issues/1886."""
        x = library.from_numpy(np.array([[9, 0], [0, 8]], "float32"))
        options = {"size": 4, "fill_value": INT32_MAX, "index_dtype": library.dtype("int32")}
        coordinates, _ = dmlops.nonzero_coordinates(x, **options)
        assert library.to_numpy(dmlops.gather_nd(x, coordinates, mode="fill")).tolist() == [9, 8, 0, 0]

    def test_coordinates_are_contiguous(self, library):
        """Numba's argwhere could not be reshaped: https://github.com/numba/numba/issues/5880."""
        coordinates, _ = dmlops.nonzero_coordinates(library.from_numpy(np.eye(2, dtype=bool)))
        is_torch = library.name.startswith("torch")
        assert coordinates.is_contiguous() if is_torch else coordinates.flags.c_contiguous

    def test_an_output_that_is_the_input_is_refused(self, library):
        """torch's CUDA sort into its own input corrupted the indices: https://github.com/pytorch/pytorch/pull/58327."""
        before = normal("overlap", 5000)
        x, indices = library.from_numpy(before.copy()), library.from_numpy(np.full(5000, 77, "int64"))
        with pytest.raises(InvalidDescriptorError, match=r"^top_k\.out\[0\]: .*shares memory with top_k\.x"):
            dmlops.top_k(x, 5000, out=(x, indices))
        assert_same(library.to_numpy(x), before)
        assert (library.to_numpy(indices) == 77).all()

    def test_same_bytes_in_every_run(self, library):
        """ONNX Runtime's CUDA TopK differed from run to run: https://github.com/microsoft/onnxruntime/issues/3391."""
        x = library.from_numpy(normal("runs", (5, 7175)).round(1))
        first = [library.to_numpy(array).tobytes() for array in dmlops.top_k(x, 50)]
        for _ in range(20):
            assert [library.to_numpy(array).tobytes() for array in dmlops.top_k(x, 50)] == first

    def test_an_input_of_60_million_elements(self, library):
        """torch's CUDA top-k read illegal memory: https://github.com/pytorch/pytorch/issues/82569."""
        row = random("row").permutation(1000).astype("int16")
        results = dmlops.top_k(library.from_numpy(np.broadcast_to(row, (60, 1000, 1000))), 10)
        for result, answer in zip(results, reference.top_k(row, 10), strict=True):
            assert tuple(result.shape) == (60, 1000, 10)
            assert (library.to_numpy(result) == answer).all()


def test_same_bytes_for_every_number_of_threads():
    """torch's top-k returned other indices from call to call: https://github.com/pytorch/pytorch/issues/4935."""
    x = random("threads").integers(0, 50, (3, 120_000)).astype("float32")
    expected = [array.tobytes() for array in dmlops.top_k(x, 2500)]
    try:
        for n in (1, 2, 3, 8):
            dmlops.set_num_threads(n)
            for _ in range(5):
                assert [array.tobytes() for array in dmlops.top_k(x, 2500)] == expected
    finally:
        dmlops.set_num_threads(None)


@pytest.mark.parametrize("dtype", ["int16", "int32", "float64"])
def test_unaligned_inputs(dtype):
    """NumPy's nonzero read unaligned elements as aligned: https://github.com/numpy/numpy/issues/19592."""
    x = unaligned(random("unaligned").integers(0, 3, (7, 33)).astype(dtype))
    np.testing.assert_array_equal(dmlops.nonzero_coordinates(x).coordinates, np.argwhere(x))
    assert_same(dmlops.top_k(x, 5).values, reference.top_k(x, 5)[0])
    assert_same(dmlops.gather_nd(x, unaligned(np.array([[3]]))), x[[3]])
