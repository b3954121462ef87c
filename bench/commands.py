"""The commands of `python -m bench`."""

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bench import host as calls
from bench import records
from bench.batches import changed_tokens
from bench.libraries import NotServedError
from bench.records import Record
from bench.report import line, print_report
from bench.runner import Bench
from bench.suites import SUITES, Suite
from bench.sweeps import beyond, compared
from bench.workloads import Workload
from dmlops import get_num_threads
from dmlops.cli.console import err, out
from dmlops.cli.ending import fail
from dmlops.cli.outputs import check_output

QUICK_SECONDS = 72.0
AGAIN_SECONDS = 1.0
app = typer.Typer(
    help="Compare dmlops with other libraries on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def option(
    metavar: str | None, text: str, default: str | bool = False, *names: str, least: int | None = None
) -> Any:
    """Return an option; `default` is what the help shows, and `names` are what it is called."""
    return typer.Option(*names, metavar=metavar, help=text, show_default=default, min=least)


Device = Annotated[Literal["cpu", "cuda"], typer.Option(help="The device to measure on.")]
Json = Annotated[Path | None, option("OUT.json", "Write the results to this file.", False, "--json")]


@app.command()
def run(
    suite: Annotated[str, option("NAME", "operators, serving, sampling, rows or data.", True)] = "operators",
    device: Device = "cpu",
    threads: Annotated[int | None, option("N", "Threads for every library.", "all", least=1)] = None,
    workload: Annotated[
        list[str] | None,
        option("TEXT", "Only workloads with this in their name: an operator, for one; may be repeated."),
    ] = None,
    quick: Annotated[bool, option(None, "The most telling workloads, in 90 s.", False, "--quick")] = False,
    seconds: Annotated[
        int | None,
        option("S", "The time for all; workloads that do not fit are skipped.", "enough for all", least=1),
    ] = None,
    results: Json = None,
) -> None:
    """Compare dmlops with the other libraries that are installed, each in its best form.

    The suites: all operators, the top-k of serving language models on a GPU, tokens of language models, and
    sweeps of dmlops alone through windows and segments, and kinds of data, which look for slow cases.
    """
    if suite not in SUITES:
        fail(f"--suite: got {suite!r}; it must be one of {', '.join(SUITES)}")
    chosen = SUITES[suite]
    table = _chosen([*chosen.workloads(device)], workload or [], quick)
    if results is not None:
        check_output("--json", results)
    record = records.new_record(device, threads or get_num_threads(), quick)
    try:
        _measure(chosen, table, record, seconds or (QUICK_SECONDS if quick else chosen.seconds[device]))
    finally:  # an interrupted run keeps what it measured
        if results is not None and "bandwidth" in record:
            records.write(results, record)
    print_report(record)
    if results is not None:
        out.print(f"Results: {results}.")
    _check(record["workloads"])


def _measure(suite: Suite, table: Sequence[Workload], record: dict[str, Any], seconds: float) -> None:
    """Measure workloads, and points of sweeps that are beyond a limit once more; the better time counts."""
    started = time.perf_counter()
    device, rows = record["device"], record["workloads"]
    harness = open_bench(suite, device, record["threads"])
    record["bandwidth"] = harness.bandwidth

    def run(some: Sequence[Workload], most_seconds: float = math.inf) -> Iterator[Record]:
        left = started + seconds - time.perf_counter()
        return harness.run(some, min(left, most_seconds))

    def comparisons() -> list[dict[str, Any]]:
        times = {row["name"]: best for row in rows if (best := records.least_of(row))}
        return [] if suite.has_peers else compared(table, times)

    try:
        for row in run(table):
            rows.append(row)
            record["left_out"] = sorted(harness.left_out)
            err.print(line(row))
        if found := comparisons():
            doubtful = {each["point"] for each in beyond(found)}
            again = [each for each in table if each.name in doubtful]
            _keep_better(rows, [*run(again, AGAIN_SECONDS * len(again))])
            found = comparisons()
            record["sweeps"] = {"compared": len(found), "beyond": beyond(found)}
    finally:
        record["seconds"] = round(time.perf_counter() - started, 1)


def _chosen(table: Sequence[Workload], texts: Sequence[str], quick: bool) -> list[Workload]:
    """Return the workloads that the options choose; list all names if a text is in none."""
    table = [each for each in table if each.quick or not quick]
    for text in texts:
        if not any(text in each.name for each in table):
            out.print("\n".join(each.name for each in table))
            fail(f"--workload {text}: no name of a workload has it; standard output lists the names")
    return [each for each in table if not texts or any(text in each.name for text in texts)]


