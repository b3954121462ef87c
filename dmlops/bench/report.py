"""Make one self-contained HTML page about one run of the benchmark, or about two runs side by side."""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS = "dmlops"
OURS_COLOUR = "#d1495b"
COLOURS = {
    OURS: OURS_COLOUR,
    "torch": "#ee964b",
    "onnxruntime": "#3a7d44",
    "jax": "#7768ae",
    "numpy": "#4d96c9",
    "bottleneck": "#8d6a4f",
    "cupy": "#6aa84f",
}
OTHER_COLOUR = "#777777"
# Text stays text, and the same results give the same file.
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dmlops",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff }
table { border-collapse: collapse; font-size: 13px; width: 100% }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid #ddd; vertical-align: top }
th:first-child, td:first-child, .text { text-align: left }
td small { color: #666; display: block }
tr.first td { border-top: 2px solid #999 }
.ours { color: #d1495b; font-weight: 600 }
.bad { color: #b00020; font-weight: 600 }
.facts td { border: 0; text-align: left }
svg { max-width: 100%; height: auto }
details { margin: 1rem 0 }
"""

Record = dict[str, Any]
Fields = Mapping[str, tuple[type, ...]]

# The fields that the page shows, and their types.
_TEXT, _TEXT_OR_NONE = (str,), (str, type(None))
_COUNT, _COUNT_OR_NONE = (int,), (int, type(None))
_NUMBER, _NUMBER_OR_NONE = (float, int), (float, int, type(None))
# Beyond these, what is computed from a number would be none.
LEAST, MOST = 1e-12, 1e18
_JSON_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}
_RECORD: Fields = {
    "device": _TEXT,
    "threads": _COUNT,
    "machine": (dict,),
    "versions": (dict,),
    "bandwidth": _NUMBER,
    "date": _TEXT,
    "command": _TEXT,
    "workloads": (list,),
}
_MACHINE: Fields = {"cpu": _TEXT, "cores": _COUNT_OR_NONE, "gpu": _TEXT_OR_NONE}
_ROW: Fields = {
    "name": _TEXT,
    "reason": _TEXT,
    "series": _TEXT,
    "size": _COUNT,
    "at": _COUNT_OR_NONE,
    "bytes_moved": _COUNT,
    "ratio": _NUMBER_OR_NONE,
    "best_peer": _TEXT_OR_NONE,
    "outcomes": (list,),
}
_NOT_ALWAYS = {"at", "gpu"}  # of rows that are no points of a sweep, and where there is none
_OUTCOME: Fields = {
    "contender": _TEXT,
    "library": _TEXT,
    "note": _TEXT,
    "status": _TEXT,
    "message": _TEXT,
    "seconds": _NUMBER_OR_NONE,
    "host": _NUMBER_OR_NONE,
    "wall": _NUMBER_OR_NONE,
}


def check(record: Record) -> None:
    """Check that results hold what the page shows.

    Raises
    ------
    ValueError
        If they do not; the text names the place.

    Examples
    --------
    >>> check({"device": "cpu"})
    Traceback (most recent call last):
    ValueError: the results: there is no threads
    """
    _check(record, _RECORD, "the results")
    _check(record["machine"], _MACHINE, "machine")
    for number, row in enumerate(record["workloads"]):
        _check(row, _ROW, f"workloads[{number}]")
        for position, outcome in enumerate(row["outcomes"]):
            _check(outcome, _OUTCOME, f"workloads[{number}].outcomes[{position}]")


def _check(value: Any, fields: Fields, where: str) -> None:
    if not isinstance(value, dict):
        message = f"{where}: it is {_JSON_NAMES[type(value)]}; it must be an object"
        raise ValueError(message)
    for name, types in fields.items():
        found, is_nullable = value.get(name), type(None) in types
        if name not in value and name not in _NOT_ALWAYS:
            message = f"{where}: there is no {name}"
            raise ValueError(message)
        if type(found) not in types:
            message = f"{where}: {name} is {_JSON_NAMES[type(found)]}; it must be {_JSON_NAMES[types[0]]}"
            raise ValueError(message)
        if isinstance(found, (int, float)) and not (LEAST <= found <= MOST or (found == 0 and is_nullable)):
            message = f"{where}: {name} is out of range; it must be in [{LEAST:g}, {MOST:g}]"
            raise ValueError(message)


def render(records: Sequence[Record], names: Sequence[str]) -> str:
    """Return the page.

    Parameters
    ----------
    records : sequence of dict
        One or two results of `dmlops bench --json`, as `check` finds them right.
    names : sequence of str
        What to call them.

    Returns
    -------
    str
        HTML that refers to no other file.

    Raises
    ------
    ModuleNotFoundError
        Without matplotlib.
    """
    import matplotlib as mpl  # noqa: PLC0415 - an optional dependency

    parts = [f"<h1>dmlops on {escape(_where(records[0]))}</h1>", _facts(records, names)]
    with mpl.rc_context(STYLE), warnings.catch_warnings(action="ignore"):  # of letters that its font lacks
        if len(records) == 2:
            parts += ["<h2>The two runs side by side</h2>", _svg(_comparison(records, names))]
        for record, name in zip(records, names, strict=True):
            parts += [f"<h1>{escape(name)}</h1>"] if len(records) == 2 else []
            parts += _about(record)
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>dmlops benchmark</title>'
        f"<style>{_CSS}</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def picture(record: Record) -> str:
    """Return the landscape of top-k alone, as SVG.

    Raises
    ------
    ValueError
        If the results have no landscape.
    ModuleNotFoundError
        Without matplotlib.
    """
    import matplotlib as mpl  # noqa: PLC0415 - an optional dependency

    from dmlops.bench import landscape_plot  # noqa: PLC0415 - for landscapes only

    if not landscape_plot.has_landscape(record):
        message = "the results: there is no landscape; `dmlops bench topk-landscape` measures it"
        raise ValueError(message)
    with mpl.rc_context(STYLE):
        return _svg(landscape_plot.picture(record)) + "\n"


def _about(record: Record) -> Iterator[str]:
    from dmlops.bench import landscape_plot  # noqa: PLC0415 - for landscapes only

    if landscape_plot.has_landscape(record):
        yield "<h2>The landscape of top-k</h2>"
        yield _svg(landscape_plot.picture(record))
    yield "<h2>Time of the best peer divided by the time of dmlops</h2>"
    yield "<p>To the right of the line, dmlops is faster. The label names the peer and both times.</p>"
    yield _svg(_ratios(record))
    yield "<h2>Share of the copy bandwidth</h2>"
    yield (
        "<p>The bytes that each workload must at least read and write, divided by its time, as a share of "
        f"the bandwidth of a plain copy on this machine: {record['bandwidth'] / 1e9:,.0f} GB/s. "
        "Data that fit into a cache can exceed it.</p>"
    )
    yield _svg(_roofline(record))
    if any(row["series"] for row in record["workloads"]):
        yield "<h2>Time against size</h2>"
        yield _svg(_sizes(record))
    yield "<h2>All times</h2>"
    yield times(record)


def _where(record: Record) -> str:
    machine = record["machine"]
    if record["device"] == "cuda":
        return str(machine.get("gpu", "a GPU"))
    return f"{machine['cpu']}, {_threads(record)}"


def _threads(record: Record) -> str:
    return f"{record['threads']} thread{'s' if record['threads'] > 1 else ''}"


def _facts(records: Sequence[Record], names: Sequence[str]) -> str:
    def versions(record: Record) -> str:
        return ", ".join(f"{name} {version}" for name, version in record["versions"].items())

    facts = {
        "file": list(names),
        "machine": [_where(record) for record in records],
        "processor": [
            f"{record['machine']['cpu']}, {record['machine']['cores']} cores" for record in records
        ],
        "date": [record["date"] for record in records],
        "command": [record["command"] for record in records],
        "copy": [f"{record['bandwidth'] / 1e9:,.1f} GB/s, read and written" for record in records],
        "versions": [versions(record) for record in records],
    }
    rows = (
        f"<tr><th>{name}</th>{''.join(f'<td>{escape(str(value))}</td>' for value in values)}</tr>"
        for name, values in facts.items()
    )
    return f'<table class="facts">{"".join(rows)}</table>'


def _ours(row: Record) -> Record | None:
    return next((o for o in row["outcomes"] if o["contender"] == OURS and o["seconds"]), None)


def _peer(row: Record) -> Record | None:
    return next((o for o in row["outcomes"] if o["contender"] == row["best_peer"] and o["seconds"]), None)


def _colour(outcome: Record) -> str:
    return COLOURS.get(outcome["library"], OTHER_COLOUR)


def _ratios(record: Record) -> "Figure":
    rows = [row for row in record["workloads"] if row["ratio"]][::-1]
    figure, axes = _figure(10, 1.0 + 0.24 * max(len(rows), 1))
    for position, row in enumerate(rows):
        ours, peer, ratio = _ours(row), _peer(row), row["ratio"]
        if ours is None or peer is None:
            continue
        axes.barh(position, ratio - 1, left=1, color=OURS_COLOUR if ratio >= 1 else _colour(peer), height=0.7)
        label = (
            f" {ratio:.2g}x  {peer['contender']} {duration(peer['seconds'])} : {duration(ours['seconds'])}"
        )
        axes.text(max(ratio, 1), position, label, va="center", fontsize=8, parse_math=False)
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=8, parse_math=False)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("time of the best peer / time of dmlops")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(right=max([1, *(row["ratio"] for row in rows)]) * 12)
    axes.set_ylim(-0.7, max(len(rows), 1) - 0.3)
    return figure


def _roofline(record: Record) -> "Figure":
    figure, axes = _figure(10, 5)
    seen: set[str] = set()
    for row in record["workloads"]:
        for outcome in reversed(row["outcomes"]):
            if not outcome["seconds"]:
                continue
            library = outcome["library"]
            ours = library == OURS
            axes.plot(
                row["bytes_moved"],
                row["bytes_moved"] / outcome["seconds"] / record["bandwidth"],
                marker="o" if ours else ".",
                markersize=6,
                linestyle="none",
                color=_colour(outcome),
                alpha=0.9 if ours else 0.55,
                zorder=3 if ours else 2,
                label=None if library in seen else library,
            )
            seen.add(library)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("bytes that must move")
    axes.set_ylabel("share of the copy bandwidth")
    axes.yaxis.set_major_formatter("{x:.3g}")
    if seen:
        _legend(axes)
    return figure


def _sizes(record: Record) -> "Figure":
    series: dict[str, list[Record]] = {}
    for row in record["workloads"]:
        if row["series"]:
            series.setdefault(row["series"], []).append(row)
    figure = _empty_figure(10, 3.6 * -(-len(series) // 2))
    for position, (name, rows) in enumerate(series.items(), start=1):
        axes = figure.add_subplot(-(-len(series) // 2), 2, position)
        lines: dict[str, tuple[Record, list[tuple[int, float]]]] = {}
        for row in rows:
            for outcome in row["outcomes"]:
                if outcome["seconds"]:
                    line = lines.setdefault(outcome["contender"], (outcome, []))
                    line[1].append((row.get("at") or row["size"], outcome["seconds"] * 1e3))
        for contender, (outcome, points) in lines.items():
            ours = outcome["library"] == OURS
            axes.plot(
                *zip(*sorted(points), strict=True),
                color=_colour(outcome),
                linewidth=2 if ours else 1,
                marker="o",
                markersize=4 if ours else 2.5,
                label=contender,
                zorder=3 if ours else 2,
            )
        axes.set_title(name, fontsize=9, parse_math=False)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("" if rows[0].get("at") else "elements")
        axes.set_ylabel("ms")
        if lines:
            _legend(axes, fontsize=7)
    return figure


def _comparison(records: Sequence[Record], names: Sequence[str]) -> "Figure":
    before, after = ({row["name"]: row for row in record["workloads"]} for record in records)
    pairs = [
        (name, first["seconds"], second["seconds"])
        for name in before
        if name in after and (first := _ours(before[name])) and (second := _ours(after[name]))
    ][::-1]
    figure, axes = _figure(10, 1.0 + 0.24 * max(len(pairs), 1))
    for position, (_, first, second) in enumerate(pairs):
        ratio = first / second
        axes.barh(position, ratio - 1, left=1, color=OURS_COLOUR if ratio >= 1 else OTHER_COLOUR, height=0.7)
        text = f" {ratio:.2f}x  {duration(first)} : {duration(second)}"
        axes.text(max(ratio, 1), position, text, va="center", fontsize=8)
    axes.set_yticks(range(len(pairs)), [name for name, *_ in pairs], fontsize=8, parse_math=False)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(f"dmlops: time in {names[0]} / time in {names[1]}", parse_math=False)
    axes.set_xlim(right=max([1.0, *(first / second for _, first, second in pairs)]) * 4)
    axes.set_ylim(-0.7, max(len(pairs), 1) - 0.3)
    return figure


def _legend(axes: Any, **options: Any) -> None:
    for text in axes.legend(frameon=False, **options).get_texts():
        text.set_parse_math(False)


def _figure(width: float, height: float) -> tuple["Figure", Any]:
    figure = _empty_figure(width, height)
    return figure, figure.add_subplot()


def _empty_figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    return Figure(figsize=(width, height), layout="constrained")


def _svg(figure: "Figure") -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def times(record: Record) -> str:
    """Return the table of all times, as HTML."""
    gpu = record["device"] == "cuda"
    headers = ["workload", "contender", "GPU time" if gpu else "time", *(["host", "wall"] if gpu else [])]
    headers += ["GB/s", "of copy", "dmlops is"]
    lines = [f"<tr>{''.join(f'<th>{header}</th>' for header in headers)}</tr>"]
    for row in record["workloads"]:
        ours = _ours(row)
        for number, outcome in enumerate(row["outcomes"]):
            cells = _outcome_cells(row, outcome, ours, record["bandwidth"], gpu)
            head = f"{escape(row['name'])}<small>{escape(row['reason'])}</small>" if number == 0 else ""
            lines.append(f"<tr{' class=first' if number == 0 else ''}><td>{head}</td>{cells}</tr>")
    return f"<details open><summary>medians</summary><table>{''.join(lines)}</table></details>"


def _outcome_cells(row: Record, outcome: Record, ours: Record | None, bandwidth: float, gpu: bool) -> str:
    style = "text ours" if outcome["library"] == OURS else "text"
    told = outcome["note"] if outcome["status"] == "ok" else f"{outcome['status']}: {outcome['message']}"
    style += " bad" if outcome["status"] == "wrong" else ""
    name = f'<td class="{style}">{escape(outcome["contender"])}<small>{escape(told)}</small></td>'
    if not outcome["seconds"]:
        return name + "<td></td>" * (6 if gpu else 4)
    rate = row["bytes_moved"] / outcome["seconds"]
    measured = [outcome["seconds"], *((outcome["host"], outcome["wall"]) if gpu else ())]
    texts = [duration(seconds) if seconds else "" for seconds in measured]
    faster = f"{outcome['seconds'] / ours['seconds']:.2f}x" if ours else ""
    texts += [f"{rate / 1e9:,.1f}", f"{rate / bandwidth:.0%}", faster if outcome is not ours else ""]
    return name + "".join(f"<td>{text}</td>" for text in texts)


def duration(seconds: float) -> str:
    """Return a duration with three significant digits and the unit that suits it.

    Examples
    --------
    >>> duration(1.2345e-5), duration(0.25), duration(3)
    ('12.3 us', '250 ms', '3 s')
    >>> duration(999.6e-6), duration(1234)
    ('1 ms', '1234 s')
    """
    for factor, unit in ((1e6, "us"), (1e3, "ms"), (1, "s")):
        text = f"{seconds * factor:.3g}"
        if float(text) < 1000:
            return f"{text} {unit}"
    return f"{seconds:.0f} s"
