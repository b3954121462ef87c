"""The contenders of diagonal_matrix."""

import functools
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from bench import libraries
from bench.libraries import arange, not_served, to_cupy, to_jax, to_torch
from bench.peers.table import Call, Task, contender
from bench.workloads import CPU, CUDA


def band_mask(task: Task) -> Any:
    """Return the mask of the band."""
    x, workload = task.x, task.workload
    height, width = workload.shape[-2:]
    steps = arange(x, width) - arange(x, height)[:, None]
    return (steps >= workload.begin) & (steps < workload.end)


def _triangle_only(task: Task) -> Any:
    if not task.workload.is_triangle:
        not_served("triangles of zeros only")
    return task.x


@contender("numpy.tril", "diagonal_matrix", (CPU,), "new outputs")
def _(task: Task) -> Call:
    x = _triangle_only(task)
    return lambda: np.tril(x)


@contender("numpy.where", "diagonal_matrix", (CPU,), "mask made beforehand; new outputs")
def _(task: Task) -> Call:
    x, mask = task.x, band_mask(task)
    value = np.float32(task.workload.value)
    return lambda: np.where(mask, value, x)


@contender("torch.tril", "diagonal_matrix", (CPU, CUDA))
def _(task: Task) -> Call:
    torch, x = libraries.module("torch"), to_torch(_triangle_only(task))
    out = torch.empty_like(x)
    return lambda: torch.tril(x, out=out)


@contender("torch.where", "diagonal_matrix", (CPU, CUDA), "mask made beforehand")
def _(task: Task) -> Call:
    torch, x, mask = libraries.module("torch"), to_torch(task.x), to_torch(band_mask(task))
    value, out = torch.tensor(task.workload.value, dtype=x.dtype, device=x.device), torch.empty_like(x)
    return lambda: torch.where(mask, value, x, out=out)


@contender("onnxruntime.Trilu", "diagonal_matrix", (CPU,))
def _(task: Task) -> Call:
    x = _triangle_only(task)
    return libraries.onnx_call("Trilu", task.threads, {"x": x}, {"output": np.empty_like(x)}, upper=0)


@contender("jax.numpy.where", "diagonal_matrix", (CPU, CUDA), "computes the mask as well; new outputs")
def _(task: Task) -> Call:
    x, workload = to_jax(task.x), task.workload
    end = min(workload.end, prod(workload.shape))
    call = _jax_band(workload.begin, end, workload.value)
    return lambda: call(x)


@functools.cache
def _jax_band(begin: int, end: int, value: float) -> Callable[..., Any]:
    numpy = libraries.module("jax").numpy

    def band(x: Any) -> Any:
        steps = numpy.arange(x.shape[-1])[None, :] - numpy.arange(x.shape[-2])[:, None]
        return numpy.where((steps >= begin) & (steps < end), value, x)

    return libraries.jit(band)


@contender("cupy.where", "diagonal_matrix", (CUDA,), "mask made beforehand; new outputs")
def _(task: Task) -> Call:
    cupy, x, mask = libraries.module("cupy"), to_cupy(task.x), to_cupy(band_mask(task))
    value = x.dtype.type(task.workload.value)
    return lambda: cupy.where(mask, value, x)
