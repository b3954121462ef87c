"""Kernels as integers, by which plans name them: a number, and after it the parameters, 8 bits each."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kernels_cuda.runtime.variant import Variant

PARAMETER_BITS = 8


class KernelFamily(NamedTuple):
    """Kernels that differ by the parameters of the function that makes them."""

    name: str
    factory: str
    """Those of their variants."""
    kinds: tuple[Callable[[int], int], ...] = ()
    """What each parameter is: int, or bool."""


def kernel_key(family: int, first: int = 0, second: int = 0, third: int = 0) -> int:
    """Return the integer that stands for a kernel: the number of its family, and up to three parameters.

    Examples
    --------
    >>> hex(kernel_key(5, 16, 8, 1))
    '0x1081005'
    """
    parameters = first | (second << PARAMETER_BITS) | (third << (2 * PARAMETER_BITS))
    return family | (parameters << PARAMETER_BITS)


def variant_of(key: int, families: Sequence[KernelFamily]) -> Variant:
    """Return the kernel that an integer stands for.

    Examples
    --------
    >>> family = KernelFamily("copied", "kernels_cuda.copy:copy_kernel", (int, bool))
    >>> variant_of(kernel_key(0, 4, 1), [family]).label
    'dmlops_copied_4_True'
    """
    parameter_mask = (1 << PARAMETER_BITS) - 1
    name, factory, kinds = families[key & parameter_mask]
    parameters = []
    for kind in kinds:
        key >>= PARAMETER_BITS
        parameters.append(kind(key & parameter_mask))
    return Variant(name, factory, tuple(parameters))
