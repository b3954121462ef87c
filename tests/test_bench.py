"""The benchmark: its tables, its time budget, and its output."""

import functools
import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench import answers, libraries, report, runner, timing
from bench.landscape import cases
from bench.peers import Contender, contenders
from bench.runner import Bench, Pace, Row
from bench.sweeps import sweeps
from bench.workload_table import workloads
from bench.workloads import CPU, CUDA, TopK
from tests.command_line import assert_refused
from tests.scripts import ROOT, run_script

SMALL = TopK(name="rows", reason="", shape=(3, 50), k=4)
RESULTS = ROOT / "bench" / "results"


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_dmlops_comes_first_in_all_tables(device):
    for operator in ("top_k", "nonzero_coordinates", "gather_nd", "diagonal_matrix"):
        first, *others = contenders(operator, device)
        assert first.name == "dmlops"
        assert {who.library for who in others} >= {"torch", "jax"}


@pytest.fixture
def bench(monkeypatch, restore_num_threads):
    monkeypatch.setattr(timing, "COPY_BYTES", 1 << 16)
    return Bench(CPU, 1)


def fail(task):
    message = "no more\nand the rest of it"
    raise RuntimeError(message)


def fail_later(task):
    calls = iter(range(5))
    return lambda: next(calls)


def table_of(*prepares):
    ours = contenders("top_k", CPU)[0]
    others = [Contender(f"peer.{number}", "top_k", (CPU,), "", p) for number, p in enumerate(prepares)]
    return lambda operator, device: [ours, *others]


def test_a_peer_that_fails_is_told_in_its_row(bench, monkeypatch):
    def answer(task):
        return lambda: time.sleep(1e-3)

    monkeypatch.setattr(libraries, "missing", lambda library, device: None)
    monkeypatch.setattr(runner, "contenders", table_of(fail, fail_later, answer))
    (row,) = bench.run([SMALL], 2)
    ours, failed, failed_later, peer = row.outcomes
    assert (failed.status, failed.message) == ("failed", "RuntimeError: no more")
    assert (failed_later.status, failed_later.message) == ("failed", "StopIteration")
    assert (ours.status, peer.status, row.best_peer) == ("ok", "ok", peer)
    assert row.ratio == peer.seconds / ours.seconds > 1
    assert json.loads(json.dumps(row.to_json()))["best_peer"] == "peer.2"


def test_a_wrong_answer_of_ours_is_told(bench, monkeypatch):
    monkeypatch.setattr(answers, "fault", lambda task, answer: "not sorted")
    monkeypatch.setattr(runner, "contenders", table_of())
    (row,) = bench.run([SMALL], 1)
    assert (row.outcomes[0].status, row.outcomes[0].message) == ("wrong", "not sorted")
    assert row.ours.seconds > 0


def test_the_pace_of_a_run(bench, monkeypatch):
    """Answers are checked up to a size, memory is measured from a size on, and no peer may take too long."""
    checked, measured = [], []
    monkeypatch.setattr(answers, "fault", lambda task, answer: checked.append(task.workload.size))
    monkeypatch.setattr(libraries, "missing", lambda library, device: None)
    monkeypatch.setattr(runner, "contenders", table_of(lambda task: lambda: time.sleep(0.06)))
    bench.pace = Pace(0, 0, checked_size=150, scratch_size=600)
    for size in (149, 150, 151):
        ours, peer = bench.measure(replace(SMALL, shape=(1, size)), 0.05).outcomes
        measured.append(ours.scratch is not None)
        assert peer.message == "too slow here: a call takes 0.1 s"
    assert (checked, measured) == ([149, 150], [False, True, True])
    bench.pace = Pace(0, patience=0.1)
    assert bench.measure(SMALL, 0.05).outcomes[1].status == "ok"


def test_workloads_share_the_time_by_the_bytes_that_they_move(bench, monkeypatch):
    asked = []
    monkeypatch.setattr(bench, "measure", lambda workload, seconds: asked.append(seconds))
    assert len([*bench.run([replace(SMALL, shape=(1, n)) for n in (10, 10**7, 10**7)], 40)]) == 3
    assert asked == pytest.approx([8, 20, 40], rel=0.01)


def test_the_kernels_of_the_clock_compile():
    pytest.importorskip("cuda.bindings")
    assert timing.clock_code("sm_90").code


@pytest.mark.parametrize("line", ["run --operator gather_nd", "sweep --operator gather_nd"])
def test_a_run_that_measured_nothing_is_no_success(bench_command, monkeypatch, tmp_path, line):
    # The time is over when the copy has been timed.
    monkeypatch.setattr("bench.commands.run.SECONDS", {CPU: 1e-9})
    monkeypatch.setattr("bench.commands.sweep.SECONDS", {CPU: 1e-9})
    code, printed, error = bench_command(*line.split(), "--threads", 1, "--json", "r.json")
    assert code == 1
    name = line.partition(" --")[0]
    assert error.splitlines()[-1] == f"dmlops: bench {name}: no workload was measured: out of time"
    assert "out of time" in printed
    record = json.loads((tmp_path / "r.json").read_text())
    assert {outcome["message"] for row in record["workloads"] for outcome in row["outcomes"]} == {
        "out of time"
    }


