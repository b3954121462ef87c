"""The words of a device, which all CUDA plans read; an operator's own follow, such as those of its policy."""

from collections.abc import Iterable

from kernels_cpu.plan_words import MAX_WORDS
from kernels_cuda.runtime.variant import Target, capability_of

# Its compute capability (10 times the major version, and the minor one), how many multiprocessors it has, the
# most shared memory that a block may have, if it asks for it; and how many words there is room for in a plan.
ARCH, MULTIPROCESSORS, BLOCK_SHARED_BYTES, ROOM = range(4)
OWN_WORDS = 4
"""Where an operator's own words begin."""


def device_words(target: Target, room: int = MAX_WORDS, policy: Iterable[int] = ()) -> list[int]:
    """Return the words of a device and of a policy, for plans of so many words.

    Examples
    --------
    >>> device_words(Target(0, "sm_90", 132, 232448))
    [90, 132, 232448, 2048]
    """
    major, minor = capability_of(target.arch)
    return [10 * major + minor, target.multiprocessors, target.block_shared_bytes, room, *policy]


PLANNED, TOO_LONG = range(2)
"""A plan returns one of these: it is whole, or there is no room for all of its words."""

WORKSPACE_ALIGNMENT = 256
"""Kernels may rely on this where their workspace begins."""
