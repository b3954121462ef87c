"""The plots of a report, each with a sentence that says what it shows."""

import io
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from bench.digits import ratio, spread, times
from dmlops.cli.console import duration
from dmlops.types.errors import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]

OURS = "dmlops"
# dmlops is blue in all plots and pictures, and so is what it is ahead in.
AHEAD, BEHIND = "#2166ac", "#b2182b"
COLOURS = {
    OURS: AHEAD,
    "torch": "#ee964b",
    "onnxruntime": "#3a7d44",
    "jax": "#7768ae",
    "numpy": "#5aa9a3",
    "bottleneck": "#8d6a4f",
    "cupy": "#6aa84f",
}
OTHER_COLOUR = "#777777"
# Text stays text, and the same results give the same file.
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dmlops",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
WIDTH, ROW_HEIGHT = 11.0, 0.24  # inches
COLUMN_GAP, CHARACTER = 8.0, 4.5  # points
LARGE_BYTES = 1e6  # from here on, the bandwidth limits a workload rather than its first microseconds


class Pair(NamedTuple):
    """A workload with the outcomes of dmlops and of the best peer."""

    name: str
    ours: Record
    peer: Record
    ratio: float

    @property
    def spread(self) -> str:
        """The range of the ratio, by the quartiles of both times; "" if they were not kept."""
        quartiles = [each.get(end) for each in (self.ours, self.peer) for end in ("low", "high")]
        if not all(quartiles):
            return ""
        ours_low, ours_high, peer_low, peer_high = cast("list[float]", quartiles)
        return spread(peer_low / ours_high, peer_high / ours_low)


def ours_of(row: Record) -> Record | None:
    """Return the outcome of dmlops, if it was timed."""
    return next((each for each in row["outcomes"] if each["contender"] == OURS and each["seconds"]), None)


def pairs_of(record: Record) -> list[Pair]:
    """Return the workloads in which dmlops and a peer were timed."""
    pairs = []
    for row in record["workloads"]:
        ours = ours_of(row)
        peer = next((o for o in row["outcomes"] if o["contender"] == row["best_peer"] and o["seconds"]), None)
        if ours is not None and peer is not None and row["ratio"]:
            pairs.append(Pair(row["name"], ours, peer, row["ratio"]))
    return pairs


def about_ratios(record: Record) -> str:
    """Return who is the fastest how often, and by how much."""
    pairs = pairs_of(record)
    if not pairs:
        return "No workload was timed with a peer."
    n_ahead = sum(pair.ratio >= 1 for pair in pairs)
    best, worst = max(pairs, key=lambda pair: pair.ratio), min(pairs, key=lambda pair: pair.ratio)
    median = statistics.median(pair.ratio for pair in pairs)
    untimed = [row["outcomes"][0]["message"] for row in record["workloads"] if ours_of(row) is None]
    left_out = [
        f" {counted(count, 'workload')} could not be timed: {reason}."
        for reason, count in Counter(untimed).most_common()
    ]
    return (
        f"dmlops is the fastest in {n_ahead} of {counted(len(pairs), 'workload')}. In the median, the best "
        f"peer takes {ratio(median)} times as long; the extremes are {ratio(best.ratio)} times ({best.name}) "
        f"and {ratio(worst.ratio)} times ({worst.name}).{''.join(left_out)}"
    )


def ratios(record: Record) -> "Figure":
    """Return bars of the time of the best peer divided by that of dmlops."""
    pairs = pairs_of(record)[::-1]
    columns = [_Column("ratio", "right", [times(pair.ratio) for pair in pairs])]
    if any(pair.spread for pair in pairs):
        columns.append(_Column("quartiles", "left", [pair.spread for pair in pairs]))
    columns += [
        _Column("best peer", "left", [pair.peer["contender"] for pair in pairs]),
        _Column("its time", "right", [duration(pair.peer["seconds"]) for pair in pairs]),
        _Column("dmlops", "right", [duration(pair.ours["seconds"]) for pair in pairs]),
    ]
    label = "time of the best peer / time of dmlops"
    meaning = ("dmlops is faster", "the best peer is faster")
    return _bars([pair.name for pair in pairs], [pair.ratio for pair in pairs], columns, label, meaning)


