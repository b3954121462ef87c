"""Kernels on a device, launched by the driver with plain integers.

The driver wants the address of each parameter's value, and a structure that tells grid, blocks and stream.
All of it is kept between launches, as a `_Frame`, which one launch at a time takes and gives back: any number
of host threads may launch.

From compute capability 9.0 on, a launch that follows another in a list begins while that one ends, and waits
for it on the device (`ptx.grid_dependency_wait`), which hides most of the time that a launch takes. From then
on, too, blocks may be launched in clusters, which run together and reach each other's shared memory.
"""

import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from cuda.bindings import driver

from kernels_cpu.plan_words import (
    BLOCK,
    CLUSTER,
    CONTENT,
    GRID,
    KERNEL,
    LAUNCHES,
    N_LAST_POINTERS,
    N_LAUNCHES,
    N_POINTERS,
    N_VALUES,
    SHARED,
    WAITS,
    Words,
)
from kernels_cuda.device_words import WORKSPACE_ALIGNMENT as WORKSPACE_ALIGNMENT  # noqa: PLC0414 - exported
from kernels_cuda.runtime.variant import PORTABLE_CLUSTER, Target, Variant, capability_of

# A launch is described to the driver by a *frame*: its CUlaunchConfig, room for two CUlaunchAttributes, which
# the configuration may point at, the values of the kernel's parameters, and the address of each of these.
# CUlaunchConfig: grid, block, shared memory, stream, address of the attributes, and their number.
CONFIG = struct.Struct("=7I4xQQI4x")
STREAM_AT, ATTRIBUTE_AT = 32, CONFIG.size
# CUlaunchAttribute: its kind, and a value of up to three integers.
ATTRIBUTE = struct.Struct("=I4x3I52x")
MAX_ATTRIBUTES = 2
VALUES_AT = ATTRIBUTE_AT + MAX_ATTRIBUTES * ATTRIBUTE.size

_DEFAULT_SHARED_LIMIT = 48 * 1024
_SUCCESS = driver.CUresult.CUDA_SUCCESS
_LOCK = threading.RLock()  # held while the driver loads code
# From this driver on, launches that begin early can be recorded into graphs.
_OVERLAPPING_DRIVER = 12_030

_put_word = struct.Struct("=Q").pack_into


class _Sizes(NamedTuple):
    """Blocks, threads per block, dynamic shared memory, and blocks per cluster."""

    grid: int
    block: int
    shared_bytes: int
    cluster: int = 1


class _Frame:
    """Memory that describes one launch to the driver."""

    __slots__ = ("config", "memory", "parameters")

    def __init__(self, sizes: _Sizes, is_early: bool, values: Sequence[int]) -> None:
        kinds = driver.CUlaunchAttributeID
        attributes: list[tuple[int, int, int, int]] = []
        if is_early:
            attributes.append((int(kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION), 1, 0, 0))
        if sizes.cluster > 1:
            attributes.append((int(kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION), sizes.cluster, 1, 1))
        count = len(values)
        parameters_at = VALUES_AT + 8 * count
        self.memory = ctypes.create_string_buffer(parameters_at + 8 * count)
        self.config = ctypes.addressof(self.memory)
        self.parameters = self.config + parameters_at
        CONFIG.pack_into(
            *(self.memory, 0, sizes.grid, 1, 1, sizes.block, 1, 1, sizes.shared_bytes, 0),
            *(self.config + ATTRIBUTE_AT if attributes else 0, len(attributes)),
        )
        for number, attribute in enumerate(attributes):
            ATTRIBUTE.pack_into(self.memory, ATTRIBUTE_AT + number * ATTRIBUTE.size, *attribute)
        struct.pack_into(f"={count}q", self.memory, VALUES_AT, *values)
        first = self.config + VALUES_AT
        struct.pack_into(f"={count}Q", self.memory, parameters_at, *range(first, first + 8 * count, 8))


