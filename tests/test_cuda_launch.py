"""A list of launches reaches the driver in order, as a stand-in for the driver sees it."""

import ctypes
import importlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests import inside
from tests.cuda_plans import Config
from tests.inside import Table, cpu, native_call, plan_words

pytest.importorskip("cuda.core")
CUresult = importlib.import_module("cuda.bindings.driver").CUresult
launch = inside.launch

# Of operands, and of a workspace.
MAX_ADDRESSES = 5
STREAM = 777
ADDRESSES = (1000, 2000, 3000, 4000)


LAUNCH_EX = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(Config), ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)


class Driver:
    """A driver that writes down what it is asked for."""

    def __init__(self):
        self.asked, self.clusters, self.refused, self.n_parameters = [], [], {}, {}
        self._callback = LAUNCH_EX(self.launch)
        address = ctypes.cast(self._callback, ctypes.c_void_p).value
        # Called by addresses, as the driver itself.
        self.entry = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(address)

    def launch(self, config, function, addresses, extra):
        assert extra is None
        given = config.contents
        is_early, cluster = given.is_early_and_cluster()
        values = [ctypes.c_int64.from_address(addresses[i]).value for i in range(self.n_parameters[function])]
        sizes = *given.grid, *given.block, given.shared_bytes
        self.clusters.append(cluster)
        self.asked.append((function, *sizes, given.stream, is_early, values))
        return self.refused.get(function, 0)


