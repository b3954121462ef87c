"""The benchmark: its tables, the answers of all contenders, its time budget, and its output."""

import json
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import dmlops
from bench import answers, data, libraries, peers, report, runner, timing
from bench.peers import Contender, Task, contenders
from bench.runner import Bench, Outcome, Row
from bench.workload_table import workloads
from bench.workloads import (
    CPU,
    CUDA,
    DiagonalMatrix,
    GatherND,
    NonzeroCoordinates,
    TopK,
)
from tests.command_line import end_of, kill_group, start_python, wait_for

SMALL = [
    TopK(name="rows", reason="", shape=(3, 50), k=4),
    TopK(name="columns", reason="", shape=(20, 5), k=20, axis=0),
    TopK(name="integers", reason="", shape=(2, 300), dtype="int32", k=7),
    NonzeroCoordinates(name="mask", reason="", shape=(6, 7, 8), dtype="uint8", density=0.3),
    NonzeroCoordinates(name="new", reason="", shape=(90,), density=0.3, given=False),
    GatherND(name="batch", reason="", shape=(4, 5, 6, 3), tuples=9, coordinates=2, batch_dims=1),
    GatherND(name="flat", reason="", shape=(40,), tuples=9, coordinates=1, batch_dims=0),
    GatherND(
        name="checked",
        reason="",
        shape=(40,),
        tuples=9,
        coordinates=1,
        batch_dims=0,
        index_dtype="int64",
        mode="raise",
    ),
    DiagonalMatrix(name="triangle", reason="", shape=(2, 8, 8), begin=1, end=2**31),
    DiagonalMatrix(name="band", reason="", shape=(8, 9), begin=-2, end=3, value=0.5),
]
RESULTS = Path(__file__).parent.parent / "bench" / "results"
PAIRS = ("top_k", "nonzero_coordinates")


def small_task(workload):
    return Task(workload, workload.inputs(data.NumPySource()), 1)


def reference(task):
    """Return the answer in NumPy's words."""
    workload, x = task.workload, task.inputs[0]
    if workload.operator == "top_k":
        return np.flip(np.sort(x, axis=workload.axis), workload.axis).take(range(workload.k), workload.axis)
    if workload.operator == "nonzero_coordinates":
        return np.argwhere(x)
    if workload.operator == "gather_nd":
        return x[peers.index_key(task)]
    return np.where(peers.band_mask(task), np.float32(workload.value), x)


def every_contender():
    for workload in SMALL:
        for who in contenders(workload.operator, CPU):
            yield pytest.param(workload, who, id=f"{workload.name}-{who.name}")


@pytest.mark.parametrize(("workload", "who"), list(every_contender()))
@pytest.mark.filterwarnings("ignore")  # what other libraries warn of is theirs
def test_every_contender_gives_the_answer(workload, who):
    if reason := libraries.missing(who.library, CPU):
        pytest.skip(reason)
    task = small_task(workload)
    try:
        call = who.prepare(task)
    except libraries.NotServedError as error:
        pytest.skip(f"not served: {error}")
    answer = call()
    expected = reference(task)
    if who.library == "onnxruntime":
        answer = [value.numpy() for value in answer.get_outputs()]
    first = (
        answer[0]
        if isinstance(answer, (tuple, list)) and workload.operator != "nonzero_coordinates"
        else answer
    )
    if workload.operator == "nonzero_coordinates":
        first = {
            "jax": lambda: np.stack(answer, axis=-1),
            "onnxruntime": lambda: answer[0].T,
            "dmlops": lambda: answer.coordinates,
        }.get(who.library, lambda: answer)()
    if who.name.startswith("bottleneck"):
        first = np.flip(np.sort(first, axis=workload.axis), workload.axis)
    np.testing.assert_array_equal(libraries.to_numpy(first).reshape(expected.shape), expected)
    if who.is_ours:
        assert answers.fault(task, answer) is None


