"""`dmlops bench`: compare dmlops with other libraries, and make a page of the results."""

import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dmlops import __version__, get_num_threads
from dmlops.bench.numbers import duration, ratio, times
from dmlops.cli.console import err, is_live, out, plain_console, progress_bar, summary_of
from dmlops.cli.errors import CommandError, users_errors
from dmlops.cli.help_texts import Command, Group
from dmlops.cli.info import version
from dmlops.cli.options import Operators, Seconds, chosen_operators, json_option
from dmlops.cli.output_files import check_output, replaced
from dmlops.cli.placement import cpu_name, cuda_devices
from dmlops.errors import counted

if TYPE_CHECKING:
    from dmlops.bench.runner import Bench, Pace, Row
    from dmlops.bench.sweeps import Sweep
    from dmlops.bench.workloads import Workload

FORMAT = 1
SECONDS = {"quick": 72.0, "cpu": 420.0, "cuda": 200.0}
PACKAGES = (
    "numpy",
    "numba",
    "numba-cuda",
    "cuda-core",
    "torch",
    "onnxruntime",
    "jax",
    "bottleneck",
    "cupy",
    "flashinfer-python",
)
FILE_WIDTH = 120  # of what is printed into a file or a pipe
WIDE = 150  # the width from which on the table shows every contender
NARROW = 100  # and the share of the copy rate
PICTURES = (".svg", ".png")
BENCH_EXTRA = 'pip install "dmlops[bench]"'


Named = TypeVar("Named", "Workload", "Sweep")


class Where(StrEnum):
    """The values of `--device`."""

    CPU = "cpu"
    CUDA = "cuda"


app = typer.Typer(cls=Group, help="Compare dmlops with other libraries on this machine.")


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    device: Annotated[Where, typer.Option(help="The device to measure on.")] = Where.CPU,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", show_default="all", help="Threads for every library.")
    ] = None,
    operator: Operators = None,
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
    if (command := context.invoked_subcommand) is not None:
        sources = [context.get_parameter_source(name) for name in context.params]
        if any(source is not None and source.name == "COMMANDLINE" for source in sources):
            message = f"bench: options go after {command}, as in `dmlops bench {command} ...`"
            raise CommandError(message)
        return
    from dmlops.bench.workload_table import workloads  # noqa: PLC0415 - for this command only

    operators = chosen_operators(operator)
    table = [row for row in workloads(device) if (not quick or row.quick) and row.operator in operators]
    if workload:
        table = named(table, workload, "--workload")
    if results is not None:
        check_output("--json", results)
    started = time.perf_counter()
    record = new_record(device, threads or get_num_threads(), quick)
    budget = seconds or SECONDS["quick" if quick else device]
    rows: list[Row] = []
    with progress_bar() as progress:
        task = progress.add_task("copy bandwidth", total=len(table))
        harness = open_bench(device, record["threads"])
        record["bandwidth"] = harness.bandwidth
        for row in harness.run(table, budget - (time.perf_counter() - started)):
            rows.append(row)
            following = table[len(rows)].name if len(rows) < len(table) else ""
            progress.update(task, advance=1, description=following)
            record["seconds"] = round(time.perf_counter() - started, 1)
            record["workloads"] = [row.to_json() for row in rows]
            if results is not None:
                write(results, json.dumps(record, indent=1) + "\n")
            if not is_live():
                err.print(line(row))
    with summary_of(results):
        width = width_of_table()
        console = plain_console(width=width)
        console.print(_table(rows, harness.bandwidth, width))
        _explain(rows, harness, console)
        if results is not None:
            out.print(f"Results: {results}. A page with plots: dmlops bench report {results}")
    check_rows("bench", rows)


def named(table: Sequence[Named], parts: Sequence[str], option: str) -> list[Named]:
    """Return the entries that have one of `parts` in their name.

    Raises
    ------
    CommandError
        If one of `parts` is in no name. Standard output then lists all names.
    """
    for part in parts:
        if not any(part in each.name for each in table):
            for each in table:
                out.print(each.name)
            what = option.removeprefix("--")
            message = f"{option} {part}: no {what} has this in its name; standard output lists the names"
            raise CommandError(message)
    return [each for each in table if any(part in each.name for part in parts)]


def check_rows(command: str, rows: Sequence["Row"]) -> None:
    """Check that dmlops gave no wrong answer, and that it was timed at all.

    Raises
    ------
    CommandError
        If an answer was wrong, or nothing was timed.
    """
    if any(outcome.status == "wrong" for row in rows for outcome in row.outcomes):
        message = f"{command}: dmlops gave a wrong answer; please report it, with `dmlops info`"
        raise CommandError(message)
    if all(row.ours is None for row in rows):
        reasons = Counter(why_not(row) for row in rows)
        message = f"{command}: no workload was measured: {reasons.most_common(1)[0][0]}"
        raise CommandError(message)