class Kernel:
    """A kernel that is loaded on a device."""

    __slots__ = ("device_id", "function", "may_overlap")

    def __init__(self, function: int, target: Target) -> None:
        self.function = function
        self.device_id = target.device_id
        self.may_overlap = may_overlap(target)

    def launch(
        self, stream: int, grid: int, block: int, shared_bytes: int, *arguments: "int | Arguments"
    ) -> None:
        """Put one launch on `stream`, whose arguments are told only now; see `Launch`."""
        frame = _Frame(_Sizes(grid, block, shared_bytes), False, flat(arguments))
        self.launch_frame(frame, stream)

    def launch_frame(self, frame: _Frame, stream: int) -> None:
        """Put the launch that a frame describes on `stream`."""
        _put_word(frame.memory, STREAM_AT, stream)
        status = launch_entry()(frame.config, self.function, frame.parameters, 0)
        if status == _NO_CONTEXT:
            with current_device(self.device_id):
                status = launch_entry()(frame.config, self.function, frame.parameters, 0)
        if status:
            _check((driver.CUresult(status),))

    def prepare(
        self, grid: int, block: int, shared_bytes: int, n_pointers: int, *arguments: "int | Arguments"
    ) -> "LaunchList":
        """Return a launch whose parameters after the first `n_pointers` are these."""
        pointers = tuple(Pointer(slot) for slot in range(n_pointers))
        return LaunchList([Launch(self, grid, block, shared_bytes, pointers, arguments)])


def may_overlap(target: Target) -> bool:
    """Return whether a launch on a device may begin before the one ahead of it has ended."""
    return capability_of(target.arch) >= (9, 0) and _driver_version() >= _OVERLAPPING_DRIVER


_NO_CONTEXT = int(driver.CUresult.CUDA_ERROR_INVALID_CONTEXT)


class Pointer(NamedTuple):
    """An address that is known when a list is launched.

    Attributes
    ----------
    slot : int
        Which of the addresses that the list is launched with.
    offset : int
        How many bytes after it.
    """

    slot: int
    offset: int = 0


Arguments = Iterable["int | Arguments"]
"""Integers, and tuples of them; a kernel's NamedTuple of parameters is one."""


def flat(arguments: Arguments) -> tuple[int, ...]:
    """Return the values that a kernel takes for arguments of which some are tuples, in order.

    Examples
    --------
    >>> flat([1, (2, 3, (4,)), 5])
    (1, 2, 3, 4, 5)
    """
    values: list[int] = []
    for argument in arguments:
        if isinstance(argument, int):
            values.append(argument)
        else:
            values += flat(argument)
    return tuple(values)


class Launch(NamedTuple):
    """One launch of a list.

    Attributes
    ----------
    kernel : Kernel
        What is launched.
    grid, block, shared_bytes : int
        Blocks, threads per block and dynamic shared memory.
    pointers : tuple of Pointer
        The first parameters, known when the list is launched.
    arguments : tuple
        The other parameters: integers from -2^63 to 2^63 - 1, and tuples of them.
    cluster : int
        Blocks of a cluster, of which `grid` is a multiple; 1 where there are no clusters.
    last_pointers : tuple of Pointer
        The parameters after `arguments`, known when the list is launched.
    waits : bool
        Whether it must not begin before the launch ahead of it has ended.
    """

    kernel: Kernel
    grid: int
    block: int
    shared_bytes: int
    pointers: tuple[Pointer, ...]
    arguments: Arguments
    cluster: int = 1
    last_pointers: tuple[Pointer, ...] = ()
    waits: bool = False