@pytest.mark.parametrize("workload", SMALL, ids=lambda workload: workload.name)
@pytest.mark.filterwarnings("ignore")
def test_torch_tensors_as_on_a_gpu(workload):
    pytest.importorskip("torch")
    task = Task(workload, workload.inputs(data.TorchSource("cpu")), 1)
    expected = reference(Task(workload, tuple(map(libraries.to_numpy, task.inputs)), 1))
    for who in contenders(workload.operator, CUDA):
        if libraries.missing(who.library, CPU):
            continue
        try:
            answer = who.prepare(task)()
        except libraries.NotServedError:
            continue
        if who.is_ours:
            assert answers.fault(task, answer) is None
            assert answers.fault(
                task, tuple(array * 0 for array in answer) if workload.operator in PAIRS else answer * 0
            )
        if workload.operator == "nonzero_coordinates":
            answer = np.stack(answer, axis=-1) if who.library == "jax" else answer
            answer = answer[0] if who.is_ours else answer
        elif workload.operator == "top_k":
            answer = libraries.to_numpy(answer[0]).take(range(workload.k), workload.axis)
        np.testing.assert_array_equal(libraries.to_numpy(answer).reshape(expected.shape), expected)


@pytest.mark.parametrize("workload", SMALL, ids=lambda workload: workload.name)
def test_wrong_answers_are_seen(workload):
    task = small_task(workload)
    right = contenders(workload.operator, CPU)[0].prepare(task)()
    results = right if isinstance(right, tuple) else (right,)
    for position in range(len(results)):
        wrong = [array.copy() for array in results]
        wrong[position].reshape(-1)[-1] += 1
        assert answers.fault(task, tuple(wrong))


def test_a_tie_out_of_order_is_seen():
    workload = TopK(name="ties", reason="", shape=(1, 40), data="constant", k=2)
    task = small_task(workload)
    values = np.ones((1, 2), np.float32)
    assert answers.fault(task, (values, np.array([[0, 1]], np.uint32))) is None
    assert answers.fault(task, (values, np.array([[1, 0]], np.uint32)))
    assert answers.fault(task, (values, np.array([[0, 2]], np.uint32)))


