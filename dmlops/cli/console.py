"""Where the commands print."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dmlops.cli.ending import print_error
from dmlops.cli.errors import OutputLostError


def plain_console(**options: Any) -> Console:
    """Return a console that prints text as it is: the names of files and packages may look like markup."""
    return Console(markup=False, emoji=False, highlight=False, **options)


out = plain_console(soft_wrap=True)
err = plain_console(stderr=True, soft_wrap=True)


@contextmanager
def summary_of(result: Path | None) -> Iterator[None]:
    """Print a summary of a result, which may be lost where the result itself is on disk.

    Parameters
    ----------
    result : Path, optional
        Where the result is; None where what is printed is all there is.

    Raises
    ------
    OutputLostError
        If standard output takes no more text and there is nothing on disk.
    """
    try:
        yield
    except OutputLostError as error:
        if result is None:
            raise
        print_error(f"{error}; the result is in {result}")


def progress_bar() -> Progress:
    """Return a bar on standard error, which only a terminal shows."""
    name = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), name)
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
