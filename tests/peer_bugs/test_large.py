"""Arrays of 2^31 and 2^32 elements: the table of `large` as far as zeros take no memory."""

import sys

import pytest

from tests.libraries import NUMPY
from tests.peer_bugs.large import CALLS, check

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="zeros take memory before they are written to"
)

# Those with small answers.
ON_CPU = ("one row, ", "one row with", "nonzero", "gather of", "jax-ml", "pytorch/pytorch/issues/5187")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", [name for name in CALLS if name.startswith(ON_CPU) and "strided" not in name]
)
def test_calls(name):
    check(NUMPY, name)
