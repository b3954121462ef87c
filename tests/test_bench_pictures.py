"""The pictures of `python -m bench report`, compared with the results that they show."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex
from matplotlib.text import Text

from bench import landscape_plot, plots, report

RESULTS = Path(__file__).parent.parent / "bench" / "results"
BLUE, RED = "#2166ac", "#b2182b"


@pytest.fixture(scope="module")
def run():
    """Return results of the CPU, with quartiles at 0.9 and 1.2 times the medians, and dollars in names."""
    record = json.loads((RESULTS / "epyc-2threads-2026-11-27.json").read_text())
    for row in record["workloads"]:
        row["name"], row["series"] = f"{row['name']} $1$", row["series"] and f"{row['series']} $2$"
        row["best_peer"] = row["best_peer"] and f"{row['best_peer']} $3$"
        for each in row["outcomes"]:
            each["contender"] += " $3$" * (each["contender"] != "dmlops")
            each["low"], each["high"] = (
                each["seconds"] and factor * each["seconds"] for factor in (0.9, 1.2)
            )
    return record


def seconds_of(row, contender="dmlops"):
    return {each["contender"]: each["seconds"] for each in row["outcomes"]}[contender]


def names_of(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def formulas_of(figure):
    """Return the texts with dollars of names that would be printed as formulas, and the kinds of axes."""
    texts = [each for each in figure.findobj(Text) if re.search(r"\$\w\$", each.get_text())]
    assert texts
    scales = {(axes.get_xscale(), axes.get_yscale()) for axes in figure.axes}
    return [each.get_text() for each in texts if each.get_parse_math()], scales


def bars_of(axes):
    """Return the bars by position: where they end, and their colour; those of the legend have no width."""
    return [(bar.get_width() + 1, to_hex(bar.get_facecolor())) for bar in axes.patches if bar.get_width()]


def test_ratios(run):
    figure = plots.ratios(run)
    (axes,) = figure.axes
    assert formulas_of(figure) == ([], {("log", "linear")})
    assert [[*line.get_xdata()] for line in axes.lines] == [[1, 1]]
    rows = [row for row in run["workloads"] if row["ratio"]][::-1]
    assert names_of(axes) == [row["name"] for row in rows]
    assert 72 * figure.get_figheight() / len(rows) > 1.2 * axes.get_yticklabels()[0].get_fontsize()
    ratios = [seconds_of(row, row["best_peer"]) / seconds_of(row) for row in rows]
    assert [end for end, _ in bars_of(axes)] == pytest.approx(ratios, rel=1e-4)  # files have few digits
    assert [colour for _, colour in bars_of(axes)] == [BLUE if ratio >= 1 else RED for ratio in ratios]
    texts = [text.get_text() for text in axes.texts]
    columns = [texts[at : at + len(rows) + 1] for at in range(0, len(texts), len(rows) + 1)]
    titles = ["ratio", "quartiles", "best peer", "its time", "dmlops"]
    assert [column[-1] for column in columns] == titles
    assert [text.get_color() for text in axes.texts[: len(rows) + 1]] == ["black"] * len(rows) + ["#666666"]
    assert columns[2][:-1] == [row["best_peer"] for row in rows]
    assert columns[0][0] == f"{ratios[0]:.2f} x"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "dmlops is faster",
        "the best peer is faster",
    ]
    low, high = axes.get_xlim()
    assert low < min(ratios) < max(ratios) < high
    assert columns[1][0] == f"{ratios[0] * 0.75:.2f} to {ratios[0] / 0.75:.2f}"


def test_two_runs(run):
    slower = json.loads(json.dumps(run))
    for number, row in enumerate(slower["workloads"]):
        row["outcomes"][0]["seconds"] *= 2 if number else 0.5
    (axes,) = (figure := plots.comparison([slower, run], ["a$1$", "b"])).axes
    assert formulas_of(figure) == ([], {("log", "linear")})
    factors = [2.0] * (len(run["workloads"]) - 1) + [0.5]
    assert bars_of(axes) == [(pytest.approx(each), BLUE if each > 1 else RED) for each in factors]
    assert names_of(axes) == [row["name"] for row in run["workloads"]][::-1]
    assert axes.get_xlabel() == "dmlops: time in a$1$ / time in b"
    n_faster = len(factors) - 1
    assert f"faster in {n_faster} of {len(factors)} workloads, in the median 2.00 times" in (
        plots.about_comparison([slower, run], ["a", "b"])
    )


def test_shares_of_the_bandwidth(run):
    (axes,) = plots.shares(run).axes
    expected, rows = [], run["workloads"][::-1]
    for position, row in enumerate(rows):
        for each in row["outcomes"]:
            if each["seconds"]:
                share = 100 * row["bytes_moved"] / each["seconds"] / run["bandwidth"]
                expected.append((pytest.approx(share), position, plots.COLOURS[each["library"]]))
    assert formulas_of(axes.figure) == ([], {("log", "linear")})
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [[*line.get_xdata()] for line in axes.lines if line not in dots] == [[100, 100]]
    found = [(*line.get_xdata(), *line.get_ydata(), line.get_color()) for line in dots]
    assert len(found) == len(expected)
    assert all(each in found for each in expected)
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert sorted(names) == sorted(
        {each["library"] for row in rows for each in row["outcomes"] if each["seconds"]}
    )
    large = [row for row in rows if row["bytes_moved"] >= 1e6]
    assert ("where a megabyte or more must move" in plots.about_shares(run)) == bool(large)


def test_times_by_size(run):
    figure, rows = plots.sizes(run), [row for row in run["workloads"] if row["series"]]
    assert [axes.get_title() for axes in figure.axes] == [*dict.fromkeys(row["series"] for row in rows)]
    assert {axes.get_gridspec().get_geometry() for axes in figure.axes} == {(-(-len(figure.axes) // 2), 2)}
    assert formulas_of(figure) == ([], {("log", "log")})
    for axes in figure.axes:
        assert axes.xaxis.get_transform().base == 2
        of_series = [row for row in rows if row["series"] == axes.get_title()]
        (ours,) = (line for line in axes.lines if line.get_label() == "dmlops")
        points = sorted((row["size"], 1e3 * seconds_of(row)) for row in of_series)
        assert [*zip(ours.get_xdata(), ours.get_ydata(), strict=True)] == points
        assert (ours.get_color(), axes.get_xlabel(), axes.get_ylabel()) == (BLUE, "elements", "ms")
        assert [line.get_linewidth() for line in axes.lines] == [1 + (line is ours) for line in axes.lines]
        labels = [text.get_text() for text in axes.get_legend().get_texts()]
        assert labels == [line.get_label() for line in axes.lines]
    ahead = {row["series"]: row["ratio"] >= 1 for row in rows}
    assert plots.about_sizes(run).endswith(f"dmlops in {sum(ahead.values())} of {len(ahead)} plots.")


def test_the_landscape():
    record = json.loads((RESULTS / "contest-h100-2026-11-26.json").read_text())
    figure = landscape_plot.picture(record)
    title = "gating 2026: in order of value"
    axes = next(each for each in figure.axes if each.get_title(loc="left").startswith(title))
    rows = {row["name"]: row for row in record["workloads"]}
    columns = [(256, 6), (384, 8), (512, 10), (512, 22), (896, 16)]
    labels = [f"{size}\nk {k}" for size, k in columns]
    assert [text.get_text() for text in axes.get_xticklabels()] == labels
    assert names_of(axes) == ["1 row", "64 rows", "4096 rows", "65536 rows"]
    bar = next(each for each in figure.axes if names_of(each)[1:2] == ["equal"])
    assert names_of(bar) == ["3 x slower", "equal", "3 x faster"]
    assert [*bar.get_yticks()] == pytest.approx([-math.log(3), 0, math.log(3)])
    shown, labels = axes.images[0].get_array(), iter(axes.texts)
    for y, n_rows in enumerate((1, 64, 4096, 65536)):
        for x, (size, k) in enumerate(columns):
            row, label = rows[f"gating 2026 {n_rows} x {size} float32, k {k}"], next(labels)
            times = [
                each["seconds"]
                for each in row["outcomes"]
                if each["seconds"] and each.get("contract") in ("sorted", "sorted and stable")
            ]
            ours = seconds_of(row)
            ratio = min(each for each in times if each != ours) / ours
            assert label.get_position() == (x, y)
            assert float(label.get_text()) == pytest.approx(1e6 * ours, rel=0.006)
            assert shown[y, x] == pytest.approx(min(math.log(ratio), math.log(3)))
            assert label.get_color() == ("white" if ratio > 2 else "black")
    told = re.findall(r"in (\d+) of (\d+) problems (in order of \w+)", landscape_plot.about(record))
    assert len(told) == 2
    for n_ahead, n_problems, order in told:
        maps = [each.images[0] for each in figure.axes if order in each.get_title(loc="left")]
        cells = np.concatenate([each.get_array().compressed() for each in maps])
        assert (int(n_ahead), int(n_problems)) == ((cells >= 0).sum(), len(cells))


@pytest.mark.exhaustive
def test_the_page(run):
    assert (report.picture(run, ".png")[1:4], b"<svg" in report.picture(run, ".svg")) == (b"PNG", True)
    of_two = run | {"workloads": run["workloads"][:2]}
    page = report.render([of_two], ["a.json"])
    for row in of_two["workloads"]:
        for each in row["outcomes"]:
            assert f">{each['contender']}<small>" in page
    assert page.count("<tr class=first>") == 2
    plots_of_one = ["Time of the best peer divided by the time of dmlops", "Share of the copy bandwidth"]
    headings = [f"dmlops on {run['machine']['cpu']}, 2 threads", *plots_of_one, "All times"]
    assert re.findall("<h[12]>(.*?)</h", page) == headings
    assert (page.count("<p>"), page.count("<svg")) == (2, 2)
    assert page.count(" to ") >= sum(len(row["outcomes"]) for row in of_two["workloads"]) - 2
    both = re.findall("<(?:h[12]|p)>(.*?)</", report.render([of_two, of_two], ["a.json", "b.json"]))
    assert both[1] == "The two runs side by side"
    assert both[2].endswith(" in 2 of 2 workloads, in the median 1.00 times as fast.")
    assert (both[3], both.count("b.json"), both.count("All times")) == ("a.json", 1, 2)
