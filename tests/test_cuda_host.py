"""A list of launches is what the driver is asked for, one after the other: seen by a driver of ours."""

import ctypes
import importlib
from types import SimpleNamespace

import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("cuda.core")
host = importlib.import_module("kernels_cuda.host")
launch = importlib.import_module("kernels_cuda.launch")

STREAM = 777
BASES = (1000, 2000, 3000, 4000, 0)
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
    words = [*driver.addresses, 0, len(steps)]
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
