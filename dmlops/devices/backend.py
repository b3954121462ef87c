"""The back-ends: the highest feature level of each, and how its plans get their kernels."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dmlops.devices import cuda
from dmlops.devices.memory import CPU, Device
from dmlops.store import kernel_store
from dmlops.store.compilers import load_compiler, made_by
from dmlops.store.kernel_cache import Key
from dmlops.types.enums import FeatureLevel
from dmlops.types.errors import UnsupportedFeatureError
from kernels_cpu import native_call, threads

HIGHEST_LEVELS: Mapping[str, FeatureLevel] = MappingProxyType(
    {"cpu": FeatureLevel.EXTENDED, "cuda": FeatureLevel.EXTENDED}
)
"""The highest feature level that each back-end serves."""


def plan(operator: str, problem: Any, device: Device, where: str) -> Any:
    """Plan a problem of plain integers on a device, with all kernels of the plan ready to be called.

    Parameters
    ----------
    operator : str
        The module's name in ``kernels_cpu`` and ``kernels_cuda``.
    problem : object
        The operator's ``Problem``.
    device : Device
        Where it is to run.
    where : str
        What the text of an error about the device begins with.
    """
    target: Any
    with _loading(f"the kernels of {operator}"):
        if device == CPU:
            target, package = cpu_target(), "kernels_cpu"
        else:
            target, package = cuda.target(device.number, where), "kernels_cuda"
        return kernel_store.imported(f"{package}.{operator}").plan(problem, target)


def cpu_target() -> Any:
    """Return the host as plans see it."""
    return kernel_store.imported("kernels_cpu.target").Target(threads.get_num_threads(), load_on_host)


@contextmanager
def _loading(what: str) -> Iterator[None]:
    """Turn an error of the system, such as too many open files, into one that says what it has prevented."""
    try:
        yield
    except OSError as error:
        message = f"dmlops: {what} cannot be loaded: {error}; call again when files can be opened"
        raise UnsupportedFeatureError(message) from error


_loaded: dict[Any, Any] = {}


def load_on_host(kernel: Any) -> Any:
    """Return a CPU kernel, ready to be called."""
    loaded = _loaded.get(kernel)
    return kernel_store.apart(_load, kernel) if loaded is None else loaded


def _load(kernel: Any) -> Any:
    loaded = _loaded.get(kernel)
    if loaded is None:  # no other thread was faster
        from kernels_cpu.linking import link  # noqa: PLC0415 - imports llvmlite, which `import dmlops` does not

        with _loading(f"the kernel {kernel.label}"):
            loaded = _loaded[kernel] = link(artifact(kernel))
    return loaded


def artifact(kernel: Any) -> bytes:
    """Return the object code of a CPU kernel: found, or compiled; the caller holds the store's lock."""
    from kernels_cpu import processor  # noqa: PLC0415

    levels = [processor.LEVEL] if processor.LEVEL else []
    code = kernel_store.find_in_wheel("cpu", kernel.label, _cpu_sources(), levels)
    return compiled(kernel) if code is None else code


def compiled(kernel: Any) -> bytes:
    """Return the object code of a CPU kernel as this machine compiles it, whatever the wheel has."""
    key = cpu_key(kernel)

    def compile_kernel() -> bytes:
        compiler = load_compiler("kernels_cpu.compiler", ["numba"], key, "pip install numba")
        code: bytes = compiler.compile_kernel(kernel)
        return code

    return kernel_store.find_or_compile(key, compile_kernel)


def generations() -> Mapping[str, str]:
    """Return the cache's generation for the installed sources and compilers of each device."""
    from kernels_cuda.runtime.variant import Variant  # noqa: PLC0415

    keys = cpu_key(native_call.LOOK), cuda.key(Variant("any", ""), "any")
    return {key.device: key.generation for key in keys}


def source_digests() -> Mapping[str, str]:
    """Return the digest of the installed sources of each device."""
    return {"cpu": _cpu_sources(), "cuda": cuda.sources()}


def cpu_key(kernel: Any) -> Key:
    """Return the key of a CPU kernel in the cache."""
    from kernels_cpu import processor  # noqa: PLC0415

    return Key("cpu", kernel.label, processor.TARGET, _cpu_sources(), made_by("numba", "llvmlite"))


def _cpu_sources() -> str:
    return kernel_store.source_digest(Path(threads.__file__).parent)
