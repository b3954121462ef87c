"""The contenders of gather_nd."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import libraries
from bench.libraries import arange, empty, to_cupy, to_int, to_jax, to_long, to_torch
from bench.peers.table import Call, Task, contender
from bench.workloads import CPU, CUDA, GatherND

FLAT = "flat indices made beforehand"


def gathered_shape(workload: GatherND) -> tuple[int, ...]:
    """Return the shape of the result."""
    batch = workload.batch_dims
    return (*workload.shape[:batch], workload.tuples, *workload.shape[batch + workload.coordinates :])


def index_key(task: Task) -> tuple[Any, ...]:
    """Return the key for which `x[key]` is the same answer."""
    indices = to_long(task.inputs[1])
    columns = tuple(indices[..., column] for column in range(task.workload.coordinates))
    if task.workload.batch_dims == 0:
        return columns
    return arange(indices, indices.shape[0])[:, None], *columns


def _flat_gather(task: Task) -> tuple[Any, Any, Any]:
    """Return the input as a matrix of rows, the numbers of the rows to gather, and an output."""
    workload: GatherND = task.workload
    sizes = workload.shape[: workload.batch_dims] + workload.bounds
    flat: Any = 0
    for size, column in zip(sizes, index_key(task), strict=True):
        flat = flat * size + column
    length = workload.length
    x = task.x.reshape(-1, length) if length > 1 else task.x.reshape(-1)
    flat = flat.reshape(-1)
    return x, flat, empty(x, (flat.shape[0], *x.shape[1:]))


@contender("numpy indexing", "gather_nd", (CPU,), "int64 indices; new outputs")
def _(task: Task) -> Call:
    x, key = task.x, index_key(task)
    return lambda: x[key]


@contender("numpy.take", "gather_nd", (CPU,), FLAT, is_spared=True)
def _(task: Task) -> Call:
    rows, flat, out = _flat_gather(task)
    return lambda: np.take(rows, flat, axis=0, out=out, mode="clip")


@contender("torch indexing", "gather_nd", (CPU, CUDA), "int64 indices; new outputs")
def _(task: Task) -> Call:
    x, key = to_torch(task.x), tuple(map(to_torch, index_key(task)))
    return lambda: x[key]


@contender("torch.index_select", "gather_nd", (CPU, CUDA), FLAT, is_spared=True)
def _(task: Task) -> Call:
    torch = libraries.module("torch")
    rows, flat, out = map(to_torch, _flat_gather(task))
    return lambda: torch.index_select(rows, 0, flat, out=out)


@contender("torch.embedding", "gather_nd", (CPU, CUDA), f"{FLAT}; new outputs", is_spared=True)
def _(task: Task) -> Call:
    rows, flat, _ = map(to_torch, _flat_gather(task))
    rows = rows.reshape(-1, task.workload.length)
    embedding, flat = libraries.module("torch").nn.functional.embedding, flat.int()
    return lambda: embedding(flat, rows)


@contender("onnxruntime.GatherND", "gather_nd", (CPU,), "int64 indices")
def _(task: Task) -> Call:
    (x, indices), workload = task.inputs, task.workload
    inputs = {"x": x, "indices": to_long(indices)}
    outputs = {"output": np.empty(gathered_shape(workload), x.dtype)}
    return libraries.onnx_call("GatherND", task.threads, inputs, outputs, batch_dims=workload.batch_dims)


@contender("jax indexing", "gather_nd", (CPU, CUDA), "int32 indices, promised to be in bounds; new outputs")
def _(task: Task) -> Call:
    x, indices = to_jax(task.x), to_jax(to_int(task.inputs[1]))
    call = _jax_gather(task.workload.batch_dims, task.workload.coordinates)
    return lambda: call(x, indices)


@functools.cache
def _jax_gather(batch_dims: int, coordinates: int) -> Callable[..., Any]:
    def gather(x: Any, indices: Any) -> Any:
        key = tuple(indices[..., column] for column in range(coordinates))
        return x.at[key].get(mode="promise_in_bounds")

    vmap = libraries.module("jax").vmap
    return libraries.jit(vmap(gather) if batch_dims else gather)


@contender("cupy.take", "gather_nd", (CUDA,), FLAT, is_spared=True)
def _(task: Task) -> Call:
    cupy = libraries.module("cupy")
    rows, flat, out = map(to_cupy, _flat_gather(task))
    return lambda: cupy.take(rows, flat, axis=0, out=out)
