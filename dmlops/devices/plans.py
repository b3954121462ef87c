"""Plans and kernels as calls see them: what the packages of kernels of both devices offer."""

from collections.abc import Callable, Mapping
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

    def prepared(self) -> Callable[..., int] | None:
        """Load all kernels."""

    def launch(self, *arguments: int) -> int:
        """Run the whole, and write all outputs; return its result on the host."""


class PlanInSteps(Plan, Protocol):
    """The plan of one problem, of which steps can be run, too: a step changes words of the problem."""

    @property
    def algorithm(self) -> int:
        """The operator's number of what runs."""

    def prepared(self, changes: Mapping[int, int] = ...) -> Callable[..., int] | None:
        """Load all kernels of a step."""

    def step(self, changes: Mapping[int, int], *arguments: int) -> int:
        """Run a step; return its result on the host."""


class HostKernels(Protocol):
    """An operator's package in ``kernels_cpu``, for native calls."""

    PLAN: Kernel
    DIMS: int
    RESIDUES: tuple[int, ...]
    words_of_problem: Callable[[Any], list[int]]
    plan_of_words: Callable[..., int]
    kernel_of: Callable[[int], Kernel]
