"""One benchmark per workload and contender of the tables: see docs/benchmarks.md."""

import functools

import pytest

import dmlops
from bench import answers, timing
from bench.libraries import NotServedError, missing
from bench.peers import contenders
from bench.runner import Bench
from bench.timing import CudaClock, Lane
from bench.workload_table import workloads
from bench.workloads import CPU, CUDA

MAX_SECONDS = 1.0
CUDA_SAMPLES = 20


def pytest_addoption(parser):
    group = parser.getgroup("dmlops")
    group.addoption("--device", choices=(CPU, CUDA), default=CPU, help="the device to measure on")
    group.addoption("--threads", type=int, default=dmlops.get_num_threads(), help="threads for every library")
    group.addoption("--quick", action="store_true", help="only those of `python -m bench run --quick`")


def pytest_generate_tests(metafunc):
    """Parametrise the suite over workloads and contenders."""
    if "timed" not in metafunc.fixturenames:
        return
    config = metafunc.config
    device = config.getoption("device")
    pairs = [
        pytest.param((workload, contender), id=f"{workload.operator}-{workload.name}-{contender.name}")
        for workload in workloads(device)
        if workload.quick or not config.getoption("quick")
        for contender in contenders(workload.operator, device)
    ]
    metafunc.parametrize("timed", pairs, indirect=True)


@pytest.fixture(scope="session")
def bench(pytestconfig):
    """Make the clock, and measure the copy bandwidth."""
    return Bench(pytestconfig.getoption("device"), pytestconfig.getoption("threads"))


@pytest.fixture(scope="session")
def tasks(bench):
    """Make inputs, and keep those of the last workload for its next contender."""
    return functools.lru_cache(maxsize=1)(bench.tasks)


@pytest.fixture
def timed(request, benchmark, bench, tasks):
    """Return a function that times one contender on one workload."""
    workload, contender = request.param
    if reason := missing(contender.library, bench.device):
        pytest.skip(reason)

    def run():
        inputs = tasks(workload)
        try:
            call = bench.call(contender, inputs)
        except NotServedError as error:
            pytest.skip(str(error))
        if contender.is_ours:
            assert answers.fault(inputs[0], call()) is None
        benchmark.group = workload.name
        if isinstance(bench.clock, CudaClock):
            seconds = _time_on_gpu(benchmark, bench, contender, call)
        else:
            benchmark(call)
            if benchmark.disabled:
                return
            seconds = benchmark.stats.stats.median
        benchmark.extra_info |= {
            "reason": workload.reason,
            "note": contender.note,
            "bytes_moved": workload.bytes_moved,
            "share_of_copy_bandwidth": workload.bytes_moved / seconds / bench.bandwidth,
        }

    return run


def _time_on_gpu(benchmark, bench, contender, call):
    """Let pytest-benchmark time calls with their wait, and return the time by CUDA events."""
    lane = Lane(call, has_own_stream=contender.has_own_stream)
    timing.warm_up(lane, bench.clock)
    timing.take_turns([lane], bench.clock, MAX_SECONDS)
    if lane.error:
        pytest.fail(lane.error)

    def call_and_wait():
        result = call()
        bench.clock.sync()
        return result

    benchmark.pedantic(call_and_wait, rounds=CUDA_SAMPLES, warmup_rounds=1)
    benchmark.extra_info |= {"gpu_seconds": lane.median(), "host_seconds": lane.median("host")}
    return lane.median()