@pytest.mark.parametrize("name", ["ties", "ascending", "descending", "constant", "relu", "nan"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_distributions(name, dtype):
    workload = TopK(name=name, reason="", shape=(3, 200), data=name, dtype=dtype, k=5)
    task = small_task(workload)
    (x,) = task.inputs
    assert (x.shape, x.dtype.name) == (workload.shape, dtype)
    assert answers.fault(task, dmlops.top_k(x, 5)) is None


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_tables(device):
    table = workloads(device)
    operators = {workload.operator for workload in table}
    assert operators == {"top_k", "nonzero_coordinates", "gather_nd", "diagonal_matrix"}
    for workload in table:
        assert workload.device == device
        assert workload.reason
        assert workload.bytes_moved > 0
    for operator in operators:
        assert any(workload.operator == operator and workload.quick for workload in table)
        first, *others = contenders(operator, device)
        assert first.name == "dmlops"
        assert {who.library for who in others} >= {"torch", "jax"}


def test_bytes_moved():
    found = [workload.bytes_moved for workload in SMALL[-5:]]
    batch = 4 * 9 * (2 * 4 + 2 * 3 * 4)
    flat = 9 * (4 + 2 * 4)
    triangle = 2 * 4 * (2 * 64 - 28)
    band = 4 * (2 * 72 - (3 + 4 + 5 + 5 + 5 + 5 + 5 + 4))
    assert found == [batch, flat, flat, triangle, band]
    assert SMALL[0].bytes_moved == 4 * 150 + 3 * 4 * 8


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr(timing, "COPY_BYTES", 1 << 16)
    before = dmlops.get_num_threads()
    yield Bench(CPU, 1)
    dmlops.set_num_threads(before)


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
    (row,) = bench.run(SMALL[:1], 2)
    ours, failed, failed_later, peer = row.outcomes
    assert (failed.status, failed.message) == ("failed", "RuntimeError: no more")
    assert (failed_later.status, failed_later.message) == ("failed", "StopIteration")
    assert (ours.status, peer.status, row.best_peer) == ("ok", "ok", peer)
    assert row.ratio == peer.seconds / ours.seconds > 1
    assert json.loads(json.dumps(row.to_json()))["best_peer"] == "peer.2"


def test_a_wrong_answer_of_ours_is_told(bench, monkeypatch):
    monkeypatch.setattr(answers, "fault", lambda task, answer: "not sorted")
    monkeypatch.setattr(runner, "contenders", table_of())
    (row,) = bench.run(SMALL[:1], 1)
    assert (row.outcomes[0].status, row.outcomes[0].message) == ("wrong", "not sorted")
    assert row.ours.seconds > 0


def test_what_time_does_not_suffice_for_is_skipped(bench):
    rows = list(bench.run(SMALL, 0))
    assert len(rows) == len(SMALL)
    assert {outcome.message for row in rows for outcome in row.outcomes} == {"out of time"}


def test_slow_peers_get_fewer_samples():
    lanes = [timing.Lane(lambda: time.sleep(0.7)), timing.Lane(lambda: None)]
    # Half a second of other work leaves the fast one its samples.
    timing.take_turns(lanes, timing.HostClock(1), 0.4)
    assert len(lanes[0].samples) == 1
    assert lanes[0].median() >= 0.7
    assert len(lanes[1].samples) >= timing.MIN_SAMPLES


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_the_kernels_of_the_clock_compile(arch):
    pytest.importorskip("cuda.bindings")
    assert timing.clock_code(arch).code


@pytest.mark.filterwarnings("ignore")
def test_command_and_report(bench_command, tmp_path):
    options = ("--workload", "small", "--threads", "1", "--seconds", "400", "--json", "a.json")
    code, printed, _ = bench_command("run", *options)
    assert code == 0, printed
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["command"].startswith("python -m bench run --workload small")
    assert {"cpu", "cores"} <= set(record["machine"])
    assert {"dmlops", "numpy", "numba"} <= set(record["versions"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*\+00:00", record["date"])
    assert record["bandwidth"] > 0
    assert len(record["workloads"]) == 4
    for row in record["workloads"]:
        assert row["outcomes"][0]["status"] == "ok"
        assert row["ratio"] > 0
        assert row["name"] in printed

    pytest.importorskip("matplotlib")
    (tmp_path / "b.json").write_text((tmp_path / "a.json").read_text())
    assert bench_command("report", "a.json", "b.json", "-o", "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 5
    assert "small 1 x 1000" in page
    assert not re.search(r'(src|href)="(?!#)', page)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("run", "--operator", "sort"), "'sort' is not one of 'top_k'"),
        (("run", "--threads", "0"), "--threads"),
        (("sweep", "--seconds", "nan"), "--seconds"),
        (("report", "."), ".: Is a directory"),
    ],
)
def test_what_the_command_refuses(bench_command, arguments, told):
    code, _, complaint = bench_command(*arguments)
    assert code > 0
    assert told in complaint


@pytest.mark.parametrize("workload", [("nothing",), ("small", "nothing"), ("nothing", "small")])
def test_an_unknown_workload_is_answered_with_the_names(bench_command, workload):
    options = [option for name in workload for option in ("--workload", name)]
    code, printed, error = bench_command("run", *options)
    assert code == 1
    assert printed.splitlines() == [row.name for row in workloads(CPU)]
    assert error == (
        "dmlops: --workload nothing: no workload has this in its name; standard output lists the names\n"
    )
    _, printed, _ = bench_command("run", "--quick", "--operator", "gather_nd", *options)
    names = [row.name for row in workloads(CPU) if row.quick and row.operator == "gather_nd"]
    assert printed.splitlines() == names


def test_the_tables_of_the_readme_have_the_names_of_workloads():
    text = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    gpu, cpu = re.findall(r"^\| Workload \|.*\n\|.*\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    for device, table in ((CUDA, gpu), (CPU, cpu)):
        told = re.findall(r"^\| (.*?) \|", table, flags=re.MULTILINE)
        assert len(told) > 5
        assert set(told) <= {row.name for row in workloads(device)}


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


def test_an_interrupted_run_keeps_its_finished_rows(tmp_path):
    options = ("run", "--workload", "sweep", "--threads", 1, "--json", "r.json")
    process = start_python("-m", "bench", *options, folder=tmp_path)
    results = tmp_path / "r.json"

    def has_rows():
        assert process.poll() is None
        return results.exists() and len(json.loads(results.read_text())["workloads"]) >= 2

    try:
        wait_for(has_rows)
        process.send_signal(signal.SIGINT)
        code, error = end_of(process)
    finally:
        kill_group(process)
    assert code == 130
    *lines, last = error.splitlines()
    assert last == "dmlops: interrupted"
    kept = [row["name"] for row in json.loads(results.read_text())["workloads"]]
    # A row is kept before it is printed.
    assert len(lines) <= len(kept) <= len(lines) + 1


@pytest.mark.parametrize(("text", "told"), [(None, "No such file"), ("{}", "no results"), ("[", "Expecting")])
def test_what_the_report_refuses(bench_command, tmp_path, text, told):
    if text is not None:
        (tmp_path / "a.json").write_text(text)
    code, _, complaint = bench_command("report", "a.json")
    assert code == 1
    assert told in complaint


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_results_that_are_quoted_are_right(path):
    report.check(json.loads(path.read_text()))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"machine": {}}, "machine: there is no cpu"),
        ({"workloads": [7]}, "workloads[0]: it is a whole number; it must be an object"),
        ({"bandwidth": "fast"}, "bandwidth is a string; it must be a number"),
        ({"bandwidth": float("nan")}, "bandwidth is out of range"),
        ({"threads": True}, "threads is true or false; it must be a whole number"),
        ({"format": 2}, "no results of this version"),
    ],
)
def test_damaged_results_are_refused(bench_command, tmp_path, change, reason):
    (tmp_path / "a.json").write_text(json.dumps(RECORD | change))
    code, _, complaint = bench_command("report", "a.json")
    assert code == 1
    assert reason in complaint


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


