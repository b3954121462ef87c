"""The data of the benchmark, and its smaller commands."""

import json
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from bench import data, host, libraries, timing
from bench.sweeps import DATA, HOSTILE_DATA
from bench.workloads import CPU, CUDA
from tests.scripts import ROOT

SHAPE = (4, 20_000)


def ordinary(x):
    """Tell whether elements look like a normal distribution."""
    return abs(x.mean()) < 0.1 and abs(x.std() - 1) < 0.1


def n_equal(x):
    """Return how often each row has its most frequent element."""
    return [int(np.unique(row, return_counts=True)[1].max()) for row in x]


LOOKS = {
    "normal": ordinary,
    "equal": lambda x: set(n_equal(x)) == {132} and x.max() == 10,
    "one_equal_row": lambda x: n_equal(x)[0] == 132 and max(n_equal(x)[1:]) < 5 and x.max() == 10,
    "rounded": lambda x: ordinary(x) and not (x.view("uint32") & 0xFFFF).any(),
    "ties": lambda x: sorted(set(x.ravel())) == [*range(16)],
    "relu": lambda x: x.min() == 0 and 0.4 < (x > 0).mean() < 0.6,
    "mostly_zeros": lambda x: 0.02 < (x != 0).mean() < 0.04 and x.min() < 0,
    "one_hot": lambda x: (np.sort(x)[:, -2:] == [0, 1]).all(),
    "constant": lambda x: (x == 1).all(),
    "signed_zeros": lambda x: (x == 0).all() and 0.4 < np.signbit(x).mean() < 0.6,
    "few_nan": lambda x: 0.005 < np.isnan(x).mean() < 0.015 and ordinary(x[~np.isnan(x)]),
    "nan": lambda x: 0.4 < np.isnan(x).mean() < 0.6 and ordinary(x[~np.isnan(x)]),
    "ascending": lambda x: (x == np.arange(SHAPE[1])).all(),
    "descending": lambda x: (x == -np.arange(SHAPE[1])).all(),
    "probabilities": lambda x: np.allclose(x.sum(-1), 1) and x.min() > 0 and x.max() > 30 * x.mean(),
    "close": lambda x: len(set((x.view("uint32") >> 12).ravel())) == 1 and len(set(x[0])) > 3000,
    "two_scales": lambda x: ordinary(x[abs(x) > 1] / 1e30) and ordinary(x[(abs(x) < 1)] * 1e30),
    "periodic": lambda x: (x[:, ::1024] > 4).all() and ordinary(np.delete(x, np.s_[::1024], 1)),
    "clustered": lambda x: (x[:, :1250] > 4).all() and ordinary(x[:, 1250:]),
}


@pytest.fixture(params=["numpy", "torch"])
def source(request):
    if request.param == "numpy":
        return data.source(CPU)
    pytest.importorskip("torch")
    return data.TorchSource("cpu")


def test_each_kind_of_data_is_what_its_name_says(source):
    assert LOOKS.keys() >= {*DATA, *HOSTILE_DATA}
    for kind, looks in LOOKS.items():
        x = libraries.to_numpy(source.make(kind, SHAPE, "float32"))
        assert (x.shape, x.dtype) == (SHAPE, np.float32)
        assert looks(x), kind
    for kind in ("int16", "int64"):
        x = libraries.to_numpy(source.make("normal", SHAPE, kind)).astype(float)
        half = 2.0 ** (np.dtype(kind).itemsize * 8 - 1)
        assert x.min() < -0.99 * half
        assert x.max() > 0.99 * half
    ones = libraries.to_numpy(source.sparse(SHAPE, "uint8", 0.3))
    assert 0.29 < ones.mean() < 0.31
    indices = libraries.to_numpy(source.indices((3000,), (7, 5), "int64"))
    assert [sorted(set(column)) for column in indices.T] == [[*range(7)], [*range(5)]]
    assert libraries.to_numpy(source.integers([3, -1])).tolist() == [3, -1]


