"""`python -m bench run`: compare dmlops with other libraries."""

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench.commands import measuring
from bench.commands.measuring import Operator, OperatorOption, Seconds, Where, json_option, why_not
from bench.digits import ratio, times
from dmlops import get_num_threads
from dmlops.cli.console import duration, err, out, plain_console
from dmlops.cli.outputs import check_output
from dmlops.types.errors import counted

if TYPE_CHECKING:
    from bench.runner import Bench, Row

SECONDS = {"quick": 72.0, "cpu": 420.0, "cuda": 200.0}
WIDE = 150  # the width from which on the table shows every contender
NARROW = 100  # and the share of the copy rate


def run(
    device: Annotated[Where, typer.Option(help="The device to measure on.")] = Where.CPU,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", show_default="all", help="Threads for every library.")
    ] = None,
    operator: OperatorOption = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            show_default=False,
            help="Only workloads with this text in their name; may be repeated.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the most telling workloads, in 90 seconds.")
    ] = False,
    seconds: Seconds = None,
    results: Annotated[Path | None, json_option("Write the results to this file.")] = None,
) -> None:
    """Compare dmlops with the other libraries that are installed, each in its best form."""
    from bench.workload_table import workloads  # noqa: PLC0415 - for this command only

    operators = operator or [*Operator]
    table = [row for row in workloads(device) if (not quick or row.quick) and row.operator in operators]
    if workload:
        table = measuring.named(table, workload, "--workload")
    if results is not None:
        check_output("--json", results)
    started = time.perf_counter()
    record = measuring.new_record(device, threads or get_num_threads(), quick)
    budget = seconds or SECONDS["quick" if quick else device]
    rows: list[Row] = []
    with measuring.progress_bar() as progress:
        task = progress.add_task("copy bandwidth", total=len(table))
        harness = measuring.open_bench(device, record["threads"])
        record["bandwidth"] = harness.bandwidth
        for row in harness.run(table, budget - (time.perf_counter() - started)):
            rows.append(row)
            following = table[len(rows)].name if len(rows) < len(table) else ""
            progress.update(task, advance=1, description=following)
            record["seconds"] = round(time.perf_counter() - started, 1)
            record["workloads"] = [row.to_json() for row in rows]
            if results is not None:
                measuring.write(results, measuring.text_of(record))
            if not measuring.is_live():
                err.print(measuring.line(row))
    width = measuring.width_of_table()
    console = plain_console(width=width)
    console.print(_table(rows, harness.bandwidth, width))
    _explain(rows, harness, console)
    if results is not None:
        out.print(f"Results: {results}. A page with plots: python -m bench report {results}")
    measuring.check_rows("bench run", rows)


def _table(rows: Sequence["Row"], bandwidth: float, width: int) -> Table:
    table = Table(box=SIMPLE_HEAD, title="Median times", title_justify="left", title_style="bold")
    table.add_column("workload", overflow="fold")
    for header in ("dmlops", "ratio", "best peer"):
        table.add_column(header, justify="right", no_wrap=header != "best peer")
    if width >= NARROW:
        table.add_column("of copy rate", justify="right")
    if width >= WIDE:
        table.add_column("others", style="dim", overflow="fold")
        if any(row.ours and row.ours.host for row in rows):
            table.add_column("host", justify="right")
    for row in rows:
        table.add_row(*_cells(row, bandwidth)[: len(table.columns)])
    return table


def _cells(row: "Row", bandwidth: float) -> tuple[str | Text, ...]:
    ours, peer, faster = row.ours, row.best_peer, row.ratio
    if ours is None or ours.seconds is None:
        own_time, share = Text(why_not(row), "red"), ""
    else:
        own_time, share = Text(duration(ours.seconds)), f"{row.bytes_moved / ours.seconds / bandwidth:.0%}"
    if any(outcome.status == "wrong" for outcome in row.outcomes):
        own_time = Text.assemble(("WRONG ", "red"), own_time)
    colour = "green" if faster is not None and faster >= 1 else "red"
    others = sorted((each for each in row.timed if not each.is_ours), key=lambda each: each.seconds or 0)
    names = [f"{each.contender} {duration(each.seconds or 0)}" for each in others]
    return (
        row.name,
        own_time,
        "" if faster is None else Text(times(faster), colour),
        "" if peer is None else f"{peer.contender} {duration(peer.seconds or 0)}",
        share,
        ", ".join(name for name, each in zip(names, others, strict=True) if each is not peer),
        "" if ours is None or ours.host is None else duration(ours.host),
    )


def _explain(rows: Sequence["Row"], harness: "Bench", console: Console) -> None:
    """Print what the answers of the peers lack, what was left out and why, and the overall result."""
    notes = {outcome.contender: outcome.note for row in rows for outcome in row.timed if outcome.note}
    for name, note in sorted(notes.items()):
        _note(console, f"{name}: {note}")
    left_out: dict[str, Counter[str]] = {}
    for row in rows:
        for outcome in row.outcomes:
            is_whole_row = row.ours is None and outcome.message == why_not(row)
            if outcome.message and (outcome.is_ours or not is_whole_row):
                told = left_out.setdefault(f"{outcome.status}: {outcome.message}", Counter())
                told[outcome.contender] += 1
    for message, told in sorted(left_out.items()):
        names = ", ".join(f"{name} ({count} x)" if count > 1 else name for name, count in told.items())
        _note(console, f"{message}: {names}")
    how = f"{harness.threads} threads each" if harness.device == "cpu" else "GPU times by CUDA events"
    console.print(f"{how}; a copy moves {harness.bandwidth / 1e9:.0f} GB/s here.")
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if ratios:
        fastest = sum(each >= 1 for each in ratios)
        console.print(
            f"dmlops is the fastest on {fastest} of {counted(len(ratios), 'workload')}; "
            f"in the median, the best peer takes {ratio(statistics.median(ratios))} times as long."
        )
    reasons = Counter(_why_no_ratio(row) for row in rows if row.ratio is None)
    if reasons:
        not_compared = [f"{counted(count, 'workload')} ({why})" for why, count in reasons.most_common()]
        console.print(f"Not compared: {', '.join(not_compared)}.")


def _note(console: Console, text: str) -> None:
    console.print(Padding(Text(text, "dim"), (0, 0, 0, 2), expand=False))


def _why_no_ratio(row: "Row") -> str:
    """Return why dmlops and a peer were not both timed."""
    return "no peer was timed" if row.ours is not None else why_not(row)
