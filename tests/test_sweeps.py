"""Sweeps: the coverage of the table, the judgement of cliffs, and the command."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench import sweep_analysis
from bench.runner import Outcome, Row
from bench.sweep_analysis import judge
from bench.sweeps import LIMITS, Kinds, Steps, sweeps
from bench.workloads import CPU, CUDA, TopK
from tests.command_line import cells_of, seen_on_a_terminal

MIB = 1 << 20


def selection(name, size, **other):
    return TopK(name=name, reason="", shape=(1, size), k=1, **other)


def steps(*sizes):
    return Steps(name="steps", points=tuple(selection(f"steps: {size}", size) for size in sizes))


def measured(sweep, times, torch=(), scratch=None):
    """Return a row for each point, without times where they are None."""
    rows = []
    for number, (point, seconds) in enumerate(zip(sweep.points, times, strict=True)):
        row = Row.of(point)
        row.outcomes = [Outcome("dmlops", "dmlops", seconds=seconds, best=seconds, scratch=scratch)]
        if torch:
            row.outcomes.append(Outcome("torch.topk", "torch", seconds=torch[number], best=torch[number]))
        rows.append(row)
    return rows


def found(sweep, *arguments, **other):
    """Return what is beyond a limit: what it is, the point, and with what it was compared."""
    violations = judge(sweep, measured(sweep, *arguments, **other), 1).violations
    return [(each.what, each.point.rpartition(" ")[2], each.other.rpartition(" ")[2]) for each in violations]


@pytest.mark.parametrize(
    ("sizes", "times", "flagged"),
    [
        ((1000, 2000, 4000), (1, 2, 4), []),
        # Twice the work in up to four times the time, for the same work in twice the time.
        ((1000, 2000, 4000), (1, 3.9, 7), []),
        ((1000, 2000, 4000), (1, 4.1, 7), [("step", "2000", "1000")]),
        ((1000, 1001), (1, 1.9), []),
        ((1000, 1001), (1, 2.1), [("step", "1001", "1000")]),
        # A point that takes longer than a larger one.
        ((1000, 1001, 2000), (2.1, 1, 2), [("step", "1000", "1001")]),
        ((1000, 2000), (1.9, 1), []),
        # The time of a quadratic path.
        ((1000, 2000, 4000), (1, 5, 25), [("step", "2000", "1000"), ("step", "4000", "2000")]),
        # Points without a time have no neighbours.
        ((1000, 2000, 4000), (1, None, 100), []),
    ],
)
def test_steps(sizes, times, flagged):
    assert found(steps(*sizes), times) == flagged


@pytest.mark.parametrize(
    ("kind", "per_byte", "seconds", "is_flagged"),
    [
        ({"data": "constant"}, True, 1.9, False),
        ({"data": "constant"}, False, 2.1, True),
        ({"dtype": "float16"}, True, 0.9, False),
        ({"dtype": "float16"}, True, 1.1, True),
        ({"dtype": "float16"}, False, 1.9, False),
        ({"dtype": "float64"}, True, 3.9, False),
        ({"dtype": "float64"}, False, 2.1, True),
    ],
)
def test_kinds(kind, per_byte, seconds, is_flagged):
    points = (selection("kinds: base", 10_000), selection("kinds: other", 10_000, **kind))
    sweep = Kinds(name="kinds", points=points, limit=2, per_byte=per_byte)
    assert found(sweep, (1, seconds)) == ([("kind", "other", "base")] if is_flagged else [])


def test_torch():
    sweep = steps(1000, 2000, 4000)
    assert found(sweep, (1, 2, 4), torch=(1.1, 1.95, 4)) == []
    assert found(sweep, (1, 2, 4), torch=(1.1, 1.8, 4)) == [("torch", "2000", "torch.topk")]
    verdict = judge(sweep, measured(sweep, (1, 2, 4), torch=(9, 1, 4)), 1)
    assert verdict.worst.what == "step"
    assert verdict.to_json()["violations"][0]["factor"] == 2


def test_memory():
    """A call may take an eighth of its input, and 1 MiB for each thread."""
    sweep, most = steps(10**6, 2 * 10**6), 500_000 + MIB
    assert found(sweep, (1, 2), scratch=most) == []
    assert found(sweep, (1, 2), scratch=most + 1) == [("memory", "1000000", "take")]
    assert judge(sweep, measured(sweep, (1, 2), scratch=most + 1), 2).violations == []


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_the_table(device):
    table = sweeps(device)
    points = [point for sweep in table for point in sweep.points]
    assert len({sweep.name for sweep in table}) == len(table)
    assert len({point.name for point in points}) == len(points)
    # Times of one version are compared with those of another.
    expected = {CPU: (575, 13_687_566_456), CUDA: (796, 82_129_268_504)}[device]
    assert (len(points), sum(point.bytes_moved for point in points)) == expected
    for sweep in table:
        assert {(point.operator, point.device) for point in sweep.points} == {(sweep.operator, device)}
        assert all(point.name.startswith(f"{sweep.name}: ") for point in sweep.points)
        assert sweep.has_peers == (sweep.word == "step")
        if sweep.word == "step":
            assert [point.at for point in sweep.points] == sorted({point.at for point in sweep.points})
            assert {point.series for point in sweep.points} == {sweep.name}
        else:
            # The points differ in one property only, and visibly.
            assert sweep.points[0].bytes_moved > MIB / 2
            assert {point.layout for point in sweep.points[:1]} == {"contiguous"}
            assert sweep.per_byte == (device == CUDA or sweep.name.endswith("lengths"))
            assert sweep.limit == LIMITS[device][sweep.name.rpartition(" by ")[2]]


def test_the_least_of_the_samples_is_judged():
    sweep = steps(1000, 2000)
    rows = measured(sweep, (1, 9))
    rows[1].ours.best = 2
    verdict = judge(sweep, rows, 1)
    assert verdict.violations == []
    assert verdict.worst.amount == 2
    # Beyond the limit as a share of it, whatever the limits are.
    found = [
        sweep_analysis.Finding("step", "a", "b", 3, 1, 3.0, 2.0),
        sweep_analysis.Finding("end", "c", "d", 2, 1, 2.0, 1.25),
    ]
    assert sweep_analysis.worst(found).point == "c"
    assert [each.point for each in sweep_analysis.Verdict(sweep, rows, found).violations] == ["c", "a"]


def test_problems_that_take_longer_than_the_next_larger_one():
    one = selection("one", 100)
    changes = {"wide": {"dtype": "float64"}, "long": {"shape": (1, 200)}, "k": {"k": 9}}
    larger = [replace(one, name=name, **change) for name, change in changes.items()]
    times = {one: 5, **dict(zip(larger, (4, 3, 4.6), strict=True)), replace(one, shape=(1, 300)): 1}
    found = [(each.point, each.other, each.factor) for each in sweep_analysis.inversions(times)]
    assert found == [("long", "one", 3), ("one", "long", 5 / 3), ("one", "wide", 1.25)]


def test_doubtful_points_are_measured_again_and_slow_peers_once():
    """The better time counts, and what a sweep has no time for is skipped."""
    sweep = replace(steps(1000, 2000, 4000), has_peers=True)
    ours, asked, shown = {1000: [0.01], 2000: [0.05, 0.02], 4000: [0.21, 0.3]}, [], []

    def measure(workload, seconds, names):
        asked.append((workload.size, len(names), "torch.topk" in names))
        (row,) = measured(replace(sweep, points=[workload]), [ours[workload.size].pop(0)], torch=[0.2])
        row.outcomes.append(Outcome("torch.sort", "torch", status="skipped", message="too slow here"))
        row.outcomes = [each for each in row.outcomes if each.contender in names]
        return row

    def skipped(workload, message, names):
        row = Row.of(workload)
        row.outcomes = [Outcome(name, name, status="skipped", message=message) for name in sorted(names)]
        return row

    bench = SimpleNamespace(threads=1, measure=measure, skipped=skipped, weight=lambda point: point.size)
    verdict = sweep_analysis.measure(bench, sweep, 60, shown.append)
    first, *others = [(1000, 6, True), (2000, 4, False), (4000, 4, False), (2000, 1, False), (4000, 1, False)]
    assert asked == [first, *others]
    assert [row.ours.best for row in verdict.rows] == [0.01, 0.02, 0.21]
    assert [row.name for row in shown] == [point.name for point in sweep.points]
    none = sweep_analysis.measure(bench, sweep, 0, shown.append).left_out
    assert [row.outcomes[0].message for row in none] == ["out of time"] * 3
    shares = sweep_analysis.shares(bench, [steps(1000), steps(3000), sweep], 110)
    assert [seconds for _, seconds in shares] == pytest.approx([20, 66, 110], rel=1e-3)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")  # what other libraries warn of is theirs
def test_command(bench_command, tmp_path, monkeypatch):
    """Of sweeps with few points, for which there is time enough on any machine."""
    table = [replace(each, points=each.points[:6]) for each in sweeps(CPU) if each.word == "step"]
    monkeypatch.setattr("bench.sweeps.sweeps", lambda device: table)
    options = ("--operator", "diagonal_matrix", "--threads", "1", "--seconds", "600", "--json", "a.json")
    code, printed, said = bench_command("sweep", *options)
    assert code == 0, printed
    record = json.loads((tmp_path / "a.json").read_text())
    names = [name for sweep in record["sweeps"] for name in sweep["points"]]
    assert names == [row["name"] for row in record["workloads"]]
    assert {row["operator"] for row in record["workloads"]} == {"diagonal_matrix"}
    assert record["workloads"][0]["outcomes"][0]["status"] == "ok"
    assert "points; " in printed
    assert "diagonal by side, causal mask: 1: " in said


PRINTED = """\
Sweeps

