"""Files of results: writing and reading them, the fastest time of each peer in all of them, and contests.

Files were made for different questions, and asked different libraries: one that asked FlashInfer alone says
nothing of a library that another file has for the same problem. So a peer's time is the fastest that any file
of the same kind of machine has for a problem, whatever the workload is called there.
"""

import json
import os
import statistics
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers import OURS, Contract, library_of
from bench.workloads import BY_INDEX, UNSORTED
from dmlops import __version__
from dmlops.cli.ending import users_errors
from dmlops.cli.info import version
from dmlops.cli.outputs import replaced
from dmlops.cli.placement import cpu_name, cuda_devices

Record = Mapping[str, Any]

PACKAGES = (
    *("numpy", "numba", "numba-cuda", "torch", "onnxruntime", "jax"),
    *("cupy-cuda13x", "cupy-cuda12x", "flashinfer-python", "cuda-cccl", "sglang", "triton", "vllm"),
)
# They sort whole rows, and are asked where that is what a user would do. Old files have CuPy's.
SORTS = ("torch.sort", "cupy.argsort")


class Timed(NamedTuple):
    """The seconds of dmlops and of the fastest peer in one problem.

    `application` is that of a problem of the suite `serving`. `not_asked` are the libraries that have times
    for such problems, but none for this one.
    """

    name: str
    seconds: float
    peer: str
    peer_seconds: float
    application: str = ""
    not_asked: Sequence[str] = ()

    @property
    def ratio(self) -> float:
        return self.peer_seconds / self.seconds


def new_record(device: str, threads: int, quick: bool = False) -> dict[str, Any]:
    machine: dict[str, Any] = {"cpu": cpu_name(), "cores": os.cpu_count(), "system": sys.platform}
    if device == "cuda":
        machine["gpu"] = cuda_devices()[0].name
    versions = {name: found for name in PACKAGES if (found := version(name)) != "not installed"}
    return {
        "format": 2,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python -m bench", *sys.argv[1:]]),
        "device": device,
        "threads": threads,
        "quick": quick,
        "machine": machine,
        "versions": {"dmlops": __version__, "python": sys.version.split()[0], **versions},
        "workloads": [],
    }


def write(path: Path, record: Record) -> None:
    """Write a results file, with a line for each workload.

    The file is replaced as a whole, so that an interrupted run keeps what it measured.
    """
    parts = []
    for name, value in record.items():
        several = value if isinstance(value, list) and value else [value]
        lines = [json.dumps(each, separators=(",", ":")) for each in several]
        text = "[\n" + ",\n".join(lines) + "\n]" if several is value else lines[0]
        parts.append(f"{json.dumps(name)}: {text}")
    content = "{" + ",\n".join(parts) + "}\n"
    with users_errors(str(path)), replaced(path) as stream:
        stream.write(content.encode("utf-8", "backslashreplace"))  # names of files may contain surrogates


def outcome_of(row: Record, contender: str = OURS) -> Record:
    """Return the outcome of a contender in a row, which is empty if it has none."""
    return next((each for each in row["outcomes"] if each["contender"] == contender), {})


def seconds_of(row: Record, contender: str = OURS) -> float | None:
    """Return the median time of a contender in a row, or None if it has none."""
    return outcome_of(row, contender).get("seconds")


def why_not(row: Record) -> str:
    return str(outcome_of(row).get("message", "not measured"))


def least_of(row: Record) -> float | None:
    """Return the shortest time of dmlops in a row, which other work on the machine disturbs least."""
    outcome = outcome_of(row)
    return outcome.get("best") or outcome.get("seconds")


def _seconds_or_inf(outcome: Record) -> float:
    return float(outcome["seconds"] or "inf")


def _machine_of(record: Record) -> Hashable:
    """Return the kind of machine on which results were made: the GPU, or the processor and the threads."""
    machine = record["machine"]
    return machine.get("gpu") or (machine["cpu"], record["threads"])


