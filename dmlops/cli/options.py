"""Options that several commands have."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from dmlops.cli.errors import CommandError

INT64 = range(-(2**63), 2**63)
OPERATORS = ("top_k", "nonzero_coordinates", "gather_nd", "diagonal_matrix")


def completion_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Return what gives a shell the names that begin with some letters."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


Operators = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        show_default=False,
        help=f"One of {', '.join(OPERATORS)}; may be repeated.",
        autocompletion=completion_of(OPERATORS),
    ),
]


def integer_option(text: str, *names: str, **settings: Any) -> Any:
    """Return an option for an integer; Python has no text for one of thousands of digits."""
    return typer.Option(*names, metavar="N", help=text, callback=_in_64_bits, **settings)


def _in_64_bits(number: int | None) -> int | None:
    if number is not None and number not in INT64:
        message = f"it must be in [-2^63, 2^63 - 1], and has {number.bit_length()} bits"
        raise typer.BadParameter(message)
    return number


def chosen_operators(names: Sequence[str] | None) -> Sequence[str]:
    """Return the operators that were named, or all.

    Raises
    ------
    CommandError
        If a name is unknown. The text lists the known names.
    """
    if unknown := set(names or ()) - set(OPERATORS):
        message = f"--operator {min(unknown)}: it must be one of {', '.join(OPERATORS)}"
        raise CommandError(message)
    return names or OPERATORS