class _Repeated:
    """A launch of which only stream and addresses change from one time to the next."""

    __slots__ = (
        "_arguments",
        "_idle",
        "_is_early",
        "_kernel",
        "_last_pointers",
        "_pointers",
        "_put_last_pointers",
        "_put_pointers",
        "_sizes",
    )

    def __init__(self, launch: Launch, is_early: bool) -> None:
        self._kernel = launch.kernel
        self._sizes = _Sizes(launch.grid, launch.block, launch.shared_bytes, launch.cluster)
        self._is_early = is_early and not launch.waits and launch.kernel.may_overlap
        self._pointers, self._last_pointers = launch.pointers, launch.last_pointers
        unknown = [(0,) * len(pointers) for pointers in (self._pointers, self._last_pointers)]
        self._arguments = unknown[0] + flat(launch.arguments) + unknown[1]
        self._put_pointers = struct.Struct(f"={len(self._pointers)}q").pack_into
        self._put_last_pointers = struct.Struct(f"={len(self._last_pointers)}q").pack_into
        self._idle: list[_Frame] = []

    def __call__(self, stream: int, addresses: tuple[int, ...]) -> None:
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = _Frame(self._sizes, self._is_early, self._arguments)
        pointers = [addresses[slot] + offset for slot, offset in self._pointers]
        self._put_pointers(frame.memory, VALUES_AT, *pointers)
        if self._last_pointers:
            pointers = [addresses[slot] + offset for slot, offset in self._last_pointers]
            end = VALUES_AT + 8 * len(self._arguments)
            self._put_last_pointers(frame.memory, end - 8 * len(pointers), *pointers)
        self._kernel.launch_frame(frame, stream)
        self._idle.append(frame)


class LaunchList:
    """Launches one after the other, of which only the addresses change from one time to the next.

    From the second on, a launch may begin before the one before it has ended (`ptx.grid_dependency_wait`).

    Parameters
    ----------
    launches : sequence of Launch
        At least one; all on the same device.
    """

    __slots__ = ("_launches",)

    def __init__(self, launches: Sequence[Launch]) -> None:
        self._launches = tuple(_Repeated(launch, number > 0) for number, launch in enumerate(launches))

    def __call__(self, stream: int, *addresses: int) -> None:
        """Put the launches on `stream`, a ``cudaStream_t``; pointers count from the addresses."""
        with_null = (*addresses, 0)
        for launch in self._launches:
            launch(stream, with_null)


def launch_list(words: Words, load_kernel: Callable[[int], Kernel]) -> LaunchList:
    """Return the launches of a plan (`plan_words`).

    Parameters
    ----------
    words : sequence of int
        The plan's words.
    load_kernel : callable
        Returns a loaded kernel for the number by which the plan knows it.
    """
    launches, at = [], LAUNCHES
    for _ in range(words[N_LAUNCHES]):
        values_at = at + CONTENT + 2 * words[at + N_POINTERS]
        values_end = values_at + words[at + N_VALUES]
        end = values_end + 2 * words[at + N_LAST_POINTERS]
        launch = Launch(
            kernel=load_kernel(words[at + KERNEL]),
            grid=words[at + GRID],
            block=words[at + BLOCK],
            shared_bytes=words[at + SHARED],
            pointers=_pointers(words, at + CONTENT, values_at),
            arguments=tuple(words[values_at:values_end]),
            cluster=words[at + CLUSTER],
            last_pointers=_pointers(words, values_end, end),
            waits=bool(words[at + WAITS]),
        )
        launches.append(launch)
        at = end
    return LaunchList(launches)


def _pointers(words: Words, begin: int, end: int) -> tuple[Pointer, ...]:
    return tuple(Pointer(words[i], words[i + 1]) for i in range(begin, end, 2))


@functools.cache
def target(device_id: int) -> Target:
    """Return the target that is CUDA device number `device_id`, without a source of kernels."""
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
    """Return a variant loaded on a device."""
    kernel = _KERNELS.get((variant, target))
    if kernel is None:
        kernel = _KERNELS.setdefault((variant, target), _load(variant, target))
    return kernel


_KERNELS: dict[tuple[Variant, Target], Kernel] = {}


