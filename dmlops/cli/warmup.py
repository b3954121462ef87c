"""`dmlops warmup`: fill the cache of compiled kernels, so that no later process waits for the compiler."""

import importlib
import time
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import typer

import dmlops
from dmlops.cli.console import CommandError, duration, out
from dmlops.cli.placement import Device, cuda_devices
from dmlops.dispatch import OPERATORS

WIDTHS = (np.uint8, np.uint16, np.uint32, np.uint64)
# Rows, elements a row and k: from a short list to a row that is split among threads.
TOP_K_SIZES = (
    (1, 1000, 10),
    (64, 64, 4),
    (256, 256, 8),
    (16, 5000, 50),
    (2, 1 << 17, 2048),
    (1, 1 << 20, 100),
)
SLICE_LENGTHS = (1, 3, 4, 128)


def warmup(
    device: Annotated[
        Device, typer.Option(help="auto is the CPU, and the GPUs that there are.")
    ] = Device.AUTO,
) -> None:
    """Compile the kernels now and keep them in the cache, so that no first call has to."""
    if device is not Device.CUDA:
        _report("CPU", _compile_for_cpu)
    if device is not Device.CPU:
        try:
            architectures = {_architecture(there) for there in cuda_devices()}
        except CommandError as error:
            if device is Device.CUDA:
                raise
            out.print(f"No GPU: {error}.", markup=False)
            return
        for architecture in sorted(architectures):
            _report(architecture, lambda: _compile_for_cuda(architecture))  # noqa: B023 - called at once


def _report(name: str, compile_all: Any) -> None:
    start = time.perf_counter()
    count = compile_all()
    out.print(f"{name}: {count} in {duration(time.perf_counter() - start)}", markup=False)


def _compile_for_cpu() -> str:
    count = 0
    for call in _calls():
        call()
        count += 1
    return f"{count} kinds of call"


def _compile_for_cuda(architecture: str) -> str:
    variants = [
        variant
        for operator in OPERATORS.values()
        for variant in importlib.import_module(f"kernels_cuda.{operator.kernels}").variants()
    ]
    for variant in variants:
        variant.cubin(architecture)
    return f"{len(variants)} kernels"


def _architecture(device: Any) -> str:
    major, minor = device.compute_capability
    return f"sm_{major}{minor}"


def _calls() -> Iterator[Any]:
    """Yield calls that between them need every kernel of the usual element widths, sizes and layouts."""
    for width in WIDTHS:
        for rows, size, k in TOP_K_SIZES:
            table = np.arange(rows * size).reshape(rows, size).astype(width)
            yield lambda table=table, k=k: dmlops.top_k(table, k)
            yield lambda table=table: dmlops.top_k(table, 1, axis=0)
        line = np.arange(4096).astype(width)
        yield lambda line=line: dmlops.top_k(line, line.size)
        for shape in ((4096,), (64, 64), (4, 4, 16, 16)):
            for x in (line, line * (line % 100 == 0).astype(width)):
                yield lambda x=x, shape=shape: dmlops.nonzero_coordinates(x.reshape(shape))
                yield lambda x=x, shape=shape: dmlops.nonzero_coordinates(x.reshape(shape)[..., ::2])
        for length in SLICE_LENGTHS:
            table = np.zeros((32, length), width)
            for index_type in (np.uint32, np.int32, np.int64):
                indices = np.zeros((1000, 1), index_type)
                yield lambda table=table, indices=indices: dmlops.gather_nd(table, indices)
        square = np.zeros((128, 128), width)
        yield lambda square=square: dmlops.diagonal_matrix(square, begin=-3, end=3)
        yield lambda square=square: dmlops.diagonal_matrix(square.T, begin=1, end=2**31)
        yield lambda width=width: dmlops.diagonal_matrix(shape=(128, 128), dtype=width)
