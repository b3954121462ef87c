"""The choice of an algorithm of top_k on CUDA: by a table, by the rule, or by the user; needs no GPU."""

import ctypes
import importlib
import itertools
import json
import math
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.timing import Sample
from tests import cuda_plans, inside

pytest.importorskip("cuda.bindings")
dispatch = inside.top_k_dispatch
plans = importlib.import_module("tests.test_cuda_top_k_plans")
planned = plans.planned
# The device that was measured.
TARGET = plans.Target(0, "sm_90", 132, plans.SHARED_BYTES["sm_90"])


def test_the_package_names_every_algorithm_and_its_family():
    package = inside.cuda_kernels("top_k")
    folders = {path.parent.name for path in Path(package.__file__).parent.glob("*/__init__.py")}
    assert {*dispatch.ALGORITHMS} | folders <= {*re.findall(r"\w+", package.__doc__)}


def test_plans_take_the_forced_algorithm(monkeypatch):
    pytest.importorskip("numba_cuda")
    names = []
    for algorithm in ("", "sort"):
        monkeypatch.setenv("DMLOPS_TOP_K_ALGORITHM", algorithm)
        names.append(cuda_plans.planned(cuda_plans.top_k((64, 9000), 3)).asked[-1].name)
    assert names[0] != names[1] == "top_k_sort"


def test_a_forced_copy_takes_all_elements_by_index(monkeypatch):
    monkeypatch.setenv("DMLOPS_TOP_K_ALGORITHM", "copy")
    assert planned((64, 9000, 1), 9000, is_sorted=False).algorithm == "copy"
    for k, is_sorted in ((99, False), (100, True)):
        with pytest.raises(ValueError, match=f"'copy' does not take k {k} of rows of 100"):
            planned((64, 100, 1), k, is_sorted=is_sorted)


@pytest.mark.parametrize("arch", [arch for arch in plans.SHARED_BYTES if arch != "sm_90"])
def test_devices_without_a_table_follow_the_rule(arch):
    """Its first algorithm runs, unless the device lacks it; rows count by multiprocessor."""
    few, many = (planned((n, 9000, 1), 100, arch=arch).algorithm for n in (60, 6000))
    assert (few, many) == ("one_pass", "block")
    assert planned((60, 9000, 1), 100, arch=arch, multiprocessors=1).algorithm == "block"


@pytest.fixture
def choices():
    """Return the module that times all algorithms."""
    pytest.importorskip("torch")
    yield importlib.import_module("bench.choices")
    dispatch.table_of.cache_clear()


def table_of(choices):
    return importlib.import_module("bench.choice_table").table_of(choices)


def test_what_a_table_says(monkeypatch):
    """It holds for smaller problems, and beyond the largest ones; rows count by multiprocessor."""
    kind = "4 bytes, rows one after the other, by value"
    table = {kind: {"8": {"4": "256 rounds, 512 block, grid", "16": "partition"}, "32": {"4": "sort"}}}
    words = dispatch.table_words({"multiprocessors": 132, "fastest": table})
    monkeypatch.setattr(dispatch, "table_of", lambda _: words)
    expected = {
        (1, 1, 1): "rounds",
        (4, 256, 8): "rounds",
        (4, 257, 8): "block",
        (4, 513, 8): "grid",
        (4, 1 << 28, 1): "grid",
        (5, 9, 1): "partition",
        (99, 9, 1): "partition",
        (1, 9, 9): "sort",
        (1, 40, 33): "sort",
    }
    assert {(n, m, k): planned((n, m, 1), k).algorithm for n, m, k in expected} == expected
    assert planned((4, 1, 1), 1, multiprocessors=66).algorithm == "partition"
    assert planned((8, 1, 1), 1, multiprocessors=264).algorithm == "rounds"