def open_bench(suite: Suite, device: str, threads: int) -> Bench:
    """Return the bench of a device; fail if no installed library has arrays on it."""
    try:
        return Bench(device, threads, suite.has_peers)
    except NotServedError as error:
        fail(f"bench --device {device}: {error}")


def _keep_better(rows: list[Record], again: Sequence[Record]) -> None:
    """Replace rows by those that were measured again, where these have better times."""
    places = {row["name"]: place for place, row in enumerate(rows)}
    for row in again:
        place = places[row["name"]]
        rows[place] = min(rows[place], row, key=lambda each: records.least_of(each) or math.inf)


def _check(rows: Sequence[Record]) -> None:
    """Raise an error if dmlops gave a wrong answer, or was not timed at all."""
    if any(each.get("status") == "wrong" for row in rows for each in row["outcomes"]):
        fail("bench run: dmlops gave a wrong answer; please report it, with `dmlops info`")
    if all(records.seconds_of(row) is None for row in rows):
        reasons = Counter(map(records.why_not, rows)) or Counter(["the suite has none"])
        fail(f"bench run: no workload was measured: {reasons.most_common(1)[0][0]}")


@app.command()
def host(
    device: Device = "cpu",
    new: Annotated[bool, option(None, "With sizes that were not seen before.", False, "--new-sizes")] = False,
    first: Annotated[bool, option(None, "The first calls of processes.", False, "--first-calls")] = False,
    results: Json = None,
) -> None:
    """Measure the host time of small calls, in microseconds: the cost of a call around its kernel."""
    measure = calls.first_calls if first else calls.new_sizes if new else calls.small_calls
    record = records.new_record(device, threads=1)
    found = record[measure.__name__] = []
    for name, figures in measure(device):
        if not found:
            heads = "".join(f"{each:>12s}" for each in figures)
            out.print(f"{'milliseconds' if first else 'microseconds':30s}{heads}")
        cells = (f"{figure:12.2f}" for figure in figures.values() if figure is not None)
        out.print(f"{name:30s}{''.join(cells)}")
        found.append({"call": name, **figures})
    if results is not None:
        records.write(results, record)


@app.command()
def batches(device: Device = "cpu") -> None:
    """Draw tokens in a batch, and again in half of it with the same seeds; print the share that differs."""
    for filters, contender, shown in changed_tokens(device):
        out.print(f"{filters:20s}{contender:22s}{shown}")


@app.command()
def choices(
    seconds: Annotated[int, typer.Option(min=1, help="Nothing new is begun after these.")] = 900,
    element_size: Annotated[list[int] | None, option("BYTES", "May be repeated.", "4, 2, 8")] = None,
    k: Annotated[list[int] | None, option(None, "May be repeated.", "all", "-k")] = None,
    rows: Annotated[list[int] | None, option(None, "How many; may be repeated.", "all")] = None,
    length: Annotated[list[int] | None, option(None, "Of a row; may be repeated.", "all")] = None,
    algorithm: Annotated[
        list[str] | None,
        option("NAME", "Beside the fastest other one of --add-to, whose times stay otherwise.", "all"),
    ] = None,
    add_to: Annotated[
        Path | None,
        option("FILE", "Keep what this file has of other problems; those that it lacks come first."),
    ] = None,
    table: Annotated[Path | None, option("FILE", "Only make the table of this file.")] = None,
) -> None:
    """Time every algorithm of top_k on problems of all sizes, and write the times to bench/results.

    --table FILE makes of them the table that plans choose by, and prints how much longer than the fastest
    algorithm the chosen one takes: of all problems, and of a fifth of them if the table lacks these.
    Kernels are compiled when they first run: `dmlops warmup --device cuda` does it beforehand.
    """
    end = time.monotonic() + seconds
    from bench import choice_table, choices  # noqa: PLC0415 - it needs torch
    from kernels_cuda.top_k import ALGORITHMS  # noqa: PLC0415

    if table is not None:
        choice_table.write_table(table)
        return
    for name in algorithm or ():
        if name not in ALGORITHMS:
            fail(f"--algorithm: got {name!r}; it must be one of {', '.join(ALGORITHMS)}")
        if add_to is None:
            fail(f"--algorithm: got {name!r} alone; --add-to must name the file that its times are added to")
    asked = choices.problems(element_size, k, rows, length)
    out.print(f"\nwritten: {choices.search(end - time.monotonic(), asked, algorithm or (), add_to)}")
