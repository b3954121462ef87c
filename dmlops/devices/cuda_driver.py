"""Requests to the CUDA driver: devices, streams, memory, order, and waits."""

import functools
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from dmlops.devices.memory import aligned, read_integer
from dmlops.store import kernel_store, once
from dmlops.types.arguments import as_integer
from dmlops.types.errors import DeviceMismatchError, UnsupportedFeatureError, error_text, refuse, shown

if TYPE_CHECKING:
    from kernels_cuda.runtime.variant import Target

# The protocols' handle of the legacy default stream: 0 could be either default stream.
LEGACY_STREAM = 1
# This handle means a different stream in each thread.
PER_THREAD_STREAM = 2
# The legacy and the per-thread default stream belong to the device that is current.
_DEFAULT_STREAMS = (0, LEGACY_STREAM, PER_THREAD_STREAM)


def launcher(where: str, got: str = "a CUDA device") -> ModuleType:
    """Return the module that launches kernels.

    Raises
    ------
    UnsupportedFeatureError
        If the cuda extra is not installed; the text says where what was `got`, and what to type.
    """
    try:
        return once.imported("kernels_cuda.runtime.launch")
    except ImportError as error:
        reason = f"the CUDA packages are not installed ({error.name} is missing)"
        remedy = f"type: {kernel_store.cuda_extra()}"
        raise UnsupportedFeatureError(error_text(where, got, reason, remedy)) from error


def check_device(number: int, where: str) -> "Target":
    """Refuse a CUDA device that cannot be used; return what plans know of one that can.

    Raises
    ------
    UnsupportedFeatureError
        If the cuda extra, the driver or the device is missing.
    """
    got = f"cuda:{number}"
    launch = launcher(where, got)
    try:
        target: Target = launch.target(number)
    except Exception as error:  # each state of the driver has its own class
        raise _no_device(got, error, where) from error
    return target


def _no_device(got: str, error: Exception, where: str) -> UnsupportedFeatureError:
    reason = f"the CUDA driver does not give that device ({str(error).strip() or type(error).__name__})"
    remedy = "a GPU with NVIDIA's driver is needed; `nvidia-smi` should list it"
    return UnsupportedFeatureError(error_text(where, got, reason, remedy))


def stream_handle(stream: object, where: str) -> int:
    """Return the handle of a stream given as an int or as an object of any library.

    Raises
    ------
    TypeError
        If it is not a stream.
    """
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for attribute in ("cuda_stream", "ptr"):
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    number = None if isinstance(stream, bool) else as_integer(stream)
    if number is not None and number >= 0:
        return number
    allowed = "stream must be None, an integer handle or an object with __cuda_stream__"
    raise TypeError(error_text(where, shown(stream), "it is not a CUDA stream", allowed))


def check_stream_device(handle: int, device_number: int, where: str) -> None:
    """Refuse a stream of another device than number `device_number`; default streams belong to all devices.

    Raises
    ------
    DeviceMismatchError
        If it belongs to another device.
    """
    if handle in _DEFAULT_STREAMS:
        return
    number = stream_device(handle)
    if number != device_number:
        got, reason = f"a stream of cuda:{number}", f"the arrays live on cuda:{device_number}"
        raise DeviceMismatchError(error_text(where, got, reason, "both must share a device"))


def stream_device(handle: int) -> int:
    """Return the number of the device of a stream that is not a default stream."""
    return _device_of(_checked(_driver().cuStreamGetCtx(handle), "asking a stream for its device"))


@functools.cache
def _driver() -> ModuleType:
    # The launcher has imported it, where no signal handler raises.
    driver: ModuleType = once.imported("kernels_cuda.runtime.launch").driver
    return driver


def _checked(result: tuple[Any, ...], doing: str) -> Any:
    status, *values = result
    if status != _driver().CUresult.CUDA_SUCCESS:
        msg = f"CUDA driver: {status.name} while {doing}"
        raise RuntimeError(msg)
    return values[0] if values else None


def pointer_device(pointer: int, where: str) -> int | None:
    """Return the number of the device that an address belongs to; None for other addresses.

    Raises
    ------
    UnsupportedFeatureError
        If the cuda extra or the driver is missing.
    """
    launcher(where)
    kinds = _driver().CUpointer_attribute
    try:
        # The ordinal alone is not enough: some drivers report 0 for the memory of every device.
        context = _pointer_attribute(kinds.CU_POINTER_ATTRIBUTE_CONTEXT, pointer)
        if context:
            return _device_of(context)
        # Memory from a pool has no context.
        pool = _pointer_attribute(kinds.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pointer)
        number = _pool_device(pool) if pool else None
        if number is None:
            number = _pointer_attribute(kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer)
    except Exception as error:  # there is no driver to ask
        got = "an array of a CUDA device"
        raise _no_device(got, error, where) from error
    return number if number is not None and number >= 0 else None


