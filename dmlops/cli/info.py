"""`dmlops info`: versions, devices, feature levels, compiled kernels; or which algorithm of top_k runs."""

import json
import platform
import re
from importlib import metadata
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dmlops import __version__
from dmlops.cli import cache
from dmlops.cli.console import facts, out
from dmlops.cli.ending import CommandError, fail
from dmlops.cli.placement import cpu_name, cuda_devices
from dmlops.devices import cuda
from dmlops.devices.backend import HIGHEST_LEVELS
from dmlops.operators.problem import Options
from dmlops.operators.top_k import TopK1, top_k_problem
from dmlops.types.enums import AxisDirection, TensorDataType
from dmlops.types.errors import cut
from dmlops.types.tensor import TensorDesc

if TYPE_CHECKING:
    from kernels_cuda.runtime.variant import Target

PACKAGES = ("numpy", "numba", "llvmlite", "numba-cuda", "cuda-core", "cuda-bindings", "ml_dtypes")
# Kernels for GPUs are made from this compute capability on.
OLDEST = (7, 5)


def info(
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="ROWS,N,K,TYPE",
            show_default=False,
            help="Only say which algorithm of top_k runs for the k largest of n elements, and why.",
        ),
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="sm_90",
            show_default=False,
            help="With --explain: on this architecture, instead of the first GPU.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Show versions, devices, threads, the highest feature level, and where compiled kernels are."""
    if explain is not None:
        if as_json:
            fail("--json: what --explain says is a line of text")
        out.print(_explanation(explain, arch))
        return
    if arch is not None:
        fail(f"--arch {arch}: it says where top_k would run; --explain says what")
    from kernels_cpu import processor, threads  # noqa: PLC0415 - imports llvmlite, which --help must not

    versions = [("dmlops", __version__), ("python", platform.python_version())]
    width = f"{processor.WIDTH} bits" if processor.WIDTH else "none: the scalar path"
    found = {
        "Versions": versions + [(name, version(name)) for name in PACKAGES],
        "CPU": [
            ("model", cpu_name()),
            ("threads", str(threads.get_num_threads())),
            ("vector registers", width),
        ],
        "CUDA": _cuda_facts(),
        **cache.kernels(),
        "Highest feature level": [(name, level.name) for name, level in HIGHEST_LEVELS.items()],
    }
    if as_json:
        out.print(json.dumps({title: dict(named) for title, named in found.items()}, indent=1))
        return
    for title, named in found.items():
        out.print(facts(title, named))


def version(package: str) -> str:
    """Return the version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cuda_facts() -> list[tuple[str, str]]:
    try:
        devices = cuda_devices()
    except CommandError as error:
        return [("devices", f"none: {error}")]
    from cuda.bindings import driver  # noqa: PLC0415

    number = driver.cuDriverGetVersion()[1]
    found = [("driver serves", f"CUDA {number // 1000}.{number % 1000 // 10}")]
    for device in devices:
        major, minor = device.compute_capability
        processors = device.properties.multiprocessor_count
        what = f"{device.name}, sm_{major}{minor}, {processors} multiprocessors"
        found.append((f"cuda:{device.device_id}", what))
    return found


def _explanation(given: str, arch: str | None) -> Text:
    """Return which algorithm of top_k runs for a problem on a GPU, why, and which would be next."""
    try:
        *sizes, type_name = given.split(",")
        n_rows, length, k = map(int, sizes)
        tensor = TensorDesc(TensorDataType[type_name.strip().upper()], (n_rows, length))
        if not tensor.element_count:
            raise ValueError
    except (KeyError, ValueError):
        fail(f"--explain {cut(given)}: it must be ROWS,N,K,TYPE, such as 64,50257,50,float32")
    from kernels_cuda.top_k.dispatch import explain  # noqa: PLC0415 - --help must not wait for it

    target = _target_of(arch)
    try:
        descriptor = TopK1(input_tensor=tensor, axis=1, k=k, axis_direction=AxisDirection.DECREASING)
        problem = top_k_problem(descriptor, Options())
        why, (chosen, *others) = explain(problem, target)
    except ValueError as error:
        fail(str(error))
    where = f"{target.arch}, {target.multiprocessors} multiprocessors"
    text = Text.assemble((chosen, "bold"), f" ({where}): {why}")
    if others:
        text.append(f"\nNext would be {', '.join(others)}")
    return text


def _target_of(arch: str | None) -> "Target":
    """Return a large device of an architecture, or the first GPU."""
    if arch is None:
        try:
            cuda_devices()
        except CommandError as error:
            fail(f"--explain: {error}; name an architecture, as --arch sm_90")
        return cuda.target(0, "info")
    from kernels_cuda.runtime.variant import capability_of, typical_target  # noqa: PLC0415

    if re.fullmatch(r"sm_\d{2,3}", arch) is None or capability_of(arch) < OLDEST:
        oldest = "{}.{}".format(*OLDEST)
        fail(f"--arch {arch}: it must be sm_ and a compute capability from {oldest} on, such as sm_90")
    return typical_target(arch)
