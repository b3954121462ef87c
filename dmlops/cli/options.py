"""Options that several commands have."""

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from dmlops.cli.errors import CommandError

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