def _pointer_attribute(kind: object, pointer: int) -> int | None:
    """Return what the driver knows of an address; None if it is not one of CUDA's."""
    driver = _driver()
    status, value = driver.cuPointerGetAttribute(kind, pointer)
    return int(value) if status == driver.CUresult.CUDA_SUCCESS else None


def _pool_device(pool: int) -> int | None:
    """Return the number of the device that a pool's memory is on; None if that cannot be told."""
    defaults = _default_pools()
    if pool in defaults:
        return defaults.index(pool)
    driver = _driver()
    # Other devices reach the memory of a pool only if they have been allowed to.
    place = driver.CUmemLocation()
    place.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    reaching = []
    for number in range(len(defaults)):
        place.id = number
        if _checked(driver.cuMemPoolGetAccess(pool, place), "asking who reaches a pool").value:
            reaching.append(number)
    return reaching[0] if len(reaching) == 1 else None


@functools.cache
def _default_pools() -> tuple[int, ...]:
    """Return the handles of the pools that devices have from the start, in order of device."""
    driver, doing = _driver(), "asking devices for their pools"
    numbers = range(int(_checked(driver.cuDeviceGetCount(), doing)))
    devices = (_checked(driver.cuDeviceGet(number), doing) for number in numbers)
    return tuple(int(_checked(driver.cuDeviceGetDefaultMemPool(device), doing)) for device in devices)


def _device_of(context: object) -> int:
    driver, doing = _driver(), "asking a context for its device"
    _checked(driver.cuCtxPushCurrent(context), doing)
    try:
        return int(_checked(driver.cuCtxGetDevice(), doing))
    finally:
        driver.cuCtxPopCurrent()