@pytest.fixture
def driver(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(launch, "launch_entry", lambda: driver.entry)
    monkeypatch.setattr(launch, "_driver_version", lambda: 12_090)
    return driver


def kernel(driver, function, n_parameters, arch="sm_90"):
    driver.n_parameters[function] = n_parameters
    return launch.DeviceKernel(function, SimpleNamespace(device_id=0, arch=arch))


def plan_of(*launches):
    """Return a plan; each launch is a kernel, grid, block, shared bytes, pointers, values and cluster."""
    words = [0] * plan_words.MAX_WORDS
    plan_words.begin_plan(words, 1)
    for loaded, *sizes, pointers, values, cluster in launches:
        plan_words.begin_launch(words, loaded.function, *sizes, cluster)
        for pointer in pointers:
            plan_words.put_pointer(words, *pointer)
        plan_words.put_values(words, values)
    return words, {loaded.function: loaded for loaded, *_ in launches}


NULL = plan_words.NULL_SLOT, 0


def two_launches(driver, arch="sm_90", blocks=3, cluster=1):
    first = kernel(driver, 11, 5, arch), (1 << 31) - 1, 256, 100_000
    second = kernel(driver, 12, 3, arch), blocks, 64, 0
    return plan_of(
        (*first, ((0, 16), (3, -8), NULL), (-5, (1 << 40,)), 1), (*second, ((2, 4), (1, 0)), (7,), cluster)
    )


def by_python(words, kernels):
    """Return what launches a plan as a bound call does."""
    return launch.Launches(words, kernels.__getitem__)


def by_compiled_code(words, kernels):
    """Return a function that launches a plan as a native call does."""

    def call(stream, *addresses):
        # The last address is the workspace.
        operands = [native_call.ArrayKind(0, 0, 1, 4)] * max(len(addresses) - 1, 0)
        table = native_call.KindTable(operands, None, 0, 0, (), ())
        table.set(native_call.DRIVER, ctypes.cast(launch.launch_entry(), ctypes.c_void_p).value)
        table.set(native_call.MAY_OVERLAP, launch.may_overlap(next(iter(kernels.values())).target))
        given, plan = Table([*addresses, *[0] * (not addresses), stream]), Table(words)
        status = cpu.load(native_call.LAUNCH)(table.address, given.address, plan.address)
        if status:
            raise RuntimeError(CUresult(status).name)

    return call


@pytest.fixture(params=[by_python, by_compiled_code])
def way(request):
    """Launch in each way that there is."""
    return request.param


@pytest.mark.parametrize(("arch", "overlaps"), [("sm_90", True), ("sm_89", False)])
def test_launches_of_a_plan(driver, arch, overlaps, way):
    """Those that a plan writes as words are those that are told one by one."""
    way(*two_launches(driver, arch, blocks=24, cluster=8))(STREAM, *ADDRESSES)
    a, b, c, d = ADDRESSES
    assert driver.asked == [
        (11, (1 << 31) - 1, 1, 1, 256, 1, 1, 100_000, STREAM, False, [a + 16, d - 8, 0, -5, 1 << 40]),
        (12, 24, 1, 1, 64, 1, 1, 0, STREAM, overlaps, [c + 4, b, 7]),
    ]
    assert driver.clusters == [1, 8]


def test_launches_of_a_plan_that_wait_and_take_pointers_last(driver, way):
    words = [0] * plan_words.MAX_WORDS
    kernels = {11: kernel(driver, 11, 1), 12: kernel(driver, 12, 5)}
    plan_words.begin_plan(words, 1)
    for number in (11, 12, 12):
        plan_words.begin_launch(words, number, 1, 32, 0, 1)
        plan_words.put_pointer(words, 0, 8)
        if number == 12:
            plan_words.put_values(words, (1, 2))
            plan_words.put_last_pointer(words, 3, 24)
            plan_words.put_last_pointer(words, 3, 0)
    plan_words.wait_for_last(words)
    launches = way(words, kernels)
    for a, b, c, d in (ADDRESSES, (5, 6, 7, 1 << 40)):
        driver.asked.clear()
        launches(STREAM, a, b, c, d)
        assert [(function, is_early, values) for function, *_, is_early, values in driver.asked] == [
            (11, False, [a + 8]),
            (12, True, [a + 8, 1, 2, d + 24, d]),
            (12, False, [a + 8, 1, 2, d + 24, d]),
        ]


@pytest.mark.parametrize(("arch", "overlaps"), [("sm_90", True), ("sm_89", False)])
def test_launches_follow_each_other(driver, arch, overlaps, way):
    launches = way(*two_launches(driver, arch))
    for addresses in (ADDRESSES, (5, 6, 7, 1 << 40)):
        driver.asked.clear()
        launches(STREAM, *addresses)
        a, b, c, d = addresses
        assert driver.asked == [
            (11, (1 << 31) - 1, 1, 1, 256, 1, 1, 100_000, STREAM, False, [a + 16, d - 8, 0, -5, 1 << 40]),
            (12, 3, 1, 1, 64, 1, 1, 0, STREAM, overlaps, [c + 4, b, 7]),
        ]


def test_clusters(driver, way):
    """A launch may be of clusters, and begin early as well."""
    found = kernel(driver, 5, 2)
    way(*plan_of(*((found, 48, 32, 0, (), (1, 2), size) for size in (16, 8, 1))))(STREAM)
    assert driver.clusters == [16, 8, 1]
    assert [asked[9] for asked in driver.asked] == [False, True, True]
    assert [asked[-1] for asked in driver.asked] == [[1, 2]] * 3


def test_streams_and_addresses_of_any_size(driver, way):
    launches = way(*plan_of((kernel(driver, 5, 3), 1, 32, 0, ((0, 0), (1, 0)), (-(1 << 63),), 1)))
    launches((1 << 64) - 1 if way is by_python else -1, (1 << 63) - 8, 1 << 62)
    (asked,) = driver.asked
    assert asked[8] == (1 << 64) - 1
    assert asked[-1] == [(1 << 63) - 8, 1 << 62, -(1 << 63)]


def test_a_refused_launch_ends_the_list(driver, way):
    driver.refused = {11: 700}
    with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        way(*two_launches(driver))(STREAM, *ADDRESSES)
    assert [function for function, *_ in driver.asked] == [11]


def test_any_number_of_addresses(driver, way):
    pointers = tuple((slot, 8 * slot) for slot in reversed(range(MAX_ADDRESSES)))
    found = kernel(driver, 5, MAX_ADDRESSES + 4)
    launches = way(*plan_of((found, 1, 32, 0, pointers, (1, (2, (3,)), 4), 1)))
    launches(STREAM, *range(100, 100 + MAX_ADDRESSES))
    (asked,) = driver.asked
    assert asked[-1] == [*(100 + 9 * slot for slot in reversed(range(MAX_ADDRESSES))), 1, 2, 3, 4]


def test_many_threads_launch_one_list(driver, way):
    launches = way(*two_launches(driver))

    def run(number):
        launches(STREAM + number, number * 100, number, number, number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(500)))
    firsts = sorted((asked[8], asked[-1]) for asked in driver.asked if asked[0] == 11)
    assert firsts == [(STREAM + i, [i * 100 + 16, i - 8, 0, -5, 1 << 40]) for i in range(500)]


@pytest.mark.parametrize(("version", "overlaps"), [(12_029, False), (12_030, True), (13_000, True)])
def test_drivers_that_cannot_record_early_launches(driver, version, overlaps, monkeypatch):
    monkeypatch.setattr(launch, "_driver_version", lambda: version)
    by_python(*two_launches(driver))(STREAM, *ADDRESSES)
    assert [asked[8] for asked in driver.asked] == [STREAM, STREAM]
    assert [asked[9] for asked in driver.asked] == [False, overlaps]


def test_a_thread_without_a_context_gets_one(driver, monkeypatch):
    current = []

    @contextmanager
    def current_device(number):
        current.append(number)
        driver.refused.clear()
        yield
        current.append(None)

    monkeypatch.setattr(launch, "current_device", current_device)
    driver.refused = {5: int(CUresult.CUDA_ERROR_INVALID_CONTEXT)}
    by_python(*plan_of((kernel(driver, 5, 3), 1, 32, 0, ((0, 0), (1, 0)), (9,), 1)))(STREAM, 1, 2)
    assert [asked[-1] for asked in driver.asked] == [[1, 2, 9]] * 2
    assert current == [0, None]
