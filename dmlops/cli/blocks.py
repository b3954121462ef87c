"""Blocks: the parts in which a command processes an array that is larger than its memory budget."""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from dmlops.cli.console import progress_bar, spinner
from dmlops.cli.errors import CommandError

Part = tuple[slice, ...]

_UNITS = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)},
}
_SIZE = re.compile(rf"(\d{{1,18}}(?:\.\d+)?) ?({'|'.join(_UNITS)})")

MemoryOption = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="Work in blocks if input and output together are larger than this: 512MiB, 8GB, ...",
    ),
]
MEMORY = "1GiB"


def n_bytes(text: str) -> int:
    """Return the number of bytes of a value of `--memory`.

    Raises
    ------
    CommandError
        If it is not a size.

    Examples
    --------
    >>> n_bytes("4096"), n_bytes("1.5KiB"), n_bytes("2GB")
    (4096, 1536, 2000000000)
    """
    match = _SIZE.fullmatch(text)
    size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if size < 1:
        message = f"--memory: {text!r} is not a size; write it as 512MiB or 8GB"
        raise CommandError(message)
    return size


class Blocks:
    """A division of an array into parts, in element order.

    Parameters
    ----------
    shape : sequence of int
        The shape of the array.
    dims : sequence of int
        The dimensions that may be cut, the first of them first.
    n_bytes : int
        What the whole array takes, with what is made of it.
    limit : int
        What a part may take, if cuts along `dims` allow it.

    Attributes
    ----------
    count : int
        The number of parts.

    Examples
    --------
    >>> blocks = Blocks((3, 10), [0], n_bytes=240, limit=160)
    >>> list(blocks.parts())
    [(slice(0, 2, None), slice(0, 10, None)), (slice(2, 3, None), slice(0, 10, None))]
    """

    def __init__(self, shape: Sequence[int], dims: Sequence[int], n_bytes: int, limit: int) -> None:
        self._shape, self._dims = tuple(shape), tuple(dims)
        steps = [max(size, 1) for size in shape]
        for dim in dims:
            if n_bytes <= limit:
                break
            of_each = max(n_bytes // steps[dim], 1)
            steps[dim] = max(min(limit // of_each, steps[dim]), 1)
            n_bytes = of_each * steps[dim]
        self._steps = tuple(steps)
        self.count = math.prod(max(-(-size // step), 1) for size, step in zip(shape, steps, strict=True))

    def parts(self) -> Iterator[Part]:
        """Return each part as a slice of every dimension."""
        return _cut(self._shape, self._steps)

    def shape_of(self, block: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a whole result from that of a block, in which the same dimensions are cut."""
        return tuple(self._shape[dim] if dim in self._dims else size for dim, size in enumerate(block))

    def place_of(self, part: Part) -> Part:
        """Return where the result of a part belongs in the whole result."""
        last = max(self._dims, default=-1)
        return tuple(part[dim] if dim in self._dims else slice(None) for dim in range(last + 1))


def _cut(shape: tuple[int, ...], steps: tuple[int, ...]) -> Iterator[Part]:
    if not shape:
        yield ()
        return
    (size, *sizes), (step, *others) = shape, steps
    for begin in range(0, max(size, 1), step):
        for part in _cut(tuple(sizes), tuple(others)):
            yield (slice(begin, min(begin + step, size)), *part)


@contextmanager
def shown(blocks: Blocks, what: str = "") -> Iterator[Iterator[Part]]:
    """Return an iterator over the parts, with a progress bar on a terminal; one part has a spinner."""
    if blocks.count == 1:
        with spinner():
            yield blocks.parts()
        return
    with progress_bar() as progress:
        task = progress.add_task(what or "blocks", total=blocks.count)

        def parts() -> Iterator[Part]:
            for part in blocks.parts():
                yield part
                progress.advance(task)

        yield parts()
