"""The host that kernels are planned for: how many threads may work, and where kernels come from."""

from typing import NamedTuple

from kernels_cpu.kernel import Load


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