def about_comparison(records: Sequence[Record], names: Sequence[str]) -> str:
    """Return which of two runs is faster how often, and by how much."""
    found = [first["seconds"] / second["seconds"] for _, first, second in _in_both(records)]
    if not found:
        return "No workload was timed in both runs."
    n_faster = sum(each >= 1 for each in found)
    return (
        f"dmlops in {names[1]} is as fast as in {names[0]} or faster in {n_faster} of "
        f"{counted(len(found), 'workload')}, in the median {ratio(statistics.median(found))} times as fast."
    )


def comparison(records: Sequence[Record], names: Sequence[str]) -> "Figure":
    """Return bars of the times of dmlops in one run divided by those in another."""
    found = _in_both(records)[::-1]
    values = [first["seconds"] / second["seconds"] for _, first, second in found]
    columns = [
        _Column("ratio", "right", [times(value) for value in values]),
        _Column("first", "right", [duration(first["seconds"]) for _, first, _ in found]),
        _Column("second", "right", [duration(second["seconds"]) for *_, second in found]),
    ]
    label = f"dmlops: time in {names[0]} / time in {names[1]}"
    meaning = (f"{names[1]} is faster", f"{names[0]} is faster")
    return _bars([name for name, *_ in found], values, columns, label, meaning)


def _in_both(records: Sequence[Record]) -> list[tuple[str, Record, Record]]:
    """Return the workloads of two runs in which dmlops was timed, with its outcomes."""
    before, after = ({row["name"]: row for row in record["workloads"]} for record in records)
    return [
        (name, first, second)
        for name in before
        if name in after and (first := ours_of(before[name])) and (second := ours_of(after[name]))
    ]


class _Column(NamedTuple):
    """A column of text beside bars: its title, its alignment, and a text for each bar."""

    title: str
    align: str
    texts: list[str]

    @property
    def width(self) -> float:
        """About its width in points."""
        return CHARACTER * max(map(len, (self.title, *self.texts)))


