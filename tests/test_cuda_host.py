"""A list of launches is what the driver is asked for, one after the other: seen by a driver of ours."""

import ctypes
import importlib
from types import SimpleNamespace

import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("cuda.core")
from dmlops.relaunch import relauncher

host = importlib.import_module("kernels_cuda.host")
launch = importlib.import_module("kernels_cuda.launch")

STREAM = 777
BASES = (1000, 2000, 3000, 4000)
GET_DEVICE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)


class Attribute(ctypes.Structure):
    """CUlaunchAttribute, of which the value is an int here."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("n_attributes", ctypes.c_uint),
    )


LAUNCH_EX = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(Config),
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)


class Driver:
    """What the compiled code calls; it writes down what it is asked for."""

    def __init__(self):
        self.device, self.asked, self.refused = 0, [], set()
        self._entries = GET_DEVICE(self.get_device), LAUNCH(self.launch), LAUNCH_EX(self.launch_ex)
        self.addresses = [ctypes.cast(entry, ctypes.c_void_p).value for entry in self._entries]
        self.n_parameters = {}

    def get_device(self, place):
        place[0] = self.device
        return 0

    def parameters(self, function, addresses):
        count = self.n_parameters[function]
        return [ctypes.c_int64.from_address(addresses[i]).value for i in range(count)]

    def launch(self, function, *sizes_and_more):
        *sizes, stream, addresses, extra = sizes_and_more
        assert extra is None
        self.asked.append((function, *sizes, stream, self.parameters(function, addresses)))
        return 700 if function in self.refused else 0

    def launch_ex(self, config, function, addresses, extra):
        assert extra is None
        given = config.contents
        assert given.n_attributes == 1
        attribute = given.attributes[0]
        assert (attribute.id, attribute.value, attribute.rest) == (6, 1, b"")
        sizes = *given.grid, *given.block, given.shared_bytes
        self.asked.append((function, *sizes, given.stream, self.parameters(function, addresses)))
        return 0


def table_of(driver, *steps):
    words = [*driver.addresses, 0, len(steps), launch.NOTHING, 0, *[0, 0] * launch.N_BASES]
    for function, grid, block, shared_bytes, is_early, pointers, arguments in steps:
        driver.n_parameters[function] = len(pointers) + len(arguments)
        words += [function, grid, block, shared_bytes, is_early, len(pointers), driver.n_parameters[function]]
        words += [word for pointer in pointers for word in pointer]
        words += arguments
    return (ctypes.c_int64 * len(words))(*words)


def run(table):
    return host.launch_all()(ctypes.addressof(table), STREAM, *BASES)


FIRST = (11, (1 << 31) - 1, 256, 100_000, 0, [(0, 16), (3, -8), (4, 0)], [-5, 1 << 40])
SECOND = (12, 3, 64, 0, 1, [(2, 4), (1, 0)], [7])


def test_launches_follow_each_other():
    driver = Driver()
    assert run(table_of(driver, FIRST, SECOND)) == 0
    assert driver.asked == [
        (11, (1 << 31) - 1, 1, 1, 256, 1, 1, 100_000, STREAM, [1016, 3992, 0, -5, 1 << 40]),
        (12, 3, 1, 1, 64, 1, 1, 0, STREAM, [3004, 2000, 7]),
    ]


def test_as_many_parameters_as_there_may_be():
    driver = Driver()
    numbers = list(range(host.MOST_PARAMETERS))
    assert run(table_of(driver, (5, 1, 32, 0, 0, [], numbers))) == 0
    assert driver.asked[0][-1] == numbers


def test_a_refused_launch_ends_the_list():
    driver = Driver()
    driver.refused = {11}
    assert run(table_of(driver, FIRST, SECOND)) == 700
    assert [function for function, *_ in driver.asked] == [11]


def test_nothing_is_launched_on_another_device():
    driver = Driver()
    driver.device = 1
    assert run(table_of(driver, FIRST)) == host.OTHER_DEVICE
    assert not driver.asked


@pytest.mark.parametrize(("imported", "patience"), [({"numba"}, 1), (set(), launch.LAUNCHES_BEFORE_NUMBA)])
def test_a_list_becomes_one_call_where_that_pays(monkeypatch, imported, patience):
    driver, one_by_one = Driver(), []
    monkeypatch.setattr(launch, "_driver_entries", lambda: driver.addresses)
    monkeypatch.setattr(launch, "sys", SimpleNamespace(modules=imported))
    driver.n_parameters[11] = 2
    kernel = SimpleNamespace(
        function=11,
        device_id=0,
        may_overlap=True,
        launch=lambda *given, is_early: one_by_one.append((*given, is_early)),
    )
    launches = launch.Launches([launch.Step(kernel, 3, 64, 0, ((0, 16),), (7,))])
    for _ in range(patience):
        launches(STREAM, *BASES)
    assert launches._run is None
    for _ in range(3):
        launches(STREAM, *BASES)
    assert one_by_one == [(STREAM, 3, 64, 0, 1016, 7, False)] * (patience + 1)
    assert driver.asked == [(11, 3, 1, 1, 64, 1, 1, 0, STREAM, [1016, 7])] * 2


def ready_list(monkeypatch, driver, *pointers):
    """Return launches of one kernel, compiled, and what of them the driver was asked for."""
    monkeypatch.setattr(launch, "_driver_entries", lambda: driver.addresses)
    monkeypatch.setattr(launch, "sys", SimpleNamespace(modules={"numba"}))
    driver.n_parameters[11] = len(pointers) + 1
    kernel = SimpleNamespace(function=11, device_id=0, may_overlap=True, launch=lambda *_, is_early: None)
    launches = launch.Launches([launch.Step(kernel, 3, 64, 0, pointers, (7,))])
    assert launches.guarded(launch.Guard()) is None
    launches(STREAM)
    assert launches.guarded(launch.Guard()) is None
    launches(STREAM)
    return launches


def test_a_guarded_list_looks_at_its_bases(monkeypatch):
    driver = Driver()
    launches = ready_list(monkeypatch, driver, (0, 4), (1, 0), (3, 0), (launch.NOTHING, 0))
    guard = launch.Guard((0, 4), 16, ((0, 1, -8, 64), (1, 2, 0, 100)), 3)
    run = launches.guarded(guard)
    for bases, workspace in (
        ((1600, 1668, 1668, 4096), 4096),
        ((1600, 1668, 1768, 4097), 4352),
        ((1600, 1588, -16, 4351), 4352),
    ):
        assert run(STREAM, *bases) == 0
        given = driver.asked.pop()[-1]
        assert given == [bases[0] + 4, bases[1], workspace, 0, 7]
    for bases in (
        (1601, 1668, 1768, 4096),  # neither is as it must be modulo 16
        (1600, 1672, 1772, 4096),
        (1600, 1652, 1768, 4096),  # 52 bytes on are too close, and so are 4 below
        (1604 - 4, 1600 - 4, 1768, 4096),
        (1600, 1668, 1700, 4096),
    ):
        assert run(STREAM, *bases) == host.OTHER_BASES
    driver.device = 1
    assert run(STREAM, 1600, 1668, 1668, 4096) == host.OTHER_DEVICE
    assert not driver.asked


class Plan:
    """A plan whose list depends on where its first operand begins, modulo 16."""

    alignment = 16

    def __init__(self, lists):
        self.lists, self.launched = lists, []

    def launches(self, x, output):
        return self.lists.get(x % 16)

    def launch(self, stream, x, output, workspace):
        self.launched.append((stream, x, output, workspace))


def test_relaunching_takes_one_call_where_it_can(monkeypatch):
    driver = Driver()
    plan = Plan({0: ready_list(monkeypatch, driver, (0, 0), (1, 0), (2, 0))})
    clashes = [(0, 1, -32, 64)]
    again = relauncher(plan, None, lambda: STREAM, list, clashes, n_operands=2, has_workspace=True)
    aligned, other, close = (1600, 3200, 5000), (1604, 3200, 5000), (1600, 1660, 5000)
    for addresses, is_taken in ((aligned, True), (other, True), (close, False)):
        plan.launched.clear()
        assert again(addresses) is is_taken
        assert plan.launched == ([(STREAM, *addresses[:2], 5120)] if is_taken else [])
        assert not driver.asked
        if addresses is aligned:
            for _ in range(2):
                assert again(addresses)
            assert len(plan.launched) == 1
            assert [asked[-1] for asked in driver.asked] == [[1600, 3200, 5120, 7]] * 2
            driver.asked.clear()


def test_relaunching_in_a_profilers_range_stays_in_it(monkeypatch):
    driver, seen = Driver(), []
    plan = Plan({0: ready_list(monkeypatch, driver, (0, 0), (1, 0))})

    def ranged(addresses, workspace, stream):
        seen.append((addresses, workspace, stream))

    again = relauncher(plan, ranged, lambda: STREAM, list, [], n_operands=2, has_workspace=False)
    for _ in range(3):
        assert again((1600, 3200))
    assert seen == [([1600, 3200], 0, STREAM)] * 3
    assert not plan.launched
    assert not driver.asked


class Bindings:
    """A driver for launches one by one: only what is asked of it matters."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        return getattr(importlib.import_module("cuda.bindings.driver"), name)

    def cuLaunchKernel(self, function, *sizes_and_more):  # noqa: N802 - the name of the driver
        self.asked.append((int(function), sizes_and_more[:7], int(sizes_and_more[7])))
        return (self.CUresult.CUDA_SUCCESS,)

    def cuLaunchKernelEx(self, config, function, parameters, extra):  # noqa: N802
        given = ctypes.cast(config.getPtr(), ctypes.POINTER(Config)).contents
        attribute = given.attributes[0]
        assert (given.n_attributes, attribute.id, attribute.value) == (1, 6, 1)
        self.asked.append(
            (int(function), "early", (*given.grid, *given.block, given.shared_bytes), given.stream)
        )
        return (self.CUresult.CUDA_SUCCESS,)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_launches_one_by_one_are_early_where_devices_can(monkeypatch, arch):
    bindings = Bindings()
    monkeypatch.setattr(launch, "driver", bindings)
    monkeypatch.setattr(launch, "_driver_version", lambda: launch._OVERLAPPING_DRIVER)
    monkeypatch.setattr(launch, "_device_count", lambda: 1)
    target = launch.Target(0, arch, 100, 99 << 10)
    first, second = (launch.Kernel(bindings.CUfunction(number), target) for number in (11, 12))
    steps = [
        launch.Step(first, 3, 64, 0, ((0, 16),), (7,)),
        launch.Step(second, 5, 32, 1000, ((1, 0),), ()),
    ]
    launch.Launches(steps)(STREAM, *BASES)
    sizes = (5, 1, 1, 32, 1, 1, 1000)
    expected = (12, "early", sizes, STREAM) if arch == "sm_90" else (12, sizes, STREAM)
    assert bindings.asked == [(11, (3, 1, 1, 64, 1, 1, 0), STREAM), expected]
