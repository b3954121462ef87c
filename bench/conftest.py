"""One benchmark per workload and contender of the tables for the CPU: see docs/benchmarks.md."""

import functools

import pytest

import dmlops
from bench import answers
from bench.libraries import NotServedError, missing
from bench.peers import contenders
from bench.runner import Bench
from bench.workload_table import workloads
from bench.workloads import CPU


def pytest_addoption(parser):
    group = parser.getgroup("dmlops")
    group.addoption("--threads", type=int, default=dmlops.get_num_threads(), help="threads for every library")
    group.addoption("--quick", action="store_true", help="only those of `python -m bench run --quick`")


def pytest_generate_tests(metafunc):
    """Parametrise the suite over workloads and contenders."""
    config = metafunc.config
    pairs = [
        pytest.param((workload, contender), id=f"{workload.operator}-{workload.name}-{contender.name}")
        for workload in workloads(CPU)
        if workload.quick or not config.getoption("quick")
        for contender in contenders(workload.operator, CPU)
    ]
    metafunc.parametrize("timed", pairs, indirect=True)


@pytest.fixture(scope="session")
def bench(pytestconfig):
    """Make the clock, and measure the copy bandwidth."""
    return Bench(CPU, pytestconfig.getoption("threads"))


@pytest.fixture(scope="session")
def tasks(bench):
    """Make inputs, and keep those of the last workload for its next contender."""
    return functools.lru_cache(maxsize=1)(bench.tasks)


@pytest.fixture
def timed(request, benchmark, bench, tasks):
    """Return a function that times one contender on one workload."""
    workload, contender = request.param
    if reason := missing(contender.library, CPU):
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
