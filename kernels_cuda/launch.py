"""Loading compiled kernels on a device and launching them with plain integers.

The driver reads the parameters of a launch through an array of addresses. Both are kept between launches,
as a `_Frame`, which one launch at a time takes and gives back: any number of host threads may launch.

From compute capability 9.0 on, a launch that follows another of the same plan begins while that one ends, and
waits for it on the device (`ptx.take_turn`), which hides most of what a launch takes.
"""

import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from cuda.bindings import driver
from cuda.core import Device, ObjectCode, Stream

from kernels_cuda.compiler import KernelSource, capability_of, cubin

_DEFAULT_SHARED_LIMIT = 48 * 1024
_SUCCESS = driver.CUresult.CUDA_SUCCESS
_LOCK = threading.RLock()
# From this driver on, such launches can be recorded into graphs.
_OVERLAPPING_DRIVER = 12_030


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


class _Frame:
    """Memory for the parameters of one launch, and the addresses that the driver finds them by."""

    __slots__ = ("_addresses", "address", "config", "values")

    def __init__(self, values: tuple[int, ...], config: Any = None) -> None:
        count = len(values)
        self.config = config
        self.values = (ctypes.c_int64 * count)(*values)
        first = ctypes.addressof(self.values)
        self._addresses = (ctypes.c_void_p * count)(*range(first, first + 8 * count, 8))
        self.address = ctypes.addressof(self._addresses)


@functools.cache
def _packer(count: int) -> Callable[..., None]:
    return struct.Struct(f"={count}q").pack_into


class Kernel:
    """A kernel that is loaded on a device."""

    __slots__ = ("_device_id", "_frames", "_kernel", "function", "is_only_device", "may_overlap")

    def __init__(self, kernel: Any, target: Target) -> None:
        self._kernel = kernel
        self.function = driver.CUfunction(int(kernel.handle))
        self._device_id = target.device_id
        self.may_overlap = capability_of(target.arch) >= (9, 0) and _driver_version() >= _OVERLAPPING_DRIVER
        # With one device a thread has that one current, or none: then the launch itself fails.
        self.is_only_device = _device_count() == 1
        self._frames: list[_Frame] = []

    def launch(self, stream: Any, grid: int, block: int, shared_bytes: int, *arguments: int) -> None:
        """Put one launch on `stream`.

        Parameters
        ----------
        stream : int or cuda.core.Stream
            Where it runs: a ``cudaStream_t`` or an object.
        grid, block : int
            Blocks and threads a block; both must be positive.
        shared_bytes : int
            Dynamic shared memory.
        *arguments : int
            As many as the kernel has parameters, each from -2^63 to 2^63 - 1 (see `as_signed`).
        """
        try:
            frame = self._frames.pop()
            _packer(len(arguments))(frame.values, 0, *arguments)
        except IndexError:
            frame = _Frame(arguments)
        handle = _stream_argument(stream)
        if (
            not self.is_only_device
            or driver.cuLaunchKernel(
                self.function, grid, 1, 1, block, 1, 1, shared_bytes, handle, frame.address, 0
            )[0]
        ):
            self.launch_on_device(handle, grid, block, shared_bytes, frame)
        self._frames.append(frame)

    def prepare(
        self,
        grid: int,
        block: int,
        shared_bytes: int,
        n_pointers: int,
        *arguments: int,
        follows: bool = False,
    ) -> "Launch":
        """Return a launch whose parameters after the first `n_pointers` are these.

        If it `follows` another, it may begin before that one has ended: its kernel must take its turn.
        """
        is_early = follows and self.may_overlap
        return Launch(self, grid, block, shared_bytes, n_pointers, arguments, is_early=is_early)

    def launch_on_device(self, handle: Any, grid: int, block: int, shared_bytes: int, frame: _Frame) -> None:
        """Launch where another device may be current in this thread, or none yet."""
        if _current_device_is(self._device_id):
            scope: AbstractContextManager[None] = nullcontext()
        else:
            scope = _current_device(self._device_id)
        with scope:
            _check(
                driver.cuLaunchKernel(
                    self.function, grid, 1, 1, block, 1, 1, shared_bytes, handle, frame.address, 0
                )
            )

    @property
    def attributes(self) -> Any:
        """Registers, shared and local memory of the kernel, as cuda.core tells them."""
        return self._kernel.attributes


class Launch:
    """A launch of which only the first parameters, its pointers, change from one time to the next."""

    __slots__ = (
        "_block",
        "_frames",
        "_grid",
        "_is_early",
        "_kernel",
        "_pack",
        "_parameters",
        "_shared_bytes",
    )

    def __init__(
        self,
        kernel: Kernel,
        grid: int,
        block: int,
        shared_bytes: int,
        n_pointers: int,
        arguments: tuple[int, ...],
        *,
        is_early: bool,
    ) -> None:
        self._is_early = is_early
        self._kernel = kernel
        self._grid = grid
        self._block = block
        self._shared_bytes = shared_bytes
        self._pack = _packer(n_pointers)
        self._parameters = (0,) * n_pointers + arguments
        self._frames: list[_Frame] = []

    def __call__(self, stream: Any, *pointers: int) -> None:
        """Put the launch on `stream`, which is as in `Kernel.launch`."""
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = _Frame(self._parameters, self._config() if self._is_early else None)
        self._pack(frame.values, 0, *pointers)
        kernel, grid, block, shared_bytes = self._kernel, self._grid, self._block, self._shared_bytes
        handle = _stream_argument(stream)
        has_failed: Any = True
        if kernel.is_only_device:
            if frame.config is None:
                (has_failed,) = driver.cuLaunchKernel(
                    kernel.function, grid, 1, 1, block, 1, 1, shared_bytes, handle, frame.address, 0
                )
            else:
                frame.config.hStream = handle
                (has_failed,) = driver.cuLaunchKernelEx(frame.config, kernel.function, frame.address, 0)
        if has_failed:
            kernel.launch_on_device(handle, grid, block, shared_bytes, frame)
        self._frames.append(frame)

    def _config(self) -> Any:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        value = driver.CUlaunchAttributeValue()
        value.programmaticStreamSerializationAllowed = 1
        attribute.value = value
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self._grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self._block, 1, 1
        config.sharedMemBytes = self._shared_bytes
        config.attrs = [attribute]
        config.numAttrs = 1
        return config


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
    return Kernel(kernel, target)


@functools.lru_cache(maxsize=256)
def stream_from_handle(handle: int) -> Any:
    """Return the cuda.core stream of a ``cudaStream_t`` given as an integer."""
    return Stream.from_handle(handle)


@functools.lru_cache(maxsize=256)
def _stream_argument(stream: Any) -> Any:
    return driver.CUstream(stream if isinstance(stream, int) else int(stream.handle))


@functools.cache
def _driver_version() -> int:
    number: int = _check(driver.cuDriverGetVersion())
    return number


@functools.cache
def _device_count() -> int:
    count: int = _check(driver.cuDeviceGetCount())
    return count


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
