"""The benchmark's runner: inputs, contenders, checks, and the choice of the best peer."""

import numpy as np
import pytest

import dmlops
from bench import answers, libraries, runner, timing
from bench.peers import Contender, contenders
from bench.runner import Bench, Outcome, Pace, Row
from bench.workloads import CPU, CUDA, TopK

ROWS = TopK(name="rows", reason="", shape=(3, 50), k=4)


@pytest.fixture
def make_bench(monkeypatch):
    monkeypatch.setattr(timing, "COPY_BYTES", 1 << 16)
    before = dmlops.get_num_threads()
    yield lambda **pace: Bench(CPU, 1, Pace(least_seconds=0.0, **pace))
    dmlops.set_num_threads(before)


def peer(name, call=lambda: None, **options):
    return Contender(name, "top_k", (CPU,), "", lambda task: call, **options)


def play(monkeypatch, *peers):
    """Let these be the peers of dmlops."""
    ours = contenders("top_k", CPU)[0]
    monkeypatch.setattr(libraries, "missing", lambda library, device: None)
    monkeypatch.setattr(runner, "contenders", lambda operator, device: [ours, *peers])


def row_of(**seconds):
    row = Row.of(ROWS)
    for name, (time, is_spared) in seconds.items():
        row.outcomes.append(Outcome(name, name, seconds=time, is_spared=is_spared))
    return row


def test_the_best_peer_is_the_fastest_that_does_the_whole_work():
    row = row_of(slow=(9.0, False), dmlops=(4.0, False), given=(1.0, True), fast=(2.0, False))
    assert row.ours.seconds == 4
    assert row.best_peer.contender == "fast"
    assert row.ratio == 0.5
    assert (row.to_json()["best_peer"], row.to_json()["ratio"]) == ("fast", 0.5)
    assert row_of(dmlops=(4.0, False), given=(1.0, True)).ratio is None
    assert row_of(dmlops=(None, False), fast=(1.0, False)).ratio is None
    # dmlops on other arrays is no peer.
    row = row_of(dmlops=(4.0, False), fast=(9.0, False))
    row.outcomes.append(Outcome("dmlops on CuPy arrays", "dmlops", seconds=1.0))
    assert (row.ours.seconds, row.best_peer.contender) == (4, "fast")


def test_a_peer_that_is_spared_part_of_the_work_is_shown_and_not_the_best(make_bench, monkeypatch):
    play(monkeypatch, peer("numpy.take", is_spared=True), peer("numpy indexing", lambda: sum(range(10_000))))
    row = make_bench().measure(ROWS, 60)
    assert [each.contender for each in row.timed] == ["dmlops", "numpy.take", "numpy indexing"]
    assert [each.is_spared for each in row.timed] == [False, True, False]
    assert row.best_peer.contender == "numpy indexing"


def test_peers_that_are_too_slow_are_left_out_and_dmlops_is_not(make_bench, monkeypatch):
    play(monkeypatch, peer("torch.slow"))
    bench = make_bench()
    monkeypatch.setattr(timing, "warm_up", lambda lane, clock: setattr(lane, "estimate", 100.0))
    ours, slow = bench.measure(ROWS, 1).outcomes
    assert ours.status == "ok"
    assert (slow.status, slow.message) == ("skipped", "too slow here: a call takes 100.0 s")
    patient = make_bench(patience=101)
    assert [outcome.status for outcome in patient.measure(ROWS, 1).outcomes] == ["ok", "ok"]


@pytest.mark.parametrize(("largest", "is_checked"), [(150, True), (149, False)])
def test_answers_are_checked_up_to_a_size(make_bench, monkeypatch, largest, is_checked):
    play(monkeypatch, peer("torch.any"))
    monkeypatch.setattr(answers, "fault", lambda task, answer: "wrong")
    ours, other = make_bench(checked_size=largest).measure(ROWS, 60).outcomes
    assert ours.status == ("wrong" if is_checked else "ok")
    assert other.status == "ok"


def test_inputs_rotate_on_a_gpu_until_they_outgrow_its_cache(make_bench):
    bench = make_bench()
    assert len(bench.tasks(ROWS)) == 1
    bench.device, bench._cache_bytes = CUDA, 1 << 20
    tasks = bench.tasks(ROWS)
    assert len(tasks) == runner.SMALL_COPIES
    assert len({task.inputs[0].ctypes.data for task in tasks}) == len(tasks)
    for task in tasks:
        np.testing.assert_array_equal(task.inputs[0], tasks[0].inputs[0])
    for size, count in ((1 << 18, 3), (300_000, 3), (1 << 19, 2), (1 << 20, 1)):
        workload = TopK(name="", reason="", shape=(1, size), k=1)
        assert len(bench.tasks(workload)) == count, size
