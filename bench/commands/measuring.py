"""The options, the harness and the results file that all measuring commands share."""

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dmlops import __version__
from dmlops.cli.console import duration, err, out
from dmlops.cli.ending import CommandError, users_errors
from dmlops.cli.info import version
from dmlops.cli.outputs import replaced
from dmlops.cli.placement import cpu_name, cuda_devices

if TYPE_CHECKING:
    from bench.runner import Bench, Pace, Row
    from bench.sweeps import Sweep
    from bench.workloads import Workload

FORMAT = 1
PACKAGES = (
    "numpy",
    "numba",
    "numba-cuda",
    "cuda-core",
    "torch",
    "onnxruntime",
    "jax",
    "bottleneck",
    "cupy",
    "flashinfer-python",
    "cuda-cccl",
    "sglang",
    "tile-kernels",
    "tilelang",
    "triton",
)
FILE_WIDTH = 120  # of what is printed into a file or a pipe

Named = TypeVar("Named", "Workload", "Sweep")


class Operator(StrEnum):
    """The values of `--operator`."""

    TOP_K = "top_k"
    NONZERO_COORDINATES = "nonzero_coordinates"
    GATHER_ND = "gather_nd"
    DIAGONAL_MATRIX = "diagonal_matrix"


OperatorOption = Annotated[
    list[Operator] | None,
    typer.Option(
        "--operator",
        metavar="NAME",
        show_default=False,
        help=f"One of {', '.join(Operator)}; may be repeated.",
    ),
]


class Where(StrEnum):
    """The values of `--device`."""

    CPU = "cpu"
    CUDA = "cuda"


def _finite(seconds: float | None) -> float | None:
    if seconds is not None and not math.isfinite(seconds):
        message = f"{seconds} is not a length of time"
        raise typer.BadParameter(message)
    return seconds


Seconds = Annotated[
    float | None,
    typer.Option(
        min=1,
        metavar="S",
        callback=_finite,
        show_default="enough for all",
        help="The time to measure for, in seconds; workloads that do not fit are skipped.",
    ),
]


def json_option(text: str) -> Any:
    """Return the option that names a file of results."""
    return typer.Option("--json", metavar="OUT.json", show_default=False, help=text)


def named(table: Sequence[Named], parts: Sequence[str], option: str) -> list[Named]:
    """Return the entries that have one of `parts` in their name.

    Raises
    ------
    CommandError
        If one of `parts` is in no name. Standard output then lists all names.
    """
    for part in parts:
        if not any(part in each.name for each in table):
            for each in table:
                out.print(each.name)
            what = option.removeprefix("--")
            message = f"{option} {part}: no {what} has this in its name; standard output lists the names"
            raise CommandError(message)
    return [each for each in table if any(part in each.name for part in parts)]


def check_rows(command: str, rows: Sequence["Row"]) -> None:
    """Check that dmlops gave no wrong answer, and that it was timed at all.

    Raises
    ------
    CommandError
        If an answer was wrong, or nothing was timed.
    """
    if any(outcome.status == "wrong" for row in rows for outcome in row.outcomes):
        message = f"{command}: dmlops gave a wrong answer; please report it, with `dmlops info`"
        raise CommandError(message)
    if all(row.ours is None for row in rows):
        reasons = Counter(why_not(row) for row in rows)
        message = f"{command}: no workload was measured: {reasons.most_common(1)[0][0]}"
        raise CommandError(message)


def text_of(record: dict[str, Any]) -> str:
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


def write(path: Path, content: str | bytes) -> None:
    """Replace a file as a whole, so that an interrupted run keeps what it measured."""
    if isinstance(content, str):  # file names may contain surrogates, which UTF-8 cannot encode
        content = content.encode("utf-8", "backslashreplace")
    with users_errors(str(path)), replaced(path) as stream:
        stream.write(content)


def open_bench(device: str, threads: int, pace: "Pace | None" = None) -> "Bench":
    """Return the bench of a device.

    Raises
    ------
    CommandError
        If no installed library has arrays on the device.
    """
    from bench.libraries import NotServedError  # noqa: PLC0415
    from bench.runner import Bench, Pace  # noqa: PLC0415

    try:
        return Bench(device, threads, pace or Pace())
    except NotServedError as error:
        message = f"bench --device {device}: {error}"
        raise CommandError(message) from error


def new_record(device: str, threads: int, quick: bool = False) -> dict[str, Any]:
    """Return a results file without results."""
    machine: dict[str, Any] = {"cpu": cpu_name(), "cores": os.cpu_count(), "system": sys.platform}
    if device == "cuda":
        machine["gpu"] = cuda_devices()[0].name
    if hasattr(os, "getloadavg"):
        machine["load"] = round(os.getloadavg()[0], 2)
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


def line(row: "Row") -> str:
    """Return the line that is printed as soon as a workload is measured."""
    if row.ours is None or row.ours.seconds is None:
        return f"{row.name}: {why_not(row)}"
    peer = row.best_peer
    beside = f", {peer.contender} {duration(peer.seconds)}" if peer and peer.seconds else ""
    return f"{row.name}: {duration(row.ours.seconds)}{beside}"


def why_not(row: "Row") -> str:
    """Return why dmlops was not timed."""
    return next((outcome.message for outcome in row.outcomes if outcome.is_ours), "not measured")


def width_of_table() -> int:
    """Return how wide a table may be."""
    return out.width if out.is_terminal else FILE_WIDTH


def is_live() -> bool:
    """Whether standard error is a terminal on which a line can be redrawn."""
    return err.is_terminal and not err.is_dumb_terminal


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show a progress bar on standard error if that is a terminal."""
    name = TextColumn("{task.description}")
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), name)
    progress = Progress(*columns, console=err, transient=True, disable=not is_live())
    # Older versions of Rich, such as 14.2, end one that is disabled with an empty line.
    with nullcontext() if progress.disable else progress:
        yield progress
