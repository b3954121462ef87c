"""The consoles of the commands, and the progress that they show."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.text import Text

from dmlops.cli.ending import print_error
from dmlops.cli.errors import OutputLostError, printable
from dmlops.store import kernel_store


class _PrintableConsole(Console):
    """A console whose texts tell the terminal nothing; colours and progress bars do."""

    def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
        """Return the segments of what is printed."""
        for text, style, control in super().render(*arguments, **options):
            yield Segment(text if control else printable(text), style, control)


def plain_console(**options: Any) -> Console:
    """Return a console that prints text as it is, because file and package names may look like markup."""
    return _PrintableConsole(markup=False, emoji=False, highlight=False, **options)


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
        if str(error):
            print_error(f"{error}; the result is in {result}")


def is_live() -> bool:
    """Whether standard error is a terminal on which a line can be redrawn."""
    return err.is_terminal and not err.is_dumb_terminal


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show a progress bar, and what is being compiled, on standard error if that is a terminal."""
    name = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), name)
    progress = Progress(*columns, console=err, transient=True, disable=not is_live())
    # Older versions of Rich, such as 14.2, end one that is disabled with an empty line.
    with nullcontext() if progress.disable else progress:
        compilation = progress.add_task("", total=None, visible=False)

        def show(text: str) -> None:
            progress.update(compilation, description=text, visible=bool(text))

        with _compilations_told_to(show):
            yield progress


@contextmanager
def spinner(text: str = "") -> Iterator[None]:
    """Show what is being compiled, and otherwise a text, on standard error if that is a terminal."""
    status = err.status(text)

    def show(compilation: str) -> None:
        told = compilation or text
        if told:
            status.update(Text(told[: err.width - 4]))
            status.start()
        else:
            status.stop()

    show("")
    try:
        with _compilations_told_to(show):
            yield
    finally:
        status.stop()


@contextmanager
def _compilations_told_to(show: Callable[[str], None]) -> Iterator[None]:
    """Call `show` with a text when a compilation begins, and with "" when it has ended."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            show(f"{record.getMessage()} ..." if record.msg == kernel_store.COMPILING else "")

    log, handler, level = kernel_store.log, Handler(), kernel_store.log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)


def facts(title: str, named: Iterable[tuple[str, str]]) -> Text:
    """Return a title and lines with a name and a fact; each stays whole, as some are to be copied."""
    text = Text().append(title, "bold")
    for name, fact in named:
        text.append(f"\n {name:<18} ", "cyan").append(fact)
    return text
