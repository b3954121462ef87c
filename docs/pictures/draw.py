"""Draw the pictures of the documentation: `python docs/pictures/draw.py` writes them beside this file.

All numbers are answers of dmlops, or results of its benchmark. A picture has a background of its own, and
colours for light and for dark screens. It is narrow enough for its labels to be readable on a phone.
"""

import math
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

import dmlops
from bench.records import ratio
from bench.tables import chart

FOLDER = Path(__file__).parent
MARGIN, CELL_WIDTH, CELL_HEIGHT, NOTE_LINE = 20, 36, 30, 17
ARROW = 34
STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de; }
  .cell { fill: #f3f5f7; stroke: #c4ccd4; }
  .blue { fill: #b9dcff; stroke: #5a9bdc; }
  .orange { fill: #ffd9a8; stroke: #d9934a; }
  .green { fill: #bfe8c4; stroke: #5fae6b; }
  .violet { fill: #dccbf7; stroke: #9a7bd0; }
  text { fill: #1f2328; font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
  .note { fill: #4a535c; font: 13px system-ui, "Segoe UI", "DejaVu Sans", Helvetica, Arial, sans-serif; }
  .name { font: 600 14px system-ui, "Segoe UI", "DejaVu Sans", Helvetica, Arial, sans-serif; }
  .ahead { fill: #2166ac; }
  .behind { fill: #b2182b; }
  .middle { text-anchor: middle; }
  .line { fill: #59636e; stroke: #59636e; stroke-width: 1.5; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #161b22; stroke: #3d444d; }
    .cell { fill: #232a33; stroke: #4a525c; }
    .blue { fill: #17497f; stroke: #4f96e0; }
    .orange { fill: #6e430f; stroke: #cf8a3c; }
    .ahead { fill: #4f96e0; }
    .behind { fill: #e0705f; }
    .green { fill: #1d5630; stroke: #55a866; }
    .violet { fill: #47327a; stroke: #9478d6; }
    text { fill: #e6edf3; }
    .note { fill: #c3cad1; }
    .line { fill: #c3cad1; stroke: #c3cad1; }
  }
"""
TICKS = (0.5, 1, 2, 4)  # of the ratios of `speed`
COLOURS = ("blue", "orange", "green", "violet")


class Drawing:
    """The elements of one picture; `svg` puts a card behind them."""

    def __init__(self, title: str) -> None:
        self.title, self.parts = title, list[str]()
        self.width = self.height = 0.0

    def text(self, x: float, y: float, text: str, style: str = "") -> None:
        """Write one line; `y` is its baseline."""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{style}">{escape(text)}</text>')
        width = (7.2 if "note" in style else 8.43) * len(text)
        self._extend(x if "middle" in style else x + width, y)

    def box(self, x: float, y: float, width: float, height: float, style: str = "cell") -> None:
        """Draw a rounded rectangle."""
        shape = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"'
        self.parts.append(f'<rect {shape} class="{style}"/>')
        self._extend(x + width, y + height)

    def arrow(self, x: float, y: float, length: float, turn: int = 90) -> None:
        """Draw an arrow; `turn` is its direction in degrees, clockwise from the right."""
        path = f"M0 0H{length - 6:g}m6 0l-7 -5v10z"
        self.parts.append(
            f'<path d="{path}" transform="translate({x:g} {y:g}) rotate({turn})" class="line"/>'
        )

    def grid(
        self, x: float, y: float, values: np.ndarray, styles: dict[tuple[int, int], str], indices: bool = True
    ) -> None:
        """Draw a matrix, its indices above and to the left; `styles` colours some of its cells."""
        height, width = values.shape
        for row in range(height):
            for column in range(width):
                at_x, at_y = x + column * CELL_WIDTH, y + row * CELL_HEIGHT
                self.box(at_x, at_y, CELL_WIDTH - 3, CELL_HEIGHT - 3, styles.get((row, column), "cell"))
                self.text(at_x + CELL_WIDTH / 2 - 1.5, at_y + 19, shown(values[row, column]), "middle")
        for column in range(width if indices else 0):
            self.text(x + column * CELL_WIDTH + CELL_WIDTH / 2 - 1.5, y - 6, str(column), "note middle")
        for row in range(height if indices and height > 1 else 0):
            self.text(x - 9, y + row * CELL_HEIGHT + 19, str(row), "note middle")

    def svg(self) -> str:
        """Return the file."""
        width, height = round(self.width + MARGIN), round(self.height + MARGIN)
        card = f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" class="card"/>'
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
            f' viewBox="0 0 {width} {height}" role="img">'
        )
        return "\n".join(
            (
                opening,
                f"<title>{escape(self.title)}</title>",
                f"<style>{STYLE}</style>",
                card,
                *self.parts,
                "</svg>\n",
            )
        )

    def _extend(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)


def shown(value: object) -> str:
    """Return a number as a cell has room for it."""
    text = f"{value:g}" if isinstance(value, np.floating) else str(value)
    return text.replace("inf", "\N{INFINITY}").replace("-", "\N{MINUS SIGN}")


def top_k() -> Drawing:
    """Draw the three largest of a row with ties, by value and by index."""
    x = np.array([6, 2, 7, 3, 7, 6])
    drawing = Drawing("top_k selects the k largest elements; ties are in ascending order of index")
    selected = dmlops.top_k(x, 3).indices
    colour = dict(zip(selected.tolist(), COLOURS, strict=False))
    drawing.text(MARGIN, 36, f"x = {x.tolist()}")
    drawing.grid(MARGIN, 70, x[None], {(0, at): style for at, style in colour.items()})
    drawing.text(MARGIN + 6 * CELL_WIDTH + 8, 80, "the 6 at index 0", "note")
    drawing.text(MARGIN + 6 * CELL_WIDTH + 8, 80 + NOTE_LINE, "precedes the 6 at 5", "note")
    y = 70 + CELL_HEIGHT + 30
    for call, result in (
        ("top_k(x, 3)", dmlops.top_k(x, 3)),
        ("top_k(x, 3, sorted=False)", dmlops.top_k(x, 3, sorted=False)),
    ):
        drawing.text(MARGIN, y, call)
        styles = {(0, place): colour[at] for place, at in enumerate(result.indices.tolist())}
        for label, row in (("values", result.values), ("indices", result.indices)):
            drawing.text(MARGIN, y + 29, label, "note")
            drawing.grid(MARGIN + 60, y + 10, row[None], styles, indices=False)
            y += CELL_HEIGHT
        order = "by value" if "sorted" not in call else "by index"
        drawing.text(MARGIN + 60 + 3 * CELL_WIDTH + 8, y - 1, order, "note")
        y += 42
    return drawing


def nonzero_coordinates() -> Drawing:
    """Draw the coordinates of a small mask, trimmed and with a size."""
    x = np.array([[0, 5, 0, 0], [0, 0, 0, -1], [8, 0, 0, 0]])
    drawing = Drawing("nonzero_coordinates lists the coordinates of the non-zero elements and counts them")
    trimmed = dmlops.nonzero_coordinates(x)
    coordinates, count = trimmed
    padded = dmlops.nonzero_coordinates(x, size=4, fill_value=0)
    styles = {(int(i), int(j)): COLOURS[at] for at, (i, j) in enumerate(coordinates)}
    drawing.text(MARGIN, 36, "x")
    drawing.grid(MARGIN + 16, 70, x, styles)
    rows = {(at, column): COLOURS[at] for at in range(int(count)) for column in range(2)}
    y = 70 + 3 * CELL_HEIGHT + 30
    for call, result, notes in (
        ("nonzero_coordinates(x)", trimmed, ["trimmed, for which a GPU call waits"]),
        (
            "nonzero_coordinates(x, size=4, fill_value=0)",
            padded,
            ["the size is given, so that", "a GPU call never waits"],
        ),
    ):
        drawing.text(MARGIN, y, call)
        drawing.grid(MARGIN, y + 12, result.coordinates, rows, indices=False)
        for line, note in enumerate([f"count = {result.count}", *notes]):
            drawing.text(MARGIN + 2 * CELL_WIDTH + 8, y + 31 + NOTE_LINE * line, note, "note")
        y += len(result.coordinates) * CELL_HEIGHT + 36
    return drawing


def gather_nd() -> Drawing:
    """Draw elements by tuples of two indices, and rows by tuples of one."""
    x = np.arange(10, 130, 10).reshape(3, 4)
    drawing = Drawing("gather_nd reads the elements or slices that index tuples point at")
    tuples, single = np.array([[0, 1], [2, 3], [1, 0]]), np.array([[2], [0]])
    drawing.text(MARGIN, 36, "x")
    drawing.grid(MARGIN + 16, 70, x, {(int(i), int(j)): COLOURS[at] for at, (i, j) in enumerate(tuples)})
    y = 70 + 3 * CELL_HEIGHT + 30
    drawing.text(MARGIN, y, "gather_nd(x, indices)")
    for indices, note in ((tuples, "2 indices each: elements"), (single, "1 index each: rows")):
        n, size = indices.shape
        answer = dmlops.gather_nd(x, indices).reshape(n, -1)
        colours = COLOURS if size == 2 else ("cell",) * n
        drawing.grid(
            MARGIN,
            y + 12,
            indices,
            {(r, c): colours[r] for r in range(n) for c in range(size)},
            indices=False,
        )
        at = MARGIN + size * CELL_WIDTH
        drawing.arrow(at + 6, y + 12 + n * CELL_HEIGHT / 2, ARROW - 6, turn=0)
        styles = {(r, c): colours[r] for r in range(n) for c in range(answer.shape[1])}
        drawing.grid(at + ARROW + 10, y + 12, answer, styles, indices=False)
        drawing.text(at + ARROW + 18 + answer.shape[1] * CELL_WIDTH, y + 31, note, "note")
        y += n * CELL_HEIGHT + 24
    return drawing


def diagonal_matrix() -> Drawing:
    """Draw an identity, a causal mask and a band."""
    drawing = Drawing("diagonal_matrix fills the band begin <= column - row < end with a value")
    scores = np.arange(1, 17, dtype=np.float32).reshape(4, 4)
    drawing.text(MARGIN, 36, "filled: begin <= column - row < end")
    y = 70
    for call, note, values in (
        ("shape=(4, 4), dtype=int", "begin=0, end=1", dmlops.diagonal_matrix(shape=(4, 4), dtype=int)),
        (
            "x, value=-inf, begin=1, end=4",
            "a causal mask",
            dmlops.diagonal_matrix(scores, value=-np.inf, begin=1, end=4),
        ),
        (
            "x, value=0, begin=2, end=-1",
            "begin > end: the band",
            dmlops.diagonal_matrix(scores, value=0, begin=2, end=-1),
        ),
    ):
        old = np.zeros((4, 4)) if "shape" in call else scores
        filled = {(int(i), int(j)): "orange" for i, j in np.argwhere(values != old)}
        drawing.text(MARGIN, y, f"diagonal_matrix({call})")
        drawing.grid(MARGIN, y + 12, values, filled, indices=False)
        drawing.text(MARGIN + 4 * CELL_WIDTH + 10, y + 31, note, "note")
        if "begin >" in note:
            drawing.text(MARGIN + 4 * CELL_WIDTH + 10, y + 31 + NOTE_LINE, "-1 to 1 is kept", "note")
        y += 4 * CELL_HEIGHT + 40
    return drawing


def architecture() -> Drawing:
    """Draw the life of a call, from arrays to kernels."""
    drawing = Drawing(
        "A call: arrays, framework, function or descriptor, kind, native call or binding, kernels"
    )
    left, width, half = MARGIN, 420, 200
    right = left + width - half

    def part(x: float, y: float, across: float, style: str, name: str, *notes: str) -> float:
        height = 30 + NOTE_LINE * len(notes)
        drawing.box(x, y, across, height, style)
        drawing.text(x + across / 2, y + 20, name, "name middle")
        for at, note in enumerate(notes):
            drawing.text(x + across / 2, y + 38 + NOTE_LINE * at, note, "note middle")
        return y + height

    left_centre, right_centre = left + half / 2, right + half / 2

    def arrows(y: float) -> float:
        drawing.arrow(left_centre, y, ARROW)
        drawing.arrow(right_centre, y, ARROW)
        return y + ARROW

    part(left, 20, half, "violet", "Arrays", "NumPy, torch, CuPy, JAX,", "Numba, DLPack, ...")
    y = part(right, 20, half, "violet", "DirectML's descriptors", "TopK1, GatherND1, ...;", "feature levels")
    y = arrows(y)
    part(left, y, half, "blue", "Functions", "a framework that traces", "takes the call over here")
    y = part(right, y, half, "blue", "compile, execute", "planned once,", "run often")
    y = arrows(y)
    known = part(left, y, width, "green", "Kinds", "function, types, numbers of dimensions, device: no sizes")
    drawing.arrow(left_centre, known, ARROW)
    drawing.text(left_centre + 12, known + 22, "a new kind", "note")
    checks = "arrays are vouched for,", "outputs inferred, the level", "checked: errors are made here"
    bound = part(left, known + ARROW, half, "orange", "Binding", *checks)
    drawing.arrow(left_centre, bound, ARROW)
    notes = "in the wheel, then in the", "cache directory; otherwise", "it is compiled"
    stored = part(left, bound + ARROW, half, "orange", "Kernel store", *notes)
    drawing.arrow(left_centre, stored, ARROW)
    drawing.arrow(right_centre, known, stored + ARROW - known)
    drawing.text(right_centre + 12, known + ARROW + 22, "any size", "note")
    drawing.text(right_centre + 12, known + ARROW + 22 + NOTE_LINE, "of a known one", "note")
    y = part(
        left, stored + ARROW, width, "green", "Fit, plan, launch", "one native call, which checks every array"
    )
    y = arrows(y)
    part(left, y, half, "cell", "CPU kernels", "SIMD, a pool of threads")
    y = part(right, y, half, "cell", "CUDA kernels", "on the caller's stream")
    y = arrows(y)
    part(left, y, width, "violet", "Arrays of the same library", "the same bytes from both devices")
    return drawing


def speed() -> Drawing:
    """Draw the ratios of some workloads of the benchmark as bars from 1, on a logarithmic scale."""
    drawing = Drawing("Time of the fastest other library divided by the time of dmlops, for ten workloads")
    one, factor_two = 84.0, 58.0  # where 1 is, and how much further 2 is
    groups = [*chart()]
    drawing.text(MARGIN, 34, "time of the fastest other library / time of dmlops,", "note")
    drawing.text(MARGIN, 34 + NOTE_LINE, "on a logarithmic scale", "note")
    for x, style, label in ((MARGIN, "ahead", "dmlops is faster"), (180, "behind", "the other is faster")):
        drawing.box(x, 46 + NOTE_LINE, 14, 14, style)
        drawing.text(x + 22, 58 + NOTE_LINE, label, "note")
    y = 68.0 + NOTE_LINE
    for machine, rows in groups:
        y += 26
        drawing.text(MARGIN, y, machine, "name")
        top = y + 8
        for row in rows:
            drawing.text(one + 6, y + 22, row.name, "note")
            end = one + factor_two * math.log2(row.ratio)
            drawing.box(min(one, end), y + 28, abs(end - one), 15, "ahead" if row.ratio >= 1 else "behind")
            drawing.text(max(one, end) + 6, y + 40, f"{ratio(row.ratio)} x {row.peer}", "note")
            y += 42
            if row.not_asked:
                drawing.text(one + 6, y + 14, f"not asked: {', '.join(row.not_asked)}", "note")
                y += NOTE_LINE
        drawing.parts.append(f'<path d="M{one:g} {top:g}V{y + 8:g}" class="line"/>')
        y += 22
        for tick in TICKS:
            at = one + factor_two * math.log2(tick)
            drawing.parts.append(f'<path d="M{at:g} {y - 14:g}v5" class="line"/>')
            drawing.text(at, y + 3, f"{tick:g}", "note middle")
        y += 6
    return drawing


PICTURES: dict[str, Callable[[], Drawing]] = {
    f"{draw.__name__}.svg": draw
    for draw in (top_k, nonzero_coordinates, gather_nd, diagonal_matrix, architecture, speed)
}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw().svg(), encoding="utf-8", newline="\n")
