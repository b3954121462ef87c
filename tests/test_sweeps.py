"""Sweeps: the coverage of the table, the judgement of cliffs, and the command."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import dmlops
from bench import answers, data, libraries, runner, sweep_analysis, timing
from bench.peers import Task, contenders
from bench.runner import Bench, Outcome, Row
from bench.sweep_analysis import judge
from bench.sweeps import LIMITS, Kinds, Steps, sweeps
from bench.workloads import CPU, CUDA, DiagonalMatrix, GatherND, NonzeroCoordinates, TopK

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
    sweep = steps(8 * MIB)
    allowed = 4 * MIB + 2 * MIB
    (finding,) = judge(sweep, measured(sweep, (1,), scratch=allowed), 2).findings
    assert (finding.what, finding.factor) == ("memory", 1)
    assert not finding.is_violation
    assert judge(sweep, measured(sweep, (1,), scratch=allowed + 1), 2).violations


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_the_table(device):
    table = sweeps(device)
    points = [point for sweep in table for point in sweep.points]
    assert len({sweep.name for sweep in table}) == len(table)
    assert len({point.name for point in points}) == len(points)
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


@pytest.mark.parametrize("layout", data.LAYOUTS)
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    "workload",
    [
        TopK(name="", reason="", shape=(5, 90), k=7),
        TopK(name="", reason="", shape=(3, 20, 4), k=7, axis=1, largest=False),
        NonzeroCoordinates(name="", reason="", shape=(9, 70), density=0.3),
        NonzeroCoordinates(name="", reason="", shape=(70,), density=0.3),
        GatherND(name="", reason="", shape=(20, 6), tuples=9, coordinates=1, batch_dims=0),
        DiagonalMatrix(name="", reason="", shape=(8, 9), begin=1, end=2**31),
    ],
    ids=lambda workload: f"{workload.operator}-{len(workload.shape)}",
)
def test_layouts(workload, layout, library):
    if library == "torch":
        pytest.importorskip("torch")
    source = data.NumPySource() if library == "numpy" else data.TorchSource("cpu")
    plain = workload.inputs(source)[0]
    moved = source.laid_out(plain, layout)
    np.testing.assert_array_equal(libraries.to_numpy(moved), libraries.to_numpy(plain))
    steps = [stride // plain.itemsize for stride in libraries.to_numpy(moved).strides]
    if layout == "strided":
        assert steps[-1] == 2
    if layout == "transposed" and plain.ndim > 1:
        assert steps[-2] == 1
    kept = {**workload.__dict__, "layout": layout}
    laid_out = type(workload)(**kept)
    inputs = laid_out.inputs(source)
    copies = laid_out.copies(source, inputs)
    for given, copy in zip(inputs, copies, strict=True):
        assert libraries.to_numpy(given).strides == libraries.to_numpy(copy).strides
        assert libraries.to_numpy(given).ctypes.data != libraries.to_numpy(copy).ctypes.data
    ours = contenders(workload.operator, CPU)[0]
    task = Task(laid_out, copies, 1)
    assert answers.fault(task, ours.prepare(task)()) is None


def test_the_memory_of_a_call_is_that_of_a_first_one():
    def call():
        return np.ones(MIB, np.uint8)

    assert MIB <= timing.host_scratch(call) < 2 * MIB
    x = np.random.default_rng(0).random((1, 1 << 16), np.float32)
    out = np.empty((1, 1 << 16), np.float32), np.empty((1, 1 << 16), np.uint32)
    for _ in range(2):
        dmlops.top_k(x, 1 << 16, out=out)
    own = [timing.host_scratch(lambda: dmlops.top_k(x, 1 << 16, out=out)) for _ in range(2)]
    assert max(own) < 1.2 * min(own)
    assert min(own) >= x.nbytes


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr(timing, "COPY_BYTES", 1 << 16)
    before = dmlops.get_num_threads()
    yield Bench(CPU, 1, sweep_analysis.pace(CPU))
    dmlops.set_num_threads(before)


def clocked(bench, monkeypatch, times):
    """Let the bench measure what is written; return the names that it was asked for."""
    asked = []

    def measure(workload, seconds, names):
        asked.append((workload.size, sorted(names)))
        row = Row.of(workload)
        for name in sorted(names):
            told = times[workload.size].get(name, 1e-3)
            told = told.pop(0) if isinstance(told, list) else told
            row.outcomes.append(Outcome(name, name.partition(".")[0], seconds=told, best=told))
        return row

    monkeypatch.setattr(bench, "measure", measure)
    return asked


def test_doubtful_points_are_measured_twice(bench, monkeypatch):
    times = {size: {"dmlops": [size * 1e-6, size * 1e-6]} for size in (1000, 2000, 4000, 8000)}
    times[2000]["dmlops"] = [1.0, 2e-3]
    times[8000]["dmlops"] = [1.0, 0.9]
    asked = clocked(bench, monkeypatch, times)
    told = []
    verdict = sweep_analysis.measure(bench, steps(1000, 2000, 4000, 8000), 60, told.append)
    assert [size for size, _ in asked] == [1000, 2000, 4000, 8000, 2000, 8000]
    assert [(each.point, each.amount) for each in verdict.violations] == [("steps: 8000", 0.9)]
    assert [row.size for row in told] == [1000, 2000, 4000, 8000]


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


def test_each_sweep_gets_its_share(bench, monkeypatch):
    monkeypatch.setattr(sweep_analysis, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    table = [steps(1000), steps(1000, 1000), steps(1000)]
    given = [seconds for _, seconds in sweep_analysis.shares(bench, table, 40)]
    # No sweep used any time, so the last one may use all of it.
    assert given == pytest.approx([sweep_analysis.SLACK * 10, 40, 40], abs=0.01)
    beside = Steps(name="steps", points=table[0].points, has_peers=True)
    given = [seconds for _, seconds in sweep_analysis.shares(bench, [beside, steps(*[1000] * 6)], 40)]
    assert given[0] == pytest.approx(sweep_analysis.SLACK * 10, abs=0.01)


def test_a_lost_gpu_ends_nothing(bench, monkeypatch):
    def measure(*arguments):
        message = "the GPU was lost"
        raise runner.DeviceLostError(message)

    monkeypatch.setattr(bench, "measure", measure)
    verdict = sweep_analysis.measure(bench, steps(1000), 60, lambda row: None)
    assert verdict.left_out[0].outcomes[0].message == "the GPU was lost"


@pytest.fixture
def few_points(monkeypatch):
    """Let each sweep have few points, for which there is time enough on any machine."""
    table = [replace(each, points=each.points[:6]) for each in sweeps(CPU) if each.word == "step"]
    monkeypatch.setattr("bench.sweeps.sweeps", lambda device: table)


@pytest.mark.parametrize("has_torch", [True, False])
@pytest.mark.filterwarnings("ignore")  # what other libraries warn of is theirs
def test_command(bench_command, few_points, tmp_path, monkeypatch, has_torch):
    if not has_torch:
        monkeypatch.setattr(
            libraries, "missing", lambda library, device: "no" if library == "torch" else None
        )
    options = ("--operator", "diagonal_matrix", "--threads", "1", "--seconds", "600", "--json", "a.json")
    code, printed, said = bench_command("sweep", *options)
    assert code == 0, printed
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["device"] == CPU
    names = [name for sweep in record["sweeps"] for name in sweep["points"]]
    assert names == [row["name"] for row in record["workloads"]]
    assert {row["operator"] for row in record["workloads"]} == {"diagonal_matrix"}
    assert record["workloads"][0]["at"] == 1
    assert record["workloads"][0]["outcomes"][0]["status"] == "ok"
    assert "points; " in printed
    assert "diagonal by side, causal mask: 1: " in said
    if not has_torch:
        assert "torch not timed" in printed

    pytest.importorskip("matplotlib")
    assert bench_command("report", "a.json")[0] == 0
    assert "diagonal by side" in (tmp_path / "a.html").read_text()


def test_the_command_says_wrong_answers(bench_command, few_points, monkeypatch):
    monkeypatch.setattr(answers, "fault", lambda task, answer: "not sorted")
    code, _, said = bench_command("sweep", "--operator", "diagonal_matrix", "--seconds", "600")
    assert code == 1
    assert "wrong answer" in said


def test_what_the_command_refuses(bench_command):
    code, _, said = bench_command("sweep", "--operator", "sort")
    assert code == 2
    assert "'sort' is not one of 'top_k'" in said
