"""An execution with a workspace only launches kernels: there is no copy, no fill and no wait."""

import importlib
import json

import pytest

from tests.compiled import DESCRIPTORS
from tests.gpu.bound import Bound

# The profiler itself and its end call these.
PROFILER_CALLS = {"cudaDeviceSynchronize", "cuDeviceSynchronize", "cudaDeviceGetAttribute"}
LAUNCHES = {"cuLaunchKernel", "cuLaunchKernelEx"}


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


def test_profiler_sees_launches_only(bound, torch, tmp_path):
    activities = (torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        for _ in range(3):
            bound.execute()
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    on_device = {
        (event["cat"], event["name"])
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    }
    if not on_device:
        pytest.skip("the profiler sees nothing of the GPU here")
    assert {kind for kind, _ in on_device} == {"kernel"}
    assert all(name.startswith("dmlops_") for _, name in on_device), on_device
    asked = {event["name"] for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")}
    assert asked - PROFILER_CALLS <= LAUNCHES
