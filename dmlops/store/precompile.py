"""Compile many kernels in several processes, for `dmlops warmup` and for wheels."""

import gc
import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from dmlops.devices import cpu, cuda
from dmlops.store import once
from kernels_cpu import native_call, nopython_call
from kernels_cpu.kernel import Kernel

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from kernels_cuda.runtime.variant import Variant


class PrecompileError(Exception):
    """A kernel could not be compiled; the text says why."""


class Task(NamedTuple):
    """The compilation of one kernel, in another process."""

    label: str
    """The kernel's name."""
    compile: Callable[..., Mapping[str, bytes]]
    """Returns its code by target."""
    arguments: tuple[object, ...]
    """What `compile` is called with."""


def cpu_tasks(operators: Sequence[str]) -> list[Task]:
    """Return one task for each CPU kernel that a call of these operators may need; GPUs have plans there."""
    packages = [f"kernels_cpu.{name}" for name in operators]
    kernels = [kernel for name in packages for kernel in importlib.import_module(name).all_kernels()]
    plans_for_gpus = [cuda.plan_kernel(cuda.kernels_of(name).PLAN) for name in operators]
    called = (native_call.CALL, native_call.LAUNCH, nopython_call.CALL, *plans_for_gpus, *kernels)
    return [Task(kernel.label, _cpu_code, (kernel,)) for kernel in called]


def cuda_tasks(operators: Sequence[str], architectures: Sequence[str]) -> list[Task]:
    """Return one task for each CUDA kernel that a call of these operators may need."""
    packages = [f"kernels_cuda.{name}" for name in operators]
    variants = {variant for name in packages for variant in importlib.import_module(name).variants()}
    tasks = []
    for variant in sorted(variants, key=lambda variant: variant.label):
        served = [architecture for architecture in architectures if variant.is_for(architecture)]
        if served:
            tasks.append(Task(variant.label, _cuda_code, (variant, served)))
    return tasks


def _cpu_code(kernel: Kernel) -> Mapping[str, bytes]:
    from kernels_cpu import processor  # noqa: PLC0415

    return {processor.LEVEL: cpu.artifact(kernel)}


def _cuda_code(variant: "Variant", architectures: Sequence[str]) -> Mapping[str, bytes]:
    return {architecture: cuda.artifact(variant, architecture) for architecture in architectures}


def _code(task: Task) -> Mapping[str, bytes]:
    """Do a task in a compiling process. Errors are sent as text, because not all of them can be pickled."""
    try:
        with once.LOCK:
            return task.compile(*task.arguments)
    except Exception as error:  # of any class, which may not be there in the other process
        message = f"{task.label}: {type(error).__name__}: {error}"
        raise PrecompileError(message) from None


@contextmanager
def compiled(tasks: Sequence[Task], n_jobs: int) -> Iterator[Iterator[tuple[str, Mapping[str, bytes]]]]:
    """Start processes that do the tasks; yield an iterator over labels and code by target, in any order.

    The ``with`` block raises `PrecompileError` where a kernel cannot be compiled. Only this process receives
    interrupts. The other processes are killed at the end.
    """
    # A process that has loaded Numba or a CUDA driver must not be forked.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(n_jobs, len(tasks)), context, _begin)
    try:
        with _no_interrupts():
            futures = {pool.submit(_code, task): task.label for task in tasks}
        yield ((futures[future], future.result()) for future in as_completed(futures))
    except BrokenProcessPool as error:
        message = "a process that compiles has ended, such as for lack of memory"
        raise PrecompileError(message) from error
    finally:
        for process in [*pool._processes.values()]:
            process.kill()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Block interrupts. Processes that are started inside the block never receive any."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """Prepare a process that compiles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # if it could not be blocked
    gc.disable()  # as `once.apart` does
    threading.Thread(target=_end_after, args=(multiprocessing.parent_process(),), daemon=True).start()


def _end_after(parent: "BaseProcess") -> None:
    """End this process, even in the middle of a task, if the process that started it is killed."""
    parent.join()
    os._exit(1)
