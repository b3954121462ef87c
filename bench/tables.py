"""Fill the tables of the README and of the documentation from results: ``python -m bench.tables``.

Computed text stands between ``<!-- results: NAME -->`` and ``<!-- end -->``, where NAME is one of `PARTS`.
The fastest peer of a workload is that of all files: `bench.records`.
``python docs/pictures/draw.py`` draws `chart`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from bench.peers import Contract
from bench.records import CONTESTS, Timed, extent, ratio, rows_of, seconds_of, standings
from bench.workloads import BY_INDEX

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / page for page in ("README.md", "docs/benchmarks.md", "docs/operators/sample.md")]
_KIND = re.compile(r"(.+?),? by (?:hostile )?data: (\w+)")
MARKED = re.compile(r"(<!-- results: (\w+) -->).*?(<!-- end -->)", re.DOTALL)

# Files of results.
GPU = "h100-2026-11-27"
CPU = "epyc-2threads-2026-11-27"
LANDSCAPES = ("landscape-h100-2026-11-25-flashinfer", "landscape-h200-2026-11-24")
CONTESTED = "contest-h100-2026-11-26"
NEW_SIZES = ("new_sizes/h200-2026-11-28", "new_sizes/xeon-2026-11-29")
SAMPLED = "sampling-h200-2026-11-30"
ROWS = "rows-h200-2026-11-29"
SWEEPS = ("cliffs-h100-2026-11-27", "epyc-1thread-data-2026-11-27")

# The README has the times of these workloads, and of the two with the lowest ratios.
README_GPU = (
    "top_k 256 x 50257 float32, k 50",
    "top_k 64 x 131072 float32, k 2048",
    "nonzero 8192 x 8192 float32, 1.0%",
    "gather_nd 1,048,576 tuples of 128",
)
README_CPU = (
    "top_k logits 256 x 50257 float32, k 50",
    "nonzero 8192 x 8192 float32, 1.0%",
    "gather_nd 65,536 tuples of 128",
    "diagonal causal mask 32 x 2048 x 2048",
)
PROBLEMS = (
    "indexer 1 x 131072 float32, k 2048, by index",
    "indexer 64 x 131072 float32, k 2048",
    "gating 4096 x 256 float32, k 8",
    "sampling 1 x 128256 bfloat16, k 50",
    "sampling 64 x 128256 float32, k 50",
    "sampling 256 x 262144 bfloat16, k 20",
)
SERVED = ("indexer 2026 64 x 131072 float32, k 2048", "gating 2026 4096 x 256 float32, k 6")
# Files, workloads, and of how many others the chart has the lowest ratios.
CHARTS = (
    (CONTESTED, SERVED, 0),
    (LANDSCAPES[0], (PROBLEMS[4],), 0),
    (GPU, (README_GPU[0], README_GPU[2], README_GPU[3]), 1),
    (CPU, (README_CPU[0], README_CPU[3]), 1),
)
LARGE_BYTES = 1e6  # from here on, the bandwidth limits a workload rather than its first microseconds
N_LOWEST = 6
N_OF_CONTEST = 4
UNITS = {"us": 1e6, "ms": 1e3}
# The heads of columns of words; all others end in numbers, and are at the right.
_WORDS = {
    *("Workload", "Contest", "GPU", "Machine", "Operator", "Slowest", "Application", "Call"),
    *("Kernel", "Asked for", "Values", "Order", "Rows", "Compared with"),
}
_EXTENT = ("dmlops is ahead in", "Lowest ratio", "Median", "Highest")


def three_digits(number: float) -> str:
    """Return a number with three significant digits, or all digits before the point.

    Examples
    --------
    >>> [three_digits(number) for number in (0.00456, 5, 12.34, 99.96, 999.6, 1014.1)]
    ['0.00456', '5.00', '12.3', '100', '1000', '1014']
    """
    return f"{number:#.3g}".rstrip(".") if number < 999.5 else f"{number:.0f}"


@cache
def _record(file: str) -> Any:
    return json.loads((ROOT / "bench" / "results" / f"{file}.json").read_text(encoding="utf-8"))


@cache
def _workloads(file: str) -> list[dict[str, Any]]:
    """Return the rows of a file, with the fastest time of each peer in all files."""
    paths = sorted((ROOT / "bench" / "results").glob("*.json"))
    return rows_of(_record(file), [_record(path.stem) for path in paths])


def where(file: str) -> str:
    """Return the machine on which a file was made, and the day."""
    record = _record(file)
    machine, n_threads = record["machine"], record["threads"]
    cores = f"{n_threads} core{'s' if n_threads > 1 else ''} of an {machine['cpu']}"
    gpu = machine.get("gpu", "").removesuffix(" 80GB HBM3")
    return f"{gpu or cores}, {record['date'][:10]}"


def _rows(file: str) -> list[dict[str, Any]]:
    """Return the workloads that were timed with a peer, in ascending order of the ratio."""
    return sorted((row for row in _workloads(file) if row["ratio"]), key=lambda row: float(row["ratio"]))


def _timed(file: str, names: Iterable[str], n_lowest: int = 0) -> list[Timed]:
    """Return the times of some workloads, and of those of the others that have the lowest ratios."""
    found = {}
    for row in _rows(file):
        ours = seconds_of(row) or 0.0
        peer_seconds, libraries = ours * row["ratio"], row["not_asked"]
        found[row["name"]] = Timed(row["name"], ours, row["best_peer"], peer_seconds, not_asked=libraries)
    named = [found.pop(name) for name in names]
    return [*named, *reversed([*found.values()][:n_lowest])]


def chart() -> Iterator[tuple[str, list[Timed]]]:
    """Yield the rows of the bar chart, with the machine of each group."""
    for file, names, n_lowest in CHARTS:
        yield where(file), sorted(_timed(file, names, n_lowest), key=lambda each: -each.ratio)


def _lines(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    rules = ["---" if head in _WORDS else "---:" for head in heads]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in (heads, rules, *rows))


def _cells(each: Timed, unit: str = "us") -> tuple[str, ...]:
    ours, theirs = (three_digits(seconds * UNITS[unit]) for seconds in (each.seconds, each.peer_seconds))
    return each.name, ours, f"{each.peer} {theirs}", ratio(each.ratio)


def _times(timed: Iterable[Timed], unit: str = "us") -> str:
    heads = ("Workload", f"dmlops, {unit}", f"Fastest peer, {unit}", "Ratio")
    return _lines(heads, (_cells(each, unit) for each in timed))


def _table(file: str, unit: str, names: Iterable[str], n_lowest: int = 0, *, is_ordered: bool = True) -> str:
    """Return the times of workloads on a machine, with a line of the libraries that were not asked."""
    timed = _timed(file, names, n_lowest)
    if is_ordered:
        timed.sort(key=lambda each: each.ratio)
    not_asked: dict[Sequence[str], list[str]] = {}
    for each in timed:
        if each.not_asked:
            not_asked.setdefault(tuple(each.not_asked), []).append(each.name)
    told = [f"{'; '.join(found)}: {', '.join(libraries)}" for libraries, found in not_asked.items()]
    below = f"\nNot asked for {'. For '.join(told)}.\n" if told else ""
    return f"{where(file)}:\n\n{_times(timed, unit)}{below}"


def _grouped(pairs: Iterable[tuple[Any, float]]) -> dict[Any, list[float]]:
    groups: dict[Any, list[float]] = {}
    for group, each in pairs:
        groups.setdefault(group, []).append(each)
    return groups


def _summaries(heads: Sequence[str], pairs: Iterable[tuple[tuple[str, ...], float]]) -> str:
    """Return the extent of the ratios of each group, in the order in which the groups first come."""
    rows = ((*group, *extent(ratios)) for group, ratios in _grouped(pairs).items())
    return _lines((*heads, *_EXTENT), rows)


def _operators() -> str:
    rows = [(file, row) for file in (GPU, CPU) for row in _rows(file)]
    pairs = (((f"`{row['operator']}`", where(file)), row["ratio"]) for file, row in rows)
    return _summaries(("Operator", "Machine", "Workloads"), pairs)


def _contest(file: str, contract: Contract) -> list[Timed]:
    return sorted(standings(_workloads(file), contract), key=lambda each: each.ratio)


def _ranked(file: str, contracts: Iterable[Contract]) -> list[tuple[str, Timed]]:
    """Return the problems of several contests, the lowest ratio first."""
    found = [(CONTESTS[contract], each) for contract in contracts for each in _contest(file, contract)]
    return sorted(found, key=lambda pair: pair[1].ratio)


def _contests() -> str:
    contracts = [*Contract][:3]  # the files know of no kernel that returns indices alone
    ranked = ((file, *pair) for file in LANDSCAPES for pair in _ranked(file, contracts))
    pairs = (((where(file), contest), each.ratio) for file, contest, each in ranked)
    return _summaries(("GPU", "Contest", "Problems"), pairs)


def _behind() -> str:
    """Return the problems in which dmlops is behind, in either order of its results."""
    kinds = product(LANDSCAPES, (Contract.SORTED, Contract.ANY))
    found = [each for file, contract in kinds for each in _contest(file, contract) if each.ratio < 1]
    return _times(sorted(found, key=lambda each: each.ratio))


def _modern() -> str:
    """Return the contests of the problems of 2026, by application."""
    pairs = (((each.application, contest), each.ratio) for contest, each in _ranked(CONTESTED, Contract))
    return f"{where(CONTESTED)}:\n\n{_summaries(('Application', 'Contest', 'Problems'), pairs)}"


def _modern_lowest() -> str:
    """Return the lowest ratios of each contest of the problems of 2026."""
    found = {each for contract in Contract for each in _contest(CONTESTED, contract)[:N_OF_CONTEST]}
    return _times(sorted(found, key=lambda each: (float(ratio(each.ratio)), _cells(each))))


def _ties() -> str:
    """Return what each kernel returned for tied data, and how dmlops compares with it in the same order."""
    record = _record(CONTESTED)
    ratios = _grouped(
        ((each["contender"], not row["name"].endswith(BY_INDEX)), each["seconds"] / (seconds_of(row) or 0.0))
        for row in record["workloads"]
        for each in row["outcomes"]
        if each["seconds"]
    )
    rows = []
    for each in record["ties"]:
        found = ratios.get((each["contender"], each["is_sorted"]))
        if each["problems"] and found and each["contender"] != "dmlops":
            order = "value" if each["is_sorted"] else "any"
            faults = (f"{each[name]} of {each['problems']}" for name in ("wrong", "varied"))
            row = (each["contender"], order, "yes" if each["has_values"] else "no", *faults)
            contest = CONTESTS[Contract(each["contract"])]
            rows.append((*row, each["order"], contest, *map(str, extent(found)[:4])))
    rows.sort(key=lambda row: float(str(row[9])))
    heads = ("Kernel", "Asked for", "Values", "Wrong sets", "Bytes varied", "Order", "Contest")
    return _lines((*heads, "Timed", *_EXTENT[:3]), rows)


def _speed() -> str:
    stable = [each.ratio for each in _contest(LANDSCAPES[0], Contract.STABLE)]
    n_stable, _, low, median, high = extent(stable)
    n_any, n_ahead, *_ = extent([each.ratio for each in _contest(LANDSCAPES[1], Contract.ANY)])
    # Which of the larger workloads other libraries are faster in.
    larger = [
        f"{row['name']} ({row['best_peer']}, {ratio(row['ratio'])})"
        for file in (GPU, CPU)
        for row in _rows(file)
        if row["ratio"] < 1 and row["bytes_moved"] >= LARGE_BYTES
    ]
    told = f", and in larger ones: {', '.join(larger)}" if larger else ""
    return (
        f"{_table(GPU, 'us', README_GPU, 2, is_ordered=False)}\n"
        f"{_table(CPU, 'ms', README_CPU, 2, is_ordered=False)}\n"
        f"In {n_stable} problems of sparse attention, expert gating and sampling ({where(LANDSCAPES[0])}), "
        "the fastest sorted and stable top-k of\nother libraries, in most of them the only one that was "
        f"asked, FlashInfer's, takes {low} to {high} times as long as dmlops, {median} times in the median.\n"
        "Against answers in any order, as SGLang and DeepSelect give them, "
        f"dmlops is ahead in {n_ahead} of {n_any} problems ({where(LANDSCAPES[1])}).\n"
        "\nOther libraries are faster in some of the smallest calls, because every call of dmlops checks its "
        f"arrays{told}.\n"
    )


def _sweeps() -> str:
    """Return how many kinds of data are slower than random data by more than their limit."""
    rows = []
    for file in SWEEPS:
        n_points, slow = _record(file)["sweeps"].values()
        point = max(slow, key=lambda each: each["factor"])
        workload, kind = _KIND.fullmatch(point["point"]).groups()  # type: ignore[union-attr]
        rows.append((where(file), n_points, len(slow), f"{kind}, {workload}", ratio(point["factor"])))
    return _lines(("Machine", "Compared", "Beyond the limit", "Slowest", "Ratio"), rows)


def _new_sizes() -> str:
    """Return the host time of calls of sizes not seen before; `before` planned each of them in Python."""
    rows = []
    for file in NEW_SIZES:
        for each in _record(file)["new_sizes"]:
            columns = ("new", "repeated", "peer", "before")
            new, repeated, *others = ("" if each[name] is None else f"{each[name]:.1f}" for name in columns)
            figures = (new, repeated, ratio(each["new"] / each["repeated"]), *others)
            rows.append((each["call"], where(file), *figures))
    heads = ("Call", "Machine", "New size, us", "Repeated, us", "Ratio", "The library's own, us")
    return _lines((*heads, "New size before kinds, us"), rows)


def _sampling() -> str:
    """Return the times of dmlops and of every peer in sampling."""
    rows = _workloads(SAMPLED)
    names = dict.fromkeys(each["contender"] for row in rows for each in row["outcomes"] if each["seconds"])
    lines = []
    for row in rows:
        times = (seconds_of(row, name) for name in names)
        figures = (three_digits(each * UNITS["us"]) if each else "" for each in times)
        lines.append((row["name"].removeprefix("sample "), *figures))
    return f"{where(SAMPLED)}, us:\n\n{_lines(('Rows', *names), lines)}"


def _compared_rows() -> str:
    """Return how much longer rows that are windows, segments or have numbers take than plain ones."""
    rows = []
    by_series: dict[str, tuple[str, float]] = {}
    for row in _record(ROWS)["workloads"]:
        seconds, series = seconds_of(row), row["series"]
        name = row["name"].removeprefix(f"{series}: ").replace("_", " ")
        if seconds is not None and series in by_series:
            base, other = by_series[series]
            times = (three_digits(each * UNITS["us"]) for each in (seconds, other))
            rows.append((f"{series}: {name}", base, *times, ratio(seconds / other)))
        elif seconds is not None:
            by_series[series] = (name, seconds)
    heads = ("Rows", "Compared with", "us", "The other, us", "Ratio")
    return f"{where(ROWS)}:\n\n{_lines(heads, rows)}"


PARTS: dict[str, Callable[[], str]] = {
    "speed": _speed,
    "gpu_lowest": lambda: _table(GPU, "us", (), N_LOWEST),
    "cpu_lowest": lambda: _table(CPU, "us", (), N_LOWEST),
    "operators": _operators,
    "contests": _contests,
    "problems": lambda: _table(LANDSCAPES[0], "us", PROBLEMS),
    "behind": _behind,
    "modern": _modern,
    "modern_lowest": _modern_lowest,
    "ties": _ties,
    "sweeps": _sweeps,
    "sampling": _sampling,
    "rows": _compared_rows,
    "new_sizes": _new_sizes,
}


def filled(page: str) -> str:
    """Return the text of a page with its tables as the results have them."""
    return MARKED.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}{found[3]}", page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
