"""CUDA devices: how plans get their kernels, and how they run on a stream."""

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dmlops.array_libraries.base import ArrayLibrary
from dmlops.devices import cpu, cuda_driver
from dmlops.devices.memory import Device, aligned
from dmlops.store import kernel_store, once
from dmlops.store.compilers import compiler_versions, load_compiler
from dmlops.store.kernel_cache import Key, warn_once
from dmlops.types.enums import TensorDataType
from dmlops.types.errors import DmlError
from kernels_cpu.kernel import Kernel, LoadedKernel

if TYPE_CHECKING:
    from kernels_cpu.plan import ProblemPlan
    from kernels_cuda.runtime.variant import Target, Variant

    Words = ctypes.Array[ctypes.c_int64]

# The check of gather indices writes this if every tuple is in range.
ALL_IN_RANGE = 2**63 - 1
POSITION = np.dtype(np.int64)
"""The type of what the check writes: a position, or `ALL_IN_RANGE`."""
# The distributions that a cubin depends on: Numba's, NVVM and nvJitLink, and the names of these two in
# CUDA 12.
_COMPILERS = (
    *("numba", "numba-cuda", "llvmlite", "cuda-core"),
    *("nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink-cu12"),
)


def _fetch(variant: "Variant", arch: str, refusal: str = "") -> bytes:
    """Return the code of a kernel; `refusal` says why the driver did not take what was returned before."""
    if not refusal:
        return once.apart(artifact, variant, arch)
    if once.apart(_in_wheel, variant, arch) is not None:
        warn_once(f"the driver refuses what the wheel has for {arch} ({refusal})")
    return once.apart(compiled, variant, arch)


def artifact(variant: "Variant", arch: str) -> bytes:
    """Return the code of a kernel: found, or compiled; called in `once.apart`."""
    code = _in_wheel(variant, arch)
    return compiled(variant, arch) if code is None else code


def compiled(variant: "Variant", arch: str) -> bytes:
    """Return the cubin of a kernel as this machine compiles it, whatever the wheel has."""
    known_by, remedy = key(variant, arch), kernel_store.cuda_extra(with_compilers=True)
    needs = ["numba", "numba_cuda"]
    compiler = partial(load_compiler, "kernels_cuda.runtime.compiler", needs, known_by, remedy)
    return kernel_store.find_or_compile(known_by, lambda: compiler().compile_variant(variant, arch))


def _in_wheel(variant: "Variant", arch: str) -> bytes | None:
    from kernels_cuda.runtime.variant import runnable  # noqa: PLC0415

    targets = runnable(arch, kernel_store.wheel_targets())
    return kernel_store.find_in_wheel("cuda", variant.label, sources(), targets)


def key(variant: "Variant", arch: str) -> Key:
    """Return the key of a CUDA kernel in the cache."""
    return Key("cuda", variant.label, arch, sources(), compiler_versions(*_COMPILERS))


def sources() -> str:
    """Return the digest of the installed sources of CUDA kernels, and of what both devices compile."""
    import kernels_cpu.exact  # noqa: PLC0415
    import kernels_cuda  # noqa: PLC0415

    return kernel_store.source_digest(
        Path(kernels_cuda.__file__).parent, Path(kernels_cpu.exact.__file__).parent
    )


def target(number: int, where: str) -> "Target":
    """Return device number `number` as plans see it; see `cuda_driver.check_device`."""
    return cuda_driver.check_device(number, where)._replace(fetch=_fetch, load_plan=_load_plan)


class NativeTarget(NamedTuple):
    """A CUDA device as native calls need it."""

    target: "Target"
    """The device as plans see it."""
    driver: int
    """The address of the driver's cuLaunchKernelEx."""
    may_overlap: bool
    """Whether a launch may begin before the one ahead of it has ended."""

    def plan(self, operator: str) -> Kernel:
        """Return the kernel of the CPU that plans an operator."""
        return plan_kernel(kernels_of(operator).PLAN)

    def words(self, operator: str) -> "Words":
        """Return the words of the device, as the plans of an operator read them."""
        return _as_memory(kernels_of(operator).plan_device(self.target))

    def measured(self, operator: str) -> "Words | None":
        """Return the words of what was measured on the device, by which plans choose, or None."""
        measured_on = getattr(kernels_of(operator), "measured_on", None)
        return None if measured_on is None else _as_memory(measured_on(self.target))

    def load(self, operator: str, key: int) -> int:
        """Return the handle of a kernel by the number that plans have for it."""
        variant = kernels_of(operator).variant_of(key)
        function: int = once.imported("kernels_cuda.runtime.launch").load(variant, self.target).function
        return function


