"""Files of results: writing and reading them, and the fastest time of each peer in all of them.

Files were made for different questions, and asked different libraries: one that asked FlashInfer alone says
nothing of a library that another file has for the same problem. So a peer's time is the fastest that any file
of the same kind of machine has for a problem, whatever the workload is called there.
"""

import json
import os
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers import OURS, library_of
from bench.workloads import UNSORTED
from dmlops import __version__
from dmlops.cli.ending import fail, users_errors
from dmlops.cli.info import version
from dmlops.cli.outputs import replaced
from dmlops.cli.placement import cpu_name, cuda_devices

Record = Mapping[str, Any]

FORMAT = 2
PACKAGES = (
    *("numpy", "numba", "numba-cuda", "cuda-core", "torch", "onnxruntime", "jax", "bottleneck", "cupy"),
    *("flashinfer-python", "cuda-cccl", "sglang", "triton"),
)
# They sort whole rows, and are asked where that is what a user would do.
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
        """How many times as long the peer takes."""
        return self.peer_seconds / self.seconds


def new_record(device: str, threads: int, quick: bool = False) -> dict[str, Any]:
    """Return a results file without results."""
    machine: dict[str, Any] = {"cpu": cpu_name(), "cores": os.cpu_count(), "system": sys.platform}
    if device == "cuda":
        machine["gpu"] = cuda_devices()[0].name
    versions = {name: found for name in PACKAGES if (found := _version(name)) is not None}
    return {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python -m bench", *sys.argv[1:]]),
        "device": device,
        "threads": threads,
        "quick": quick,
        "machine": machine,
        "versions": {"dmlops": __version__, "python": sys.version.split()[0], **versions},
        "workloads": [],
    }


def _version(package: str) -> str | None:
    # CuPy's wheels are named after the CUDA version that they support.
    names = ("cupy-cuda13x", "cupy-cuda12x", "cupy") if package == "cupy" else (package,)
    found = (version(name) for name in names)
    return next((text for text in found if text != "not installed"), None)


def text_of(record: Record) -> str:
    """Return a results file: a line for each workload, and numbers without more digits than are measured."""
    parts = []
    for name, value in record.items():
        text = json.dumps(_rounded(value), separators=(",", ":"))
        if isinstance(value, list) and value:
            lines = [json.dumps(_rounded(each), separators=(",", ":")) for each in value]
            text = "[\n" + ",\n".join(lines) + "\n]"
        parts.append(f"{json.dumps(name)}: {text}")
    return "{" + ",\n".join(parts) + "}\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, (list, tuple)) else value


def write(path: Path, text: str) -> None:
    """Replace a file as a whole, so that an interrupted run keeps what it measured."""
    content = text.encode("utf-8", "backslashreplace")  # names of files may contain surrogates
    with users_errors(str(path)), replaced(path) as stream:
        stream.write(content)


def read(path: Path) -> dict[str, Any]:
    """Read a results file; fail if it has no results of this version."""
    with users_errors(str(path)):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except RecursionError:
            record = None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        fail(f"{path}: the file has no results of this version of `python -m bench`")
    return record


def outcome_of(row: Record, contender: str) -> Record | None:
    """Return the outcome of a contender in a row, or None."""
    return next((each for each in row["outcomes"] if each["contender"] == contender), None)


def seconds_of(row: Record, contender: str = OURS) -> float | None:
    """Return the median time of a contender in a row, or None if it has none."""
    return (outcome_of(row, contender) or {}).get("seconds")


def least_of(row: Record) -> float | None:
    """Return the shortest time of dmlops in a row, which other work on the machine disturbs least."""
    outcome = outcome_of(row, OURS) or {}
    return outcome.get("best") or outcome.get("seconds")


def machine_of(record: Record) -> Hashable:
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
    for each in records:
        if machine_of(each) != machine_of(record):
            continue
        for row in each["workloads"]:
            peers = [outcome for outcome in row["outcomes"] if library_of(outcome["contender"]) != OURS]
            outcomes.setdefault(row["problem"], []).extend(peers)
            names = [each["contender"] for each in peers if each["seconds"]]
            timed = {library_of(name) for name in names if name not in SORTS}
            libraries.setdefault(row["operator"], set()).update(timed)
    rows = []
    for row in record["workloads"]:
        problem = row["problem"]
        peers = [*outcomes[problem]]
        if problem.endswith(UNSORTED):  # sorted answers are answers in any order
            peers += outcomes.get(problem.removesuffix(UNSORTED), [])
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
        known = fastest.get(each["contender"])
        if known is None or (each["seconds"] or float("inf")) < (known["seconds"] or float("inf")):
            fastest[each["contender"]] = each
    ours = seconds_of(row)
    whole = [each for each in fastest.values() if each["seconds"] and not each.get("is_spared")]
    best = min(whole, key=lambda each: float(each["seconds"]), default=None)
    return {
        **row,
        "outcomes": [*own, *fastest.values()],
        "best_peer": best and best["contender"],
        "ratio": best["seconds"] / ours if best and ours else None,
        "not_asked": sorted({*libraries} - {library_of(each["contender"]) for each in peers}),
    }
