"""What is compiled, and for which device: known without Numba, which is imported only to compile."""

import importlib
import re
from collections.abc import Hashable
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple

from kernels_cuda.cache import keep_cubin, kept_cubin

if TYPE_CHECKING:
    from kernels_cuda.compiler import KernelSource


class Target(NamedTuple):
    """A device that kernels are planned for.

    Attributes
    ----------
    device_id : int
        Its number.
    arch : str
        Its architecture, for example ``"sm_90"``.
    multiprocessors : int
        How many it has.
    block_shared_bytes : int
        The most shared memory that a block may have, if it asks for it.
    """

    device_id: int
    arch: str
    multiprocessors: int
    block_shared_bytes: int


class Variant(NamedTuple):
    """One compilable kernel.

    Attributes
    ----------
    name : str
        Unique among all variants, with the parameters told by `label`: letters, digits and underscores.
    factory : str
        The function that returns the `KernelSource`, as ``"module:function"``: the module is not imported
        before the kernel must be compiled.
    parameters : tuple
        What the factory is called with.
    dynamic_shared_bytes : int
        The most dynamic shared memory that a launch asks for, where the device has it; must be told if that
        may be more than 48 KiB.
    """

    name: str
    factory: str
    parameters: tuple[Hashable, ...] = ()
    dynamic_shared_bytes: int = 0

    @property
    def label(self) -> str:
        """The kernel's name in caches and profilers."""
        return "_".join(["dmlops", self.name, *(str(parameter) for parameter in self.parameters)])

    def source(self) -> "KernelSource":
        """Make the kernel, with Numba."""
        # The compiler first: it keeps to itself what numba-cuda warns of when it is imported.
        importlib.import_module("kernels_cuda.compiler")
        source: KernelSource = resolve_name(self.factory)(*self.parameters)
        return source

    def cubin(self, arch: str) -> bytes:
        """Return the compiled kernel, from the cache if it is there; needs no GPU."""
        code = kept_cubin(self.label, arch)
        if code is None:
            from kernels_cuda.compiler import compile_cubin, compile_ptx  # noqa: PLC0415 - imports Numba

            source = self.source()
            ptx = compile_ptx(source, self.label, capability_of(arch))
            code = compile_cubin(ptx, arch, source.registers_on(capability_of(arch)))
            keep_cubin(self.label, arch, code)
        return code


def capability_of(arch: str) -> tuple[int, int]:
    """Return the compute capability of an architecture.

    Examples
    --------
    >>> capability_of("sm_75"), capability_of("sm_120")
    ((7, 5), (12, 0))
    """
    digits = re.sub(r"\D", "", arch)
    return int(digits[:-1]), int(digits[-1])
