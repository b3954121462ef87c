"""`python -m bench run`: measure dmlops beside other libraries, on the problems of a suite."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench import records
from bench.commands.options import Operator, Seconds, Where, json_option, names_option
from bench.report import line, print_report, why_not
from dmlops import get_num_threads
from dmlops.cli.console import err, out
from dmlops.cli.ending import fail
from dmlops.cli.outputs import check_output

if TYPE_CHECKING:
    from bench.records import Record
    from bench.runner import Bench
    from bench.suites import Suite
    from bench.workloads import Workload

QUICK_SECONDS = 72.0
AGAIN_SECONDS = 1.0


def run(
    suite: Annotated[
        str,
        typer.Option(metavar="NAME", help="One of operators, serving, sampling, rows, data, layouts, sizes."),
    ] = "operators",
    device: Annotated[Where, typer.Option(help="The device to measure on.")] = Where.CPU,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", show_default="all", help="Threads for every library.")
    ] = None,
    operator: Annotated[
        list[Operator] | None, names_option("--operator", f"One of {', '.join(Operator)}")
    ] = None,
    workload: Annotated[
        list[str] | None,
        names_option("--workload", "Only workloads with this text in their name", "TEXT"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the most telling workloads, in 90 seconds.")
    ] = False,
    seconds: Seconds = None,
    results: Annotated[Path | None, json_option("Write the results to this file.")] = None,
) -> None:
    """Compare dmlops with the other libraries that are installed, each in its best form.

    The suites: all operators, the top-k of serving language models on a GPU, tokens of language
    models, and sweeps of dmlops alone through windows and segments, kinds of data, types and layouts, and
    sizes, which look for slow cases.
    """
    from bench.libraries import NOT_INSTALLED  # noqa: PLC0415 - for this command only
    from bench.suites import SUITES  # noqa: PLC0415
    from bench.sweeps import to_json  # noqa: PLC0415

    if suite not in SUITES:
        fail(f"--suite: got {suite!r}; it must be one of {', '.join(SUITES)}")
    chosen = SUITES[suite]
    table = _chosen(chosen.workloads(device), operator or [*Operator], workload or [], quick)
    if results is not None:
        check_output("--json", results)
    started = time.perf_counter()
    deadline = started + (seconds or (QUICK_SECONDS if quick else chosen.seconds[device]))
    record = records.new_record(device, threads or get_num_threads(), quick)
    harness = open_bench(device, record["threads"], chosen.pace(device))
    record["bandwidth"] = harness.bandwidth
    rows = record["workloads"]
    missing: set[str] = set()
    try:
        for measured in harness.run(table, deadline - time.perf_counter(), chosen.contenders(device)):
            row = measured.to_json()
            rows.append(row)
            missing |= {each.message for each in measured.outcomes if each.message.endswith(NOT_INSTALLED)}
            record["left_out"] = sorted(missing)
            err.print(line(row))
        if found := chosen.compared(device, rows):
            doubtful = {each.point for each in found if each.factor > each.limit}
            _measure_again(chosen, harness, [each for each in table if each.name in doubtful], deadline, rows)
            record["sweeps"] = to_json(chosen.compared(device, rows))
    finally:  # an interrupted run keeps what it measured
        record["seconds"] = round(time.perf_counter() - started, 1)
        if results is not None:
            records.write(results, records.text_of(record))
    print_report(record)
    if results is not None:
        out.print(f"Results: {results}. To print them again: python -m bench report {results}")
    _check(rows)


def _chosen(
    table: Sequence["Workload"], operators: Sequence[str], texts: Sequence[str], quick: bool
) -> list["Workload"]:
    """Return the workloads that the options choose; list all names if a text is in none."""
    # Calls with windows or numbers are calls of `top_k`.
    of_operators = (each for each in table if each.operator.removesuffix("_rows") in operators)
    table = [each for each in of_operators if each.quick or not quick]
    for text in texts:
        if not any(text in each.name for each in table):
            for each in table:
                out.print(each.name)
            fail(f"--workload {text}: no name of a workload has it; standard output lists the names")
    return [each for each in table if not texts or any(text in each.name for text in texts)]


def open_bench(device: str, threads: int, pace: Any) -> "Bench":
    """Return the bench of a device; fail if no installed library has arrays on it."""
    from bench.libraries import NotServedError  # noqa: PLC0415 - for this command only
    from bench.runner import Bench  # noqa: PLC0415

    try:
        return Bench(device, threads, pace)
    except NotServedError as error:
        fail(f"bench --device {device}: {error}")


def _measure_again(
    suite: "Suite", harness: "Bench", doubtful: Sequence["Workload"], deadline: float, rows: list["Record"]
) -> None:
    """Measure points beyond a limit once more; the better time counts."""
    places = {row["name"]: place for place, row in enumerate(rows)}
    left = min(deadline - time.perf_counter(), AGAIN_SECONDS * len(doubtful))
    for row in harness.run(doubtful, left, suite.contenders(harness.device)):
        again, before = row.to_json(), rows[places[row.workload.name]]
        if (records.least_of(again) or float("inf")) < (records.least_of(before) or 0.0):
            rows[places[row.workload.name]] = again


def _check(rows: Sequence["Record"]) -> None:
    """Raise an error if dmlops gave a wrong answer, or was not timed at all."""
    if any(each.get("status") == "wrong" for row in rows for each in row["outcomes"]):
        fail("bench run: dmlops gave a wrong answer; please report it, with `dmlops info`")
    if all(records.seconds_of(row) is None for row in rows):
        reasons = Counter(why_not(row) for row in rows) or Counter(["the suite has none"])
        fail(f"bench run: no workload was measured: {reasons.most_common(1)[0][0]}")
