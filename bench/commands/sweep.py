"""`python -m bench sweep`: look for sizes and kinds of data for which an operator is much slower."""

import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from bench.commands import measuring
from bench.commands.measuring import Operator, OperatorOption, Seconds, Where, json_option
from bench.digits import times
from dmlops import get_num_threads
from dmlops.cli.console import duration, err, out, plain_console
from dmlops.cli.outputs import check_output
from dmlops.types.errors import counted

if TYPE_CHECKING:
    from bench.runner import Row
    from bench.sweep_analysis import Finding, Verdict

SECONDS = {"cpu": 240.0, "cuda": 150.0}
MOST_BESIDE_TORCH = 5  # points of a sweep that are slower than torch; the results file has all of them


def sweep(
    device: Annotated[Where, typer.Option(help="The device to measure on.")] = Where.CPU,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", show_default="all", help="Threads for dmlops and torch.")
    ] = None,
    operator: OperatorOption = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="TEXT",
            show_default=False,
            help="Only sweeps with this text in their name; may be repeated.",
        ),
    ] = None,
    seconds: Seconds = None,
    results: Annotated[Path | None, json_option("Write all points to this file.")] = None,
) -> None:
    """Look for cliffs in size, k and number of rows, and in kind of data, type and layout."""
    from bench import sweep_analysis  # noqa: PLC0415 - for this command only
    from bench.sweeps import sweeps  # noqa: PLC0415

    operators = operator or [*Operator]
    table = [each for each in sweeps(device) if each.operator in operators]
    if part:
        table = measuring.named(table, part, "--sweep")
    if results is not None:
        check_output("--json", results)
    started = time.perf_counter()
    record = measuring.new_record(device, threads or get_num_threads())
    verdicts: list[Verdict] = []
    with measuring.progress_bar() as progress:
        task = progress.add_task("copy bandwidth", total=sum(len(each.points) for each in table))
        harness = measuring.open_bench(device, record["threads"], sweep_analysis.pace(device))
        record["bandwidth"] = harness.bandwidth

        def show(row: "Row") -> None:
            progress.update(task, advance=1, description=row.name)
            if not measuring.is_live():
                err.print(measuring.line(row))

        budget = (seconds or SECONDS[device]) - (time.perf_counter() - started)
        for each, share in sweep_analysis.shares(harness, table, budget):
            verdicts.append(sweep_analysis.measure(harness, each, share, show))
            record["seconds"] = round(time.perf_counter() - started, 1)
            record["workloads"] = [row.to_json() for verdict in verdicts for row in verdict.rows]
            record["sweeps"] = [verdict.to_json() for verdict in verdicts]
            if results is not None:
                measuring.write(results, measuring.text_of(record))
    console = plain_console(width=measuring.width_of_table())
    console.print(_sweeps(verdicts))
    if any(verdict.violations for verdict in verdicts):
        console.print(_violations(verdicts))
    _summarise(verdicts)
    if results is not None:
        out.print(f"Results: {results}. A page with plots: python -m bench report {results}")
    measuring.check_rows("bench sweep", [row for verdict in verdicts for row in verdict.rows])


def _sweeps(verdicts: Sequence["Verdict"]) -> Table:
    table = Table(box=SIMPLE_HEAD, title="Sweeps", title_justify="left", title_style="bold")
    table.add_column("sweep", overflow="fold")
    for header in ("points", "limit", "worst"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    for verdict in verdicts:
        worst, n_points = verdict.worst, len(verdict.rows) - len(verdict.left_out)
        table.add_row(
            verdict.sweep.name,
            str(n_points),
            f"{verdict.sweep.limit:.3g} x",
            "" if worst is None else _coloured(worst),
            "" if worst is None else _where(verdict, worst),
        )
    return table


def _violations(verdicts: Sequence["Verdict"]) -> Table:
    table = Table(box=SIMPLE_HEAD, title="Beyond the limits", title_justify="left", title_style="bold")
    table.add_column("what")
    table.add_column("sweep", overflow="fold")
    table.add_column("where", overflow="fold")
    for header in ("factor", "limit"):
        table.add_column(header, justify="right", no_wrap=True)
    for verdict in verdicts:
        name = verdict.sweep.name
        beside_torch = [each for each in verdict.violations if each.what == "torch"]
        hidden = beside_torch[MOST_BESIDE_TORCH:]
        for each in verdict.violations:
            if each not in hidden:
                where = _where(verdict, each)
                table.add_row(each.what, name, where, _coloured(each), f"{each.limit:.3g} x")
        if hidden:
            table.add_row("torch", name, f"and {len(hidden)} more points", "", "")
    return table


def _coloured(finding: "Finding") -> Text:
    return Text(times(finding.factor), "red" if finding.is_violation else "green")


def _where(verdict: "Verdict", finding: "Finding") -> str:
    """Return both points of a comparison with their times or bytes, without the sweep's name."""
    point, other = (name.removeprefix(f"{verdict.sweep.name}: ") for name in (finding.point, finding.other))
    amounts = finding.amount, finding.other_amount
    told = [decimal(int(each)) if finding.what == "memory" else duration(each) for each in amounts]
    return f"{point} {told[0]}, {other} {told[1]}"


def _summarise(verdicts: Sequence["Verdict"]) -> None:
    from bench.sweep_analysis import worst  # noqa: PLC0415

    left_out = [row for verdict in verdicts for row in verdict.left_out]
    by_reason = sorted((measuring.why_not(row), row.name) for row in left_out)
    for reason, names in groupby(by_reason, key=lambda each: each[0]):
        told = [name for _, name in names]
        out.print(f"  {reason}: {counted(len(told), 'point')}, {told[0]} the first of them", style="dim")
    findings = [finding for verdict in verdicts for finding in verdict.findings]
    parts = [f"{sum(len(verdict.rows) for verdict in verdicts) - len(left_out)} points"]
    for what in ("step", "kind"):
        if found := worst(each for each in findings if each.what == what):
            parts.append(f"worst {what} {times(found.factor)} at {found.point}")
    n_beyond = sum(each.is_violation for each in findings if each.what != "torch")
    parts.append(f"{n_beyond} beyond the limit")
    beside_torch = [each for each in findings if each.what == "torch"]
    slower = [each for each in beside_torch if each.is_violation]
    if slower and (found := worst(slower)):
        share = f"{len(slower)} of {len(beside_torch)}"
        parts.append(f"slower than torch at {share}, most at {found.point} ({times(found.factor)})")
    else:
        parts.append(
            f"slower than torch at none of {len(beside_torch)}" if beside_torch else "torch not timed"
        )
    out.print("; ".join(parts) + ".")
