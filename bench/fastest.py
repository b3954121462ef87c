"""The fastest time of each library for a problem, in all files of results of the same kind of machine.

Files were made for different questions, and asked different libraries: one that asked FlashInfer alone says
nothing of a library that another file has for the same problem. Names differ between lists of problems, so a
problem is what a workload computes: `problem_of`.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from bench.landscape import cases
from bench.sweeps import sweeps
from bench.workload_table import workloads
from bench.workloads import CUDA, TopK

Record = Mapping[str, Any]

OURS = "dmlops"
# They sort whole rows, and are asked where that is what a user would do.
SORTS = ("torch.sort", "cupy.argsort")
# An outcome with one of these messages says that nobody asked the library.
_NOT_ASKED = ("is not installed", "out of time")


@cache
def _problems(device: str) -> dict[str, Hashable]:
    points = [point for sweep in sweeps(device) for point in sweep.points]
    landscape = [case.workload(is_sorted) for case in cases() for is_sorted in (True, False)]
    return {
        each.name: replace(each, name="", reason="", quick=False, series="", at=None)
        for each in (*workloads(device), *points, *(landscape if device == CUDA else []))
    }


def problem_of(device: str, name: str) -> Hashable:
    """Return what a workload computes, whatever it is called; its name if no list has it today."""
    return _problems(device).get(name, name)


def machine_of(record: Record) -> Hashable:
    """Return the kind of machine on which results were made: the GPU, or the processor and the threads."""
    machine = record["machine"]
    return machine.get("gpu") or (machine["cpu"], record["threads"])


def rows_of(record: Record, records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the rows of a record with the fastest time of each peer in any record of such a machine.

    Parameters
    ----------
    record : dict
        A file of results.
    records : iterable of dict
        All files, among them this one.

    Returns
    -------
    list of dict
        Its rows, with the outcomes of all peers, the best of these, and the ratio. `not_asked` lists the
        libraries that have times for this operator on such a machine, but not for this problem.
    """
    alike = [each for each in records if machine_of(each) == machine_of(record)]
    outcomes: dict[Hashable, list[Mapping[str, Any]]] = {}
    libraries: dict[str, set[str]] = {}
    for each in alike:
        for row in each["workloads"]:
            found = [outcome for outcome in row["outcomes"] if outcome["library"] != OURS]
            outcomes.setdefault(problem_of(each["device"], row["name"]), []).extend(found)
            timed = {
                outcome["library"]
                for outcome in found
                if outcome["seconds"] and outcome["contender"] not in SORTS
            }
            libraries.setdefault(row["operator"], set()).update(timed)
    rows = []
    for row in record["workloads"]:
        problem = problem_of(record["device"], row["name"])
        peers = [*outcomes[problem]]
        if isinstance(problem, TopK) and not problem.is_sorted:  # sorted answers are answers in any order
            peers += outcomes.get(replace(problem, is_sorted=True), [])
        rows.append(_row(row, peers, libraries[row["operator"]]))
    return rows


def _row(row: Record, peers: Sequence[Mapping[str, Any]], libraries: set[str]) -> dict[str, Any]:
    fastest: dict[str, Mapping[str, Any]] = {}
    for each in peers:
        known = fastest.get(each["contender"])
        if known is None or (each["seconds"] or float("inf")) < (known["seconds"] or float("inf")):
            fastest[each["contender"]] = each
    own = [each for each in row["outcomes"] if each["library"] == OURS]
    ours = next((each["seconds"] for each in own if each["contender"] == OURS), None)
    whole = [each for each in fastest.values() if each["seconds"] and not each["is_spared"]]
    best = min(whole, key=lambda each: each["seconds"], default=None)
    asked = {each["library"] for each in peers if not each["message"].endswith(_NOT_ASKED)}
    return {
        **row,
        "outcomes": [*own, *fastest.values()],
        "best_peer": best and best["contender"],
        "ratio": best and ours and best["seconds"] / ours,
        "not_asked": sorted(libraries - asked),
    }