@app.command("report", cls=Command)
def report(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES", help="One or two files that `--json` has written.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            show_default="beside the first of FILES",
            help="The .html, .svg or .png file to write.",
        ),
    ] = None,
) -> None:
    """Write one self-contained HTML page about one run, or about two runs side by side.

    An .svg or .png file gets the main picture of one run alone.
    """
    if len(files) > 2:
        message = "bench report: it takes one or two files"
        raise CommandError(message)
    from dmlops.bench.report import picture, render  # noqa: PLC0415 - for this command only

    target = output or files[0].parent / f"{files[0].stem or 'report'}.html"
    if target.suffix not in {".html", *PICTURES}:
        message = f"-o {target}: the name of the file must end with .html, or with .svg or .png for a picture"
        raise CommandError(message)
    if target.suffix in PICTURES and len(files) > 1:
        message = f"-o {target}: a picture is about one run; two runs side by side are a page, an .html file"
        raise CommandError(message)
    check_output("-o", target, files)
    records = [_read(path) for path in files]
    try:
        content: str | bytes
        if target.suffix in PICTURES:
            with users_errors(str(files[0])):
                content = picture(records[0], target.suffix)
        else:
            content = render(records, [path.name for path in files])
    except ModuleNotFoundError as error:
        message = f"bench report: {error.name} is not installed: {BENCH_EXTRA}"
        raise CommandError(message) from error
    write(target, content)
    with summary_of(target):
        out.print(f"Wrote {target}")


def _read(path: Path) -> dict[str, Any]:
    from dmlops.bench.report import check  # noqa: PLC0415

    with users_errors(str(path)):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except RecursionError:
            message = f"{path}: it is nested too deeply to be results"
            raise CommandError(message) from None
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            message = f"{path}: the file has no results of this version of `dmlops bench --json`"
            raise CommandError(message)
        check(record)
    return record


def write(path: Path, content: str | bytes) -> None:
    """Replace a file as a whole, so that an interrupted run keeps what it measured."""
    if isinstance(content, str):  # file names may contain surrogates, which UTF-8 cannot encode
        content = content.encode("utf-8", "backslashreplace")
    with users_errors(str(path)), replaced(path) as stream:
        stream.write(content)


def open_bench(device: str, threads: int, pace: "Pace | None" = None) -> "Bench":
    """Return the bench of a device.

    Raises
    ------
    CommandError
        If no installed library has arrays on the device.
    """
    from dmlops.bench.libraries import NotServedError  # noqa: PLC0415
    from dmlops.bench.runner import Bench, Pace  # noqa: PLC0415

    try:
        return Bench(device, threads, pace or Pace())
    except NotServedError as error:
        message = f"bench --device {device}: {error}"
        raise CommandError(message) from error


def new_record(device: str, threads: int, quick: bool = False) -> dict[str, Any]:
    """Return a results file without results."""
    machine: dict[str, Any] = {"cpu": cpu_name(), "cores": os.cpu_count(), "system": sys.platform}
    if device == "cuda":
        machine["gpu"] = cuda_devices()[0].name
    if hasattr(os, "getloadavg"):
        machine["load"] = round(os.getloadavg()[0], 2)
    versions = {name: found for name in PACKAGES if (found := _version(name)) is not None}
    return {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["dmlops", *sys.argv[1:]]),
        "device": device,
        "threads": threads,
        "quick": quick,
        "machine": machine,
        "versions": {"dmlops": __version__, "python": sys.version.split()[0], **versions},
        "workloads": [],
    }


def _version(package: str) -> str | None:
    # CuPy's wheels are named after the CUDA version that they support.
    names = ("cupy-cuda13x", "cupy-cuda12x", "cupy") if package == "cupy" else (package,)
    found = (version(name) for name in names)
    return next((text for text in found if text != "not installed"), None)


def line(row: "Row") -> str:
    """Return the line that is printed as soon as a workload is measured."""
    if row.ours is None or row.ours.seconds is None:
        return f"{row.name}: {why_not(row)}"
    peer = row.best_peer
    beside = f", {peer.contender} {duration(peer.seconds)}" if peer and peer.seconds else ""
    return f"{row.name}: {duration(row.ours.seconds)}{beside}"


def why_not(row: "Row") -> str:
    """Return why dmlops was not timed."""
    return next((outcome.message for outcome in row.outcomes if outcome.is_ours), "not measured")


def width_of_table() -> int:
    """Return how wide a table may be."""
    return out.width if out.is_terminal else FILE_WIDTH


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
