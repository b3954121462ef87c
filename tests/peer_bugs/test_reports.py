"""Reports against other libraries: the table of `reports`, and those that take more than an answer.

Tests that take `library` run on GPU arrays too: see `tests/gpu/test_peer_bugs_gpu.py`.
"""

import numpy as np
import pytest

import dmlops
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
