"""What the benchmark measures with: its data, and its smaller commands."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench import data, first_calls, libraries, sweep_analysis, timing
from bench.commands import host
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
    "codes": lambda x: sorted(set(x.ravel())) == [*range(256)],
    "ties": lambda x: sorted(set(x.ravel())) == [*range(16)],
    "two_valued": lambda x: set(x.ravel()) == {0, 1} and 0.4 < x.mean() < 0.6,
    "clamped": lambda x: (x.min(), x.max()) == (-1, 1) and 0.5 < (abs(x) < 1).mean() < 0.8,
    "relu": lambda x: x.min() == 0 and 0.4 < (x > 0).mean() < 0.6,
    "mostly_zeros": lambda x: 0.02 < (x != 0).mean() < 0.04 and x.min() < 0,
    "one_hot": lambda x: (np.sort(x)[:, -2:] == [0, 1]).all(),
    "constant": lambda x: (x == 1).all(),
    "signed_zeros": lambda x: (x == 0).all() and 0.4 < np.signbit(x).mean() < 0.6,
    "few_nan": lambda x: 0.005 < np.isnan(x).mean() < 0.015 and ordinary(x[~np.isnan(x)]),
    "nan": lambda x: 0.4 < np.isnan(x).mean() < 0.6 and ordinary(x[~np.isnan(x)]),
    "all_nan": lambda x: np.isnan(x).all(),
    "ascending": lambda x: (x == np.arange(SHAPE[1])).all(),
    "descending": lambda x: (x == -np.arange(SHAPE[1])).all(),
    "narrow": lambda x: 1 <= x.min() < x.max() <= 1 + 2**-10 and x.max() > 1 + 2**-11,
    "probabilities": lambda x: np.allclose(x.sum(-1), 1) and x.min() > 0 and x.max() > 30 * x.mean(),
    "close": lambda x: len(set((x.view("uint32") >> 12).ravel())) == 1 and len(set(x[0])) > 3000,
    "two_scales": lambda x: ordinary(x[abs(x) > 1] / 1e30) and ordinary(x[(abs(x) < 1)] * 1e30),
    "periodic": lambda x: (x[:, ::1024] > 4).all() and ordinary(np.delete(x, np.s_[::1024], 1)),
    "clustered": lambda x: (x[:, :1250] > 4).all() and ordinary(x[:, 1250:]),
    "tiled": ordinary,
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


def test_layouts_change_the_strides_alone(source):
    for shape in ((6,), (2, 3, 5)):
        x = source.make("normal", shape, "float32")
        width, height = shape[-1], shape[-2] if len(shape) > 1 else 1
        for layout, steps in (
            ("contiguous", (width, 1)),
            ("strided", (2 * width, 2)),
            ("transposed", (1, height)),
        ):
            view = source.laid_out(x, layout)
            np.testing.assert_array_equal(libraries.to_numpy(view), libraries.to_numpy(x))
            assert libraries.to_numpy(view).strides[-2:] == tuple(4 * step for step in steps)[-len(shape) :]
    same = source.copy(x)
    same[...] = 0
    assert libraries.to_numpy(x).any()


@pytest.mark.exhaustive
def test_the_host_times_of_all_kinds_of_calls(bench_command, monkeypatch):
    """Each figure is the shortest time of its calls; here, each takes 1 us longer than the one before."""
    called, took = [], iter(range(1, 10**6))

    def sample(lane):
        lane.call()
        return timing.Sample(next(took) * 1e-6)

    def noted(name, function):
        def call(x, *others, **options):
            called.append((name, x.shape, x.strides, [*options, *(each.shape for each in others)]))
            return function(x, *others, **options)

        return call

    monkeypatch.setattr(host, "CLOCK", SimpleNamespace(sample=sample))
    monkeypatch.setattr(host, "ROUNDS", 2)
    monkeypatch.setattr(host, "NEW_SHAPES", 3)
    for name, function in host.FUNCTIONS.items():
        monkeypatch.setitem(host.FUNCTIONS, name, noted(name, function))
    monkeypatch.setitem(sys.modules, "torch", None)
    code, printed, _ = bench_command("host")
    assert code == 0
    head, *lines, last = printed.splitlines()
    assert head.split("  ")[0] == "numpy on cpu"
    assert head.split()[3:] == ["owner", "view", "strided", "out", "given", "compiled", "new", "shape"]
    assert last == "torch is not installed"
    for number, (line, name) in enumerate(zip(lines, host.FUNCTIONS, strict=True)):
        # Two calls warm up, and the third is the shortest of two; of new shapes, the first is.
        first = 23 * number
        expected = [first + at for at in (3, 7, 11, 15, 19, 21)]
        assert line.split() == [name, *(f"{each:.2f}" for each in expected)]
        mine = [each[1:] for each in called if each[0] == name]
        others = [(6, 1)] if name == "gather_nd" else []
        assert mine[:12:4] == [((4, 64), strides, others) for strides in ((256, 4), (256, 4), (512, 8))]
        assert [options for *_, options in mine[13:17]] == [["out", *others]] * 4
        assert not others or [options for *_, options in mine[-3:]] == [[(7, 1)], [(8, 1)], [(9, 1)]]
        assert [shape for shape, *_ in mine[-3:]] == [(3, 70), (3, 71), (3, 72)]


@pytest.mark.exhaustive
def test_pytest_measures_the_same_workloads(tmp_path):
    pytest.importorskip("pytest_benchmark")
    options = "-q -p no:cacheprovider --quick --threads=1 --benchmark-min-rounds=1 --benchmark-max-time=0.01"
    options = [*options.split(), "-k", "gather_nd-gather_nd and small"]
    options.append(f"--benchmark-json={tmp_path / 'a.json'}")
    program = [sys.executable, "-m", "pytest", "bench", *options]
    # Nothing is measured in workers of pytest-xdist, which an environment of theirs announces.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(program, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    found = {each["name"]: each for each in json.loads((tmp_path / "a.json").read_text())["benchmarks"]}
    ours = found["bench_workload[gather_nd-gather_nd small, 32 tuples-dmlops]"]
    assert "bench_workload[gather_nd-gather_nd small, 32 tuples-numpy.take]" in found
    assert ours["group"] == "gather_nd small, 32 tuples"
    about = ours["extra_info"]
    assert about["bytes_moved"] == 32 * (4 + 2 * 8 * 4)
    bandwidth = about["bytes_moved"] / ours["stats"]["median"] / about["share_of_copy_bandwidth"]
    assert 1e8 < bandwidth < 1e13


def test_first_calls(monkeypatch, capsys, tmp_path):
    """The figures are medians of processes, which these numbers stand for."""
    calls = []

    def run(program, env, **options):
        calls.append((program[-1], env["DMLOPS_CACHE_DIR"], env["PYTHONPATH"].split(":")[0]))
        assert "PYTHONDONTWRITEBYTECODE" not in env
        cache = Path(env["DMLOPS_CACHE_DIR"])
        cache.mkdir(exist_ok=True)
        (cache / f"kernel {len(calls)}").touch()
        times = [10.04 * len(calls), len(calls) ** 2]
        found = {"times": times, "packages": ["torch"], "later": ["os", "re"]}
        return SimpleNamespace(stdout=json.dumps(found))

    monkeypatch.setattr(first_calls.subprocess, "run", run)
    monkeypatch.setattr(first_calls.compileall, "compile_dir", lambda *_, **__: True)
    arguments = ["--only", "gather_nd, clip", "--cold", "3", "--warm", "2", "--later", "7"]
    monkeypatch.setattr(sys, "argv", ["", *arguments, "--json", str(tmp_path / "a.json")])
    first_calls.main()
    head, line, packages = capsys.readouterr().out.splitlines()
    assert head.startswith("numpy on cpu, ms")
    assert line.split()[2:] == ["3", "20.1", "4", "45.2", "20.5", "2"]
    assert packages.strip() == "torch"
    programs, caches, places = zip(*calls, strict=True)
    assert len(set(programs)) == 1
    compile(programs[0], "a process", "exec")
    assert "mode='clip'" in programs[0]
    assert "range(7)" in programs[0]
    for library, wait in first_calls.WAITS.items():
        for device, count in ((CPU, 0), (CUDA, 2)):
            assert first_calls.process("", library, device, 1).count(wait) == count
    assert [cache == caches[0] for cache in caches] == [True, False, False, True, True]
    assert {*places} == {str(ROOT)}
    assert json.loads((tmp_path / "a.json").read_text())["gather_nd, clip"]["later modules"] == ["os", "re"]


@pytest.mark.exhaustive
def test_top_k_by_the_number_of_gpus(monkeypatch, capsys, tmp_path):
    torch = pytest.importorskip("torch")
    beside = importlib.import_module("bench.top_k_distributed")
    with monkeypatch.context() as patch:
        log, elapsed = [], SimpleNamespace(record=lambda: log.append("record"))
        elapsed.elapsed_time = lambda end: len(log) / 1e3  # in milliseconds
        patch.setattr(torch.cuda, "Event", lambda enable_timing: (elapsed, 1 / enable_timing)[0])
        patch.setattr(torch.cuda, "synchronize", lambda: log.append("wait"))
        patch.setattr(torch.distributed, "barrier", lambda: log.append("barrier"))
        # After three calls, 40 are timed, each with five notes beside its own.
        assert beside.measure(lambda: log.append("call")) == pytest.approx(3 + 6 * 20.5)
        assert log == ["call"] * 3 + ["wait", "barrier", "record", "call", "record", "wait"] * 40

    def spawn(run, arguments, n_gpus):
        assert arguments[0] == n_gpus
        row = {**dict.fromkeys(beside.COLUMNS, n_gpus), "workload": "w", "graph us": 8 / n_gpus}
        Path(arguments[2]).write_text(json.dumps([row, row | {"workload": "v"}]))

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "a GPU")
    monkeypatch.setattr(torch.multiprocessing, "spawn", spawn)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    for given, counts in (([], [1, 2, 4, 8]), (["--gpus", "1", "3"], [1, 3])):
        monkeypatch.setattr(sys, "argv", ["", "--json", str(tmp_path / "a.json"), *given])
        beside.main()
        _, head, *lines = capsys.readouterr().out.splitlines()
        assert head.split(" | ") == [*beside.COLUMNS]
        expected = [[name, str(n), f"{n:.2f}"] for n in counts for name in "wv"]
        assert [[line.split(" | ")[at] for at in (0, 1, 4)] for line in lines] == expected
        rows = json.loads((tmp_path / "a.json").read_text())["rows"]
        assert [row["GPUs"] for row in rows] == [n for n in counts for _ in "wv"]


@pytest.mark.exhaustive
def test_top_k_beside_that_of_dask(monkeypatch, capsys):
    pytest.importorskip("dask.array")
    dask_top_k = importlib.import_module("bench.dask_top_k")
    now = iter(range(10**6))
    monkeypatch.setattr(dask_top_k, "CASES", (((60,), (20,), 3), ((4, 30), (2, 9), 2)))
    monkeypatch.setattr(dask_top_k.time, "perf_counter", lambda: next(now))
    dask_top_k.main()
    _, head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["shape", "chunks", "k", "top_k", "topk", "argtopk", "both"]
    assert [line.split()[-5:] for line in lines] == [["1000", "ms", "1.00x", "1.00x", "1.00x"]] * 2
    assert lines[1].startswith("         (4, 30)         (2, 9)      2 ")


def test_the_pace_of_sweeps():
    assert sweep_analysis.pace(CPU).checked_size == 1 << 21
    assert sweep_analysis.pace(CUDA).checked_size == float("inf")
