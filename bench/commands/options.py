"""Options that several commands have."""

import math
from enum import StrEnum
from typing import Annotated, Any

import typer


class Operator(StrEnum):
    """The values of `--operator`."""

    TOP_K = "top_k"
    NONZERO_COORDINATES = "nonzero_coordinates"
    SAMPLE = "sample"
    GATHER_ND = "gather_nd"
    DIAGONAL_MATRIX = "diagonal_matrix"


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


def names_option(option: str, text: str, metavar: str = "NAME") -> Any:
    """Return an option that may be repeated."""
    return typer.Option(option, metavar=metavar, show_default=False, help=f"{text}; may be repeated.")
