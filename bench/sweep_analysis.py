"""Sweep analysis: measure the points of sweeps, and find those that take longer than expected."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise, product
from typing import Any

from bench.peers import OURS
from bench.runner import SKIPPED, Bench, DeviceLostError, Outcome, Pace, Row
from bench.sweeps import Sweep
from bench.workloads import CPU, TopK

# The forms of torch that do the whole work are timed beside dmlops.
TORCH = ("torch.topk", "torch.sort", "torch.nonzero", "torch indexing", "torch.tril")
POINT_SECONDS = 0.02
# On the host, NumPy checks answers up to this size; a GPU checks all of them.
CHECKED_SIZE = 1 << 21
# A peer is left out of the rest of a sweep as soon as a call takes half of this time.
PATIENCE = 0.25
SLACK = 2.0
# Clocks cannot resolve a smaller difference from torch.
TIE = 1.05
# Less work may not cost more than this many times as much.
INVERSION = 1.1
INVERTED = ("bytes", "rows", "length", "k", "order")
SCRATCH_SHARE = 1 / 8
SCRATCH_BYTES = 1 << 20


def pace(device: str) -> Pace:
    """Return the pace for a point: brief, because there are hundreds of points."""
    checked = {"checked_size": CHECKED_SIZE} if device == CPU else {}
    return Pace(POINT_SECONDS, PATIENCE, scratch_size=SCRATCH_BYTES, **checked)


@dataclass(frozen=True)
class Finding:
    """One comparison.

    Attributes
    ----------
    what : str
        "step", "kind", "torch" or "memory".
    point, other : str
        The names of the two sides of the comparison.
    amount, other_amount : float
        Seconds, or bytes of memory.
    factor, limit : float
        The ratio of the amount to the expected amount, and the largest ratio allowed.
    """

    what: str
    point: str
    other: str
    amount: float
    other_amount: float
    factor: float
    limit: float

    @property
    def is_violation(self) -> bool:
        """Whether the factor exceeds the limit."""
        return self.factor > self.limit

    @property
    def excess(self) -> float:
        """The factor as a share of the limit."""
        return self.factor / self.limit


@dataclass
class Verdict:
    """A sweep with its measurements and findings."""

    sweep: Sweep
    rows: Sequence[Row]
    findings: list[Finding] = field(default_factory=list)

    @property
    def violations(self) -> list[Finding]:
        """The findings that exceed their limits, the worst first."""
        return sorted((each for each in self.findings if each.is_violation), key=lambda each: -each.excess)

    @property
    def worst(self) -> Finding | None:
        """The largest step, or the slowest kind."""
        return worst(each for each in self.findings if each.what == self.sweep.word)

    @property
    def left_out(self) -> list[Row]:
        """The points without a time."""
        return [row for row in self.rows if row.ours is None]

    def to_json(self) -> dict[str, Any]:
        """Return the entry of a results file."""
        return {
            "name": self.sweep.name,
            "limit": self.sweep.limit,
            "points": [row.name for row in self.rows],
            "left_out": [row.name for row in self.left_out],
            "worst": self.worst and asdict(self.worst),
            "violations": [asdict(each) for each in self.violations],
        }


def worst(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding that exceeds its limit the most, or comes closest to it."""
    return max(findings, key=lambda each: each.excess, default=None)


def judge(sweep: Sweep, rows: Sequence[Row], threads: int) -> Verdict:
    """Compare the points of a sweep with each other, with torch, and with the memory that they may use.

    The time of a point is the minimum of its samples, which other work on the machine disturbs least.
    """
    ours = {row.name: row.ours for row in rows if row.ours is not None}
    findings = [*_against_each_other(sweep, ours), *_against_torch(rows)]
    memory = worst(_memory(sweep, ours, threads))
    return Verdict(sweep, rows, [*findings, memory] if memory else findings)


def _against_each_other(sweep: Sweep, ours: Mapping[str, Outcome]) -> Iterator[Finding]:
    for point, other in sweep.pairs():
        if point.name in ours and other.name in ours:
            amount, base = _least(ours[point.name]), _least(ours[other.name])
            factor = amount / base / sweep.expected(point, other)
            yield Finding(sweep.word, point.name, other.name, amount, base, factor, sweep.limit)


def _against_torch(rows: Sequence[Row]) -> Iterator[Finding]:
    for row in rows:
        if row.ours is not None and (torch := _torch(row)):
            amount, least = _least(row.ours), _least(torch)
            yield Finding("torch", row.name, torch.contender, amount, least, amount / least, TIE)