def test_the_table_of_all_times():
    row = Row.of(SMALL[0])
    row.bytes_moved, row.reason = 2_000_000, "<why>"
    row.outcomes = [
        Outcome("dmlops", "dmlops", seconds=2e-3, host=3e-6, wall=4e-3),
        Outcome("torch.topk", "torch", note="a <note>", seconds=5e-3, low=4e-3, high=6e-3),
        Outcome("jax.lax.top_k", "jax", status="failed", message="no room"),
    ]
    record = RECORD | {"bandwidth": 4e9, "workloads": [row.to_json()]}

    def cells(device):
        page = report.all_times(record | {"device": device})
        lines = re.findall("<tr.*?</tr>", page)
        return [re.sub("(<[^>]*>)+", "|", line).strip("|").split("|") for line in lines]

    assert cells(CPU) == [
        ["workload", "contender", "time", "GB/s", "of copy", "dmlops is"],
        ["rows", "&lt;why&gt;", "dmlops", "2 ms", "1.0", "25%"],
        ["torch.topk", "a &lt;note&gt;", "5 ms", "4 ms to 6 ms", "0.4", "10%", "2.50 x"],
        ["jax.lax.top_k", "failed: no room"],
    ]
    header, ours, *_ = cells(CUDA)
    assert header[2:5] == ["GPU time", "host", "wall"]
    assert ours[2:6] == ["dmlops", "2 ms", "3 us", "4 ms"]


