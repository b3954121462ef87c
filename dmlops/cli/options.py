"""Options that several commands take."""

from collections.abc import Sequence
from typing import Annotated

import typer

from dmlops.cli.console import CommandError

OPERATORS = ("top_k", "nonzero_coordinates", "gather_nd", "diagonal_matrix")

Operators = Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(OPERATORS)}; may be repeated.")]
Seconds = Annotated[
    float | None, typer.Option(min=1, help="How long to measure; what does not fit is skipped, and said.")
]


def chosen_operators(names: Sequence[str] | None) -> Sequence[str]:
    """Return the operators that were named, or all.

    Raises
    ------
    CommandError
        With the names that there are, where one of these is none of them.
    """
    if unknown := set(names or ()) - set(OPERATORS):
        message = f"--operator {min(unknown)}: it must be one of {', '.join(OPERATORS)}"
        raise CommandError(message)
    return names or OPERATORS
