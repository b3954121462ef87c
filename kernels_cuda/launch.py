"""Loading compiled kernels on a device and launching them with plain integers.

The driver reads the parameters of a launch through an array of addresses. Both are kept between launches,
as a `_Frame`, which one launch at a time takes and gives back: any number of host threads may launch.

A list of launches that is launched again becomes a table, and is launched by one call of compiled code
(`host`). From compute capability 9.0 on, a launch that follows another in a list then begins while that one
ends, and waits for it on the device (`ptx.take_turn`), which hides most of what a launch takes.
"""

import ctypes
import functools
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from cuda.bindings import driver

from kernels_cuda.variant import Target, Variant, capability_of

# Addresses that the pointers of a list of launches may count from; the base after them is null.
N_BASES = 4
NOTHING = N_BASES
# What kernels may rely on where their workspace begins.
WORKSPACE_ALIGNMENT = 256

_DEFAULT_SHARED_LIMIT = 48 * 1024
_SUCCESS = driver.CUresult.CUDA_SUCCESS
_LOCK = threading.RLock()
# From this driver on, such launches can be recorded into graphs.
_OVERLAPPING_DRIVER = 12_030
# A list's launches one by one before Numba is imported for it: that stalls a call by some 0.3 s, which is no
# matter only to those who will launch it many more times.
LAUNCHES_BEFORE_NUMBA = 64


class _Frame:
    """Memory for the parameters of one launch, and the addresses that the driver finds them by."""

    __slots__ = ("_addresses", "address", "values")

    def __init__(self, values: tuple[int, ...]) -> None:
        count = len(values)
        self.values = (ctypes.c_int64 * count)(*values)
        first = ctypes.addressof(self.values)
        self._addresses = (ctypes.c_void_p * count)(*range(first, first + 8 * count, 8))
        self.address = ctypes.addressof(self._addresses)


@functools.cache
def _packer(count: int) -> Callable[..., None]:
    return struct.Struct(f"={count}q").pack_into


class Kernel:
    """A kernel that is loaded on a device."""

    __slots__ = ("_frames", "device_id", "function", "is_only_device", "may_overlap")

    def __init__(self, function: Any, target: Target) -> None:
        self.function = function
        self.device_id = target.device_id
        self.may_overlap = capability_of(target.arch) >= (9, 0) and _driver_version() >= _OVERLAPPING_DRIVER
        # With one device a thread has that one current, or none: then the launch itself fails.
        self.is_only_device = _device_count() == 1
        self._frames: list[_Frame] = []

    def launch(
        self,
        stream: int,
        grid: int,
        block: int,
        shared_bytes: int,
        *arguments: int,
        is_early: bool = False,
    ) -> None:
        """Put one launch on `stream`.

        Parameters
        ----------
        stream : int
            Where it runs: a ``cudaStream_t``.
        grid, block : int
            Blocks and threads a block; both must be positive.
        shared_bytes : int
            Dynamic shared memory.
        *arguments : int
            As many as the kernel has parameters, each from -2^63 to 2^63 - 1 (see `as_signed`).
        is_early : bool
            Whether it may begin before what is on the stream has ended, where devices can do so.
        """
        try:
            frame = self._frames.pop()
            _packer(len(arguments))(frame.values, 0, *arguments)
        except IndexError:
            frame = _Frame(arguments)
        sizes = (grid, block, shared_bytes)
        is_early = is_early and self.may_overlap
        if not self.is_only_device or self._ask_driver(stream, sizes, frame, is_early)[0]:
            self._launch_on_device(stream, sizes, frame, is_early)
        self._frames.append(frame)

    def prepare(
        self, grid: int, block: int, shared_bytes: int, n_pointers: int, *arguments: int
    ) -> "Launches":
        """Return a launch whose parameters after the first `n_pointers` are these."""
        pointers = tuple((base, 0) for base in range(n_pointers))
        return Launches([Step(self, grid, block, shared_bytes, pointers, arguments)])

    def _ask_driver(self, stream: int, sizes: tuple[int, int, int], frame: _Frame, is_early: bool) -> Any:
        if is_early:
            return driver.cuLaunchKernelEx(_early_config(stream, *sizes), self.function, frame.address, 0)
        grid, block, shared_bytes = sizes
        handle = _stream_argument(stream)
        return driver.cuLaunchKernel(
            self.function, grid, 1, 1, block, 1, 1, shared_bytes, handle, frame.address, 0
        )

    def _launch_on_device(
        self, stream: int, sizes: tuple[int, int, int], frame: _Frame, is_early: bool
    ) -> None:
        """Launch where another device may be current in this thread, or none yet."""
        if _current_device_is(self.device_id):
            scope: AbstractContextManager[None] = nullcontext()
        else:
            scope = _current_device(self.device_id)
        with scope:
            _check(self._ask_driver(stream, sizes, frame, is_early))


