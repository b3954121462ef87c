"""Fill the tables of the README from results: ``python -m bench.tables``.

A table stands between ``<!-- times: NAME -->`` and ``<!-- end -->``, where NAME is one of `TABLES`.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PAGES = (ROOT / "README.md",)
MARKED = re.compile(r"(<!-- times: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Table(NamedTuple):
    """A choice of workloads, each with the file of results that has it, and the unit of times."""

    unit: str
    rows: dict[str, tuple[str, ...]]


TABLES = {
    "gpu": Table(
        "us",
        {
            "h200-2026-11-22.json": (
                "top_k 256 x 50257 float32, k 50",
                "top_k 64 x 131072 float32, k 2048",
                "nonzero 8192 x 8192 float32, 1.0%",
                "gather_nd 1,048,576 tuples of 128",
                "diagonal small 64 x 64",
                "diagonal sweep 16 x 16",
            )
        },
    ),
    "cpu": Table(
        "ms",
        {
            "epyc-2threads-2026-11-21.json": (
                "top_k logits 256 x 50257 float32, k 50",
                "nonzero 8192 x 8192 float32, 1.0%",
                "gather_nd 65,536 tuples of 128",
                "diagonal causal mask 32 x 2048 x 2048",
            ),
            "epyc-small-2threads-2026-11-22.json": ("nonzero small 1 x 1000", "gather_nd small, 32 tuples"),
        },
    ),
}
UNITS = {"us": 1e6, "ms": 1e3}


def filled(page: str) -> str:
    """Return the text of a page with its tables as the results have them."""
    return MARKED.sub(lambda found: f"{found[1]}{_table(TABLES[found[2]])}{found[3]}", page)


def _table(table: Table) -> str:
    heads = ("Workload", f"dmlops, {table.unit}", f"Fastest peer, {table.unit}", "Ratio")
    lines = [f"| {' | '.join(heads)} |", "| --- | --- | --- | --- |"]
    for file, names in table.rows.items():
        workloads = {each["name"]: each for each in json.loads((RESULTS / file).read_text())["workloads"]}
        lines += [_row(workloads[name], UNITS[table.unit]) for name in names]
    return "\n".join([*lines, ""])


def _row(workload: dict[str, Any], scale: float) -> str:
    times = {outcome["contender"]: outcome["seconds"] for outcome in workload["outcomes"]}
    peer = workload["best_peer"]
    own, best = times["dmlops"] * scale, times[peer] * scale
    return f"| {workload['name']} | {own:.3g} | {peer} {best:.3g} | {workload['ratio']:.2f} |"


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
