"""The consoles and the progress bar of the commands."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from dmlops.cli.ending import print_error
from dmlops.cli.errors import OutputLostError


def plain_console(**options: Any) -> Console:
    """Return a console that prints text unchanged, because file and package names may look like markup."""
    return Console(markup=False, emoji=False, highlight=False, **options)


out = plain_console(soft_wrap=True)
err = plain_console(stderr=True, soft_wrap=True)


@contextmanager
def summary_of(result: Path | None) -> Iterator[None]:
    """Surround the printing of a summary, which may be lost if the result itself is on disk.

    Parameters
    ----------
    result : Path, optional
        The file with the result; None if the printed text is the only result.

    Raises
    ------
    OutputLostError
        If standard output accepts no more text and there is no file.
    """
    try:
        yield
    except OutputLostError as error:
        if result is None:
            raise
        print_error(f"{error}; the result is in {result}")


def progress_bar() -> Progress:
    """Return a progress bar on standard error, which is shown only in a terminal."""
    name = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), name)
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal)


def facts(title: str, named: Iterable[tuple[str, str]]) -> Text:
    """Return a title and lines with a name and a fact; each stays whole, as some are to be copied."""
    text = Text().append(title, "bold")
    for name, fact in named:
        text.append(f"\n {name:<18} ", "cyan").append(fact)
    return text
