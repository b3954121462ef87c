"""The output of `python -m bench run` and `python -m bench sweep`, for all kinds of measurements."""

import json
import re

import pytest

from bench.runner import Outcome, Row
from bench.workloads import CPU
from tests.command_line import assert_refused, cells_of, seen_on_a_terminal

pytestmark = pytest.mark.quick

BANDWIDTH = 8012 / 1e-6 * 2  # bytes a second: the first row moves half of this


class Harness:
    """A bench that has measured everything before."""

    device = CPU
    threads = 2
    bandwidth = BANDWIDTH

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.table = []

    def run(self, table, seconds):
        self.table = table
        for workload, outcomes in zip(table, self.outcomes, strict=True):
            row = Row.of(workload)
            row.outcomes = list(outcomes)
            yield row


@pytest.fixture
def play(monkeypatch):
    """Let a harness stand for the bench; return the devices and threads that were asked for."""

    def play(harness):
        asked = []

        def open_bench(device, threads, pace=None):
            asked.append((device, threads))
            return harness

        monkeypatch.setattr("bench.commands.measuring.open_bench", open_bench)
        return asked

    return play


def timed(name, seconds, **other):
    return Outcome(name, name.partition(" ")[0].partition(".")[0], seconds=seconds, best=seconds, **other)


def untimed(name, status, message):
    return Outcome(name, name.partition(".")[0], status=status, message=message)


def small(*, last="skipped"):
    """Return outcomes for the four small workloads: faster than the best peer, as fast, slower, and none.

    What fails is told of each contender once, and not of those that share the reason of dmlops.
    """
    return Harness(
        (
            timed("dmlops", 1e-6),
            timed("numpy.argsort", 20e-6, note="then sorted"),
            timed("torch.topk", 9e-6, note="ties in any order"),
            timed("jax.lax.top_k", 10e-6),
        ),
        (timed("dmlops", 2e-6), timed("numpy.argwhere", 2e-6), untimed("cupy", "failed", "no room")),
        (
            timed("dmlops", 4e-6),
            timed("numpy.take", 1e-6, is_spared=True),
            timed("numpy indexing", 2e-6),
            untimed("cupy", "failed", "no room"),
            untimed("torch.embedding", "failed", "no room"),
        ),
        (untimed("dmlops", last, "no kernel"), untimed("jax", last, "no kernel"), timed("numpy.tril", 1e-6)),
    )


OPTIONS = ("run", "--workload", "small")


PRINTED = """\
Median times

workload | dmlops | ratio | best peer | of copy rate | others

top_k small 1 x 1000, k 5 | 1 us | 9.00 x | torch.topk 9 us | 25% | jax.lax.top_k 10 us, numpy.argsort 20 us
nonzero small 1 x 1000 | 2 us | 1.00 x | numpy.argwhere 2 us | 15%
gather_nd small, 32 tuples | 4 us | 0.50 x | numpy indexing 2 us | 3% | numpy.take 1 us
diagonal small 64 x 64 | no kernel | numpy.tril 1 us

numpy.argsort: then sorted
torch.topk: ties in any order
failed: no room: cupy (2 x), torch.embedding
skipped: no kernel: dmlops
2 threads each; a copy moves 16 GB/s here.
dmlops is the fastest on 2 of 3 workloads; in the median, the best peer takes 1.00 times as long.
Not compared: 1 workload (no kernel).
"""


def test_the_table_and_what_is_said_of_it(bench_command, play, monkeypatch, tmp_path):
    asked = play(small())
    for width, n_columns in ((99, 4), (100, 5), (149, 5), (150, 6)):
        monkeypatch.setattr("bench.commands.measuring.FILE_WIDTH", width)
        head = cells_of(bench_command(*OPTIONS)[1])[2]
        assert head.split(" | ") == PRINTED.splitlines()[2].split(" | ")[:n_columns]
    asked.clear()
    code, printed, said = bench_command(*OPTIONS, "--quick", "--threads", 2, "--json", "r.json")
    assert code == 0
    assert asked == [(CPU, 2)]
    assert cells_of(printed)[:-1] == PRINTED.splitlines()
    assert seen_on_a_terminal(monkeypatch, bench_command, *OPTIONS) == {
        "green": ["9.00 x", "1.00 x"],
        "red": ["0.50 x", "no kernel"],
        "progress": [(4, 4, "")],
    }
    assert said.strip().splitlines() == [
        "top_k small 1 x 1000, k 5: 1 us, torch.topk 9 us",
        "nonzero small 1 x 1000: 2 us, numpy.argwhere 2 us",
        "gather_nd small, 32 tuples: 4 us, numpy indexing 2 us",
        "diagonal small 64 x 64: no kernel",
    ]
    record = json.loads((tmp_path / "r.json").read_text())
    assert (record["device"], record["threads"], record["quick"]) == (CPU, 2, True)
    assert record["command"] == "python -m bench run --workload small --quick --threads 2 --json r.json"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*\+00:00", record["date"])
    assert {"cpu", "cores"} <= record["machine"].keys()
    assert {"dmlops", "numpy", "numba"} <= record["versions"].keys()
    assert record["bandwidth"] == BANDWIDTH
    assert [row["ratio"] for row in record["workloads"]] == [9, 1, 0.5, None]
    assert "not installed" not in record["versions"].values()


def test_an_interrupted_run_keeps_its_finished_rows(bench_command, play, tmp_path):
    harness = small()
    rows = harness.run

    def run(table, seconds):
        yield from [row for row, _ in zip(rows(table, seconds), range(2), strict=False)]
        raise KeyboardInterrupt

    harness.run = run
    play(harness)
    code, printed, said = bench_command(*OPTIONS, "--json", "r.json")
    assert (code, printed, said.splitlines()[-1]) == (130, "", "dmlops: interrupted")
    assert len(json.loads((tmp_path / "r.json").read_text())["workloads"]) == 2


def test_a_wrong_answer_ends_the_command_with_an_error(bench_command, play):
    play(small(last="wrong"))
    code, printed, said = bench_command(*OPTIONS)
    assert code == 1
    assert "diagonal small 64 x 64 | WRONG no kernel | numpy.tril 1 us" in cells_of(printed)
    last = said.splitlines()[-1]
    assert last == "dmlops: bench run: dmlops gave a wrong answer; please report it, with `dmlops info`"


@pytest.mark.parametrize("command", ["run", "sweep", "landscape"])
def test_nothing_is_measured_for_a_file_that_cannot_be_written(bench_command, monkeypatch, command):
    monkeypatch.setattr("bench.commands.measuring.open_bench", pytest.fail)
    assert_refused(bench_command(command, "--json", "no/a.json"), "--json no/a.json: ")
