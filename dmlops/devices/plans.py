"""The interfaces of a plan and of an operator's package of kernels, as calls use them."""

from collections.abc import Callable
from typing import Any, Protocol

from kernels_cpu.kernel import Kernel


class Plan(Protocol):
    """One or several problems with their kernels, ready to run any number of times from any thread.

    `kernels_cpu.plan.ProblemPlan` is that of one problem. On a GPU, the handle of a stream precedes the
    addresses.
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
        """Write all outputs; return the result on the host."""


class HostKernels(Protocol):
    """An operator's package in ``kernels_cpu``, for native calls."""

    PLAN: Kernel
    DIMS: int
    RESIDUES: tuple[int, ...]
    words_of_problem: Callable[[Any], list[int]]
    kernel_of: Callable[[int], Kernel]