def _memory(sweep: Sweep, ours: Mapping[str, Outcome], threads: int) -> Iterator[Finding]:
    for point in sweep.points:
        taken = ours[point.name].scratch if point.name in ours else None
        if taken is not None:
            allowed = SCRATCH_SHARE * point.size * point.item + threads * SCRATCH_BYTES
            yield Finding("memory", point.name, "what it may take", taken, allowed, taken / allowed, 1.0)


def _least(outcome: Outcome) -> float:
    return outcome.best or outcome.seconds or 0.0


def _torch(row: Row) -> Outcome | None:
    return min((each for each in row.timed if each.contender in TORCH), key=_least, default=None)


def inversions(times: Mapping[TopK, float]) -> list[Finding]:
    """Find the problems of top-k that cost more than ones that are larger in one way, the worst first.

    Parameters
    ----------
    times : dict
        The seconds of each problem, a selection from a matrix of floating-point numbers.

    Returns
    -------
    list of Finding
        Those that take longer than the next larger problem of the same kind: with more bytes per element,
        more rows, longer rows, a larger k, or the results in order.
    """
    found = [
        Finding("inversion", less.name, more.name, times[less], times[more], factor, INVERSION)
        for what in INVERTED
        for less, more in _next_larger(times, what)
        if (factor := times[less] / times[more]) > INVERSION
    ]
    return sorted(found, key=lambda each: -each.factor)


def _next_larger(problems: Iterable[TopK], what: str) -> Iterator[tuple[TopK, TopK]]:
    """Yield each problem with those that differ from it in one amount alone, which is the next larger one."""
    groups: dict[Any, dict[int, list[TopK]]] = {}
    for each in problems:
        amounts = _amounts(each)
        amount = amounts.pop(what)
        others = (*amounts.items(), "" if what == "bytes" else each.dtype)
        groups.setdefault(others, {}).setdefault(amount, []).append(each)
    for group in groups.values():
        for smaller, larger in pairwise(sorted(group)):
            yield from product(group[smaller], group[larger])


def _amounts(problem: TopK) -> dict[str, int]:
    rows, length = problem.shape
    return {
        "bytes": problem.item,
        "rows": rows,
        "length": length,
        "k": problem.k,
        "order": problem.is_sorted,
    }


def measure(bench: Bench, sweep: Sweep, seconds: float, on_row: Callable[[Row], None]) -> Verdict:
    """Measure the points of a sweep. Points beyond a limit are measured again, and the better time counts.

    Points that do not fit into `seconds` are skipped. `on_row` is called with each row.
    """
    deadline = time.perf_counter() + seconds
    names = {OURS, *TORCH} if sweep.has_peers else {OURS}
    rows: dict[str, Row] = {}
    for workload in sweep.points:
        if time.perf_counter() < deadline:
            row = _measured(bench, workload, names)
        else:
            row = bench.skipped(workload, "out of time", names)
        names -= {outcome.contender for outcome in row.outcomes if _is_slow(outcome)}
        rows[workload.name] = row
        on_row(row)
    violations = judge(sweep, [*rows.values()], bench.threads).violations
    doubtful = {each.point for each in violations if each.what != "memory"}
    for workload in sweep.points:
        if workload.name in doubtful and time.perf_counter() < deadline:
            row = rows[workload.name]
            again = _measured(bench, workload, {outcome.contender for outcome in row.timed})
            rows[workload.name] = _better(row, again)
    return judge(sweep, [*rows.values()], bench.threads)


def _measured(bench: Bench, workload: Any, names: Collection[str]) -> Row:
    try:
        return bench.measure(workload, POINT_SECONDS, names)
    except DeviceLostError as error:
        return bench.skipped(workload, str(error), names)


def _is_slow(outcome: Outcome) -> bool:
    is_refused = outcome.status == SKIPPED and outcome.message.startswith("too slow")
    return outcome.contender != OURS and (is_refused or (outcome.seconds or 0) > PATIENCE / 2)


def _better(row: Row, again: Row) -> Row:
    if row.ours is None or again.ours is None or _least(again.ours) >= _least(row.ours):
        return row
    again.outcomes += [outcome for outcome in row.outcomes if outcome not in row.timed]
    return again


def shares(bench: Bench, table: Sequence[Sweep], seconds: float) -> Iterator[tuple[Sweep, float]]:
    """Yield each sweep and the seconds that it may use: more than its share, because most sweeps use less."""
    deadline = time.perf_counter() + seconds
    weights = [sum(map(bench.weight, sweep.points)) for sweep in table]
    for done, sweep in enumerate(table):
        left = max(deadline - time.perf_counter(), 0.0)
        yield sweep, min(left, left * SLACK * weights[done] / sum(weights[done:]))