def _load(variant: Variant, target: Target) -> Kernel:
    assert target.fetch is not None
    refusal = ""
    while True:
        # Not under our lock: this may wait for compilers, whose locks a thread may have that waits for ours.
        code = target.fetch(variant, target.arch, refusal)
        with _LOCK:
            kernel = _KERNELS.get((variant, target))
            if kernel is not None:  # another thread was faster
                return kernel
            status, handle = _given_to_driver(code, variant, target)
            if status == _SUCCESS:
                return _KERNELS.setdefault((variant, target), Kernel(int(handle), target))
        if refusal or status not in _REFUSALS:
            _check((status,))
        refusal = status.name


def _given_to_driver(code: bytes, variant: Variant, target: Target) -> tuple[Any, Any]:
    """Load code into a device; return the driver's answer, and the kernel if it is a success."""
    with current_device(target.device_id):
        status, kernel = _kernel_of(code, variant.label)
        if status != _SUCCESS:
            return status, None
        if variant.dynamic_shared_bytes:
            attributes, device = driver.CUfunction_attribute, _device(target.device_id)
            static = attributes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
            static_bytes = _check(driver.cuKernelGetAttribute(static, kernel, device))
            # The limit is on both together.
            if static_bytes + variant.dynamic_shared_bytes > _DEFAULT_SHARED_LIMIT:
                dynamic = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                shared_bytes = min(variant.dynamic_shared_bytes, target.block_shared_bytes - static_bytes)
                _check(driver.cuKernelSetAttribute(dynamic, shared_bytes, kernel, device))
        if variant.cluster > PORTABLE_CLUSTER:
            allowed = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            _check(driver.cuKernelSetAttribute(allowed, 1, kernel, _device(target.device_id)))
    return status, kernel


# Errors of the driver for code that it cannot run: a cubin of a later toolkit, PTX of a later version, ...
_REFUSALS = {
    driver.CUresult.CUDA_ERROR_INVALID_IMAGE,
    driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU,
    driver.CUresult.CUDA_ERROR_INVALID_PTX,
    driver.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    driver.CUresult.CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
    driver.CUresult.CUDA_ERROR_INVALID_SOURCE,
}


def _kernel_of(code: bytes, name: str) -> tuple[Any, Any]:
    """Load code into the current device; return the driver's answer, and the kernel if it is a success."""
    # Never unloaded: kernels are kept for the life of the process.
    status, library = driver.cuLibraryLoadData(code, [], [], 0, [], [], 0)
    if status == _SUCCESS:
        status, kernel = driver.cuLibraryGetKernel(library, name.encode())
    if status != _SUCCESS:
        return status, None
    # A library is loaded when its function is first needed; only then does the driver see whether it can be.
    return driver.cuKernelGetFunction(kernel)[0], kernel


@functools.cache
def launch_entry() -> Any:
    """Return the driver's ``cuLaunchKernelEx``, called by addresses.

    Python objects for its arguments would cost microseconds. It gives the GIL away: where the queue of a
    stream is full, the driver waits.
    """
    address = _check(driver.cuGetProcAddress(b"cuLaunchKernelEx", 12_000, 0)[:2])
    return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(int(address))


@functools.cache
def _driver_version() -> int:
    number: int = _check(driver.cuDriverGetVersion())
    return number


@functools.cache
def _device(device_id: int) -> Any:
    _check(driver.cuInit(0))
    return _check(driver.cuDeviceGet(device_id))


def current_device_is(device_id: int) -> bool:
    """Return whether a device is the one that is current in this thread."""
    status, device = driver.cuCtxGetDevice()
    return bool(status == _SUCCESS and int(device) == device_id)


@functools.cache
def _primary_context(device_id: int) -> Any:
    # Kept for the life of the process, as every array library keeps it.
    return _check(driver.cuDevicePrimaryCtxRetain(_device(device_id)))


@contextmanager
def current_device(device_id: int) -> Iterator[None]:
    """Make a device current; the caller's own context comes back afterwards."""
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
