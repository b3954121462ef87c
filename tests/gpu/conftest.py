"""Fixtures for the GPU tests."""

import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.gpu.devices import n_devices
from tests.libraries import CuPy, Torch

_MAKERS = {"torch": lambda: Torch("cuda"), "cupy": CuPy}
LIBRARIES = {name: make() for name, make in _MAKERS.items() if find_spec(name)}


def pytest_collection_modifyitems(items):
    """Mark every test of this folder, and skip those that need a second GPU where there is none."""
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if item.get_closest_marker("two_gpus") and n_devices() < 2:
                item.add_marker(pytest.mark.skip(reason="needs two GPUs"))


@pytest.fixture(params=LIBRARIES)
def gpu_library(request):
    """Serve each array library with GPU arrays in turn."""
    return LIBRARIES[request.param]


@pytest.fixture(autouse=True)
def _first_of_several_devices():
    """Begin with the first device as the current one: after calls of JAX, another one may be."""
    if n_devices() > 1:
        importlib.import_module("cuda.core").Device(0).set_current()


@pytest.fixture
def current_device():
    """Make the first device current, for tests that ask the driver themselves."""
    importlib.import_module("cuda.core").Device(0).set_current()


@pytest.fixture
def torch():
    """torch, which the tests of streams and graphs are written with."""
    return pytest.importorskip("torch")