def native_target(number: int) -> NativeTarget:
    """Return device number `number` as native calls need it."""
    launch, found = cuda_driver.launcher("device"), target(number, "device")
    driver = ctypes.cast(launch.launch_entry(), ctypes.c_void_p).value or 0
    return NativeTarget(found, driver, launch.may_overlap(found))


def plan_kernel(kernel: Kernel) -> Kernel:
    """Return a kernel of the CPU that plans for GPUs, named with their digest."""
    return kernel._replace(name=f"{kernel.name}_{sources()[:16]}")


def _load_plan(kernel: Kernel) -> LoadedKernel | None:
    """Return the compiled form of a plan, or None if there can be none."""
    return cpu.load(plan_kernel(kernel)) if cpu.compiles_plans() else None


def kernels_of(operator: str) -> Any:
    """Return the package of an operator's kernels."""
    return once.imported(f"kernels_cuda.{operator}")


@functools.cache
def _kept() -> list["Words"]:
    return []


def _as_memory(words: Sequence[int]) -> "Words":
    """Return words at an address, for the life of the process: native code may read them at any time."""
    memory = (ctypes.c_int64 * len(words))(*words)
    _kept().append(memory)
    return memory


class Stream:
    """Runs plans of the current CUDA device, on one stream.

    An error that leaves a ``with`` block waits for the stream: no kernel may work on memory that is freed.

    Parameters
    ----------
    handle : int
        The stream.
    library : ArrayLibrary
        Allocates scratch memory.
    device : Device
        The device of the stream.
    """

    def __init__(self, handle: int, library: ArrayLibrary, device: Device) -> None:
        self.leading = (handle,)
        self.handle, self._library, self._device = handle, library, device

    def __enter__(self) -> "Stream":
        self._token = RUNNING_ON.set(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        RUNNING_ON.reset(self._token)
        # dmlops raises its errors before anything is launched, or after a wait.
        if error is not None and not isinstance(error, DmlError):
            cuda_driver.finish(self.handle)

    def scratch(self, size: int) -> AbstractContextManager[int]:
        """Return scratch memory for a ``with`` block, which gets its aligned address."""
        library = self._library
        # A library that keeps memory by the handle of a stream would mix up threads.
        is_shared = self.handle == cuda_driver.PER_THREAD_STREAM or not library.allocates_on_streams
        if is_shared or (not library.knows_capture and cuda_driver.is_capturing(self.handle)):
            return cuda_driver.stream_memory(size, self.handle)
        array = self._bytes(size)
        memory: Any = nullcontext(aligned(library.address(array)))
        memory.owner = array  # alive until the block ends
        return memory  # type: ignore[no-any-return]

    def _bytes(self, size: int) -> object:
        return self._library.empty((size,), TensorDataType.UINT8, self._device)

    def first_outside(
        self,
        plan: "ProblemPlan",
        check: Mapping[int, int],
        indices: int,
        meanwhile: Callable[[], object] | None,
    ) -> int:
        """Launch a check, and wait for its answer; see `Host.first_outside`."""
        answer = self._bytes(POSITION.itemsize)
        plan.step(check, self.handle, 0, indices, 0, self._library.address(answer))
        if meanwhile is not None:
            meanwhile()
        first = self.read(self._library.address(answer), POSITION)
        return -1 if first == ALL_IN_RANGE else first

    def count(
        self, plan: "ProblemPlan", step: Mapping[int, int], x: int, count: int, scratch: int, dtype: np.dtype
    ) -> int:
        """Write the number of non-zero elements, and wait for it."""
        plan.step(step, self.handle, x, 0, count, scratch)
        return self.read(count, dtype)

    def read(self, address: int, dtype: np.dtype) -> int:
        """Wait for the stream, and return an integer of device memory."""
        return cuda_driver.read_back(address, dtype, self.handle)


RUNNING_ON: ContextVar[Stream | None] = ContextVar("dmlops_running_on", default=None)
"""The stream of the call that this thread makes."""
