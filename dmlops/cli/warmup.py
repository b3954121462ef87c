"""`dmlops warmup`: compile all kernels into the cache, so that no later process waits for the compiler."""

import os
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from dmlops.calls.dispatch import OPERATORS
from dmlops.cli.cache import usable_folder
from dmlops.cli.console import duration, err, out
from dmlops.cli.ending import CommandError, fail
from dmlops.cli.placement import Device, architectures, require_cuda
from dmlops.store import kernel_store, precompile
from dmlops.types.errors import counted

# If standard error is a file, it gets a line at most once in so many seconds.
TELL_AFTER_S = 10.0


def warmup(
    device: Annotated[Device, typer.Option(help="auto: the CPU and all GPUs of this machine.")] = Device.AUTO,
    arch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="sm_90",
            show_default=False,
            help="Compile for this architecture, without needing the GPU; may be repeated.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, show_default="all", help="Number of compiling processes, at most one per core."),
    ] = None,
) -> None:
    """Compile the kernels now and keep them in the cache, so that no call has to compile them."""
    if arch and device is Device.CPU:
        fail("--arch is for GPUs: it does not go with --device cpu")
    if arch:
        _check_architectures(arch)
    _, problem = usable_folder()
    if problem:
        fail(f"warmup: nothing that is compiled would be kept: {problem}")
    operators = [operator.name for operator in OPERATORS.values()]
    n_cores = os.cpu_count() or 1
    n_jobs = min(jobs or n_cores, n_cores)
    if device is not Device.CUDA and not arch:
        _compile("CPU", precompile.cpu_tasks(operators), n_jobs)
    if device is not Device.CPU:
        for name in sorted(set(arch or _present(device))):
            _compile(name, precompile.cuda_tasks(operators, [name]), n_jobs)


def _rounded(seconds: float) -> str:
    """Return an estimate of a duration.

    Examples
    --------
    >>> _rounded(0.3), _rounded(89.6), _rounded(100)
    ('1 s', '90 s', '2 min')
    """
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{round(seconds / 60)} min"


def _check_architectures(names: Sequence[str]) -> None:
    """Check that the CUDA toolkit compiles for the architectures that the user names."""
    require_cuda()
    from cuda.bindings import nvrtc  # noqa: PLC0415 - part of the cuda extra

    try:
        known = [f"sm_{capability}" for capability in nvrtc.nvrtcGetSupportedArchs()[1]]
    except Exception:  # without its library, which comes with the compilers
        remedy = kernel_store.cuda_extra(with_compilers=True)
        fail(f"--arch {names[0]}: the compilers for GPUs are not installed: {remedy}")
    for name in names:
        if name not in known:
            allowed = f"it must be one of {', '.join(known)}"
            fail(f"--arch {name}: this CUDA toolkit does not compile for it; {allowed}")


def _present(device: Device) -> list[str]:
    try:
        return architectures()
    except CommandError as error:
        if device is Device.CUDA:
            raise
        out.print(f"No GPU: {error}.")
        return []


def _compile(name: str, tasks: Sequence[precompile.Task], n_jobs: int) -> None:
    """Do the tasks in `n_jobs` processes, and print how many there were.

    Standard error says how far it is: a terminal in a line that changes, a file in a line now and then.
    """
    start = told_at = time.perf_counter()
    begin = f"{name}: {counted(len(tasks), 'kernel')} to find or to compile, on {counted(n_jobs, 'core')}"
    if not err.is_terminal:
        err.print(begin)
    try:
        with err.status(begin) as status, precompile.compiled(tasks, n_jobs) as kernels:
            for number, _ in enumerate(kernels, 1):
                now = time.perf_counter()
                left = (now - start) / number * (len(tasks) - number)
                text = f"{name}: {number} of {len(tasks)} kernels, about {_rounded(left)} left"
                status.update(text)
                if not err.is_terminal and now - told_at >= TELL_AFTER_S:
                    told_at = now
                    err.print(text)
    except precompile.PrecompileError as error:
        fail(f"warmup: {error}")
    out.print(f"{name}: {counted(len(tasks), 'kernel')} in {duration(time.perf_counter() - start)}")
