"""Contests: in how many problems of the landscape dmlops is ahead, by what the other libraries promise.

A library that promises less has less to do, so there are four contests: against answers like those of dmlops,
against all that are sorted, against values and indices in any order, and against those that return indices
alone as well. In the last two, the results of dmlops are in order of index.

What an answer is like is seen from tied data: see `bench.ties`. Older files of results do not have it, and
there it is what the library promises.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bench.fastest import SORTS
from bench.landscape import Case, cases
from bench.peers import OURS, contenders
from bench.recorded import RECORDED_DATE, RECORDED_ON, Contract, Time, recorded
from bench.sweep_analysis import Finding, inversions
from bench.workloads import CUDA

# Libraries promise this in order of value. By index, nobody promises an order.
PROMISES = {
    "torch.topk": Contract.SORTED,
    "jax.lax.top_k": Contract.STABLE,
    "jax.lax.top_k is_stable=False": Contract.SORTED,
    "flashinfer.top_k": Contract.SORTED,
    "flashinfer.top_k stable": Contract.STABLE,
}
PEERS = tuple(who.name for who in contenders("top_k", CUDA) if not who.is_ours and who.name not in SORTS)


class Contest(StrEnum):
    """The kinds of answers that are compared."""

    STABLE = "the same contract"
    SORTED = "sorted answers"
    ANY = "any contract"
    OPEN = "indices alone as well"

    @property
    def contracts(self) -> tuple[Contract, ...]:
        """The contracts of the peers that take part."""
        return tuple(Contract)[: tuple(Contest).index(self) + 1]

    @property
    def is_sorted(self) -> bool:
        """Whether the results of dmlops are in order of value."""
        return self in (Contest.STABLE, Contest.SORTED)


@dataclass(frozen=True)
class Standing:
    """Both sides of a contest in one problem.

    Attributes
    ----------
    case : Case
        The problem.
    seconds : float
        The time of dmlops.
    peer : Time or None
        The fastest peer that takes part, if there is one.
    """

    case: Case
    seconds: float
    peer: Time | None

    @property
    def ratio(self) -> float | None:
        """The peer's time divided by that of dmlops."""
        return None if self.peer is None else self.peer.seconds / self.seconds


Rows = Iterable[Mapping[str, Any]]


def standings(rows: Rows, contest: Contest, gpu: str = "") -> list[Standing]:
    """Return the standings of a contest in the problems that were measured.

    Parameters
    ----------
    rows : iterable of dict
        The workloads of a results file of `python -m bench landscape`.
    contest : Contest
        The contest.
    gpu : str
        Where they were measured: times that were recorded on the same kind of GPU count too.
    """
    is_known = gpu.startswith(RECORDED_ON)
    found = (
        _standing(case, by_order, contest, recorded(case) if is_known else [])
        for case, by_order in times(rows).items()
    )
    return [each for each in found if each is not None]


def _standing(
    case: Case, by_order: Mapping[bool, list[Time]], contest: Contest, known: list[Time]
) -> Standing | None:
    order = by_order.get(contest.is_sorted, [])
    ours = next((each.seconds for each in order if each.contender == OURS), None)
    if ours is None:
        return None
    everybody = [*known, *(each for timed in by_order.values() for each in timed if each.contender != OURS)]
    peers = [each for each in everybody if each.contract in contest.contracts]
    return Standing(case, ours, min(peers, key=lambda each: each.seconds, default=None))


def times(rows: Rows) -> dict[Case, dict[bool, list[Time]]]:
    """Return the times of each problem that was measured, by value (True) and by index (False)."""
    by_name = {row["name"]: row for row in rows}
    found: dict[Case, dict[bool, list[Time]]] = {}
    for case in cases():
        for is_sorted in (True, False):
            row = by_name.get(case.workload(is_sorted).name)
            if row is not None and (timed := _timed(row, is_sorted)):
                found.setdefault(case, {})[is_sorted] = timed
    return found


def contracts(rows: Rows, gpu: str = "") -> dict[str, list[str]]:
    """Return the promises of each library by its name, and whether its times are recorded ones."""
    found: dict[str, set[str]] = {}
    for case, by_order in times(rows).items():
        known = recorded(case) if gpu.startswith(RECORDED_ON) else []
        for each in (*known, *(time for timed in by_order.values() for time in timed)):
            if each.contender != OURS:
                when = f", recorded {RECORDED_DATE}" if each.is_recorded else ""
                found.setdefault(each.contender, set()).add(f"{each.contract}{when}")
    return {contender: sorted(promises) for contender, promises in sorted(found.items())}


def _timed(row: Mapping[str, Any], is_sorted: bool) -> list[Time]:
    return [
        Time(each["contender"], _contract(each, is_sorted), each["seconds"])
        for each in row["outcomes"]
        if each["seconds"] is not None
    ]


def _contract(outcome: Mapping[str, Any], is_sorted: bool) -> Contract:
    if found := outcome.get("contract"):
        return Contract(found)
    if outcome.get("is_spared"):
        return Contract.OPEN
    return PROMISES.get(outcome["contender"], Contract.ANY) if is_sorted else Contract.ANY


def inversions_of(rows: Rows) -> list[Finding]:
    """Find the problems that take longer than larger ones, in both orders; the worst first."""
    ours = {
        case.workload(is_sorted): each.seconds
        for case, by_order in times(rows).items()
        for is_sorted, timed in by_order.items()
        for each in timed
        if each.contender == OURS
    }
    return inversions(ours)
