"""What every test may ask for."""

import os
from importlib.util import find_spec

import pytest
from hypothesis import settings

from dmlops import cuda
from tests.libraries import NUMPY, Torch

HOST_LIBRARIES = ("numpy", "torch") if find_spec("torch") else ("numpy",)
HAS_GPU = cuda.device_count() > 0

collect_ignore = [] if HAS_GPU else ["gpu"]

# JAX would take most of a GPU's memory for itself, as soon as it is imported.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

settings.register_profile("dmlops", deadline=None, derandomize=True, max_examples=60, database=None)
settings.load_profile("dmlops")


def pytest_report_header():
    """Say which tests this machine leaves out."""
    return f"array libraries in host memory: {', '.join(HOST_LIBRARIES)}; GPU tests: {HAS_GPU}"


@pytest.fixture(params=HOST_LIBRARIES, scope="session")
def library(request):
    """Serve each array library of this machine's host memory in turn."""
    return NUMPY if request.param == "numpy" else Torch("cpu")
