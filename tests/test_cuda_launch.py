"""A list of launches reaches the driver in order, as a stand-in for the driver sees it."""

import ctypes
import importlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from dmlops.devices import cpu
from kernels_cpu import plan_words
from kernels_cpu.kernel import Table
from kernels_cpu.launch_list import MAX_ADDRESSES, MAX_VALUES
from kernels_cpu.native_call import LAUNCH
from tests.cuda_plans import Config

pytest.importorskip("cuda.core")
CUresult = importlib.import_module("cuda.bindings.driver").CUresult
launch = importlib.import_module("kernels_cuda.runtime.launch")
Pointer = launch.Pointer

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
    return launch.Kernel(function, SimpleNamespace(device_id=0, arch=arch))


def two_launches(driver, arch="sm_90"):
    first = (
        kernel(driver, 11, 5, arch),
        (1 << 31) - 1,
        256,
        100_000,
        (Pointer(0, 16), Pointer(3, -8), launch.NULL),
        (-5, 1 << 40),
    )
    second = kernel(driver, 12, 3, arch), 3, 64, 0, (Pointer(2, 4), Pointer(1)), (7,)
    return launch.LaunchList([launch.Launch(*first), launch.Launch(*second)])


def by_python(launches):
    """Return what launches a list as a plan does."""
    return launches


def by_compiled_code(launches):
    """Return what launches a list as a call does that is replayed."""
    table = Table(launches.words())

    def call(stream, *addresses):
        rest = [0] * (MAX_ADDRESSES - len(addresses))
        bound = cpu.load(LAUNCH).bind((table, len(addresses)), MAX_ADDRESSES + 1)
        status = bound(*addresses, stream, *rest)
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
    words = [0] * plan_words.MAX_WORDS
    kernels = {5: kernel(driver, 11, 5, arch), 6: kernel(driver, 12, 3, arch)}
    plan_words.begin_plan(words, 1)
    plan_words.begin_launch(words, 5, (1 << 31) - 1, 256, 100_000, 1)
    for pointer in ((0, 16), (3, -8), (plan_words.NULL_SLOT, 0)):
        plan_words.put_pointer(words, *pointer)
    plan_words.put_values(words, (-5, (1 << 40,)))
    plan_words.begin_launch(words, 6, 24, 64, 0, 8)
    plan_words.put_pointer(words, 2, 4)
    plan_words.put_pointer(words, 1, 0)
    plan_words.put_value(words, 7)
    way(launch.launch_list(words, kernels.__getitem__))(STREAM, *ADDRESSES)
    a, b, c, d = ADDRESSES
    assert driver.asked == [
        (11, (1 << 31) - 1, 1, 1, 256, 1, 1, 100_000, STREAM, False, [a + 16, d - 8, 0, -5, 1 << 40]),
        (12, 24, 1, 1, 64, 1, 1, 0, STREAM, overlaps, [c + 4, b, 7]),
    ]
    assert driver.clusters == [1, 8]


def test_launches_of_a_plan_that_wait_and_take_pointers_last(driver):
    words = [0] * plan_words.MAX_WORDS
    kernels = {5: kernel(driver, 11, 1), 6: kernel(driver, 12, 5)}
    plan_words.begin_plan(words, 1)
    for number in (5, 6, 6):
        plan_words.begin_launch(words, number, 1, 32, 0, 1)
        plan_words.put_pointer(words, 0, 8)
        if number == 6:
            plan_words.put_values(words, (1, 2))
            plan_words.put_last_pointer(words, 3, 24)
            plan_words.put_last_pointer(words, 3, 0)
    plan_words.wait_for_last(words)
    launches = launch.launch_list(words, kernels.__getitem__)
    assert launches.words() is None
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
    launches = way(two_launches(driver, arch))
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
    way(launch.LaunchList([launch.Launch(found, 48, 32, 0, (), (1, 2), size) for size in (16, 8, 1)]))(STREAM)
    assert driver.clusters == [16, 8, 1]
    assert [asked[9] for asked in driver.asked] == [False, True, True]
    assert [asked[-1] for asked in driver.asked] == [[1, 2]] * 3


def test_streams_and_addresses_of_any_size(driver, way):
    launches = way(kernel(driver, 5, 3).prepare(1, 32, 0, 2, -(1 << 63)))
    launches((1 << 64) - 1 if way is by_python else -1, (1 << 63) - 8, 1 << 62)
    (asked,) = driver.asked
    assert asked[8] == (1 << 64) - 1
    assert asked[-1] == [(1 << 63) - 8, 1 << 62, -(1 << 63)]


def test_arguments_that_are_known_only_now(driver):
    found = kernel(driver, 6, 300)
    found.launch(STREAM, 2, 64, 16, *range(300))
    assert driver.asked == [(6, 2, 1, 1, 64, 1, 1, 16, STREAM, False, list(range(300)))]


def test_a_refused_launch_ends_the_list(driver, way):
    driver.refused = {11: 700}
    with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        way(two_launches(driver))(STREAM, *ADDRESSES)
    assert [function for function, *_ in driver.asked] == [11]


def test_lists_that_compiled_code_has_no_room_for(driver):
    def words(n_values, slot=0):
        found = kernel(driver, 5, n_values)
        return launch.LaunchList(
            [launch.Launch(found, 1, 32, 0, (Pointer(slot),), range(n_values - 1))]
        ).words()

    assert words(MAX_VALUES)
    assert words(MAX_VALUES + 1) is None
    assert words(9, slot=MAX_ADDRESSES - 1)
    assert words(9, slot=MAX_ADDRESSES) is None


def test_any_number_of_addresses(driver, way):
    pointers = tuple(Pointer(slot, 8 * slot) for slot in reversed(range(MAX_ADDRESSES)))
    found = kernel(driver, 5, MAX_ADDRESSES + 4)
    launches = way(launch.LaunchList([launch.Launch(found, 1, 32, 0, pointers, (1, (2, (3,)), 4))]))
    launches(STREAM, *range(100, 100 + MAX_ADDRESSES))
    (asked,) = driver.asked
    assert asked[-1] == [*(100 + 9 * slot for slot in reversed(range(MAX_ADDRESSES))), 1, 2, 3, 4]


def test_many_threads_launch_one_list(driver, way):
    launches = way(two_launches(driver))

    def run(number):
        launches(STREAM + number, number * 100, number, number, number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(500)))
    firsts = sorted((asked[8], asked[-1]) for asked in driver.asked if asked[0] == 11)
    assert firsts == [(STREAM + i, [i * 100 + 16, i - 8, 0, -5, 1 << 40]) for i in range(500)]


@pytest.mark.parametrize(("version", "overlaps"), [(12_029, False), (12_030, True), (13_000, True)])
def test_drivers_that_cannot_record_early_launches(driver, version, overlaps, monkeypatch):
    monkeypatch.setattr(launch, "_driver_version", lambda: version)
    two_launches(driver)(STREAM, *ADDRESSES)
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
    kernel(driver, 5, 3).prepare(1, 32, 0, 2, 9)(STREAM, 1, 2)
    assert [asked[-1] for asked in driver.asked] == [[1, 2, 9]] * 2
    assert current == [0, None]
