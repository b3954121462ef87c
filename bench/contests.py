"""Contests: in how many problems of applications dmlops is ahead, by what the answers of the others are like.

A library that promises less has less to do, so there are four contests: against answers like those of dmlops,
against all that are sorted, against values and indices in any order, and against those that return indices
alone as well. In the last two, the results of dmlops are in order of index.
"""

from collections.abc import Iterable
from enum import StrEnum

from bench.peers import OURS, Contract, library_of
from bench.records import Record, Timed, seconds_of
from bench.serving import BY_INDEX


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


def standings(rows: Iterable[Record], contest: Contest) -> list[Timed]:
    """Return the times in the problems of applications in which a peer takes part in a contest."""
    by_name: dict[str, dict[bool, Record]] = {}
    for row in rows:
        if row["series"]:
            name, is_sorted = row["name"].removesuffix(BY_INDEX), not row["name"].endswith(BY_INDEX)
            by_name.setdefault(name, {})[is_sorted] = row
    found = []
    for by_order in by_name.values():
        if contest.is_sorted not in by_order:
            continue
        row = by_order[contest.is_sorted]
        seconds = seconds_of(row)
        peers = [
            outcome
            for each in by_order.values()
            for outcome in each["outcomes"]
            if outcome["seconds"] and outcome.get("contract") in contest.contracts
            if library_of(outcome["contender"]) != OURS
        ]
        if seconds and peers:
            peer = min(peers, key=lambda each: float(each["seconds"]))
            found.append(Timed(row["name"], seconds, peer["contender"], peer["seconds"], row["series"]))
    return found
