"""An execution with a workspace only launches kernels: there is no copy, no fill and no wait."""

import importlib

import pytest

from tests.compiled import DESCRIPTORS
from tests.gpu.bound import Bound


@pytest.fixture(params=DESCRIPTORS)
def bound(request, torch):
    bound = Bound(torch, DESCRIPTORS[request.param])
    bound.execute()
    torch.cuda.synchronize()
    return bound


def test_captured_graph_holds_kernels_only(bound, torch):
    driver = importlib.import_module("cuda.bindings.driver")
    stream = torch.cuda.Stream()

    def ask(result):
        assert result[0] == driver.CUresult.CUDA_SUCCESS
        return result[1:]

    # In this mode the driver refuses allocations and waits of any thread.
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    ask(driver.cuStreamBeginCapture(stream.cuda_stream, mode))
    bound.execute(stream=stream.cuda_stream)
    (graph,) = ask(driver.cuStreamEndCapture(stream.cuda_stream))
    _, count = ask(driver.cuGraphGetNodes(graph))
    nodes, _ = ask(driver.cuGraphGetNodes(graph, count))
    kinds = {ask(driver.cuGraphNodeGetType(node))[0] for node in nodes}
    ask(driver.cuGraphDestroy(graph))
    assert kinds == {driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL}
