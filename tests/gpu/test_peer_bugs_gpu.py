"""The reports of `tests/peer_bugs/` on GPU arrays."""

import pytest

from tests.gpu.conftest import LIBRARIES

# Pytest collects these tests here as well, with GPU arrays in place of host arrays.
from tests.peer_bugs.test_reports import TestResults, test_answers  # noqa: F401


@pytest.fixture(params=LIBRARIES)
def library(request):
    """Serve each array library with GPU arrays in turn."""
    return LIBRARIES[request.param]
