"""Plans and kernels as calls see them: what the packages of kernels of both devices offer."""

from collections.abc import Callable
from typing import Any, Protocol

from kernels_cpu.kernel import Kernel


class Plan(Protocol):
    """A problem with its kernels, ready to run any number of times from any thread.

    Functions take addresses, on a GPU behind the handle of a stream.
    """

    @property
    def variant(self) -> str:
        """The algorithm, and why it was chosen."""

    @property
    def workspace_size(self) -> int:
        """Bytes of scratch that one run needs."""

    @property
    def launch(self) -> Callable[..., Any]:
        """Writes all outputs; on the host it returns what its only kernel returns."""


class GatherPlan(Plan, Protocol):
    """The plan of a gather."""

    @property
    def check(self) -> Callable[..., Any]:
        """Looks for the first tuple out of range; on the host it returns its position, or -1."""


class NonzeroPlan(Plan, Protocol):
    """The plan of a list of non-zero elements."""

    @property
    def in_one_pass(self) -> bool:
        """Whether `launch` reads the input once; the host's plans alone have this."""

    @property
    def count(self) -> Callable[..., Any]:
        """Writes the count, which it returns on the host; `expand` reads the workspace afterwards."""

    @property
    def expand(self) -> Callable[..., int | None]:
        """Writes the rows after `count`."""


class HostKernels(Protocol):
    """An operator's package in ``kernels_cpu``, for native calls."""

    PLAN: Kernel
    DIMS: int
    RESIDUES: tuple[int, ...]
    words_of_problem: Callable[[Any], list[int]]
    plan_of_words: Callable[..., int]
    kernel_of: Callable[[int], Kernel]
