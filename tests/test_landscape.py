"""The landscape of top-k: its table, the contests, inversions, and the command; needs no GPU."""

import json
from types import SimpleNamespace

import pytest

from bench.contests import PEERS, Contest, contracts, standings
from bench.landscape import APPLICATIONS, Case, cases
from bench.libraries import NotServedError
from bench.recorded import RECORDED_ON, recorded
from bench.runner import Outcome, Row
from tests.command_line import cells_of

pytestmark = pytest.mark.quick

CASE = Case("sampling", 1, 128256, "float32", 50)
OURS = "dmlops"


def row(case, is_sorted, seconds):
    """Return a row of a results file, with the times of contenders by name."""
    outcomes = [{"contender": name, "seconds": each} for name, each in seconds.items()]
    return {"name": case.workload(is_sorted).name, "outcomes": outcomes}


def test_who_takes_part_in_a_contest():
    peers = {"torch.topk": 20e-6, "jax.lax.top_k": 30e-6, "flashinfer.top_k": None}
    by_value = row(CASE, True, {OURS: 12e-6, **peers})
    by_index = row(CASE, False, {OURS: 11e-6, "torch.topk": 8e-6})
    rows = [by_value, by_index]

    def found(contest, gpu=""):
        (standing,) = standings(rows, contest, gpu)
        return standing.seconds, standing.peer.contender, standing.peer.seconds

    assert found(Contest.STABLE) == (12e-6, "jax.lax.top_k", 30e-6)
    assert found(Contest.SORTED) == (12e-6, "torch.topk", 20e-6)
    assert found(Contest.ANY) == (11e-6, "torch.topk", 8e-6)
    assert contracts(rows)["torch.topk"] == ["any order", "sorted"]
    assert contracts(rows, RECORDED_ON)["SGLang"] == ["any order, recorded 2026-11-22"]
    # Times that were recorded on the same GPU take part as well.
    by_index["outcomes"].pop()
    assert found(Contest.ANY, RECORDED_ON) == (11e-6, "SGLang", pytest.approx(10e-6))
    assert found(Contest.SORTED, RECORDED_ON) == (12e-6, "torch.topk", 20e-6)
    assert found(Contest.ANY, "NVIDIA L4") == (11e-6, "torch.topk", 20e-6)


def test_what_a_library_returned_counts_more_than_what_it_promises():
    by_value, by_index = row(CASE, True, {OURS: 4e-6, "jax.lax.top_k": 5e-6}), row(CASE, False, {OURS: 3e-6})
    by_value["outcomes"][1]["contract"] = "sorted"
    kernel = {"contender": "kernel", "seconds": 2e-6, "contract": "indices alone, or wrong"}
    by_index["outcomes"].append(kernel)

    def fastest(contest):
        (standing,) = standings([by_value, by_index], contest)
        return standing.peer and standing.peer.contender

    assert [fastest(contest) for contest in Contest] == [None, "jax.lax.top_k", "jax.lax.top_k", "kernel"]


class Harness:
    """A bench for which dmlops takes 2 us by value, at first 4, and 1.5 us by index, as every peer does."""

    bandwidth = 4e12

    def __init__(self):
        self.asked = []

    def tasks(self, workload):
        return [workload]

    def call(self, who, tasks):
        message = "not here"
        raise NotServedError(message)

    def measure(self, workload, seconds, names):
        self.asked.append((workload.name, set(names)))
        found = Row.of(workload)
        for name in sorted(names, key=lambda name: (name != OURS, name)):
            taken = 2e-6 * (1 + (workload.size == 64)) if workload.is_sorted and name == OURS else 1.5e-6
            found.outcomes.append(Outcome(name, name.partition(".")[0], seconds=taken, best=taken))
        return found

    def skipped(self, workload, message, names):
        found = Row.of(workload)
        found.outcomes = [Outcome(OURS, OURS, status="skipped", message=message)]
        return found


@pytest.fixture
def harness(monkeypatch):
    harness, gpus = Harness(), [SimpleNamespace(name=name) for name in ("NVIDIA L4", "another")]
    monkeypatch.setattr("bench.commands.measuring.open_bench", lambda device, threads, pace: harness)
    monkeypatch.setattr("bench.commands.measuring.cuda_devices", lambda: gpus)
    return harness


def contests_of(printed):
    """Return what is said of each contest."""
    lines = [line.partition(" | ") for line in cells_of(printed)]
    return [rest for contest in Contest for name, _, rest in lines if name == contest]


def test_the_command(bench_command, harness, tmp_path):
    code, printed, said = bench_command("landscape", "--list", "gating", "--peers", "--json", "a.json")
    assert code == 0, said
    assert len(harness.asked) == 128
    assert harness.asked[0] == ("gating 1 x 64 float32, k 1", {OURS, *PEERS})
    assert harness.asked[1] == ("gating 1 x 64 float32, k 1, by index", {OURS, *PEERS})
    behind = "0 | 64 | 0.75 x | gating 1 x 64 float32, k 1: 4 us, flashinfer.top_k"
    beside = "64 | 64 | 1.00 x | gating 1 x 64 float32, k 1: 1.5 us, cub.DeviceBatchedTopK"
    assert contests_of(printed) == [f"{behind} stable", f"{behind} 1.5 us", beside, beside]
    assert "jax.lax.top_k: any order; sorted and stable\n" in printed
    assert "torch.topk: any order; sorted\n" in printed
    assert "  gating 1 x 64 float32, k 1 4 us, gating 64 x 64 float32, k 1 2 us: 2.00 x\n" in printed
    assert "\n8 problems take more than 1.1 times" in printed
    text = (tmp_path / "a.json").read_text()
    assert sum(line.startswith('{"name":"gating') for line in text.splitlines()) == 128
    record = json.loads(text)
    assert (record["device"], record["machine"]["gpu"], len(record["workloads"])) == (
        "cuda",
        "NVIDIA L4",
        128,
    )
    harness.asked.clear()
    code, printed, said = bench_command("landscape", "--quick")
    assert code == 0, said
    assert harness.asked == [
        (case.workload(is_sorted).name, {OURS})
        for case in cases(APPLICATIONS)
        if recorded(case)
        for is_sorted in (True, False)
    ]
    assert contests_of(printed) == ["0"] * len(Contest)
