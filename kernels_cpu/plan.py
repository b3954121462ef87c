"""The plan of a problem, the host that it is made for, and the layout of its workspace.

Every operator has a ``plan(problem, target)``, which takes its `Problem` of plain integers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kernels_cpu.cached import cached_property
from kernels_cpu.kernel import Load
from kernels_cpu.processor import LINE_BYTES


class Target(NamedTuple):
    """The host as plans see it.

    Attributes
    ----------
    threads : int
        How many threads the work may be spread over.
    load : callable
        Gives a plan its kernels, ready to be called.
    """

    threads: int
    load: Load


@dataclass(frozen=True)
class Plan:
    """A problem of one operator, ready to run any number of times from any thread.

    Every function takes addresses: of inputs, outputs and the workspace, which is aligned to 64 bytes.
    """

    variant: str
    """The algorithm, and why it was chosen."""
    workspace_size: int
    """Bytes of scratch that one run needs."""
    loaders: Mapping[str, Callable[[], Callable[..., Any]]]
    """Loads the kernels of each function that the operator has; called when it is first asked for."""
    in_one_pass: bool = False
    """Of nonzero: whether `launch` reads the input once, and needs no workspace."""

    @cached_property
    def launch(self) -> Callable[..., Any]:
        """Write all outputs; return what the only kernel returns, or for nonzero the full count.

        For gather this is 0 only if all tuples were in range; for others a slice is written none the less.
        """
        return self.loaders["launch"]()

    @cached_property
    def check(self) -> Callable[[int], int]:
        """Return the position of a gather's first tuple that is out of range, or -1: ``check(indices)``."""
        return self.loaders["check"]()

    @cached_property
    def count(self) -> Callable[[int, int, int], int]:
        """Write and return the full count, and leave in the workspace the words that `expand` reads.

        Called as ``count(x, count, workspace)``.
        """
        return self.loaders["count"]()

    @cached_property
    def expand(self) -> Callable[[int, int, int, int], None]:
        """Write the first rows, packed, after `count` with the same workspace.

        Called as ``expand(x, coordinates, n_rows, workspace)``.
        """
        return self.loaders["expand"]()


def lay_out(areas: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Return where each area begins, in bytes from the start of the workspace, and the size of all of them.

    Parameters
    ----------
    areas : mapping of str to int
        The bytes that each area needs. Kernels write to no byte outside of them.

    Examples
    --------
    >>> lay_out({"words": 8, "counts": 72})
    ({'words': 0, 'counts': 64}, 192)
    """
    offsets, size = {}, 0
    for name, n_bytes in areas.items():
        offsets[name] = size
        size += n_bytes + -n_bytes % LINE_BYTES
    return offsets, size
