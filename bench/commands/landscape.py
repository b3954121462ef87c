"""`python -m bench landscape`: time top-k on a GPU for the problems of its users, beside other kernels."""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench.commands import measuring
from bench.commands.measuring import Seconds, json_option
from dmlops.cli.console import duration, err, out, plain_console
from dmlops.cli.ending import CommandError
from dmlops.cli.outputs import check_output

if TYPE_CHECKING:
    from bench.contests import Standing
    from bench.runner import Row
    from bench.workloads import TopK

SECONDS = {"dmlops": 210.0, "peers": 900.0}
CASE_SECONDS = 0.02  # for each contender
PATIENCE = 0.25
KEPT_EVERY = 16  # rows, after which the results file is written
MOST_INVERSIONS = 20  # in the summary; the results file has all of them


def landscape(
    application: Annotated[
        list[str] | None,
        typer.Option(
            "--list",
            metavar="NAME",
            show_default=False,
            help="One of the applications; may be repeated.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only problems for which times of other kernels are recorded.")
    ] = False,
    peers: Annotated[
        bool,
        typer.Option("--peers", help="Check the ties of the other libraries, and time them: 15 minutes."),
    ] = False,
    seconds: Seconds = None,
    results: Annotated[Path | None, json_option("Write all times to this file.")] = None,
) -> None:
    """Measure top-k on a GPU for the problems of its users: indexers, gating, sampling, vector search."""
    from bench.contests import PEERS  # noqa: PLC0415 - for this command only
    from bench.peers import OURS  # noqa: PLC0415
    from bench.runner import DeviceLostError, Pace  # noqa: PLC0415
    from bench.ties import check  # noqa: PLC0415

    table = _table(application, quick)
    if results is not None:
        check_output("--json", results)
    started = time.perf_counter()
    record = measuring.new_record("cuda", 1, quick)
    deadline = started + (seconds or SECONDS["peers" if peers else "dmlops"])
    rows: list[Row] = []
    names = {OURS, *(PEERS if peers else ())}

    def keep() -> None:
        record["seconds"] = round(time.perf_counter() - started, 1)
        record["workloads"] = [row.to_json() for row in rows]
        if results is not None:
            measuring.write(results, measuring.text_of(record))

    with measuring.progress_bar() as progress:
        task = progress.add_task("copy bandwidth", total=len(table))
        harness = measuring.open_bench("cuda", 1, Pace(CASE_SECONDS, PATIENCE))
        record["bandwidth"] = harness.bandwidth
        ties = check(harness, names) if peers else []
        record["ties"] = [found.to_json() for found in ties]
        contract_of = {(found.contender, found.is_sorted): found.contract for found in ties if found.problems}
        lost = ""
        for each in table:
            try:
                if reason := lost or ("out of time" if time.perf_counter() > deadline else ""):
                    row = harness.skipped(each, reason, names)
                else:
                    row = harness.measure(each, CASE_SECONDS * len(names), names)
            except DeviceLostError as error:
                lost = str(error)
                row = harness.skipped(each, lost, names)
            for outcome in row.outcomes:
                outcome.contract = contract_of.get((outcome.contender, each.is_sorted), "")
            rows.append(row)
            progress.update(task, advance=1, description=each.name)
            if not err.is_terminal:
                err.print(measuring.line(row))
            if len(rows) % KEPT_EVERY == 0:
                keep()
    keep()
    _summarise(record)
    if results is not None:
        out.print(f"Results: {results}. A page with the picture: python -m bench report {results}")
    measuring.check_rows("bench landscape", rows)


def _table(applications: list[str] | None, quick: bool) -> list["TopK"]:
    from bench.landscape import APPLICATIONS, cases  # noqa: PLC0415
    from bench.recorded import recorded  # noqa: PLC0415

    for name in applications or ():
        if name not in APPLICATIONS:
            message = f"--list {name}: it must be one of {', '.join(APPLICATIONS)}"
            raise CommandError(message)
    chosen = [case for case in cases(applications or APPLICATIONS) if recorded(case) or not quick]
    return [case.workload(is_sorted) for case in chosen for is_sorted in (True, False)]


def _summarise(record: dict[str, Any]) -> None:
    """Print who is ahead how often, and which problems take longer than larger ones."""
    from bench.contests import Contest, contracts, inversions_of, standings  # noqa: PLC0415

    console = plain_console(width=measuring.width_of_table())
    table = Table(box=SIMPLE_HEAD, title="Contests", title_justify="left", title_style="bold")
    for header in ("contest", "ahead in", "of", "in the median", "furthest behind"):
        table.add_column(header)
    for contest in Contest:
        table.add_row(contest, *_told(standings(record["workloads"], contest, record["machine"]["gpu"])))
    console.print(table)
    for contender, promises in contracts(record["workloads"], record["machine"]["gpu"]).items():
        out.print(f"  {contender}: {'; '.join(promises)}", style="dim")
    found = inversions_of(record["workloads"])
    for each in found[:MOST_INVERSIONS]:
        console.print(
            f"  {each.point} {duration(each.amount)}, {each.other} {duration(each.other_amount)}: "
            f"{each.factor:.2f} x"
        )
    out.print(f"{len(found)} problems take more than 1.1 times as long as the next larger one.")


def _told(found: Sequence["Standing"]) -> list[str]:
    """Return how many are ahead, of how many, the median of the ratios, and the smallest one."""
    beside = [(each, each.peer) for each in found if each.peer is not None]
    if not beside:
        return ["", "0", "", ""]
    ratios = [peer.seconds / each.seconds for each, peer in beside]
    least, peer = beside[ratios.index(min(ratios))]
    where = f"{least.case}: {duration(least.seconds)}, {peer.contender} {duration(peer.seconds)}"
    n_ahead = sum(ratio >= 1 for ratio in ratios)
    return [str(n_ahead), str(len(ratios)), f"{statistics.median(ratios):.2f} x", where]