def rows_of(record: Record, records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the rows of a record with the fastest time of each peer in any record of such a machine.

    `records` are all files, among them this one. A row gets the outcomes of all peers, the best of these, and
    the ratio; `not_asked` are the libraries that have times for its operator there, but not for its problem.
    """
    outcomes: dict[str, list[Record]] = {}
    libraries: dict[str, set[str]] = {}
    alike = [each for each in records if _machine_of(each) == _machine_of(record)]
    for row in (row for each in alike for row in each["workloads"]):
        peers = [outcome for outcome in row["outcomes"] if library_of(outcome["contender"]) != OURS]
        outcomes.setdefault(row["problem"], []).extend(peers)
        timed = [each["contender"] for each in peers if each["seconds"] and each["contender"] not in SORTS]
        libraries.setdefault(row["operator"], set()).update(map(library_of, timed))
    rows = []
    for row in record["workloads"]:
        peers = [*outcomes[row["problem"]]]
        if row["problem"].endswith(UNSORTED):  # sorted answers are answers in any order
            peers += outcomes.get(row["problem"].removesuffix(UNSORTED), [])
        rows.append(with_peers(row, peers, libraries[row["operator"]]))
    return rows


def with_peers(
    row: Record, peers: Sequence[Record] | None = None, libraries: Iterable[str] = ()
) -> dict[str, Any]:
    """Return a row with the fastest outcome of each peer, the best one, the ratio, and who was not asked.

    The peers are those of the row unless others are given.
    """
    own = [each for each in row["outcomes"] if library_of(each["contender"]) == OURS]
    peers = [each for each in row["outcomes"] if each not in own] if peers is None else peers
    fastest: dict[str, Record] = {}
    for each in peers:
        fastest[each["contender"]] = min(fastest.get(each["contender"], each), each, key=_seconds_or_inf)
    ours = seconds_of(row)
    whole = [each for each in fastest.values() if each["seconds"] and not each.get("is_spared")]
    best = min(whole, key=_seconds_or_inf, default=None)
    return {
        **row,
        "outcomes": [*own, *fastest.values()],
        "best_peer": best and best["contender"],
        "ratio": best["seconds"] / ours if best and ours else None,
        "not_asked": sorted({*libraries} - {library_of(each["contender"]) for each in peers}),
    }


# A library that promises less has less to do, so there are four contests, each against all whose answers are
# of this kind or of a kind before it. In the first two, the results of dmlops are in order of value, and in
# the others of index.
CONTESTS = {
    Contract.STABLE: "the same contract",
    Contract.SORTED: "sorted answers",
    Contract.ANY: "any contract",
    Contract.OPEN: "indices alone as well",
}


def standings(rows: Iterable[Record], contract: str) -> list[Timed]:
    """Return the times in the problems of applications in which a peer takes part in a contest."""
    kinds = [*Contract]
    place = kinds.index(Contract(contract))
    suffix = "" if place < kinds.index(Contract.ANY) else BY_INDEX
    in_applications = {row["name"]: row for row in rows if row["series"]}
    found = []
    for name in dict.fromkeys(name.removesuffix(BY_INDEX) for name in in_applications):
        row = in_applications.get(name + suffix)
        seconds = row and seconds_of(row)
        peers = [
            outcome
            for each in (name, name + BY_INDEX)
            for outcome in in_applications.get(each, {"outcomes": []})["outcomes"]
            if outcome["seconds"] and outcome.get("contract") in kinds[: place + 1]
            if library_of(outcome["contender"]) != OURS
        ]
        if row and seconds and peers:
            peer = min(peers, key=_seconds_or_inf)
            found.append(Timed(row["name"], seconds, peer["contender"], peer["seconds"], row["series"]))
    return found


def extent(ratios: Sequence[float]) -> tuple[int, int, str, str, str]:
    """Return how many ratios there are, in how many dmlops is ahead, the lowest, the median, the highest."""
    low, median, high = map(ratio, (min(ratios), statistics.median(ratios), max(ratios)))
    return len(ratios), sum(each >= 1 for each in ratios), low, median, high


def ratio(number: float) -> str:
    """Return a ratio without more digits than a measurement has.

    Examples
    --------
    >>> [ratio(number) for number in (0.00123, 0.1, 0.9512, 9.99, 9.996, 24.23, 99.94, 99.96, 5123.4)]
    ['0.0012', '0.10', '0.95', '9.99', '10.0', '24.2', '99.9', '100', '5,100']
    """
    if number >= 99.95:
        return f"{float(f'{number:.2g}'):,.0f}"
    if number >= 9.995:
        return f"{number:.1f}"
    return f"{number:.2f}" if number >= 0.1 else f"{number:.2g}"
