"""`dmlops warmup`: compile all kernels into the cache, so that no later process waits for the compiler."""

import importlib
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Annotated, Any, NamedTuple

import typer

from dmlops import backend, cuda
from dmlops.bench.report import duration
from dmlops.cli.cache import usable_folder
from dmlops.cli.console import out, progress_bar, summary_of
from dmlops.cli.errors import CommandError, reason_of
from dmlops.cli.options import Operators, chosen_operators
from dmlops.cli.placement import Device, cuda_devices, require_cuda
from dmlops.kernel_store import LOCK
from kernels_cpu import native_call

ARCHITECTURE = re.compile(r"sm_\d{2,3}")


def warmup(
    device: Annotated[Device, typer.Option(help="auto: the CPU and all GPUs of this machine.")] = Device.AUTO,
    arch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="sm_90", help="Compile for this architecture, without needing the GPU; may be repeated."
        ),
    ] = None,
    operator: Operators = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Number of compiling processes; by default one per core.")
    ] = None,
) -> None:
    """Compile the kernels now and keep them in the cache, so that no call has to compile them."""
    operators = chosen_operators(operator)
    if arch and device is Device.CPU:
        message = "--arch is for GPUs: it does not go with --device cpu"
        raise CommandError(message)
    if arch:
        _check_architectures(arch)
    folder, problem = usable_folder()
    if problem:
        message = f"warmup: nothing that is compiled would be kept: {problem}"
        raise CommandError(message)
    n_jobs = jobs or os.cpu_count() or 1
    with summary_of(folder):
        if device is not Device.CUDA and not arch:
            _compile("CPU", _cpu_tasks(operators), n_jobs)
        if device is not Device.CPU:
            for architecture in _architectures(device, arch):
                _compile(architecture, _cuda_tasks(operators, architecture), n_jobs)


def _check_architectures(names: Sequence[str]) -> None:
    """Check that the CUDA toolkit compiles for the architectures that the user names."""
    for name in names:
        if not ARCHITECTURE.fullmatch(name):
            message = f"--arch {name}: it must be sm_ and a compute capability, as sm_90"
            raise CommandError(message)
    require_cuda()
    from cuda.bindings import nvrtc  # noqa: PLC0415 - part of the cuda extra

    known = [f"sm_{capability}" for capability in nvrtc.nvrtcGetSupportedArchs()[1]]
    for name in names:
        if name not in known:
            allowed = f"it must be one of {', '.join(known)}"
            message = f"--arch {name}: this CUDA toolkit compiles for none such; {allowed}"
            raise CommandError(message)


def _architectures(device: Device, names: Sequence[str] | None) -> list[str]:
    if names:
        return sorted(set(names))
    try:
        return sorted({_architecture(present) for present in cuda_devices()})
    except CommandError as error:
        if device is Device.CUDA:
            raise
        out.print(f"No GPU: {error}.")
        return []


class _Task(NamedTuple):
    """A call that compiles a kernel in another process."""

    run: Callable[..., object]
    arguments: tuple[Any, ...]


def _compile(name: str, tasks: Sequence[_Task], n_jobs: int) -> None:
    """Do the tasks in `n_jobs` processes, and print how many there were."""
    start = time.perf_counter()
    with progress_bar() as progress, _workers(tasks, n_jobs) as finished:
        bar = progress.add_task(name, total=len(tasks))
        for _ in finished:
            progress.advance(bar)
    out.print(f"{name}: {len(tasks)} kernels in {duration(time.perf_counter() - start)}")


@contextmanager
def _workers(tasks: Sequence[_Task], n_jobs: int) -> Iterator[Iterator[None]]:
    """Start processes that do the tasks, and yield an iterator that yields after each task.

    Only this process receives interrupts. The other processes are killed.
    """
    # A process that has loaded Numba or a CUDA driver must not be forked.
    context = multiprocessing.get_context("spawn")
    n_workers = min(n_jobs, len(tasks))
    workers: dict[Connection, BaseProcess] = {}
    try:
        for number in range(n_workers):
            receiver, sender = context.Pipe(duplex=False)
            own = tasks[number::n_workers]
            with _no_interrupts():
                workers[receiver] = context.Process(target=_work, args=(sender, own), daemon=True)
                workers[receiver].start()
            sender.close()
        yield _finished(workers)
    finally:
        for process in workers.values():
            process.kill()
        for process in workers.values():
            process.join()


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Block interrupts. A process that is started meanwhile never receives any."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _finished(workers: Mapping[Connection, BaseProcess]) -> Iterator[None]:
    """Yield after each task until all workers have ended; raise the error of a worker that fails."""
    busy = dict(workers)
    while busy:
        ready = wait([*busy])
        for receiver in [each for each in busy if each in ready]:
            try:
                failure = receiver.recv()
            except EOFError:
                process = busy.pop(receiver)
                process.join()
                if process.exitcode == 0:
                    continue
                failure = f"a process that compiles ended with exit code {process.exitcode}"
            if failure is not None:
                message = f"warmup: {failure}"
                raise CommandError(message)
            yield


def _work(sender: Connection, tasks: Sequence[_Task]) -> None:
    """Do the tasks of one worker, and send None after each task, or the reason why it failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it could not be blocked
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
    with suppress(BrokenPipeError):  # nobody waits for further tasks
        for task in tasks:
            try:
                task.run(*task.arguments)
            except Exception as error:
                sender.send(f"{type(error).__name__}: {reason_of(error)}")
                return
            sender.send(None)


def _end_after(parent: Any) -> None:
    """End this process, even in the middle of a task, if the process that started it is killed."""
    parent.join()
    os._exit(1)


def _cpu_tasks(operators: Sequence[str]) -> list[_Task]:
    packages = [f"kernels_cpu.{name}" for name in operators]
    kernels = [kernel for name in packages for kernel in importlib.import_module(name).all_kernels()]
    return [_Task(_compile_for_cpu, (kernel,)) for kernel in (*native_call.KERNELS, *kernels)]


def _cuda_tasks(operators: Sequence[str], architecture: str) -> list[_Task]:
    packages = [f"kernels_cuda.{name}" for name in operators]
    variants = {variant for name in packages for variant in importlib.import_module(name).variants()}
    return [
        _Task(_compile_for_cuda, (variant, architecture))
        for variant in sorted(variants, key=lambda variant: variant.label)
    ]


def _compile_for_cpu(kernel: Any) -> None:
    with LOCK:
        backend.artifact(kernel)


def _compile_for_cuda(variant: Any, architecture: str) -> None:
    with LOCK:
        cuda.artifact(variant, architecture)


def _architecture(device: Any) -> str:
    major, minor = device.compute_capability
    return f"sm_{major}{minor}"