Pointer = tuple[int, int]
"""An address of a list's launch: the number of a base, and how many bytes on it is."""


class Step(NamedTuple):
    """One launch of a list.

    Attributes
    ----------
    kernel : Kernel
        What is launched.
    grid, block, shared_bytes : int
        Blocks, threads a block and dynamic shared memory.
    pointers : tuple of Pointer
        The first parameters, known when the list is launched.
    arguments : tuple of int
        The other parameters.
    """

    kernel: Kernel
    grid: int
    block: int
    shared_bytes: int
    pointers: tuple[Pointer, ...]
    arguments: tuple[int, ...]


class Guard(NamedTuple):
    """What a caller would have looked at before a list is launched.

    Attributes
    ----------
    leads : tuple of int
        What each of the first bases must be, modulo `alignment`.
    alignment : int
        A power of two.
    clashes : tuple of (first, second, above, below)
        Base `second` must not begin more than `above` and less than `below` bytes after base `first`.
    workspace : int
        The base that is rounded up to a multiple of `WORKSPACE_ALIGNMENT`; `NOTHING` for none.
    """

    leads: tuple[int, ...] = ()
    alignment: int = 1
    clashes: tuple[tuple[int, int, int, int], ...] = ()
    workspace: int = NOTHING


class Launches:
    """Launches one after the other, of which only the addresses change from one time to the next.

    From the second on, a launch may begin before the one before it has ended (`ptx.take_turn`).

    Parameters
    ----------
    steps : sequence of Step
        At least one; all on the same device.
    """

    __slots__ = ("_n_launched", "_run", "_steps")

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = tuple(steps)
        self._n_launched = 0
        self._run: Callable[..., int] | None = None

    def __call__(self, stream: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> None:
        """Put the launches on `stream`, a ``cudaStream_t``; the others are the bases of pointers."""
        run = self._run
        if run is None or run(stream, a, b, c, d):
            self._launch_one_by_one(stream, (a, b, c, d, 0))

    def guarded(self, guard: Guard) -> Callable[..., int] | None:
        """Return the list as one call of compiled code, which looks at the bases first.

        Returns
        -------
        callable or None
            ``call(stream, a, b, c, d)`` returns 0 where everything has been launched. None where the list has
            not been launched often enough to be compiled.
        """
        return None if self._run is None else self._compiled(guard)

    def _launch_one_by_one(self, stream: int, bases: tuple[int, ...]) -> None:
        """Launch for the first times, and where another device is current, or none yet."""
        # To make a list ready takes longer than to launch it, and many are launched but once.
        patience = 1 if "numba" in sys.modules else LAUNCHES_BEFORE_NUMBA
        if self._run is None and self._n_launched >= patience:
            self._run = self._compiled(Guard())
        self._n_launched += 1
        for number, (kernel, grid, block, shared_bytes, pointers, arguments) in enumerate(self._steps):
            addresses = [bases[base] + offset for base, offset in pointers]
            kernel.launch(stream, grid, block, shared_bytes, *addresses, *arguments, is_early=number > 0)

    def _compiled(self, guard: Guard) -> Callable[..., int]:
        from kernels_cuda import host  # noqa: PLC0415 - imports Numba

        words = [*_driver_entries(), self._steps[0].kernel.device_id, len(self._steps)]
        words += [guard.workspace, len(guard.clashes)]
        for lead in guard.leads:
            words += [guard.alignment - 1, lead]
        words += [0, 0] * (N_BASES - len(guard.leads))
        for clash in guard.clashes:
            words += clash
        for number, (kernel, grid, block, shared_bytes, pointers, arguments) in enumerate(self._steps):
            is_early = number > 0 and kernel.may_overlap
            counts = len(pointers), len(pointers) + len(arguments)
            assert counts[1] <= host.MOST_PARAMETERS
            words += [int(kernel.function), grid, block, shared_bytes, int(is_early), *counts]
            words += [word for pointer in pointers for word in pointer]
            words += arguments
        table = (ctypes.c_int64 * len(words))(*words)
        run = functools.partial(host.launch_all(), ctypes.addressof(table))
        vars(run)["keeps"] = table
        return run


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
    device = _device(device_id)
    kinds = driver.CUdevice_attribute
    major, minor, multiprocessors, block_shared_bytes = (
        _check(driver.cuDeviceGetAttribute(kind, device))
        for kind in (
            kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            kinds.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            kinds.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )
    )
    return Target(device_id, f"sm_{major}{minor}", multiprocessors, block_shared_bytes)


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
        # Never unloaded: kernels are kept for the life of the process.
        library = _check(driver.cuLibraryLoadData(code, [], [], 0, [], [], 0))
        kernel = _check(driver.cuLibraryGetKernel(library, variant.label.encode()))
        if variant.dynamic_shared_bytes > _DEFAULT_SHARED_LIMIT:
            attributes, device = driver.CUfunction_attribute, _device(target.device_id)
            static = attributes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
            left = target.block_shared_bytes - _check(driver.cuKernelGetAttribute(static, kernel, device))
            dynamic = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            shared_bytes = min(variant.dynamic_shared_bytes, left)
            _check(driver.cuKernelSetAttribute(dynamic, shared_bytes, kernel, device))
    return Kernel(driver.CUfunction(int(kernel)), target)


@functools.lru_cache(maxsize=256)
def stream_from_handle(handle: int) -> Any:
    """Return the cuda.core stream of a ``cudaStream_t`` given as an integer."""
    from cuda.core import Stream  # noqa: PLC0415 - slow to import, and few calls are given a stream

    return Stream.from_handle(handle)


@functools.lru_cache(maxsize=256)
def _stream_argument(stream: int) -> Any:
    return driver.CUstream(stream)


@functools.lru_cache(maxsize=256)
def _early_config(stream: int, grid: int, block: int, shared_bytes: int) -> Any:
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
    config.sharedMemBytes = shared_bytes
    config.hStream = _stream_argument(stream)
    config.attrs = [attribute]
    config.numAttrs = 1
    return config


@functools.cache
def _driver_entries() -> tuple[int, ...]:
    """Return the addresses of the driver's functions that `host` calls; 0 if one is newer than the driver."""
    found = []
    for name, since in (
        (b"cuCtxGetDevice", 2_000),
        (b"cuLaunchKernel", 4_000),
        (b"cuLaunchKernelEx", 11_060),
    ):
        status, address, *_ = driver.cuGetProcAddress(name, since, 0)
        found.append(int(address) if status == _SUCCESS else 0)
    return tuple(found)


@functools.cache
def _driver_version() -> int:
    number: int = _check(driver.cuDriverGetVersion())
    return number


@functools.cache
def _device(device_id: int) -> Any:
    _check(driver.cuInit(0))
    return _check(driver.cuDeviceGet(device_id))


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
    return _check(driver.cuDevicePrimaryCtxRetain(_device(device_id)))


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