def test_the_choice_follows_the_measured_times(choices):
    """The table is the one that follows from all measured times."""
    results = choices.RESULTS / "choices-2026-11-29.json"
    if not results.exists():
        pytest.skip("source distributions have no raw times")
    measured = [each for each in choices.load(results) if each.times]
    assert len(measured) > 10_000
    every = {*choices.problems()}
    problems = {each.problem for each in measured}
    assert problems <= every
    for what in range(1, 4):
        assert {problem[what] for problem in problems} == {problem[what] for problem in every}
    # With fewer timed problems, a kind and k would take the entries of a larger k.
    n_problems, n_measured = (Counter((kind, k) for kind, _, _, k in each) for each in (every, problems))
    assert all(n_measured[each] >= n / 2 for each, n in n_problems.items())
    table = json.loads((dispatch.TABLES / "sm_90.json").read_text())
    assert table["fastest"] == table_of(measured)


def test_problems_without_times_come_first(choices, monkeypatch, tmp_path):
    monkeypatch.setattr(choices, "RESULTS", tmp_path)
    problem = choices.TimedProblem(choices.Kind(4, False, True), 1, 64, 8)
    timed = choices.Choice(problem, "rounds", {"rounds": 1.0})
    earlier, seen = choices.write_results([timed], "a GPU", TARGET, None), []
    monkeypatch.setattr(choices, "measure", lambda watch, problems, *others: seen.extend(problems) or [])
    monkeypatch.setattr("bench.choices.Stopwatch", lambda seconds: SimpleNamespace(target=TARGET))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    run = importlib.import_module("bench.commands").choices
    run(element_size=[4], k=[8], rows=[1], length=[64, 128], add_to=earlier)
    assert [problem[2] for problem in seen] == [64, 128, 128, 64]
    assert seen[-1] == problem


def test_an_interrupted_run_keeps_what_it_measured(choices, monkeypatch, tmp_path):
    problem = choices.TimedProblem(choices.Kind(4, False, True), 1, 64, 8)

    def measure(*_):
        yield choices.Choice(problem, "rounds", {"rounds": 1.0})
        raise KeyboardInterrupt

    monkeypatch.setattr(choices, "RESULTS", tmp_path)
    monkeypatch.setattr(choices, "measure", measure)
    monkeypatch.setattr(choices, "Stopwatch", lambda seconds: SimpleNamespace(target=TARGET))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    with pytest.raises(KeyboardInterrupt):
        choices.search(1, [problem], (), None)
    (path,) = tmp_path.iterdir()
    assert [each.problem for each in choices.load(path)] == [problem]


def test_names_of_algorithms_are_checked(choices, bench_command):
    for name, text in (("round", "; it must be one of rounds, "), ("rounds", " alone; --add-to must ")):
        code, _, told = bench_command("choices", "--algorithm", name)
        assert (code, told.partition(text)[0]) == (1, f"dmlops: --algorithm: got '{name}'")


def test_the_table_is_written_and_what_it_costs_is_told(choices, monkeypatch, tmp_path, capsys):
    results = json.loads((choices.RESULTS / "choices-2026-11-29.json").read_text())
    (tmp_path / "few.json").write_text(json.dumps(results | {"choices": results["choices"][::150]}))
    monkeypatch.setattr(dispatch, "TABLES", tmp_path)
    importlib.import_module("bench.choice_table").write_table(tmp_path / "few.json")
    fifth, table, rule = map(float, re.findall(r"\d\.\d{4}", capsys.readouterr().out))
    assert 1 <= table < 1.005 < fifth < 1.5
    assert 1.005 < rule < 1.1
    written = json.loads((tmp_path / "sm_90.json").read_text())
    assert written["fastest"] == table_of(choices.load(tmp_path / "few.json"))
    assert (written["measured"], written["multiprocessors"]) == (results["measured"], 132)


