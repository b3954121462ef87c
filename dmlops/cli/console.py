"""The consoles of the commands, and the form of their texts."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from dmlops.cli.ending import printable, users_errors


class _PrintableConsole(Console):
    """A console that escapes control characters in texts; its colours and progress bars remain."""

    def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
        """Return the segments to print."""
        for text, style, control in super().render(*arguments, **options):
            yield Segment(text if control else printable(text), style, control)

    def print(self, *objects: object, **options: Any) -> None:
        """Print; an error names the stream."""
        with users_errors("standard error" if self.stderr else "standard output"):
            super().print(*objects, **options)


def plain_console(**options: Any) -> Console:
    """Return a console that prints text as it is, because file and package names may look like markup."""
    return _PrintableConsole(markup=False, emoji=False, highlight=False, **options)


out = plain_console(soft_wrap=True)
err = plain_console(stderr=True, soft_wrap=True)


def facts(title: str, named: Iterable[tuple[str, str]]) -> Text:
    """Return a title and lines with a name and a fact; each stays whole, as some are to be copied."""
    text = Text().append(title, "bold")
    for name, fact in named:
        text.append(f"\n {name:<18} ", "cyan").append(fact)
    return text


def duration(seconds: float) -> str:
    """Return a duration with three significant digits and the unit that suits it.

    Examples
    --------
    >>> duration(1.2345e-5), duration(0.25), duration(3)
    ('12.3 us', '250 ms', '3 s')
    >>> duration(999.6e-6), duration(1234)
    ('1 ms', '1234 s')
    """
    for factor, unit in ((1e6, "us"), (1e3, "ms"), (1, "s")):
        text = f"{seconds * factor:.3g}"
        if float(text) < 1000:
            return f"{text} {unit}"
    return f"{seconds:.0f} s"