@functools.cache
def measured_today(device):
    """Return all problems that the commands measure on a device, by name, as results files have them."""
    points = [point for sweep in sweeps(device) for point in sweep.points]
    landscape = [case.workload(is_sorted) for case in cases() for is_sorted in (True, False)]
    found = [*workloads(device), *points, *(landscape if device == CUDA else [])]
    return {each.name: json.loads(json.dumps(Row.of(each).to_json())) for each in found}


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_results_that_are_quoted_are_right(path):
    """Their problems are those of today, so that new results can be compared with them."""
    record = json.loads(path.read_text())
    report.check(record)
    for row in record["workloads"]:
        today = measured_today(record["device"])[row["name"]]
        for what in row.keys() - {"outcomes", "best_peer", "ratio", "reason"}:
            assert row[what] == today[what], (row["name"], what)


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_a_quick_run_has_every_operator(device):
    table = workloads(device)
    assert {each.operator for each in table if each.quick} == {each.operator for each in table}


@pytest.mark.exhaustive
def test_a_new_workload_needs_no_results_and_no_other_change(tmp_path):
    """The tests of the benchmark and of the pages pass with more workloads on both devices."""
    (tmp_path / "new_workloads.py").write_text(
        """
from bench import workload_table, workloads

def more(old, device):
    yield from old()
    for quick in (False, True):
        yield workloads.TopK(
            name=f"top_k new {quick}", reason="new", device=device, shape=(3, 50), k=4, quick=quick
        )

cpu, cuda = workload_table._cpu, workload_table._cuda
workload_table._cpu = lambda: more(cpu, "cpu")
workload_table._cuda = lambda: more(cuda, "cuda")
""",
        encoding="utf-8",
    )
    options = ["-q", "-p", "no:cacheprovider", "-p", "new_workloads", "-m", "not exhaustive and not nightly"]
    selected = ["-k", "result or quick or tables or figures or shown or pictures or contests"]
    script = f"""
        import os, sys, pytest
        os.chdir({str(ROOT)!r})
        sys.exit(pytest.main({[*options, *selected, "tests/test_bench.py", "tests/test_docs.py"]!r}))
    """
    run_script(script, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))


RECORD = {
    "format": 1,
    "device": CPU,
    "threads": 1,
    "machine": {"cpu": "a <processor>", "cores": 2},
    "versions": {},
    "bandwidth": 1e9,
    "date": "",
    "command": "",
    "workloads": [],
}


REPORTS = [
    ("a.json", {}, "Wrote a.html"),
    ("a.json a.json -o b.html", {}, "Wrote b.html"),
    ("a.json a.json a.json", {}, "bench report: it takes one or two files"),
    ("a.json -o a.txt", {}, "-o a.txt: the name of the file must end with .html, or with .svg or .png "),
    ("a.json a.json -o a.svg", {}, "-o a.svg: a picture is about one run; two runs side by side are a page"),
    ("a.json -o a.svg", {}, "a.json: the results: no workload was timed with a peer, so there is nothing"),
    ("a.json -o no/a.html", {}, "-o no/a.html: there is no folder "),
    ("a.json", {"machine": {}}, "machine: there is no cpu"),
    ("a.json", {"workloads": [7]}, "workloads[0]: it is a whole number; it must be an object"),
    ("a.json", {"bandwidth": float("nan")}, "bandwidth is out of range"),
    ("a.json", {"threads": True}, "threads is true or false; it must be a whole number"),
    ("a.json", {"format": 2}, "no results of this version"),
]


@pytest.mark.parametrize(("line", "change", "told"), REPORTS)
def test_reports_and_what_cannot_be_one(bench_command, line, change, told):
    pytest.importorskip("matplotlib")
    Path("a.json").write_text(json.dumps(RECORD | change))
    outcome = bench_command("report", *line.split())
    if told.startswith("Wrote "):
        assert outcome == (0, f"{told}\n", "")
        assert Path(told.split()[1]).read_text().startswith("<!doctype html>")
    else:
        assert_refused(outcome, told)
        assert os.listdir() == ["a.json"]


def test_all_times_of_a_gpu_are_on_the_page():
    def outcome(contender, seconds=None, **other):
        about = {"contender": contender, "library": re.split("[ .]", contender)[0], "status": "ok"}
        about |= {"seconds": seconds, "note": "", "message": "", "host": None, "wall": None}
        return about | other

    outcomes = [
        outcome("dmlops", 2e-3, low=1e-3, high=4e-3, host=5e-6, wall=3e-3),
        outcome("torch.topk", 6e-3, note="ties < order", low=5e-3),
        outcome("jax", status="failed", message="no room"),
        outcome("dmlops on CuPy arrays", 8e-3, status="wrong", message="not sorted"),
    ]
    row = {"name": "rows", "reason": "why", "bytes_moved": 10**6, "outcomes": outcomes}
    record = RECORD | {"device": CUDA, "workloads": [row]}
    lines = report.all_times(record).split("<tr")[1:]
    assert [re.findall(r">([^<>]+)<", line) for line in lines] == [
        ["workload", "contender", "GPU time", "host", "wall", "GB/s", "of copy", "dmlops is"],
        ["rows", "why", "dmlops", "2 ms", "1 ms to 4 ms", "5 us", "3 ms", "0.5", "50%"],
        ["torch.topk", "ties &lt; order", "6 ms", "0.2", "17%", "3.00 x"],
        ["jax", "failed: no room"],
        ["dmlops on CuPy arrays", "wrong: not sorted", "8 ms", "0.1", "12%", "4.00 x"],
    ]
    styles = [re.findall('class="text(.*?)"', line) for line in lines]
    assert styles == [[], [" ours"], [""], [""], [" ours bad"]]
    assert [line.count("</td>") for line in lines] == [0] + [8] * 4
    page = report.all_times(record | {"device": CPU})
    assert [line.count("</td>") for line in page.split("<tr")[1:]] == [0] + [6] * 4
