"""The contenders of nonzero_coordinates."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import libraries
from bench.libraries import to_cupy, to_jax, to_torch
from bench.peers.table import Call, Task, contender
from bench.workloads import CPU, CUDA


def count(task: Task) -> int:
    """Return the number of non-zero elements."""
    return int((task.x != 0).sum())


@contender("numpy.argwhere", "nonzero_coordinates", (CPU,), "int64 coordinates; new outputs")
def _(task: Task) -> Call:
    (x,) = task.inputs
    return lambda: np.argwhere(x)


@contender("torch.nonzero", "nonzero_coordinates", (CPU, CUDA), "int64 coordinates; waits for a GPU")
def _(task: Task) -> Call:
    torch, x = libraries.module("torch"), to_torch(task.x)
    if not task.workload.given:
        return lambda: torch.nonzero(x)
    out = torch.nonzero(x)
    return lambda: torch.nonzero(x, out=out)


@contender("torch.nonzero_static", "nonzero_coordinates", (CUDA,), "size given; int64; new outputs")
def _(task: Task) -> Call:
    torch, x, size = libraries.module("torch"), to_torch(task.x), count(task)
    return lambda: torch.nonzero_static(x, size=size)


@contender("onnxruntime.NonZero", "nonzero_coordinates", (CPU,), "one row per dimension; int64; new outputs")
def _(task: Task) -> Call:
    outputs = {"coordinates": np.int64}
    return libraries.onnx_call("NonZero", task.threads, {"x": task.x}, outputs)


@contender(
    "jax.numpy.nonzero",
    "nonzero_coordinates",
    (CPU, CUDA),
    "size given; one array per dimension; int32; new outputs",
)
def _(task: Task) -> Call:
    x, call = to_jax(task.x), _jax_nonzero(count(task))
    return lambda: call(x)


@functools.cache
def _jax_nonzero(size: int) -> Callable[..., Any]:
    nonzero = libraries.module("jax").numpy.nonzero
    return libraries.jit(lambda x: nonzero(x, size=size))


@contender("cupy.argwhere", "nonzero_coordinates", (CUDA,), "int64 coordinates; new outputs; waits")
def _(task: Task) -> Call:
    cupy, x = libraries.module("cupy"), to_cupy(task.x)
    return lambda: cupy.argwhere(x)
