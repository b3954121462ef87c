"""Reports against other libraries: the table of `reports`, and those that take more than an answer.

Tests that take `library` run on GPU arrays too: see `tests/gpu/test_peer_bugs_gpu.py`.
"""

import numpy as np
import pytest

import dmlops
from dmlops import InvalidDescriptorError
from tests.libraries import check
from tests.marks import exhaustive, ordinary
from tests.peer_bugs.reports import ANSWERED, INT32_MAX


@pytest.mark.parametrize(
    "report",
    [
        report if len(ordinary(cases := make_cases())) == len(cases) else exhaustive(report)
        for report, (_, make_cases) in ANSWERED.items()
    ],
)
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
}


@pytest.mark.parametrize("report", REFUSED)
def test_refusals(library, report):
    _, call, error, text = REFUSED[report]
    with pytest.raises(error, match=text):
        call(library.from_numpy)


class TestResults:
    """Results in other calls."""

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
