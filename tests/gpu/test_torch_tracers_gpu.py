"""Every call on CUDA tensors that a tracer of torch sees is an operator in its graph, or it is refused."""

import pytest

pytest.importorskip("torch")

from tests.test_torch_tracers import (  # noqa: F401 - collected here with CUDA tensors
    pytestmark,
    test_graphs_compute_the_answer,
    test_writes_that_no_graph_would_have,
)


@pytest.fixture
def device():
    return "cuda"
