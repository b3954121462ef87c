"""The benchmark: its tables, its time budget, and its output."""

import json
import os
import time
from dataclasses import replace

import pytest

from bench import answers, libraries, runner, timing
from bench.peers import Contender, contenders
from bench.records import seconds_of, with_peers
from bench.runner import Bench
from bench.suites import SUITES
from bench.workloads import CPU, CUDA, TopK
from tests.scripts import ROOT, run_script

SMALL = TopK(name="rows", shape=(3, 50), k=4)
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
    ours, failed, failed_later, peer = row["outcomes"]
    assert (failed["status"], failed["message"]) == ("failed", "RuntimeError: no more")
    assert (failed_later["status"], failed_later["message"]) == ("failed", "StopIteration")
    assert "status" not in ours.keys() | peer.keys()
    found = with_peers(json.loads(json.dumps(row)))
    assert found["best_peer"] == "peer.2"
    assert found["ratio"] == peer["seconds"] / ours["seconds"] > 1


def test_a_wrong_answer_of_ours_is_told(bench, monkeypatch):
    monkeypatch.setattr(answers, "fault", lambda task, answer: "not sorted")
    monkeypatch.setattr(runner, "contenders", table_of())
    (row,) = bench.run([SMALL], 1)
    (outcome,) = row["outcomes"]
    assert (outcome["status"], outcome["message"]) == ("wrong", "not sorted")
    assert seconds_of(row) > 0


def test_libraries_that_are_not_there_are_left_out(bench, monkeypatch):
    monkeypatch.setattr(
        libraries, "missing", lambda library, device: "no " + library if library == "peer" else None
    )
    monkeypatch.setattr(runner, "contenders", table_of(fail))
    assert [each["contender"] for each in bench.measure(SMALL, 0.01)["outcomes"]] == ["dmlops"]
    assert bench.left_out == {"no peer"}


def test_suites_without_peers_time_dmlops_alone(bench, monkeypatch):
    monkeypatch.setattr(runner, "contenders", table_of(fail))
    bench.has_peers = False
    assert [each["contender"] for each in bench.measure(SMALL, 0.01)["outcomes"]] == ["dmlops"]
    assert bench.left_out == set()


def test_peers_that_are_too_slow_are_told(bench, monkeypatch):
    monkeypatch.setattr(libraries, "missing", lambda library, device: None)
    monkeypatch.setattr(runner, "contenders", table_of(lambda task: lambda: time.sleep(0.06)))
    for seconds, message in ((0.05, "too slow here: a call takes 0.1 s"), (0.2, None)):
        _, peer = bench.measure(SMALL, seconds)["outcomes"]
        assert peer.get("message") == message


def test_workloads_share_the_time_by_the_bytes_that_they_move(bench, monkeypatch):
    asked = []
    monkeypatch.setattr(bench, "measure", lambda workload, seconds: asked.append(seconds))
    assert len([*bench.run([replace(SMALL, shape=(1, n)) for n in (10, 10**7, 10**7)], 40)]) == 3
    assert asked == pytest.approx([8, 20, 40], rel=0.01)


@pytest.mark.parametrize("suite", ["operators", "rows"])
def test_a_run_that_measured_nothing_is_no_success(bench_command, monkeypatch, tmp_path, suite):
    # The time is over when the copy has been timed.
    monkeypatch.setitem(SUITES, suite, replace(SUITES[suite], seconds={CPU: 1e-9}))
    options = ("--suite", suite, "--workload", "k 10", "--threads", 1, "--json", "r.json")
    code, printed, error = bench_command("run", *options)
    assert code == 1
    assert error.splitlines()[-1] == "dmlops: bench run: no workload was measured: out of time"
    assert "out of time" in printed
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["workloads"]
    for row in record["workloads"]:
        assert [(each["contender"], each["message"]) for each in row["outcomes"]] == [
            ("dmlops", "out of time")
        ]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_results_that_are_quoted_are_right(path):
    """Their problems still have the same parameters, so that new results can be compared with them."""
    record = json.loads(path.read_text())
    today = {each.name: each for suite in SUITES.values() for each in suite.workloads(record["device"])}
    for row in record["workloads"]:
        workload = today[row["name"]]
        for what in row.keys() - {"outcomes"}:
            assert row[what] == getattr(workload, what), (row["name"], what)


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_suites_have_all_operators_and_a_name_for_each_problem(device):
    table = [*SUITES["operators"].workloads(device)]
    assert {each.operator for each in table if each.quick} == {each.operator for each in table}
    for suite in SUITES.values():
        workloads = [*suite.workloads(device)]
        names = {each.name: each.problem for each in workloads}
        assert len(names) == len(workloads)
        assert {each.device for each in workloads} <= {device}
    # Problems that differ have different texts, and the same problem has the same one.
    rows = TopK(name="a", shape=(3, 50), k=4)
    assert rows.problem == replace(rows, name="b", quick=True, device=CUDA).problem == "top_k 3 x 50, k 4"
    others = (
        {"k": 5},
        {"data": "ties"},
        {"is_sorted": False},
        {"dtype": "int32"},
        {"axis": 0},
        {"given": False},
    )
    assert len({replace(rows, **each).problem for each in ({}, *others)}) == 7


@pytest.mark.exhaustive
def test_a_new_workload_needs_no_results_and_no_other_change(tmp_path):
    """The tests of the benchmark and of the pages pass with more workloads on both devices."""
    (tmp_path / "new_workloads.py").write_text(
        """
from dataclasses import replace
from bench import workloads
from bench.suites import SUITES

workloads_of = SUITES["operators"].workloads

def more(device):
    yield from workloads_of(device)
    for quick in (False, True):
        yield workloads.TopK(
            name=f"top_k new {quick}", device=device, shape=(3, 50), k=4, quick=quick
        )

SUITES["operators"] = replace(SUITES["operators"], workloads=more)
""",
        encoding="utf-8",
    )
    options = ["-q", "-p", "no:cacheprovider", "-p", "new_workloads", "-m", "not exhaustive and not nightly"]
    selected = ["-k", "result or suites or tables or figures or shown or pictures or contests"]
    script = f"""
        import os, sys, pytest
        os.chdir({str(ROOT)!r})
        sys.exit(pytest.main({[*options, *selected, "tests/test_bench.py", "tests/test_docs.py"]!r}))
    """
    # Those that have passed without the new workloads run again.
    folders = os.pathsep.join([str(tmp_path), str(ROOT)])
    run_script(script, PYTHONPATH=folders, DMLOPS_TESTS_PASSED="")
