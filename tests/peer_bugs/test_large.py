"""Arrays of 2^31 and 2^32 elements: the table of `large` as far as zeros take no memory, and other calls."""

import sys

import numpy as np
import pytest

import dmlops
from tests.libraries import NUMPY
from tests.marks import exhaustive
from tests.peer_bugs.large import CALLS, check

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="zeros take memory before they are written to"
)

# Those with small answers.
ON_CPU = (
    *("one row, ", "one row with", "nonzero", "gather of", "jax-ml", "microsoft"),
    "pytorch/pytorch/issues/5187",
)


@pytest.mark.parametrize(
    "name",
    [exhaustive(name) for name in CALLS if name.startswith(ON_CPU) and "strided" not in name],
)
def test_calls(name):
    check(NUMPY, name)


@pytest.mark.exhaustive
def test_nonzero_of_2121269248_ones():
    """torch's CUDA nonzero read illegal memory for 2121269248 ones, and not for one element less.

    https://github.com/pytorch/pytorch/issues/80337
    """
    x = np.broadcast_to(np.uint8(1), 2_121_269_248)
    coordinates, count = dmlops.nonzero_coordinates(x, size=3)
    assert coordinates.tolist() == [[0], [1], [2]]
    assert count.item() == x.size
