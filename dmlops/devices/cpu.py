"""The CPU: how plans get their kernels, and how they run."""

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import numpy as np

from dmlops.devices.memory import read_integer, take_scratch
from dmlops.devices.plans import HostKernels
from dmlops.store import kernel_store, once
from dmlops.store.compilers import compiler_versions, load_compiler
from dmlops.store.kernel_cache import Key
from kernels_cpu import threads
from kernels_cpu.host_words import STREAMING_BYTES, WORDS
from kernels_cpu.kernel import Kernel, LoadedKernel
from kernels_cpu.plan import ProblemPlan, Target

SCRATCH = (ctypes.c_int64 * 1)()
"""The address of scratch memory that native calls keep for the next one."""
plan_threads: ContextVar[int | None] = ContextVar("dmlops_plan_threads", default=None)
"""The number of threads for new plans, if it differs from that for all calls."""


def load(kernel: Kernel) -> LoadedKernel:
    """Return a kernel, ready to be called."""
    return once.once(kernel, partial(_load, kernel))


def _load(kernel: Kernel) -> LoadedKernel:
    from kernels_cpu.linking import link  # noqa: PLC0415 - imports llvmlite, which `import dmlops` does not

    try:
        return link(artifact(kernel))
    except OSError as error:
        what = f"the kernel {kernel.label}"
        raise kernel_store.cannot_load(what, error) from error


def artifact(kernel: Kernel) -> bytes:
    """Return the object code of a kernel: found, or compiled; called in `once.apart`."""
    from kernels_cpu import processor  # noqa: PLC0415

    levels = [processor.LEVEL] if processor.LEVEL else []
    code = kernel_store.find_in_wheel("cpu", kernel.label, sources(), levels)
    return compiled(kernel) if code is None else code


def compiled(kernel: Kernel) -> bytes:
    """Return the object code of a kernel as this machine compiles it, whatever the wheel has."""
    known_by = key(kernel)
    needs = [] if kernel.is_plan else ["numba"]
    compiler = partial(load_compiler, "kernels_cpu.compiler", needs, known_by, "pip install numba")
    return kernel_store.find_or_compile(known_by, lambda: compiler().compile_kernel(kernel))


def key(kernel: Kernel) -> Key:
    """Return the key of a kernel in the cache."""
    from kernels_cpu import processor  # noqa: PLC0415

    return Key("cpu", kernel.label, processor.TARGET, sources(), compiler_versions("numba", "llvmlite"))


@functools.cache
def sources() -> str:
    """Return the digest of the installed sources of CPU kernels."""
    return kernel_store.source_digest(Path(threads.__file__).parent)


@functools.cache
def compiles_plans() -> bool:
    """Return whether plans can be compiled: llvmlite and their sources must be there, not bytecode alone."""
    source_of = getattr(threads.__loader__, "get_source", None)
    has_sources = source_of is not None and source_of(threads.__name__) is not None
    return has_sources and find_spec("llvmlite") is not None


def target() -> Target:
    """Return the host as plans see it."""
    from kernels_cpu import processor  # noqa: PLC0415

    # Plans ask for it, and import LLVM for it: that is the work of a first call, for which a fork waits.
    once.once("processor", processor.described)
    n_threads = plan_threads.get() or threads.get_num_threads()
    return Target(n_threads, load, compiles_plans())


def host_words() -> int:
    """Return the address of the words that plans read of this host, as they are now."""
    from kernels_cpu import processor  # noqa: PLC0415

    threads.get_num_threads()  # which writes its word
    WORDS[STREAMING_BYTES] = processor.streaming_bytes()
    return ctypes.addressof(WORDS)


def words_of_host() -> "ctypes.Array[ctypes.c_int64]":
    """Return a copy of the words that plans read of this host, as they are now."""
    host_words()
    return type(WORDS)(*WORDS)


def kernels_of(operator: str) -> HostKernels:
    """Return the package of an operator's kernels."""
    return cast("HostKernels", once.imported(f"kernels_cpu.{operator}"))


class Host:
    """Runs plans, in the calling thread and those of the pool; `cuda.Stream` has the same methods."""

    leading: Sequence[int] = ()
    """The first arguments of every launch."""

    def scratch(self, size: int) -> AbstractContextManager[int]:
        """Return scratch memory for a ``with`` block, which gets its aligned address."""
        return take_scratch(size)

    def first_outside(
        self,
        plan: ProblemPlan,
        check: Mapping[int, int],
        indices: int,
        meanwhile: Callable[[], object] | None,
    ) -> int:
        """Return the position of the first tuple out of range, or -1.

        Parameters
        ----------
        plan : ProblemPlan
            That of a gather.
        check : mapping of int to int
            Its step that checks.
        indices : int
            Their address.
        meanwhile : callable, optional
            Launches the gather before the answer is known; returns 0 if it has found all tuples in range.
        """
        if meanwhile is not None and meanwhile() == 0:
            return -1
        return plan.step(check, 0, indices, 0, 0)

    def count(
        self, plan: ProblemPlan, step: Mapping[int, int], x: int, count: int, scratch: int, dtype: np.dtype
    ) -> int:
        """Write and return the number of non-zero elements, an integer of type `dtype`."""
        return plan.step(step, x, 0, count, scratch)

    def read(self, address: int, dtype: np.dtype) -> int:
        """Return an integer of this memory."""
        return read_integer(address, dtype)


HOST = Host()
