"""The output of `python -m bench run`, for all kinds of measurements."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench.peers import contenders
from bench.records import CONTESTS
from bench.runner import row_of
from bench.suites import SUITES
from bench.workloads import CPU, CUDA
from tests.command_line import assert_refused, cells_of, seen_on_a_terminal

pytestmark = pytest.mark.quick

BANDWIDTH = 8012 / 1e-6 * 2  # bytes a second: the first row moves half of this


class Harness:
    """A bench that has measured everything before: outcomes for each workload, by what it is asked."""

    threads = 2
    bandwidth = BANDWIDTH

    def __init__(self, *outcomes):
        self.outcomes, self.asked, self.left_out = list(outcomes), [], {"jax is not installed"}

    def run(self, table, seconds):
        for workload, outcomes in zip(table, self.outcomes, strict=False):
            self.asked.append(workload.name)
            yield row_of(workload, outcomes(workload) if callable(outcomes) else outcomes)


@pytest.fixture
def play(monkeypatch):
    """Let a harness stand for the bench; return the suites, devices and threads that were asked for."""

    def play(harness):
        asked = []

        def open_bench(*what):
            asked.append(what)
            return harness

        monkeypatch.setattr("bench.commands.open_bench", open_bench)
        monkeypatch.setattr("bench.records.cuda_devices", lambda: [SimpleNamespace(name="NVIDIA L4")])
        return asked

    return play


def timed(name, seconds, **other):
    return {"contender": name, "seconds": seconds, "best": seconds, **other}


def untimed(name, status, message):
    return {"contender": name, "seconds": None, "status": status, "message": message}


def small(*, last="skipped"):
    """Return outcomes for the four small workloads: faster than the best peer, as fast, slower, and none."""
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
        (untimed("dmlops", last, "no kernel"), timed("numpy.tril", 1e-6)),
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
Left out: jax is not installed.
2 threads each; a copy moves 16 GB/s here.
dmlops is the fastest on 2 of 3 workloads; in the median, the best peer takes 1.00 times as long.
"""


def test_the_table_and_the_lines_around_it(bench_command, play, monkeypatch, tmp_path):
    asked = play(small())
    code, printed, lines = bench_command(*OPTIONS, "--quick", "--threads", 2, "--json", "r.json")
    assert code == 0
    assert asked == [(SUITES["operators"], CPU, 2)]
    assert cells_of(printed)[:-1] == PRINTED.splitlines()
    assert lines.strip().splitlines() == [
        "top_k small 1 x 1000, k 5: 1 us",
        "nonzero small 1 x 1000: 2 us",
        "gather_nd small, 32 tuples: 4 us",
        "diagonal small 64 x 64: no kernel",
    ]
    record = json.loads((tmp_path / "r.json").read_text())
    assert (record["device"], record["threads"], record["quick"]) == (CPU, 2, True)
    assert record["command"] == "python -m bench run --workload small --quick --threads 2 --json r.json"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*\+00:00", record["date"])
    assert {"cpu", "cores"} <= record["machine"].keys()
    assert {"dmlops", "numpy", "numba"} <= record["versions"].keys()
    assert "not installed" not in record["versions"].values()
    assert record["bandwidth"] == BANDWIDTH
    seen = seen_on_a_terminal(monkeypatch, bench_command, *OPTIONS)
    assert (seen["green"], seen["red"]) == (["9.00 x", "1.00 x"], ["0.50 x", "no kernel"])


def test_an_interrupted_run_keeps_its_finished_rows(bench_command, play, tmp_path):
    harness = small()
    rows = harness.run

    def run(*arguments):
        yield from [row for row, _ in zip(rows(*arguments), range(2), strict=False)]
        raise KeyboardInterrupt

    harness.run = run
    play(harness)
    code, printed, error = bench_command(*OPTIONS, "--json", "r.json")
    assert (code, printed, error.splitlines()[-1]) == (130, "", "dmlops: interrupted")
    assert len(json.loads((tmp_path / "r.json").read_text())["workloads"]) == 2


def test_a_wrong_answer_ends_the_command_with_an_error(bench_command, play):
    play(small(last="wrong"))
    code, printed, error = bench_command(*OPTIONS)
    assert code == 1
    assert "diagonal small 64 x 64 | WRONG no kernel | numpy.tril 1 us" in cells_of(printed)
    last = error.splitlines()[-1]
    assert last == "dmlops: bench run: dmlops gave a wrong answer; please report it, with `dmlops info`"


