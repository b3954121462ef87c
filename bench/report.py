"""The report about results, with which `python -m bench run` ends."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench.peers import OURS
from bench.records import CONTESTS, Record, Timed, extent, ratio, seconds_of, standings, why_not, with_peers
from dmlops.cli.console import duration, out, plain_console
from dmlops.types.errors import counted

FILE_WIDTH = 150  # of what is printed into a file or a pipe
SHOWN = 20  # comparisons beyond their limits; the results file has all of them


def line(row: Record) -> str:
    """Return what is printed as soon as a workload is measured."""
    seconds = seconds_of(row)
    return f"{row['name']}: {why_not(row) if seconds is None else duration(seconds)}"


def print_report(record: Record) -> None:
    rows = [with_peers(row) for row in record["workloads"]]
    console = plain_console(width=out.width if out.is_terminal else FILE_WIDTH)
    found = {contest: standings(rows, contract) for contract, contest in CONTESTS.items()}
    if "sweeps" in record:
        _print_comparisons(console, **record["sweeps"])
    elif any(found.values()):
        table = _table("Contests", "contest", "ahead in", "of", "in the median", "furthest behind")
        for contest, timed in found.items():
            table.add_row(contest, *_standing_cells(timed))
        console.print(table)
    else:
        table = _table("Median times", "workload", "dmlops", "ratio", "best peer", "of copy rate", "others")
        for row in rows:
            table.add_row(*_cells(row, record["bandwidth"]))
        console.print(table)
    _print_notes(console, rows)
    if record.get("left_out"):
        console.print(f"Left out: {', '.join(record['left_out'])}.")
    is_host = record["device"] == "cpu"
    how = f"{record['threads']} threads each" if is_host else "GPU times by CUDA events"
    console.print(f"{how}; a copy moves {record['bandwidth'] / 1e9:.0f} GB/s here.")
    if ratios := [row["ratio"] for row in rows if row["ratio"]]:
        count, n_ahead, _, median, _ = extent(ratios)
        console.print(
            f"dmlops is the fastest on {n_ahead} of {counted(count, 'workload')}; "
            f"in the median, the best peer takes {median} times as long."
        )


def _table(title: str, *heads: str) -> Table:
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    for head in heads:
        table.add_column(head, overflow="fold")
    return table


def _cells(row: Record, bandwidth: float) -> list[str | Text]:
    seconds, peer = seconds_of(row), row["best_peer"]
    own, share = Text(why_not(row), "red"), ""
    if seconds is not None:
        own, share = Text(duration(seconds)), f"{row['bytes_moved'] / seconds / bandwidth:.0%}"
    if any(each.get("status") == "wrong" for each in row["outcomes"]):
        own = Text.assemble(("WRONG ", "red"), own)
    others = sorted(
        (each["seconds"], each["contender"])
        for each in row["outcomes"]
        if each["seconds"] and each["contender"] not in (OURS, peer)
    )
    return [
        row["name"],
        own,
        Text(f"{ratio(row['ratio'])} x", "green" if row["ratio"] >= 1 else "red") if row["ratio"] else "",
        f"{peer} {duration(seconds_of(row, peer) or 0)}" if peer else "",
        share,
        ", ".join(f"{name} {duration(each)}" for each, name in others),
    ]


def _standing_cells(found: Sequence[Timed]) -> list[str]:
    """Return in how many problems dmlops is ahead, of how many, the median of the ratios, and the lowest."""
    if not found:
        return ["0", "0", "", ""]
    count, n_ahead, _, median, _ = extent([each.ratio for each in found])
    least = min(found, key=lambda each: each.ratio)
    where = f"{least.name}: {duration(least.seconds)}, {least.peer} {duration(least.peer_seconds)}"
    return [str(n_ahead), str(count), f"{median} x", where]


def _print_comparisons(console: Console, compared: int, beyond: Sequence[dict[str, Any]]) -> None:
    """Print the points of sweeps that take longer than another point lets expect."""
    table = _table("Beyond the limits", "point", "compared with", "factor", "limit")
    for each in beyond[:SHOWN]:
        table.add_row(
            f"{each['point']} {duration(each['seconds'])}",
            f"{each['other']} {duration(each['other_seconds'])}",
            Text(f"{ratio(each['factor'])} x", "red"),
            f"{each['limit']:.3g} x",
        )
    if beyond:
        console.print(table)
    console.print(f"{len(beyond)} of {counted(compared, 'comparison')} are beyond their limits.")


def _print_notes(console: Console, rows: Sequence[Record]) -> None:
    """Print what the answers of the peers lack, and what was left out and why."""
    outcomes = [each for row in rows for each in row["outcomes"]]
    notes = {each["contender"]: each["note"] for each in outcomes if each["seconds"] and each.get("note")}
    lines = [f"{name}: {note}" for name, note in sorted(notes.items())]
    left_out: dict[str, Counter[str]] = {}
    for each in outcomes:
        if "message" in each:
            reason = f"{each['status']}: {each['message']}"
            left_out.setdefault(reason, Counter())[each["contender"]] += 1
    for reason, counts in sorted(left_out.items()):
        names = [f"{name} ({count} x)" if count > 1 else name for name, count in counts.items()]
        lines.append(f"{reason}: {', '.join(names)}")
    for text in lines:
        console.print(Padding(Text(text, "dim"), (0, 0, 0, 2), expand=False))
