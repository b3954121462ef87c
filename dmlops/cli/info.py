"""`dmlops info`: versions, devices, feature levels, compiled kernels, and the shapes of top_k's kernels."""

import platform
import re
from collections.abc import Iterable
from importlib import metadata
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.text import Text

from dmlops import __version__
from dmlops.calls.dispatch import DESCRIPTORS
from dmlops.cli import cache
from dmlops.cli.console import facts, out
from dmlops.cli.ending import CommandError
from dmlops.cli.placement import CUDA_EXTRA, cpu_name, cuda_devices
from dmlops.devices.backend import HIGHEST_LEVELS
from dmlops.operators.support import SupportRow
from dmlops.types.enums import TensorDataType

PACKAGES = ("numpy", "numba", "llvmlite", "numba-cuda", "cuda-core", "cuda-bindings", "ml_dtypes")
# Algorithms whose shapes are pairs: a number of lanes or threads, and the number of keys that each holds.
KEYS_OF_SHAPES = {"rounds": "lanes and keys", "partition": "threads and keys"}


def info(
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="sm_90",
            show_default=False,
            help="Show only the shapes and limits of top_k's kernels for this architecture.",
        ),
    ] = None,
) -> None:
    """Show versions, devices, threads, where compiled kernels are, and the operators by feature level."""
    if arch is not None:
        out.print(_policy(arch))
        return
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
    for found in _architectures():
        out.print(_policy(found))


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


def _architectures() -> list[str]:
    try:
        devices = cuda_devices()
    except CommandError:
        return []
    return sorted({"sm_{}{}".format(*device.compute_capability) for device in devices})


def _policy(arch: str) -> Text:
    """Return the shapes and limits of the kernels of top_k on an architecture."""
    if re.fullmatch(r"sm_\d{2,3}", arch) is None:
        message = f"--arch {arch}: it must be sm_ and a compute capability, such as sm_90"
        raise CommandError(message)
    try:
        # These import the CUDA driver's bindings.
        from kernels_cuda.runtime.variant import capability_of  # noqa: PLC0415
        from kernels_cuda.top_k.shared.policy import BLOCK_KIB, ELEMENT_SIZES, Policy  # noqa: PLC0415
    except ImportError as error:
        message = f"--arch {arch}: {CUDA_EXTRA} installs the packages that this needs"
        raise CommandError(message) from error
    capability, oldest = capability_of(arch), min(BLOCK_KIB)
    if capability < oldest:
        message = f"--arch {arch}: there are kernels from sm_{oldest[0]}{oldest[1]} on"
        raise CommandError(message)
    policies = [Policy.auto(capability, size).values() for size in ELEMENT_SIZES]
    text = Text.assemble(
        (f"Shapes and limits of top_k on {arch}", "bold"),
        f", by bytes of an element: {' | '.join(map(str, ELEMENT_SIZES))}",
    )
    for name in policies[0]:
        shown = [quantity(name, policy[name]) for policy in policies]
        one = shown[0] if len(set(shown)) == 1 else " | ".join(shown)
        text.append(f"\n {name:<40} ", "cyan").append(one)
    return text


def quantity(name: str, value: Any) -> str:
    """Return a value of a policy with its unit.

    Examples
    --------
    >>> quantity("sort.batch_bytes", 1 << 28), quantity("columns.warp_bytes", 14080)
    ('256 MiB', '14,080 B')
    >>> quantity("warp.row_elements", (256, 1024)), quantity("launch_blocks", 1 << 30)
    ('256, 1,024', '2^30')
    """
    algorithm, _, threshold = name.partition(".")
    if "shapes" in threshold:
        if algorithm in KEYS_OF_SHAPES:
            shapes, unit = [" x ".join(map(str, shape)) for shape in value], KEYS_OF_SHAPES[algorithm]
        else:
            shapes, unit = [str(shape.n_threads) for shape in value], "threads"
        return f"{', '.join(shapes)} {unit}"
    if isinstance(value, tuple):
        return ", ".join(quantity(name, each) for each in value) or "none"
    if name.endswith("bytes"):
        for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value >= size and value % size == 0:
                return f"{value // size} {unit}"
        return f"{value:,} B"
    if isinstance(value, int) and value >= 1 << 20 and value & (value - 1) == 0:
        return f"2^{value.bit_length() - 1}"
    return f"{value:,}"


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