def test_times_of_all_algorithms_are_kept(choices, monkeypatch, tmp_path, capsys):
    """Those that take more than 1.5 times as long as the best are not."""
    times = {"partition": 3.0, "rounds": 1.5, "sort": 2.25}
    watch = SimpleNamespace(end=math.inf, plan=lambda *_: SimpleNamespace(variant="partition of 4"))
    watch.compare = lambda problem, algorithms: {name: times[name] for name in algorithms if name in times}
    found = [*choices.measure(watch, choices.problems([4], [8], [28], [64]), (), {})]
    assert [(each.problem.sizes, each.problem.axis) for each in found] == [((28, 64), 1)] * 2 + [
        ((64, 28), 0)
    ] * 2
    assert [(each.problem.kind.is_sorted, each.loss) for each in found] == [(True, 2), (False, 2)] * 2
    choices.print_losses(found)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines[0] == "4 of 4 problems lose 5% or more by the choice"
    assert lines[1].strip() == "28x64 axis 1 k 8, 4 bytes: partition 3.0 us, rounds 1.5 us, 2.00"
    monkeypatch.setattr(choices, "RESULTS", tmp_path)
    for part in (found[:3], found[2:]):
        path = choices.write_results(part, "a GPU", TARGET, None)
    assert [each.times for each in choices.load(path)] == [{"rounds": 1.5, "sort": 2.25}] * 4

    # One algorithm is timed anew, beside the fastest other one, where it serves the problem.
    known = {each.problem: {"block": 4.0, "partition": 9.0, "sort": 2.5} for each in found}
    again = [*choices.measure(watch, known, ["partition"], known)]
    assert [each.times for each in again] == [{"block": 4.0, "partition": 3.0, "sort": 2.25}] * 4
    assert [*choices.measure(watch, known, ["partition"], {})] == []  # it would be the fastest of one
    watch.plan = lambda *_: None
    assert [*choices.measure(watch, known, ["partition"], known)] == []


def test_the_lower_quartile_of_the_samples_counts(choices, monkeypatch):
    """Those for which the host is late are none; algorithms must agree, and have times."""
    torch = importlib.import_module("torch")
    times = {"partition": itertools.cycle([0, 5, 4, 3, 2, 1]), "rounds": itertools.cycle([2, 0])}
    times["late"] = itertools.repeat(0)
    launched, inputs = [], set()

    def plan(problem, target, *, algorithm):
        assert (problem.index_size, problem.axis_size, problem.k) == (8, 64, 8)
        if algorithm == "none":
            raise ValueError

        def launch(stream, x, values, indices, workspace):
            launched.append(algorithm)
            inputs.add(x)
            ctypes.memset(indices, algorithm == "odd", 8)

        return SimpleNamespace(workspace_size=0, launch=launch)

    def sample(lane):
        lane.call()
        microseconds = next(times[launched[-1]])
        return Sample(microseconds / 1e6, 1e-6, is_clean=microseconds > 0)

    stream = SimpleNamespace(cuda_stream=5)
    made = {"cuda": SimpleNamespace(current_stream=lambda: stream)}
    made |= dict.fromkeys(("empty", "randn"), lambda sizes, dtype, device: torch.zeros(sizes, dtype=dtype))
    names = ("float32", "int64", "int8", "equal", "manual_seed")
    monkeypatch.setattr(choices, "torch", SimpleNamespace(**{n: getattr(torch, n) for n in names}, **made))
    monkeypatch.setattr(choices.cuda, "target", lambda *asked: {(0, "top_k"): TARGET}[asked])
    monkeypatch.setattr(choices.top_k, "plan", plan)
    monkeypatch.setattr(choices, "SECONDS_OF_EACH", 10)
    monkeypatch.setattr(choices, "CudaClock", lambda: SimpleNamespace(sample=sample, pause=0))
    watch, problem = choices.Stopwatch(9), choices.TimedProblem(choices.Kind(4, False, True), 3, 64, 8)
    found = watch.compare(problem, ["partition", "none", "rounds"])
    assert found == pytest.approx({"partition": 2, "rounds": 2})
    assert len(inputs) == 1
    with pytest.raises(RuntimeError, match="the algorithms differ: 3x64 axis 1 k 8"):
        watch.compare(problem, ["partition", "odd"])
    with pytest.raises(RuntimeError, match="late has no times: the host took too long"):
        watch.compare(problem, ["rounds", "late"])
