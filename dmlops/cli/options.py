"""Options that several commands have."""

from enum import StrEnum
from typing import Any

import typer

INT64 = range(-(2**63), 2**63)


class Device(StrEnum):
    """The values of `--device`."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


def integer_option(text: str, *names: str, **settings: Any) -> Any:
    """Return an option for an integer; Python has no text for one of thousands of digits."""
    return typer.Option(*names, metavar="N", help=text, callback=_in_64_bits, **settings)


def _in_64_bits(number: int | None) -> int | None:
    if number is not None and number not in INT64:
        message = f"it must be in [-2^63, 2^63 - 1], and has {number.bit_length()} bits"
        raise typer.BadParameter(message)
    return number