def _bars(
    names: Sequence[str],
    values: Sequence[float],
    columns: Sequence[_Column],
    label: str,
    meaning: tuple[str, str],
) -> "Figure":
    """Return horizontal bars from 1 to each value on a logarithmic axis, with columns of text beside.

    `meaning` says what bars to the right and to the left mean.
    """
    figure, axes = _rows(names)
    for position, value in enumerate(values):
        axes.barh(position, value - 1, left=1, color=AHEAD if value >= 1 else BEHIND, height=0.7)
    for colour, text in zip((AHEAD, BEHIND), meaning, strict=True):
        axes.barh(0, 0, left=1, color=colour, label=text)
    _legend(axes, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    edge = 0.0
    for column in columns:
        edge += COLUMN_GAP
        offset = edge + (column.width if column.align == "right" else 0)
        edge += column.width
        for position, text in enumerate([*column.texts, column.title]):
            axes.annotate(
                text,
                xy=(1, position),
                xycoords=axes.get_yaxis_transform(),
                xytext=(offset, 0),
                textcoords="offset points",
                ha=column.align,
                va="center",
                color="#666666" if position == len(names) else "black",
                annotation_clip=False,
                parse_math=False,
            )
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.xaxis.set_minor_formatter(_within_a_decade())
    axes.set_xlabel(label, parse_math=False)
    axes.set_xlim(
        min([0.8, *(0.9 * value for value in values)]), max([2.0, *(1.1 * value for value in values)])
    )
    return figure


def about_shares(record: Record) -> str:
    """Return how near dmlops comes to the bandwidth of a copy."""
    found = [
        (row["bytes_moved"], _share(record, row, ours))
        for row in record["workloads"]
        if (ours := ours_of(row)) is not None
    ]
    if not found:
        return ""
    large = [share for moved, share in found if moved >= LARGE_BYTES]
    told = f", and {statistics.median(large):.0%} where a megabyte or more must move" if large else ""
    return f"In the median, dmlops reaches {statistics.median(share for _, share in found):.0%} of it{told}."


def shares(record: Record) -> "Figure":
    """Return dots of the share of the copy bandwidth that each library reaches, a row for each workload."""
    rows = [row for row in record["workloads"] if any(each["seconds"] for each in row["outcomes"])][::-1]
    figure, axes = _rows([row["name"] for row in rows])
    seen: set[str] = set()
    for position, row in enumerate(rows):
        for outcome in reversed(row["outcomes"]):
            if not outcome["seconds"]:
                continue
            library = outcome["library"]
            axes.plot(
                100 * _share(record, row, outcome),
                position,
                marker="o",
                markersize=4,
                linestyle="none",
                color=_colour(outcome),
                label=None if library in seen else library,
            )
            seen.add(library)
    axes.axvline(100, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g} %")
    axes.xaxis.set_minor_formatter(_within_a_decade())
    axes.set_xlabel("share of the copy bandwidth")
    if seen:
        _legend(axes, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(seen))
    return figure


def _share(record: Record, row: Record, outcome: Record) -> float:
    share: float = row["bytes_moved"] / outcome["seconds"] / record["bandwidth"]
    return share


def about_sizes(record: Record) -> str:
    """Return in how many series dmlops is the fastest at the largest size."""
    last = {row["series"]: row for row in record["workloads"] if row["series"] and row["ratio"]}
    n_ahead = sum(row["ratio"] >= 1 for row in last.values())
    return f"The lowest line is the fastest: at the largest size, dmlops in {n_ahead} of {len(last)} plots."


def sizes(record: Record) -> "Figure":
    """Return lines of the times against sizes, a plot for each series."""
    series: dict[str, list[Record]] = {}
    for row in record["workloads"]:
        if row["series"]:
            series.setdefault(row["series"], []).append(row)
    n_lines = -(-len(series) // 2)
    figure = _empty_figure(WIDTH, 3.6 * n_lines)
    for position, (name, rows) in enumerate(series.items(), start=1):
        axes = figure.add_subplot(n_lines, 2, position)
        lines: dict[str, tuple[Record, list[tuple[int, float]]]] = {}
        for row in rows:
            for outcome in row["outcomes"]:
                if outcome["seconds"]:
                    line = lines.setdefault(outcome["contender"], (outcome, []))
                    line[1].append((row.get("at") or row["size"], outcome["seconds"] * 1e3))
        for contender, (outcome, points) in lines.items():
            axes.plot(
                *zip(*sorted(points), strict=True),
                color=_colour(outcome),
                linewidth=2 if outcome["library"] == OURS else 1,
                marker="o",
                markersize=2.5,
                label=contender,
            )
        axes.set_title(name, parse_math=False)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.yaxis.set_minor_formatter(_within_a_decade())
        axes.set_xlabel("" if rows[0].get("at") else "elements")
        axes.set_ylabel("ms")
        if lines:
            _legend(axes)
    return figure


def svg(figure: "Figure") -> str:
    """Return a figure as an SVG element."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def png(figure: "Figure") -> bytes:
    """Return a figure as a PNG file."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=150, metadata={"Software": None})
    return stream.getvalue()


def _colour(outcome: Record) -> str:
    return COLOURS.get(outcome["library"], OTHER_COLOUR)


def _rows(names: Sequence[str]) -> tuple["Figure", Any]:
    """Return a figure with a row for each name, from the bottom to the top."""
    n_rows = max(len(names), 1)
    figure = _empty_figure(WIDTH, 1.2 + ROW_HEIGHT * n_rows)
    axes = figure.add_subplot()
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-0.7, n_rows - 0.3)
    return figure, axes


def _within_a_decade() -> Any:
    """Return a formatter of minor ticks, which labels them if there is less than a decade."""
    from matplotlib.ticker import LogFormatter  # noqa: PLC0415 - an optional dependency

    class Plain(LogFormatter):  # type: ignore[misc, unused-ignore]
        """Writes 0.8 where matplotlib would write 8e-01."""

        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:,g}" if super().__call__(x, pos) else ""

    return Plain(minor_thresholds=(1, 0.5))


def _legend(axes: Any, **options: Any) -> None:
    for text in axes.legend(frameon=False, **options).get_texts():
        text.set_parse_math(False)


def _empty_figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    return Figure(figsize=(width, height), layout="constrained")
