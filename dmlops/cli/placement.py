"""The places of a command's arrays: the host, or the first CUDA device."""

import platform
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from dmlops.array_libraries.device_array import DeviceArray
from dmlops.cli.ending import CommandError, fail
from dmlops.devices import cuda_driver
from dmlops.store import kernel_store


class Device(StrEnum):
    """The values of `--device`."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Host:
    """A place that keeps NumPy arrays as they are."""

    label = "CPU"

    def put(self, array: np.ndarray) -> object:
        """Return `array` in this place."""
        return array

    def get(self, array: Any) -> np.ndarray:
        """Return `array` as a NumPy array."""
        return np.asarray(array)

    def wait(self) -> None:
        """Return when all work is done."""


class Cuda(Host):
    """A place that copies arrays to and from the first CUDA device."""

    label = "GPU"

    def put(self, array: np.ndarray) -> object:  # noqa: D102 - as `Host`
        return DeviceArray.from_numpy(array)

    def get(self, array: Any) -> np.ndarray:  # noqa: D102
        return array.to_numpy()  # type: ignore[no-any-return]

    def wait(self) -> None:  # noqa: D102
        with cuda_driver.device_made_current(0):
            cuda_driver.synchronize(0)


def place(device: Device) -> Host:
    """Return the place for a value of `--device`; `auto` means a GPU if one can be used."""
    if device is Device.CPU:
        return Host()
    try:
        cuda_devices()
    except CommandError as error:
        if device is Device.AUTO:
            return Host()
        fail(f"--device cuda: {error}")
    return Cuda()


def cpu_name() -> str:
    """Return the processor's model name, or its architecture if the system does not know the name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def require_cuda() -> None:
    """Check that the packages of the `cuda` extra are installed; this needs no GPU."""
    try:
        import cuda.core  # noqa: F401, PLC0415 - part of the cuda extra
    except ImportError:
        fail(f"CUDA needs cuda-core: {kernel_store.cuda_extra()}")


def cuda_devices() -> list[Any]:
    """Return the `cuda.core` devices of this machine; without any, fail with the reason and a remedy."""
    require_cuda()
    from cuda.core import Device as CudaDevice  # noqa: PLC0415

    try:
        devices = list(CudaDevice.get_all_devices())
    except Exception:  # each driver state has its own exception type
        fail("no NVIDIA driver answers on this machine")
    if not devices:
        fail("the NVIDIA driver finds no device")
    return devices


def architectures() -> list[str]:
    """Return the architectures of this machine's CUDA devices; raise as `cuda_devices` does."""
    return sorted({"sm_{}{}".format(*device.compute_capability) for device in cuda_devices()})