def test_the_report_without_matplotlib(bench_command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (tmp_path / "a.json").write_text(json.dumps(RECORD))
    assert bench_command("report", "a.json")[::2] == (
        1,
        'dmlops: bench report: matplotlib is not installed: pip install ".[bench]"\n',
    )


def test_a_run_that_was_cut_short_has_a_report():
    pytest.importorskip("matplotlib")
    row = Row.of(SMALL[0])
    record = RECORD | {"workloads": [row.to_json()]}
    report.check(record)
    page = report.render([record], ["a.json"])
    assert "a &lt;processor&gt;" in page


def record_of(ours, peer, **spread):
    """Return results of one workload that was timed, and of one that was not."""
    row, late = Row.of(SMALL[0]), Row.of(SMALL[1])
    row.outcomes = [
        Outcome("dmlops", "dmlops", seconds=ours, **spread),
        Outcome("numpy.sort", "numpy", seconds=9e3),
        Outcome("torch.topk", "torch", seconds=peer, **spread and {"low": peer / 2, "high": peer * 2}),
    ]
    late.outcomes = [Outcome("dmlops", "dmlops", status="skipped", message="out of time")]
    return RECORD | {"workloads": [row.to_json(), late.to_json()]}


def labels(page):
    """Return the texts of plots."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", page)


def test_what_the_plots_are_labelled_with():
    pytest.importorskip("matplotlib")
    page = report.render([record_of(2e-3, 5e-3), record_of(1e-3, 5e-4)], ["before.json", "after.json"])
    found = labels(page)
    for text in ("2.00 x", "2.50 x", "0.50 x", "torch.topk", "5 ms", "2 ms", "500 us", "rows"):
        assert text in found
    assert "quartiles" not in found
    assert "dmlops: time in before.json / time in after.json" in found
    assert "0.8" in found
    assert not [text for text in found if re.fullmatch(r"\de.?\d+", text)]
    for sentence in (
        "dmlops in after.json is as fast as in before.json or faster in 1 of 1 workload, in the median 2.00 ",
        "dmlops is the fastest in 1 of 1 workload. In the median, the best peer takes 2.50 times as long; ",
        "dmlops is the fastest in 0 of 1 workload. ",
        " 1 workload could not be timed: out of time.",
    ):
        assert sentence in page


def test_large_ratios_are_written_out_with_their_spread():
    pytest.importorskip("matplotlib")
    found = labels(report.render([record_of(1e-3, 5.123, low=0.9e-3, high=1.1e-3)], ["a.json"]))
    assert "5,100 x" in found
    assert "2,300 to 11,000" in found
    assert not [text for text in found if re.search(r"\de\+?\d|\dk", text)]


def test_the_quartiles_of_times():
    lane = timing.Lane(lambda: None, samples=[timing.Sample(float(time)) for time in (5, 1, 2, 3, 4)])
    assert lane.quartiles() == (2, 4)
    lane.samples = lane.samples[:1]
    assert lane.quartiles() == (5, 5)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_main_picture_of_a_run(bench_command, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    (tmp_path / "a.json").write_text(json.dumps(record_of(1e-3, 3e-3)))
    assert bench_command("report", "a.json", "-o", f"a.{suffix}")[0] == 0
    content = (tmp_path / f"a.{suffix}").read_bytes()
    if suffix == "svg":
        assert {"3.00 x", "torch.topk"} <= set(labels(content.decode()))
    else:
        assert content.startswith(b"\x89PNG\r\n")


def test_other_names_of_pages_are_refused(bench_command, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.json").write_text(json.dumps(RECORD))
    refusals = {
        "a.json -o a.pdf": "-o a.pdf: the name of the file must end with .html, or with .svg or .png for a ",
        "a.json b.json -o a.png": "-o a.png: a picture is about one run",
    }
    for line, told in refusals.items():
        code, _, error = bench_command("report", *line.split())
        assert code == 1
        assert error.startswith(f"dmlops: {told}")
    assert len(list(tmp_path.iterdir())) == 2


def test_names_in_plots_are_no_formulas():
    pytest.importorskip("matplotlib")
    record = json.loads(min(RESULTS.glob("epyc-2threads*.json")).read_text())
    name = r"$\frac{$ [x] é漢 \0"
    row = next(row for row in record["workloads"] if row["series"])
    row["name"] = row["series"] = row["outcomes"][0]["library"] = row["outcomes"][1]["contender"] = name
    row["best_peer"] = name
    record["workloads"] = [row]
    assert report.render([record, record], [name, name]).count(r"$\frac{$ [x] é漢") > 5
