"""What dmlops asks of the CUDA driver: devices, streams, and the two waits that exist."""

import functools
import importlib
from types import ModuleType
from typing import Any

import numpy as np

from dmlops.errors import DeviceMismatchError, UnsupportedFeatureError, wording
from dmlops.memory import read_integer

# The legacy and the per-thread default stream stand for whichever device is current.
_DEFAULT_STREAMS = (0, 1, 2)


def launcher(where: str) -> ModuleType:
    """Return the module that launches kernels.

    Raises
    ------
    UnsupportedFeatureError
        If the cuda extra is not installed; the text begins with `where` and says what to type.
    """
    try:
        from kernels_cuda import launch  # noqa: PLC0415
    except ImportError as error:
        reason = f"the CUDA packages are not installed ({error.name} is missing)"
        remedy = 'type: pip install "dmlops[cuda]" (or "dmlops[cuda12]" for a CUDA 12 driver)'
        raise UnsupportedFeatureError(wording(where, "a CUDA device", reason, remedy)) from error
    return launch


def numba_cuda() -> Any:
    """Import Numba's CUDA package, which makes device arrays, and keep its warnings of that from the user."""
    return importlib.import_module("kernels_cuda.compiler").cuda


def target(index: int, where: str) -> Any:
    """Return CUDA device number `index` as kernels are planned for it.

    Raises
    ------
    UnsupportedFeatureError
        If the cuda extra, the driver or the device is missing.
    """
    launch = launcher(where)
    try:
        return launch.target(index)
    except Exception as error:
        reason = f"the CUDA driver does not give that device ({str(error).strip() or type(error).__name__})"
        remedy = "a GPU with NVIDIA's driver is needed; `nvidia-smi` should list it"
        raise UnsupportedFeatureError(wording(where, f"cuda:{index}", reason, remedy)) from error


def device_count() -> int:
    """Return how many CUDA devices can be used; 0 without the cuda extra or a driver."""
    try:
        from cuda.core import system  # noqa: PLC0415

        return int(system.get_num_devices() if hasattr(system, "get_num_devices") else system.num_devices)
    except Exception:  # every way in which a driver can be absent
        return 0


def stream_handle(stream: Any, device_index: int, where: str) -> int:
    """Return the handle of a stream given as an int or as an object of any library.

    Raises
    ------
    TypeError
        If it is no stream.
    DeviceMismatchError
        If it belongs to another device than number `device_index`.
    """
    handle = _handle(stream, where)
    if handle not in _DEFAULT_STREAMS:
        index = launcher(where).stream_from_handle(handle).device.device_id
        if index != device_index:
            got, reason = f"a stream of cuda:{index}", f"the arrays live on cuda:{device_index}"
            raise DeviceMismatchError(wording(where, got, reason, "both must share a device"))
    return handle


def _handle(stream: Any, where: str) -> int:
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for attribute in ("cuda_stream", "ptr"):
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    if isinstance(stream, (int, np.integer)) and not isinstance(stream, bool) and stream >= 0:
        return int(stream)
    allowed = "stream must be None, an integer handle or an object with __cuda_stream__"
    raise TypeError(wording(where, repr(stream), "it is no CUDA stream", allowed))


@functools.cache
def _driver() -> Any:
    from cuda.bindings import driver  # noqa: PLC0415

    return driver


def pointer_device(pointer: int) -> int:
    """Return the number of the device that an address belongs to."""
    driver = _driver()
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, index = driver.cuPointerGetAttribute(attribute, pointer)
    return int(index) if status == driver.CUresult.CUDA_SUCCESS else 0


def is_capturing(handle: int) -> bool:
    """Return whether work put on the stream is being recorded into a CUDA graph."""
    driver = _driver()
    status, capture = driver.cuStreamIsCapturing(handle)
    none = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    return bool(status == driver.CUresult.CUDA_SUCCESS and capture != none)


# Page-locked words that no copy is on its way to: the driver reaches these at once, other memory by a detour.
_landings: list[int] = []


def _new_landing() -> int:
    driver = _driver()
    # Kept for the life of the process; from any thread and device.
    status, address = driver.cuMemHostAlloc(8, driver.CU_MEMHOSTALLOC_PORTABLE)
    _raise_for(status, "getting page-locked memory")
    return int(address)


def _raise_for(status: Any, doing: str) -> None:
    if status != _driver().CUresult.CUDA_SUCCESS:
        msg = f"CUDA driver: {status.name} while {doing}"
        raise RuntimeError(msg)


def read_back(pointer: int, dtype: "np.dtype[Any]", handle: int) -> int:
    """Return an integer of device memory, after waiting for the stream."""
    driver = _driver()
    try:
        landing = _landings.pop()
    except IndexError:
        landing = _new_landing()
    (status,) = driver.cuMemcpyDtoHAsync(landing, pointer, dtype.itemsize, handle)
    _raise_for(status, "reading a result back")
    (status,) = driver.cuStreamSynchronize(handle)
    _raise_for(status, "waiting for a result")
    value = read_integer(landing, dtype)
    _landings.append(landing)
    return value


def wait_for(handle: int, producer: int) -> None:
    """Make later work on one stream wait for the work that is on another, without holding the host."""
    if handle == producer:
        return
    launch = launcher("stream")
    launch.stream_from_handle(handle).wait(launch.stream_from_handle(producer))
