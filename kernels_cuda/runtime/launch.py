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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
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

_put_word, _put_integer = struct.Struct("=Q").pack_into, struct.Struct("=q").pack_into


class DeviceKernel(NamedTuple):
    """A kernel that is loaded on a device."""

    function: int
    target: Target


def may_overlap(target: Target) -> bool:
    """Return whether a launch on a device may begin before the one ahead of it has ended."""
    return capability_of(target.arch) >= (9, 0) and _driver_version() >= _OVERLAPPING_DRIVER


_NO_CONTEXT = int(driver.CUresult.CUDA_ERROR_INVALID_CONTEXT)


class _Frame:
    """Memory that describes one launch to the driver.

    Parameters
    ----------
    launch : words
        A launch of a plan.
    is_early : bool
        Whether it may begin before the one ahead of it has ended.
    values : sequence of int
        The arguments of the kernel, with 0 for pointers.
    """

    __slots__ = ("config", "memory", "parameters")

    def __init__(self, launch: Words, is_early: bool, values: Sequence[int]) -> None:
        kinds = driver.CUlaunchAttributeID
        attributes: list[tuple[int, int, int, int]] = []
        if is_early:
            attributes.append((int(kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION), 1, 0, 0))
        if launch[CLUSTER] > 1:
            attributes.append((int(kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION), launch[CLUSTER], 1, 1))
        count = len(values)
        parameters_at = VALUES_AT + 8 * count
        self.memory = ctypes.create_string_buffer(parameters_at + 8 * count)
        self.config = ctypes.addressof(self.memory)
        self.parameters = self.config + parameters_at
        grid, block = (launch[GRID], 1, 1), (launch[BLOCK], 1, 1)
        attributes_at = self.config + ATTRIBUTE_AT if attributes else 0
        CONFIG.pack_into(self.memory, 0, *grid, *block, launch[SHARED], 0, attributes_at, len(attributes))
        for number, attribute in enumerate(attributes):
            ATTRIBUTE.pack_into(self.memory, ATTRIBUTE_AT + number * ATTRIBUTE.size, *attribute)
        struct.pack_into(f"={count}q", self.memory, VALUES_AT, *values)
        first = self.config + VALUES_AT
        struct.pack_into(f"={count}Q", self.memory, parameters_at, *range(first, first + 8 * count, 8))


class _Launch:
    """A launch of a plan, of which only stream and addresses change from one time to the next.

    Parameters
    ----------
    kernel : DeviceKernel
        What is launched.
    launch : words
        The words of the launch.
    is_early : bool
        Whether it may begin before the one ahead of it has ended.
    """

    __slots__ = ("_idle", "_is_early", "_kernel", "_launch", "_pointers", "_values")

    def __init__(self, kernel: DeviceKernel, launch: Words, is_early: bool) -> None:
        self._kernel, self._launch, self._is_early = kernel, launch, is_early
        n_pointers, n_values, n_last = launch[N_POINTERS], launch[N_VALUES], launch[N_LAST_POINTERS]
        values_at = CONTENT + 2 * n_pointers
        last_at = values_at + n_values
        self._values = [0] * n_pointers + list(launch[values_at:last_at]) + [0] * n_last
        # For each pointer its place among the arguments, its slot and its offset.
        self._pointers = [(i, *launch[CONTENT + 2 * i : CONTENT + 2 * i + 2]) for i in range(n_pointers)]
        places = range(n_pointers + n_values, len(self._values))
        self._pointers += [(i, *launch[at : at + 2]) for i, at in zip(places, count(last_at, 2))]
        self._idle: list[_Frame] = []

    def __call__(self, stream: int, addresses: tuple[int, ...]) -> None:
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = _Frame(self._launch, self._is_early, self._values)
        memory = frame.memory
        for place, slot, offset in self._pointers:
            _put_integer(memory, VALUES_AT + 8 * place, addresses[slot] + offset)
        _put_word(memory, STREAM_AT, stream)
        function, target = self._kernel
        status = launch_entry()(frame.config, function, frame.parameters, 0)
        if status == _NO_CONTEXT:
            with current_device(target.device_id):
                status = launch_entry()(frame.config, function, frame.parameters, 0)
        if status:
            _check((driver.CUresult(status),))
        self._idle.append(frame)


class Launches:
    """The launches of a plan (`plan_words`), which are put on a stream one after the other.

    From the second on, a launch may begin before the one before it has ended (`ptx.grid_dependency_wait`).

    Parameters
    ----------
    words : sequence of int
        The plan's words.
    load_kernel : callable
        Returns a loaded kernel for the number by which the plan knows it.
    """

    def __init__(self, words: Words, load_kernel: Callable[[int], DeviceKernel]) -> None:
        self._launches, at = [], LAUNCHES
        for number in range(words[N_LAUNCHES]):
            n_pointers = words[at + N_POINTERS] + words[at + N_LAST_POINTERS]
            end = at + CONTENT + 2 * n_pointers + words[at + N_VALUES]
            kernel = load_kernel(words[at + KERNEL])
            is_early = number > 0 and not words[at + WAITS] and may_overlap(kernel.target)
            self._launches.append(_Launch(kernel, words[at:end], is_early))
            at = end

    def __call__(self, stream: int, *addresses: int) -> int:
        """Put the launches on `stream`, a ``cudaStream_t``; return -1: they have no result on the host."""
        with_null = (*addresses, 0)  # the slot of null pointers is the last one
        for launch in self._launches:
            launch(stream, with_null)
        return -1


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


def load(variant: Variant, target: Target) -> DeviceKernel:
    """Return a variant loaded on a device."""
    kernel = _KERNELS.get((variant, target))
    if kernel is None:
        kernel = _KERNELS.setdefault((variant, target), _load(variant, target))
    return kernel


_KERNELS: dict[tuple[Variant, Target], DeviceKernel] = {}


def _load(variant: Variant, target: Target) -> DeviceKernel:
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
                return _KERNELS.setdefault((variant, target), DeviceKernel(int(handle), target))
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