def test_options_that_choose_nothing(bench_command, monkeypatch):
    """Nothing is measured for them, or for a file that cannot be written."""
    monkeypatch.setattr("bench.commands.open_bench", pytest.fail)
    assert_refused(bench_command("run", "--json", "no/a.json"), "--json no/a.json: ")
    assert_refused(
        bench_command("run", "--suite", "all"), "--suite: got 'all'; it must be one of operators, "
    )
    code, printed, error = bench_command("run", "--workload", "smell", "--quick")
    assert (code, "--workload smell: " in error) == (1, True)
    assert "gather_nd small, 32 tuples\n" in printed
    assert "sweep" not in printed  # which are not quick


def test_contests(bench_command, play, monkeypatch, tmp_path):
    """By the kinds of answers that the notes beside the peers tell of."""
    names = ("torch.topk", "jax.lax.top_k", "cub.DeviceBatchedTopK")

    def outcomes(workload):
        is_first = workload.shape == (1, 64)
        contracts = {who.name: who.contract(workload.is_sorted) for who in contenders("top_k", CUDA)}
        ours = 2e-6 * (1 + is_first) if workload.is_sorted else 1.5e-6
        theirs = [timed(name, 1.5e-6 + is_first * 1e-6, contract=contracts[name]) for name in names]
        return [timed("dmlops", ours), *theirs]

    suite = SUITES["serving"]
    gating = [each for each in suite.workloads(CUDA) if each.series == "gating"]
    monkeypatch.setitem(SUITES, "serving", replace(suite, workloads=lambda device: gating))
    harness = Harness(*[outcomes] * 200)
    play(harness)
    code, printed, error = bench_command("run", "--suite", "serving", "--device", "cuda", "--json", "a.json")
    assert code == 0, error
    assert harness.asked[:2] == ["gating 1 x 64 float32, k 1", "gating 1 x 64 float32, k 1, by index"]
    rows = [line.split(" | ") for line in cells_of(printed)]
    found = {row[0]: row[1:] for row in rows if row[0] in CONTESTS.values()}
    place = "gating 1 x 64 float32, k 1: 4 us, "
    assert found["the same contract"] == ["0", "64", "0.75 x", f"{place}jax.lax.top_k 2.5 us"]
    assert found["sorted answers"] == ["0", "64", "0.75 x", f"{place}torch.topk 2.5 us"]
    assert [found[each][:3] for each in ("any contract", "indices alone as well")] == [
        ["64", "64", "1.00 x"]
    ] * 2
    record = json.loads((tmp_path / "a.json").read_text())
    assert (len(record["workloads"]), record["machine"]["gpu"]) == (128, "NVIDIA L4")


def test_points_beyond_a_limit_are_measured_again(bench_command, play, tmp_path):
    """The better time counts."""
    times = {"normal": [1.0], "equal": [1.3, 1.1], "ties": [1.4, 1.2], "relu": [1.15]}

    def outcomes(workload):
        return [timed("dmlops", 1e-6 * times.get(workload.data, [1.0] * 9).pop(0))]

    harness = Harness(*[outcomes] * 100)
    play(harness)
    options = ("--suite", "data", "--workload", "top_k 4096 x 256, k 8 by data", "--json", "a.json")
    code, printed, error = bench_command("run", *options)
    assert code == 0, error
    again = [name.partition(": ")[2] for name in harness.asked[15:]]
    assert again == ["equal", "ties"]
    found = json.loads((tmp_path / "a.json").read_text())["sweeps"]
    assert (found["compared"], [each["factor"] for each in found["beyond"]]) == (14, [1.2])
    name = "top_k 4096 x 256, k 8 by data: "
    assert f"{name}ties 1.2 us | {name}normal 1 us | 1.20 x | 1.15 x" in cells_of(printed)
    assert "1 of 14 comparisons are beyond their limits.\n" in printed


def test_batches(bench_command, monkeypatch):
    """Tokens of dmlops are the same in every batch; with one generator for all rows, they are not."""
    pytest.importorskip("torch")
    monkeypatch.setattr("bench.batches.VOCABULARY", 5000)
    code, printed, _ = bench_command("batches")
    assert code == 0
    shares = {}
    for line in printed.splitlines():
        found = re.fullmatch(r"k .*, top_p \S+ +(\S+) +(\S+)% of the tokens change", line)
        shares.setdefault(found[1], []).append(float(found[2]))
    assert shares["dmlops"] == [0, 0, 0]
    assert len(shares["torch.multinomial"]) == 3
    assert all(share > 0 for share in shares["torch.multinomial"])