sweep | points | limit | worst | where

steps | 8 | 2 x | 2.25 x | 1000 9 s, 2000 4 s
kinds | 2 | 1.15 x | 1.10 x | X
X 2.2 s, normal 2 s
last | 1 | 2 x

Beyond the limits

what | sweep | where | factor | limit

torch | steps | 128000 30 s, torch.topk 234 ms | 130 x | 1.05 x
torch | steps | 64000 20 s, torch.topk 312 ms | 64.0 x | 1.05 x
torch | steps | 32000 10 s, torch.topk 312 ms | 32.0 x | 1.05 x
torch | steps | 16000 9 s, torch.topk 562 ms | 16.0 x | 1.05 x
torch | steps | 8000 8 s, torch.topk 1 s | 8.00 x | 1.05 x
step | steps | 1000 9 s, 2000 4 s | 2.25 x | 2 x
torch | steps | and 2 more points
memory | last | 1000000 3.1 MB, what it may take 2.6 MB | 1.21 x | 1 x

no room: 1 point, last: 1000001 the first of them
11 points; worst step 2.25 x at steps: 1000; worst kind 1.10 x at kinds: X; \
2 beyond the limit; slower than torch at 7 of 8, most at steps: 128000 (130 x).
"""


def test_what_the_command_prints(bench_command, monkeypatch):
    sizes = [1000 << number for number in range(8)]
    kinds = [selection(f"kinds: {name}", 99, data=name) for name in ("normal", "x" * 120)]
    table = [
        replace(steps(*sizes), has_peers=True),
        Kinds(name="kinds", points=tuple(kinds), limit=1.15, per_byte=True),
        Steps(name="last", points=tuple(selection(f"last: {size}", size) for size in (10**6, 10**6 + 1))),
    ]
    ours = dict(zip(sizes, (9, 4, 6, 8, 9, 10, 20, 30), strict=True)) | {99: 2, 10**6: 6}

    def measure(workload, seconds, names):
        size = workload.size
        (row,) = measured(Steps(name="", points=(workload,)), [ours.get(size)])
        row.outcomes[0].scratch = 3 * MIB * (size == 10**6)
        if size == 10**6 + 1:
            row.outcomes = [Outcome("dmlops", "dmlops", status="failed", message="no room")]
        elif workload is kinds[1]:
            row.outcomes[0].best = 2.2
        elif size in sizes:
            seconds = ours[size] / (1.01 if size == 1000 else size / 1000)
            row.outcomes.append(Outcome("torch.topk", "torch", seconds=seconds, best=seconds))
        return row

    bench = SimpleNamespace(threads=2, bandwidth=1, measure=measure, weight=lambda point: 1)
    monkeypatch.setattr("bench.sweeps.sweeps", lambda device: table)
    monkeypatch.setattr("bench.commands.measuring.open_bench", lambda *_: bench)
    code, printed, said = bench_command("sweep")
    assert (code, len(said.splitlines())) == (0, 12)
    assert len(printed.splitlines()[0]) == 120
    assert re.sub("x{9,}", "X", "\n".join(cells_of(printed))) + "\n" == PRINTED
    seen = seen_on_a_terminal(monkeypatch, bench_command, "sweep")
    assert (len(seen["red"]), seen["green"]) == (8, ["1.10 x"])
    assert seen["progress"] == [(12, 12, "last: 1000001")]
