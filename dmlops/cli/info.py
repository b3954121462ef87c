"""`dmlops info`: versions, devices, feature levels, compiled kernels; or which algorithm of top_k runs."""

import platform
import re
from collections.abc import Iterable
from importlib import metadata
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.text import Text

from dmlops import __version__
from dmlops.calls.dispatch import DESCRIPTORS, OPERATORS
from dmlops.cli import cache
from dmlops.cli.console import facts, out
from dmlops.cli.ending import CommandError
from dmlops.cli.placement import CUDA_EXTRA, cpu_name, cuda_devices
from dmlops.devices import cuda
from dmlops.devices.backend import HIGHEST_LEVELS
from dmlops.operators import Options
from dmlops.operators.support import SupportRow
from dmlops.operators.top_k import TopK1
from dmlops.types.enums import AxisDirection, TensorDataType
from dmlops.types.tensor import TensorDesc

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
) -> None:
    """Show versions, devices, threads, where compiled kernels are, and the operators by feature level."""
    if explain is not None:
        out.print(_explanation(explain, arch))
        return
    if arch is not None:
        message = f"--arch {arch}: it says where top_k would run; --explain says what"
        raise CommandError(message)
    from kernels_cpu import processor, threads  # noqa: PLC0415 - imports llvmlite, which --help must not

    out.print(
        facts(
            "Versions",
            [
                ("dmlops", __version__),
                ("python", platform.python_version()),
                *((name, version(name)) for name in PACKAGES),
            ],
        )
    )
    width = f"{processor.WIDTH} bits" if processor.WIDTH else "none: the scalar path"
    cpu = [("model", cpu_name()), ("threads", str(threads.get_num_threads())), ("vector registers", width)]
    out.print(facts("CPU", cpu))
    out.print(facts("CUDA", _cuda_facts()))
    for text in cache.kernels():
        out.print(text)
    out.print(facts("Highest feature level", [(name, level.name) for name, level in HIGHEST_LEVELS.items()]))
    out.print(_operators())


def version(package: str) -> str:
    """Return the version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def data_types(types: Iterable[TensorDataType]) -> str:
    """Name a set of data types, widths of one kind together.

    Examples
    --------
    >>> data_types([TensorDataType.INT8, TensorDataType.FLOAT32, TensorDataType.FLOAT16])
    'FLOAT16|32 INT8'
    """
    families = sorted((data_type.name.rstrip("0123456789"), data_type.bits) for data_type in types)
    return " ".join(
        _family(name, [bits for _, bits in group]) for name, group in groupby(families, lambda f: f[0])
    )


def _family(name: str, widths: list[int]) -> str:
    return name if name == "BOOL" else name + "|".join(str(bits) for bits in widths)


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
        found.append(
            (f"cuda:{device.device_id}", f"{device.name}, sm_{major}{minor}, {processors} multiprocessors")
        )
    return found


def _explanation(given: str, arch: str | None) -> Text:
    """Return which algorithm of top_k runs for a problem on a GPU, why, and which would be next."""
    try:
        *sizes, type_name = given.split(",")
        n_rows, length, k = map(int, sizes)
        tensor = TensorDesc(TensorDataType[type_name.strip().upper()], (n_rows, length))
    except (KeyError, ValueError) as error:
        message = f"--explain {given}: it must be ROWS,N,K,TYPE, such as 64,50257,50,float32"
        raise CommandError(message) from error
    try:
        # These import the CUDA driver's bindings.
        from kernels_cuda.top_k.dispatch import explain  # noqa: PLC0415
    except ImportError as error:
        message = f"--explain {given}: {CUDA_EXTRA} installs the packages that this needs"
        raise CommandError(message) from error
    target = _first_target() if arch is None else _target_of(arch)
    try:
        descriptor = TopK1(input_tensor=tensor, axis=1, k=k, axis_direction=AxisDirection.DECREASING)
        problem = OPERATORS[TopK1].problem(descriptor, Options())
        why, (chosen, *others) = explain(problem, target)
    except ValueError as error:
        raise CommandError(str(error)) from error
    where = f"{target.arch}, {target.multiprocessors} multiprocessors"
    text = Text.assemble((chosen, "bold"), f" ({where}): {why}")
    if others:
        text.append(f"\nNext would be {', '.join(others)}")
    return text


def _first_target() -> Any:
    try:
        cuda_devices()
    except CommandError as error:
        message = f"--explain: {error}; name an architecture, as --arch sm_90"
        raise CommandError(message) from error
    return cuda.target(0, "info")


def _target_of(arch: str) -> Any:
    """Return a large device of an architecture."""
    from kernels_cuda.runtime.variant import capability_of, typical_target  # noqa: PLC0415

    if re.fullmatch(r"sm_\d{2,3}", arch) is None:
        message = f"--arch {arch}: it must be sm_ and a compute capability, such as sm_90"
        raise CommandError(message)
    if capability_of(arch) < OLDEST:
        message = f"--arch {arch}: there are kernels from sm_{OLDEST[0]}{OLDEST[1]} on"
        raise CommandError(message)
    return typical_target(arch)


def _operators() -> Text:
    text = Text.assemble(
        ("Operators by feature level", "bold"), ": dimensions, data types; other tensors where they differ"
    )
    for descriptor in DESCRIPTORS:
        text.append("\n ").append(descriptor.__name__, "cyan")
        for row in descriptor.support:
            types = data_types(row.types) + _other_tensors(row)
            text.append(f"\n   {row.level.name:<9} {row.dims!s:<10} {types}")
    return text


def _other_tensors(row: SupportRow) -> str:
    text = ""
    for field in row.overrides:
        allowed = row.allowed(field)
        dims = "" if allowed.dims == row.dims else f"{allowed.dims} dimensions "
        text += f"; {field.removeprefix('output_').removesuffix('_tensor')} {dims}{data_types(allowed.types)}"
    return text
