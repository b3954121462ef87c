"""Make one self-contained HTML page about one run of the benchmark, or about two runs side by side."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from bench import plots
from bench.digits import times
from bench.plots import OURS, Record
from dmlops.cli.console import duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff; overflow-wrap: anywhere }
h1 { font-size: 1.7rem; line-height: 1.2 }
h2 { font-size: 1.25rem; margin-top: 2rem }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid #ddd; vertical-align: top }
th:first-child, td:first-child, .text { text-align: left }
td small { color: #666; display: block }
tr.first td { border-top: 2px solid #999 }
.ours { color: #2166ac; font-weight: 600 }
.bad { color: #b00020; font-weight: 600 }
.facts th { white-space: nowrap; border: 0 }
.facts td { border: 0; text-align: left }
.wide { overflow-x: auto }
.wide svg { width: 100%; min-width: 50rem; height: auto }
.wide table { width: 100%; min-width: 44rem; overflow-wrap: normal }
.number { white-space: nowrap }
details { margin: 1rem 0 }
"""

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
# Of points of sweeps, of GPUs, and of times that were taken since their spread is kept.
_NOT_ALWAYS = {"at", "gpu", "low", "high"}
_OUTCOME: Fields = {
    "contender": _TEXT,
    "library": _TEXT,
    "note": _TEXT,
    "status": _TEXT,
    "message": _TEXT,
    "seconds": _NUMBER_OR_NONE,
    "low": _NUMBER_OR_NONE,
    "high": _NUMBER_OR_NONE,
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
        One or two results of `python -m bench run --json`, as `check` finds them right.
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
    with _style(mpl):
        if len(records) == 2:
            parts.append("<h2>The two runs side by side</h2>")
            parts.append(_paragraph(plots.about_comparison(records, names)))
            parts.append(_wide(plots.svg(plots.comparison(records, names))))
        for record, name in zip(records, names, strict=True):
            parts += [f"<h1>{escape(name)}</h1>"] if len(records) == 2 else []
            parts += _about(record)
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>dmlops benchmark</title>'
        f"<style>{_CSS}</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def picture(record: Record, suffix: str) -> bytes:
    """Return the main picture alone: the landscape of top-k if there is one, and otherwise the ratios.

    Parameters
    ----------
    record : dict
        Results of `python -m bench run --json`, as `check` finds them right.
    suffix : {".svg", ".png"}
        The format.

    Raises
    ------
    ValueError
        If there is nothing to draw.
    ModuleNotFoundError
        Without matplotlib.
    """
    import matplotlib as mpl  # noqa: PLC0415 - an optional dependency

    from bench import landscape_plot  # noqa: PLC0415 - for landscapes only

    has_landscape = landscape_plot.has_landscape(record)
    if not has_landscape and not plots.pairs_of(record):
        message = "the results: no workload was timed with a peer, so there is nothing to draw"
        raise ValueError(message)
    with _style(mpl):
        figure: Figure = landscape_plot.picture(record) if has_landscape else plots.ratios(record)
        return plots.png(figure) if suffix == ".png" else f"{plots.svg(figure)}\n".encode()


@contextmanager
def _style(mpl: Any) -> Iterator[None]:
    with (
        mpl.rc_context(plots.STYLE),
        warnings.catch_warnings(action="ignore"),
    ):  # of letters that its font lacks
        yield


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>" if text else ""


def _wide(content: str) -> str:
    """Let a plot or table be scrolled where the screen is narrow."""
    return f'<div class="wide">{content}</div>'


def _about(record: Record) -> Iterator[str]:
    from bench import landscape_plot  # noqa: PLC0415 - for landscapes only

    if landscape_plot.has_landscape(record):
        yield "<h2>The landscape of top-k</h2>"
        yield _paragraph(landscape_plot.about(record))
        yield _wide(plots.svg(landscape_plot.picture(record)))
    yield "<h2>Time of the best peer divided by the time of dmlops</h2>"
    yield _paragraph(plots.about_ratios(record))
    if plots.pairs_of(record):
        yield _wide(plots.svg(plots.ratios(record)))
    yield "<h2>Share of the copy bandwidth</h2>"
    yield _paragraph(
        "The bytes that each workload must at least read and write, divided by its time, as a share of the "
        f"bandwidth of a plain copy on this machine, {record['bandwidth'] / 1e9:,.0f} GB/s. Data in a "
        f"cache can exceed it. {plots.about_shares(record)}"
    )
    yield _wide(plots.svg(plots.shares(record)))
    if any(row["series"] for row in record["workloads"]):
        yield "<h2>Time against size</h2>"
        yield _paragraph(plots.about_sizes(record))
        yield _wide(plots.svg(plots.sizes(record)))
    yield "<h2>All times</h2>"
    yield all_times(record)


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


def all_times(record: Record) -> str:
    """Return the table of all times, as HTML."""
    gpu = record["device"] == "cuda"
    headers = ["workload", "contender", "GPU time" if gpu else "time", *(["host", "wall"] if gpu else [])]
    headers += ["GB/s", "of copy", "dmlops is"]
    cells = "".join(
        f"<th{' class=text' if header == 'contender' else ''}>{header}</th>" for header in headers
    )
    lines = [f"<tr>{cells}</tr>"]
    for row in record["workloads"]:
        ours = plots.ours_of(row)
        for number, outcome in enumerate(row["outcomes"]):
            cells = _outcome_cells(row, outcome, ours, record["bandwidth"], gpu)
            head = f"{escape(row['name'])}<small>{escape(row['reason'])}</small>" if number == 0 else ""
            lines.append(f"<tr{' class=first' if number == 0 else ''}><td>{head}</td>{cells}</tr>")
    table = _wide(f"<table>{''.join(lines)}</table>")
    return f"<details open><summary>medians and quartiles</summary>{table}</details>"


def _outcome_cells(row: Record, outcome: Record, ours: Record | None, bandwidth: float, gpu: bool) -> str:
    style = "text ours" if outcome["library"] == OURS else "text"
    told = outcome["note"] if outcome["status"] == "ok" else f"{outcome['status']}: {outcome['message']}"
    style += " bad" if outcome["status"] == "wrong" else ""
    name = f'<td class="{style}">{escape(outcome["contender"])}<small>{escape(told)}</small></td>'
    if not outcome["seconds"]:
        return name + "<td></td>" * (6 if gpu else 4)
    rate = row["bytes_moved"] / outcome["seconds"]
    texts = [duration(outcome["seconds"])]
    if outcome.get("low") and outcome.get("high"):
        texts[0] += f"<small>{duration(outcome['low'])} to {duration(outcome['high'])}</small>"
    texts += [duration(seconds) if seconds else "" for seconds in (outcome["host"], outcome["wall"]) if gpu]
    faster = times(outcome["seconds"] / ours["seconds"]) if ours else ""
    texts += [f"{rate / 1e9:,.1f}", f"{rate / bandwidth:.0%}", faster if outcome is not ours else ""]
    return name + "".join(f'<td class="number">{text}</td>' for text in texts)
