"""The words of a device, which all CUDA plans read; an operator's own follow, such as those of its policy."""

from kernels_cuda.runtime.variant import Target, capability_of

# Its compute capability (10 times the major version, and the minor one), how many multiprocessors it has, and
# the most shared memory that a block may have, if it asks for it.
ARCH, MULTIPROCESSORS, BLOCK_SHARED_BYTES = range(3)
OWN_WORDS = 3
"""Where an operator's own words begin."""


def device_words(target: Target) -> list[int]:
    """Return the words of a device.

    Examples
    --------
    >>> device_words(Target(0, "sm_90", 132, 232448))
    [90, 132, 232448]
    """
    major, minor = capability_of(target.arch)
    return [10 * major + minor, target.multiprocessors, target.block_shared_bytes]
