"""Compile kernels for named targets, and write one archive for each; `hatch_build.py` puts them into wheels.

This needs neither a GPU nor a processor of the level.
"""

import argparse
import os
import re
import site
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dmlops.calls.dispatch import OPERATORS
from dmlops.devices import cpu, cuda
from dmlops.store import kernel_archive, kernel_store, precompile
from kernels_cpu import native_call, processor
from kernels_cuda.runtime.variant import Variant

OPERATOR_NAMES = sorted({operator.name for operator in OPERATORS.values()})


def add_build_environment() -> None:
    """Add the prefixes of pip's build environment to those that Python knows.

    NVIDIA's packages look for their libraries under these, not in `sys.path`.
    """
    for folder in map(Path, sys.path):
        for prefix in map(str, folder.parents):
            if prefix not in site.PREFIXES and str(folder) in site.getsitepackages([prefix]):
                site.PREFIXES.append(prefix)


add_build_environment()  # in the compiling processes too, which import this module


def main() -> None:
    """Parse the command line, and build the archives."""
    parser = argparse.ArgumentParser(description="Compile kernels for named targets.")
    parser.add_argument("targets", nargs="+", metavar="TARGET", help="for example x86-64-v3 or sm_90")
    parser.add_argument("--folder", type=Path, required=True, help="where the archives are written")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of compiling processes")
    parser.add_argument(
        "--operator", action="append", choices=OPERATOR_NAMES, help="of this operator only; may be repeated"
    )
    arguments = parser.parse_args()
    if kernel_store.wheel_targets():
        sys.exit(f"{kernel_store.WHEEL} has kernels already; delete it, so that they are compiled")
    levels = [target for target in arguments.targets if target in processor.LEVELS]
    architectures = [target for target in arguments.targets if target not in levels]
    for architecture in architectures:
        if not re.fullmatch(r"(sm|compute)_\d{2,}", architecture):
            known = ", ".join(processor.LEVELS)
            parser.error(f"{architecture}: a target is one of {known}, or such as sm_90 or compute_100")
    if arguments.jobs < 1:
        parser.error(f"--jobs {arguments.jobs}: it must be at least 1")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    operators = arguments.operator or OPERATOR_NAMES
    if architectures:
        # In one go: what is the same for several architectures is compiled once.
        tasks = precompile.cuda_tasks(operators, architectures)
        write_archives("cuda", architectures, tasks, arguments.folder, arguments.jobs)
    for level in levels:
        # For the compiling processes: Numba has not been imported here.
        os.environ.update(processor.environment(level))
        write_archives("cpu", [level], precompile.cpu_tasks(operators), arguments.folder, arguments.jobs)


def write_archives(
    device: str, targets: Sequence[str], tasks: Sequence[precompile.Task], folder: Path, n_jobs: int
) -> None:
    """Compile the kernels of one device for its targets, and write the archives."""
    start = time.perf_counter()
    try:
        with precompile.compiled(tasks, n_jobs) as results:
            codes = dict(results)
    except precompile.PrecompileError as error:
        sys.exit(str(error))
    key = cpu.key(native_call.CALL) if device == "cpu" else cuda.key(Variant("", ""), "")
    for target in targets:
        kernels = {label: code[target] for label, code in codes.items() if target in code}
        path = folder / f"{target}{kernel_archive.SUFFIX}"
        origin = kernel_archive.Origin(device, target, key.sources, key.compilers)
        kernel_archive.write(path, origin, kernels)
        print(f"{target}: {len(kernels)} kernels, {path.stat().st_size / 1e6:.1f} MB")
    print(f"{' '.join(targets)}: compiled in {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
