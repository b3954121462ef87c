"""What is compiled, and for which device: known without Numba, which is imported only to compile."""

import functools
import re
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from kernels_cpu.kernel import Kernel, LoadedKernel

# Devices have thread-block clusters from this compute capability on.
CLUSTERS_FROM = (9, 0)
# All of them run clusters of so many blocks.
PORTABLE_CLUSTER = 8


class Variant(NamedTuple):
    """One compilable kernel."""

    name: str
    """Unique among all variants, with the parameters told by `label`: letters, digits and underscores."""
    factory: str
    """The function that returns the ``@cuda.jit`` kernel, as ``"module:function"``: the module is not
    imported before the kernel must be compiled."""
    parameters: tuple[Hashable, ...] = ()
    """What the factory is called with."""
    dynamic_shared_bytes: int = 0
    """The most dynamic shared memory that a launch asks for, where the device has it; must be told if that
    may be more than 48 KiB."""
    cluster: int = 1
    """The most blocks of a cluster that a launch asks for."""
    since: tuple[int, int] = (0, 0)
    """No plan asks for it on devices of a lower compute capability."""

    @property
    def label(self) -> str:
        """The kernel's name in the store and in profilers."""
        return "_".join(["dmlops", self.name, *(str(parameter) for parameter in self.parameters)])

    def is_for(self, arch: str) -> bool:
        """Return whether plans for devices of an architecture may ask for the kernel."""
        return capability_of(arch) >= self.since


Fetch = Callable[[Variant, str, str], bytes]
"""Finds or compiles the code of a variant for an architecture such as ``"sm_90"``.

The third argument is empty; or it says why the driver refused the code that was found before.
"""


class Target(NamedTuple):
    """A device that kernels are planned for."""

    device_id: int
    """Its number."""
    arch: str
    """Its architecture, for example ``"sm_90"``."""
    multiprocessors: int
    """How many it has."""
    block_shared_bytes: int
    """The most shared memory that a block may have, if it asks for it."""
    fetch: Fetch | None = None
    """Gives a plan the code of its kernels."""
    load_plan: Callable[[Kernel], LoadedKernel | None] | None = None
    """Gives the compiled form of a plan, which the CPU runs."""


@functools.cache
def capability_of(arch: str) -> tuple[int, int]:
    """Return the compute capability of an architecture.

    Examples
    --------
    >>> capability_of("sm_75"), capability_of("sm_120")
    ((7, 5), (12, 0))
    """
    digits = re.sub(r"\D", "", arch)
    return int(digits[:-1]), int(digits[-1])


# A block may have this many KiB of shared memory, by compute capability, and 99 on other devices (CUDA C++
# programming guide, technical specifications).
_BLOCK_KIB = {
    **dict.fromkeys([(9, 0), (10, 0), (10, 1), (10, 3), (11, 0)], 227),
    **dict.fromkeys([(8, 0), (8, 7)], 163),
    (7, 5): 64,
}


def typical_target(arch: str) -> Target:
    """Return a large device of an architecture, where there is none to ask."""
    return Target(0, arch, 132, _BLOCK_KIB.get(capability_of(arch), 99) << 10)


def is_ptx(arch: str) -> bool:
    """Return whether what is made for an architecture is PTX, which drivers compile for it and later ones.

    Examples
    --------
    >>> is_ptx("compute_100"), is_ptx("sm_100")
    (True, False)
    """
    return arch.startswith("compute_")


def runnable(arch: str, targets: Iterable[str]) -> list[str]:
    """Return the targets whose code runs on an architecture, best first.

    A cubin runs on its own and on later minor versions of the same major one; the driver compiles PTX for
    all later architectures.

    Examples
    --------
    >>> runnable("sm_89", ["sm_80", "sm_86", "sm_90", "compute_75", "compute_90"])
    ['sm_86', 'sm_80', 'compute_75']
    """
    device = capability_of(arch)
    cubins = {capability_of(name): name for name in targets if name.startswith("sm_")}
    ptx = {capability_of(name): name for name in targets if name.startswith("compute_")}
    return [
        *(cubins[made_for] for made_for in sorted(cubins, reverse=True) if _runs_cubin(device, made_for)),
        *(ptx[made_for] for made_for in sorted(ptx, reverse=True) if made_for <= device),
    ]


def _runs_cubin(device: tuple[int, int], made_for: tuple[int, int]) -> bool:
    return made_for[0] == device[0] and made_for[1] <= device[1]