def is_capturing(handle: int) -> bool | None:
    """Return whether work put on the stream is being recorded into a CUDA graph.

    None: the driver cannot tell, because another stream is being captured, and the legacy
    stream would take part.
    """
    driver = _driver()
    error, status = driver.cuStreamIsCapturing(handle)
    if error != driver.CUresult.CUDA_SUCCESS:
        return None
    return bool(status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


def device_made_current(number: int) -> AbstractContextManager[None]:
    """Return a context in which a device is current; afterwards, the previous one is current again.

    A thread need not have had any device before.
    """
    launch = launcher("device")
    return nullcontext() if launch.current_device_is(number) else launch.current_device(number)


# Unused page-locked words, which the driver can copy to directly.
_pinned: list[int] = []


def read_back(pointer: int, dtype: np.dtype, handle: int) -> int:
    """Return an integer of device memory, after waiting for the stream; its device is current."""
    driver = _driver()
    try:
        pinned = _pinned.pop()
    except IndexError:
        # Kept for the life of the process, for all threads and devices.
        allocated = driver.cuMemHostAlloc(8, driver.CU_MEMHOSTALLOC_PORTABLE)
        pinned = int(_checked(allocated, "getting page-locked memory"))
    # After an interrupt, the word is not reused: the copy may still be under way.
    _checked(driver.cuMemcpyDtoHAsync(pinned, pointer, dtype.itemsize, handle), "reading a result back")
    _checked(driver.cuStreamSynchronize(handle), "waiting for a result")
    value = read_integer(pinned, dtype)
    _pinned.append(pinned)
    return value


def synchronize(handle: int) -> None:
    """Wait until all work on a stream has ended; its device is current."""
    _checked(_driver().cuStreamSynchronize(handle), "waiting for a stream")


def finish(handle: int) -> None:
    """Wait like `synchronize`, while an error is being raised; a capture is left alone."""
    if not is_capturing(handle):
        _driver().cuStreamSynchronize(handle)


@contextmanager
def stream_memory(size: int, handle: int) -> Iterator[int]:
    """Return device memory that the driver allocates in stream order; in a capture, it belongs to the graph.

    An array library that knows nothing of the stream, or of the capture, would give the memory to other
    arrays while it is still in use. It is freed after the work that is on the stream, even if the call fails.
    """
    pointer = int(_checked(_driver().cuMemAllocAsync(size, handle), "allocating on a stream"))
    try:
        yield aligned(pointer)
    except BaseException:
        _driver().cuMemFreeAsync(pointer, handle)
        raise
    _checked(_driver().cuMemFreeAsync(pointer, handle), "freeing on a stream")


def allocate(size: int, handle: int, where: str) -> int:
    """Allocate memory of the current device, which `free` returns in stream order; return its address.

    Raises
    ------
    InvalidDescriptorError
        If the stream is being captured.
    """
    for _ in range(len(_unfreed)):
        try:
            free(*_unfreed.popleft())
        except IndexError:  # another thread was faster
            break
    if is_capturing(handle) is not False:
        reason = "the stream is being captured into a CUDA graph, which would own the memory"
        refuse(where, "a new array", reason, "allocate it before the capture: functions take it as out")
    with _during_other_captures():
        return int(_checked(_driver().cuMemAllocAsync(size, handle), "allocating on a stream"))


# Memory that was freed while its stream was captured.
_unfreed: deque[tuple[int, int, int, object]] = deque()


def free(pointer: int, handle: int, number: int, owner: object = None) -> None:
    """Free memory of `allocate` after the work that is now on a stream of device `number`.

    Where the stream is being captured, the memory waits for the next allocation after that. `owner` keeps the
    stream until then.
    """
    # The legacy stream waits for the streams of all threads, and those of this thread are not known.
    ordered = LEGACY_STREAM if handle == PER_THREAD_STREAM else handle
    with device_made_current(number):
        if is_capturing(ordered) is False:
            with _during_other_captures():
                _driver().cuMemFreeAsync(pointer, ordered)
        else:
            _unfreed.append((pointer, handle, number, owner))


@contextmanager
def _during_other_captures() -> Iterator[None]:
    """Let this thread allocate and free on uncaptured streams while other streams are captured.

    Most modes of capture forbid it, to this thread or to all, as something that might be meant for the graph.
    """
    driver = _driver()
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = _checked(driver.cuThreadExchangeStreamCaptureMode(relaxed), "relaxing the mode of captures")
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


def fill(pointer: int, number: int, size: int, handle: int) -> None:
    """Write an integer of `size` bytes, a multiple of 4, to memory of the current device."""
    for offset in range(0, size, 4):
        word = number >> 8 * offset & 0xFFFFFFFF
        _checked(_driver().cuMemsetD32Async(pointer + offset, word, 1, handle), "writing an integer")


def copy(to: int, source: int, size: int, handle: int) -> None:
    """Copy memory between the host and the current device, and wait for it."""
    _checked(_driver().cuMemcpyAsync(to, source, size, handle), "copying between host and device")
    synchronize(handle)


@contextmanager
def ordered(handle: int, streams: set[int], lent: list[object]) -> Iterator[None]:
    """Order one call, the body of a ``with`` block, with the streams of all libraries that take part.

    Parameters
    ----------
    handle : int
        The stream of the call. It waits for the work that has been put on the others, and they wait for it.
    streams : set of int
        The streams of other libraries, and those that arrays name.
    lent : list of object
        Arrays whose library has no streams: they are kept until the call has ended on the device.
    """
    if is_capturing(handle):
        # A stream outside a capture cannot be ordered with it; an attempt would end the capture.
        streams = {stream for stream in streams if is_capturing(stream)}
        # The caller keeps whatever a graph reads for as long as it launches the graph.
        lent = []
    legacy = {0, LEGACY_STREAM}
    others = streams - (legacy if handle in legacy else {handle})
    for stream in others:
        _wait_for(handle, stream)
    yield
    for stream in others:
        _wait_for(stream, handle)
    if lent:
        _keep_until_done(handle, lent)


def _new_event() -> object:
    driver = _driver()
    flags = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
    return _checked(driver.cuEventCreate(flags), "making an event")


def _wait_for(waiting: int, stream: int) -> None:
    """Make later work on one stream wait for the work that is on another, without blocking the host."""
    driver, event = _driver(), _new_event()
    try:
        _checked(driver.cuEventRecord(event, stream), "recording an event")
        _checked(driver.cuStreamWaitEvent(waiting, event, 0), "ordering two streams")
    finally:
        # The driver keeps what it still needs of the event.
        driver.cuEventDestroy(event)


_lent: deque[tuple[object, list[object]]] = deque()


def _keep_until_done(handle: int, arrays: list[object]) -> None:
    """Keep arrays alive until the work that is on a stream has ended; later calls release them."""
    driver = _driver()
    event = _new_event()
    _checked(driver.cuEventRecord(event, handle), "recording an event")
    _lent.append((event, arrays))
    for _ in range(len(_lent)):
        try:
            event, arrays = _lent.popleft()
        except IndexError:  # another thread was faster
            return
        # Any other answer, such as that during another thread's capture, does not tell whether it has ended.
        if driver.cuEventQuery(event)[0] == driver.CUresult.CUDA_SUCCESS:
            driver.cuEventDestroy(event)
        else:
            _lent.append((event, arrays))
