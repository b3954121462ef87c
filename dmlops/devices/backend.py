"""The table of devices: the highest feature level that each serves, its plans and its kernels."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType, ModuleType
from typing import TypeVar

from dmlops.devices import cpu, cuda
from dmlops.devices.memory import CPU, Device
from dmlops.store import kernel_cache, kernel_store, once
from dmlops.types.enums import FeatureLevel
from kernels_cpu import native_call
from kernels_cpu.plan import HostPlan, ProblemPlan
from kernels_cpu.problems import Problem

T = TypeVar("T")
_KERNELS = "kernels"

HIGHEST_LEVELS: Mapping[str, FeatureLevel] = MappingProxyType(
    {"cpu": FeatureLevel.EXTENDED, "cuda": FeatureLevel.EXTENDED}
)
"""The highest feature level that each device serves."""


def plan(operator: str, problem: Problem, device: Device, where: str) -> ProblemPlan:
    """Plan a problem of plain integers on a device, with all kernels of the plan ready to be called.

    Parameters
    ----------
    operator : str
        The module's name in ``kernels_cpu`` and ``kernels_cuda``.
    problem : Problem
        The operator's own.
    device : Device
        Where it is to run.
    where : str
        What the text of an error about the device begins with.
    """
    try:
        # This says what is missing before anything is imported.
        target = cpu.target() if device.kind == "cpu" else cuda.target(device.number, where)
        kernels = once.once((_KERNELS, device.kind, operator), partial(_kernels_of, operator, device))
        make: Callable[..., ProblemPlan] = (
            partial(HostPlan, kernels) if device.kind == "cpu" else kernels.plan
        )
        return make(problem, target)
    except OSError as error:
        what = f"the kernels of {operator}"
        raise kernel_store.cannot_load(what, error) from error


def planned(operator: str, device: Device, make: Callable[[], T]) -> T:
    """Return a new call of an operator, which loads all that it needs.

    The first one on the CPU is made on one thread from beginning to end: each change of threads may take as
    long as a kernel takes to load.
    """
    is_first = device is CPU and not once.is_made((_KERNELS, device.kind, operator))
    return once.apart(make) if is_first else make()


def _kernels_of(operator: str, device: Device) -> ModuleType:
    """Return the package of an operator's kernels for a device; on the CPU, native calls need more."""
    kernels = once.imported(f"kernels_{device.kind}.{operator}")
    if device.kind == "cpu" and cpu.compiles_plans():
        cpu.load(native_call.CALL)
        cpu.load(kernels.PLAN)
    return kernels


def keys() -> Mapping[str, kernel_cache.Key]:
    """Return a key for each device, which has the sources and compilers of all kernels that are installed."""
    from kernels_cuda.runtime.variant import Variant  # noqa: PLC0415

    return {"cpu": cpu.key(native_call.CALL), "cuda": cuda.key(Variant("any", ""), "any")}
