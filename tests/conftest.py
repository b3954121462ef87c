"""What every test may ask for."""

from importlib.util import find_spec

import pytest
from hypothesis import settings

from tests.libraries import NUMPY, Torch

HOST_LIBRARIES = ("numpy", "torch") if find_spec("torch") else ("numpy",)


@pytest.fixture(params=HOST_LIBRARIES, scope="session")
def library(request):
    """Serve each array library of this machine's host memory in turn."""
    return NUMPY if request.param == "numpy" else Torch("cpu")


settings.register_profile("dmlops", deadline=None, derandomize=True, max_examples=60, database=None)
settings.load_profile("dmlops")
