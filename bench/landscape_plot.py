"""The picture of the landscape of top-k: one heat map per application and contest."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.contests import Contest, Standing, standings
from bench.digits import three_digits
from bench.landscape import APPLICATIONS, Case

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = (Contest.SORTED, Contest.ANY)
TITLES = {
    Contest.SORTED: "in order of value, against all that sort",
    Contest.ANY: "in order of index, against answers in any order",
}
# The colours end where one side takes this many times as long as the other.
MOST = 3.0
NO_PEER = "#eeeeee"
WIDTH, ROW_HEIGHT, EXTRA_HEIGHT = 11.0, 0.32, 0.9  # inches


def has_landscape(record: Mapping[str, Any]) -> bool:
    """Whether a results file has problems of the landscape."""
    return bool(standings(record["workloads"], Contest.SORTED) or standings(record["workloads"], Contest.ANY))


def about(record: Mapping[str, Any]) -> str:
    """Return in how many problems dmlops is ahead, and what the picture shows."""
    gpu = record["machine"].get("gpu") or ""
    told = []
    for contest in SHOWN:
        ratios = [
            each.ratio for each in standings(record["workloads"], contest, gpu) if each.ratio is not None
        ]
        if ratios:
            n_ahead = sum(ratio >= 1 for ratio in ratios)
            told.append(f"in {n_ahead} of {len(ratios)} problems {TITLES[contest]}")
    ahead = f"dmlops is the fastest {', and '.join(told)}. " if told else ""
    return (
        f"{ahead}Blue cells: dmlops is faster than the fastest other library; red cells: it is slower; "
        "grey cells: no other was timed."
    )


def picture(record: Mapping[str, Any]) -> "Figure":
    """Return the picture of a results file of `python -m bench landscape`.

    Each cell has the microseconds that dmlops takes. Its colour tells how much faster or slower that is than
    the fastest other library.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    gpu = record["machine"].get("gpu") or ""
    by_contest = {contest: standings(record["workloads"], contest, gpu) for contest in SHOWN}
    maps = [
        (name, contest, found)
        for name in APPLICATIONS
        for contest in SHOWN
        if (found := _of(name, by_contest[contest]))
    ]
    heights = [ROW_HEIGHT * len(_lines(name)) + EXTRA_HEIGHT for name, *_ in maps]
    figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    grid = figure.subplots(len(maps), squeeze=False, height_ratios=heights)[:, 0]
    for (name, contest, found), axes in zip(maps, grid, strict=True):
        bar = figure.colorbar(_draw(axes, name, found), ax=axes, aspect=12, pad=0.01)
        ticks = (1 / MOST, 1, MOST)
        labels = (f"{MOST:g} x slower", "equal", f"{MOST:g} x faster")
        bar.set_ticks([math.log(tick) for tick in ticks], labels=labels)
        bar.outline.set_visible(False)
        axes.set_title(f"{name}: {TITLES[contest]} (microseconds of dmlops)", loc="left")
    return figure


def _of(name: str, found: Sequence[Standing]) -> dict[Case, Standing]:
    return {each.case: each for each in found if each.case.application == name}


def _lines(name: str) -> list[tuple[str, int]]:
    """Return types and numbers of rows, from top to bottom."""
    each = APPLICATIONS[name]
    return [(dtype, rows) for dtype in each.dtypes for rows in each.rows]


def _columns(name: str) -> list[tuple[int, int]]:
    """Return sizes and k, from left to right."""
    return APPLICATIONS[name].columns


def _draw(axes: Any, name: str, found: Mapping[Case, Standing]) -> Any:
    lines, columns = _lines(name), _columns(name)
    ratios = [[math.nan] * len(columns) for _ in lines]
    for y, (dtype, rows) in enumerate(lines):
        for x, (size, k) in enumerate(columns):
            standing = found.get(Case(name, rows, size, dtype, k))
            if standing is None:
                continue
            ratio = standing.ratio
            if ratio is not None:
                ratios[y][x] = max(-math.log(MOST), min(math.log(ratio), math.log(MOST)))
            is_dark = ratio is not None and abs(ratios[y][x]) > math.log(2)
            text = three_digits(standing.seconds * 1e6)
            colour = "white" if is_dark else "black"
            axes.text(x, y, text, ha="center", va="center", color=colour)
    shown = axes.imshow(ratios, cmap="RdBu", vmin=-math.log(MOST), vmax=math.log(MOST), aspect="auto")
    axes.set_facecolor(NO_PEER)
    has_types, has_k = len(APPLICATIONS[name].dtypes) > 1, len(APPLICATIONS[name].ks) > 1
    axes.set_yticks(
        range(len(lines)),
        [f"{rows} row{'s' if rows > 1 else ''}{f', {dtype}' if has_types else ''}" for dtype, rows in lines],
    )
    axes.set_xticks(
        range(len(columns)),
        [f"{_short(size)}{f'{chr(10)}k {k}' if has_k else ''}" for size, k in columns],
    )
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return shown


def _short(size: int) -> str:
    """Return a number of elements as people write it.

    Examples
    --------
    >>> [_short(size) for size in (64, 4096, 100_000, 128_256, 1 << 20, 10_000_000)]
    ['64', '4Ki', '100k', '128256', '1Mi', '10M']
    """
    for unit, amount in (("Mi", 1 << 20), ("M", 10**6), ("Ki", 1 << 10), ("k", 1000)):
        if size % amount == 0:
            return f"{size // amount}{unit}"
    return str(size)
