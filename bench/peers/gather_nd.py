"""The contenders of gather_nd."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import libraries
from bench.libraries import arange, to_int, to_jax, to_long, to_torch
from bench.peers.table import Call, Task, contender
from bench.workloads import CPU, CUDA, GatherND


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


@contender("numpy indexing", "gather_nd", (CPU,), "int64 indices; new outputs")
def _(task: Task) -> Call:
    x, key = task.x, index_key(task)
    return lambda: x[key]


@contender("torch indexing", "gather_nd", (CPU, CUDA), "int64 indices; new outputs")
def _(task: Task) -> Call:
    x, key = to_torch(task.x), tuple(map(to_torch, index_key(task)))
    return lambda: x[key]


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
