"""Loading compiled kernels on a device and launching them with plain integers.

A launch through cuda.core with everything looked up beforehand costs the host some 4 us.
"""

import functools
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, ObjectCode, Stream
from cuda.core import launch as _launch

from kernels_cuda.compiler import KernelSource, cubin

_DEFAULT_SHARED_LIMIT = 48 * 1024
_SUCCESS = driver.CUresult.CUDA_SUCCESS
_LOCK = threading.RLock()


class Target(NamedTuple):
    """A device that kernels are planned for."""

    device_id: int
    arch: str
    multiprocessors: int


class Variant(NamedTuple):
    """One compilable kernel: `factory(*parameters)` makes its source.

    Attributes
    ----------
    name : str
        Unique among all variants, with the parameters told by `label`: letters, digits and underscores.
    factory : callable
        A module-level function that returns a `KernelSource`.
    parameters : tuple
        What the factory is called with.
    """

    name: str
    factory: Callable[..., KernelSource]
    parameters: tuple[Hashable, ...] = ()

    @property
    def label(self) -> str:
        """The kernel's name in caches and profilers."""
        return "_".join(["dmlops", self.name, *(str(parameter) for parameter in self.parameters)])

    def source(self) -> KernelSource:
        """Make the kernel."""
        return self.factory(*self.parameters)

    def cubin(self, arch: str) -> bytes:
        """Return the compiled kernel, from the cache if it is there; needs no GPU."""
        return cubin(self.label, self.source, arch)


class Kernel:
    """A kernel that is loaded on a device."""

    __slots__ = ("_device_id", "_kernel")

    def __init__(self, kernel: Any, device_id: int) -> None:
        self._kernel = kernel
        self._device_id = device_id

    def launch(self, stream: Any, grid: int, block: int, shared_bytes: int, *arguments: int) -> None:
        """Put one launch on `stream`.

        Parameters
        ----------
        stream : cuda.core.Stream
            Where it runs.
        grid, block : int
            Blocks and threads a block; both must be positive.
        shared_bytes : int
            Dynamic shared memory.
        *arguments : int
            As many as the kernel has parameters, each from -2^63 to 2^63 - 1 (see `as_signed`).
        """
        config = _launch_config(grid, block, shared_bytes)
        if _current_device_is(self._device_id):
            _launch(stream, config, self._kernel, *arguments)
        else:
            with _current_device(self._device_id):
                _launch(stream, config, self._kernel, *arguments)

    @property
    def attributes(self) -> Any:
        """Registers, shared and local memory of the kernel, as cuda.core tells them."""
        return self._kernel.attributes


def as_signed(bits: int) -> int:
    """Return the int64 of the same 64 bits: what a launch can pass.

    Examples
    --------
    >>> as_signed(2**64 - 1), as_signed(5)
    (-1, 5)
    """
    return bits - (1 << 64) if bits >= 1 << 63 else bits


@functools.cache
def target(device_id: int) -> Target:
    """Return the target that is CUDA device number `device_id`."""
    device = Device(device_id)
    major, minor = device.compute_capability
    return Target(device_id, f"sm_{major}{minor}", device.properties.multiprocessor_count)


def load(variant: Variant, target: Target) -> Kernel:
    """Return a variant loaded on a device; compiles it if no process before has."""
    kernel = _KERNELS.get((variant, target))
    if kernel is None:
        with _LOCK:
            kernel = _KERNELS.get((variant, target))
            if kernel is None:
                kernel = _KERNELS[variant, target] = _load(variant, target)
    return kernel


_KERNELS: dict[tuple[Variant, Target], Kernel] = {}


def _load(variant: Variant, target: Target) -> Kernel:
    code = variant.cubin(target.arch)
    with _current_device(target.device_id):
        kernel = ObjectCode.from_cubin(code, name=variant.label).get_kernel(variant.label)
        shared_bytes = variant.source().dynamic_shared_bytes
        if shared_bytes > _DEFAULT_SHARED_LIMIT:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check(driver.cuKernelSetAttribute(attribute, shared_bytes, kernel.handle, target.device_id))
    return Kernel(kernel, target.device_id)


@functools.lru_cache(maxsize=256)
def stream_from_handle(handle: int) -> Any:
    """Return the cuda.core stream of a ``cudaStream_t`` given as an integer."""
    return Stream.from_handle(handle)


@functools.lru_cache(maxsize=4096)
def _launch_config(grid: int, block: int, shared_bytes: int) -> Any:
    return LaunchConfig(grid=grid, block=block, shmem_size=shared_bytes)


def _current_device_is(device_id: int) -> bool:
    status, device = driver.cuCtxGetDevice()
    return bool(status == _SUCCESS and int(device) == device_id)


@functools.cache
def _primary_context(device_id: int) -> Any:
    # Kept for the life of the process, as every array library keeps it.
    Device(device_id)
    return _check(driver.cuDevicePrimaryCtxRetain(device_id))


@contextmanager
def _current_device(device_id: int) -> Iterator[None]:
    # The caller's own context comes back afterwards: array libraries take it for their current device.
    _check(driver.cuCtxPushCurrent(_primary_context(device_id)))
    try:
        yield
    finally:
        _check(driver.cuCtxPopCurrent())


def _check(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if status != _SUCCESS:
        msg = f"CUDA driver: {driver.CUresult(status).name}"
        raise RuntimeError(msg)
    return values[0] if values else None