@pytest.fixture
def steady(monkeypatch):
    """Let each sample of the host clock take 1 us longer than the one before; return what was called."""
    called, took = [], iter(range(1, 10**6))

    def sample(lane):
        lane.call()
        seconds = next(took) * 1e-6
        return timing.Sample(seconds, seconds)

    def noted(name, function):
        def call(x, *others, **options):
            called.append((name, x.shape, x.strides, [*options, *(each.shape for each in others)]))
            return function(x, *others, **options)

        return call

    monkeypatch.setattr(host, "CLOCK", SimpleNamespace(sample=sample))
    monkeypatch.setattr(host, "ROUNDS", 2)
    monkeypatch.setattr(host, "N_SIZES", 3)
    for name, (make, function, peer) in host.SMALL_CALLS.items():
        monkeypatch.setitem(host.SMALL_CALLS, name, (make, noted(name, function), peer))
    monkeypatch.setitem(sys.modules, "torch", None)
    return called


def test_the_host_times_of_all_kinds_of_calls(bench_command, steady):
    """Each figure is the shortest time of its calls: two warm up, and of two that follow the first counts."""
    code, printed, _ = bench_command("host")
    assert code == 0
    head, *lines, last = printed.splitlines()
    assert last == "torch is not installed"
    assert head.split() == ["microseconds", "owner", "view", "strided", "out", "given"]
    for number, (line, name) in enumerate(zip(lines, host.SMALL_CALLS, strict=True)):
        assert line.split() == ["numpy,", name, *(f"{16 * number + at:.2f}" for at in (3, 7, 11, 15))]
        mine = [each for each in steady if each[0] == name]
        steps = [each[2][-1] / mine[0][2][-1] for each in mine]
        assert steps == [1] * 9 + [2] * 4 + [1] * 4  # the first call makes the outputs that are given
        assert ["out" in each[3] for each in mine] == [False] * 13 + [True] * 4


def test_the_host_times_of_new_sizes(bench_command, steady, monkeypatch, tmp_path):
    """Figures are medians; a repeated call and the library's own follow each call of a new size."""
    monkeypatch.setattr(host, "LENGTHS", range(9, 59))
    code, printed, _ = bench_command("host", "--new-sizes", "--json", "a.json")
    assert code == 0
    found = json.loads((tmp_path / "a.json").read_text())["new_sizes"]
    assert [each["call"] for each in found] == [
        *(f"numpy, {name}" for name in host.SMALL_CALLS),
        "njit, top_k",
    ]
    for number, each in enumerate(found[:-1]):
        figures = [each[name] for name in ("new", "repeated", "peer")]
        assert figures == pytest.approx([9 * number + at for at in (4, 5, 6)])
        assert f"{each['call']:30s}{figures[0]:12.2f}{figures[1]:12.2f}" in printed
    shapes = [each[1] for each in steady if each[0] == "top_k"]
    assert shapes == [(3, 71)] * 20 + [(3, 70), (3, 71), (3, 71), (3, 71), (3, 72), (3, 71)]


def test_first_calls(bench_command, monkeypatch):
    """The figures are medians of processes, which these numbers stand for."""
    calls = []

    def run(command, env, text):
        calls.append((command[-1], env["DMLOPS_CACHE_DIR"], env["PYTHONPATH"].split(os.pathsep)[0]))
        return f"{10 * len(calls)} {len(calls) ** 2}\n"

    monkeypatch.setattr(host.subprocess, "check_output", run)
    monkeypatch.setattr(host, "CALLS", {"gather": "dmlops.gather_nd(x, indices)"})
    code, printed, _ = bench_command("host", "--first-calls")
    assert code == 0
    head, line = printed.splitlines()
    assert head.split() == ["milliseconds", "imported", "found", "compiled"]
    assert line.split() == ["gather", "80.00", "64.00", "4.00"]  # of nine processes after three
    programs, caches, places = zip(*calls, strict=True)
    assert len({*programs}) == 1
    compile(programs[0], "a process", "exec")
    assert [cache == caches[0] for cache in caches] == [True, False, False, *[True] * 9]
    assert {*places} == {str(ROOT)}
    moved, wait = host.ON_DEVICE[CUDA]
    compile(host.PROCESS.format(moved=moved, wait=wait, call=""), "a process", "exec")
