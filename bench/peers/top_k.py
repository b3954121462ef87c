"""The contenders of top_k: libraries of arrays."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import libraries
from bench.libraries import empty, not_served, to_cupy, to_jax, to_torch
from bench.peers.table import Call, Task, contender
from bench.workloads import CPU, CUDA, TopK


def selected_shape(workload: TopK) -> tuple[int, ...]:
    """Return the shape of the results."""
    shape = list(workload.shape)
    shape[workload.axis] = workload.k
    return tuple(shape)


def _last(workload: TopK) -> tuple[slice, ...]:
    """Return the key that selects the last k elements along the axis."""
    key = [slice(None)] * len(workload.shape)
    key[workload.axis] = slice(workload.shape[workload.axis] - workload.k, None)
    return tuple(key)


def largest_only(task: Task) -> Any:
    """Return the input, unless the smallest elements are asked for."""
    if not task.workload.largest:
        not_served("the largest only")
    return task.x


@contender(
    "numpy.argpartition", "top_k", (CPU,), "then sorted; ties in any order; int64 indices; new outputs"
)
def _(task: Task) -> Call:
    x, k, axis = largest_only(task), task.workload.k, task.workload.axis
    selected, size = _last(task.workload), x.shape[axis]

    def call() -> Any:
        indices = np.argpartition(x, size - k, axis=axis)[selected] if k < size else np.argsort(x, axis=axis)
        values = np.take_along_axis(x, indices, axis)
        if k == size:
            return np.flip(values, axis), np.flip(indices, axis)
        order = np.flip(np.argsort(values, axis=axis), axis)
        return np.take_along_axis(values, order, axis), np.take_along_axis(indices, order, axis)

    return call


@contender("torch.topk", "top_k", (CPU, CUDA), "ties in any order; int64 indices")
def _(task: Task) -> Call:
    torch, x, workload = libraries.module("torch"), to_torch(task.x), task.workload
    shape = selected_shape(workload)
    out = empty(x, shape), empty(x, shape, "int64")
    k, axis, largest, is_sorted = workload.k, workload.axis, workload.largest, workload.is_sorted
    return lambda: torch.topk(x, k, dim=axis, largest=largest, sorted=is_sorted, out=out)


@contender("torch.sort", "top_k", (CPU, CUDA), "stable, but sorts everything; int64 indices")
def _(task: Task) -> Call:
    if libraries.is_numpy(task.x) and task.workload.k < task.workload.shape[task.workload.axis]:
        not_served("sorts everything: on the CPU only for k = size")
    torch, x, axis = libraries.module("torch"), to_torch(task.x), task.workload.axis
    largest, out = task.workload.largest, (torch.empty_like(x), torch.empty_like(x, dtype=torch.int64))
    return lambda: torch.sort(x, dim=axis, descending=largest, stable=True, out=out)


@contender("onnxruntime.TopK", "top_k", (CPU,), "stable; NaN in any order; int64 indices")
def _(task: Task) -> Call:
    x, shape = largest_only(task), selected_shape(task.workload)
    inputs = {"x": x, "k": np.array([task.workload.k], np.int64)}
    outputs = {"values": np.empty(shape, x.dtype), "indices": np.empty(shape, np.int64)}
    return libraries.onnx_call("TopK", task.threads, inputs, outputs, axis=task.workload.axis)


def _jax(task: Task, **options: Any) -> Call:
    x, call = to_jax(largest_only(task)), _jax_top_k(task.workload.k, task.workload.axis, **options)
    return lambda: call(x)


@functools.cache
def _jax_top_k(k: int, axis: int, **options: Any) -> Callable[..., Any]:
    jax = libraries.module("jax")

    def call(x: Any) -> Any:
        values, indices = jax.lax.top_k(jax.numpy.moveaxis(x, axis, -1), k, **options)
        return jax.numpy.moveaxis(values, -1, axis), jax.numpy.moveaxis(indices, -1, axis)

    return libraries.jit(call)


@contender("jax.lax.top_k", "top_k", (CPU, CUDA), "stable; int32 indices; new outputs")
def _(task: Task) -> Call:
    return _jax(task)


@contender("jax.lax.top_k is_stable=False", "top_k", (CUDA,), "ties in any order; int32 indices; new outputs")
def _(task: Task) -> Call:
    if "is_stable" not in inspect.signature(libraries.module("jax").lax.top_k).parameters:
        not_served("needs JAX 0.11")
    return _jax(task, is_stable=False)


@contender(
    "bottleneck.argpartition", "top_k", (CPU,), "unsorted; ties in any order; int64 indices; new outputs"
)
def _(task: Task) -> Call:
    x, k, axis = largest_only(task), task.workload.k, task.workload.axis
    selected, size = _last(task.workload), x.shape[axis]
    is_served = x.dtype.name in ("float32", "float64", "int32", "int64")
    if not is_served or k == size or task.workload.data == "nan":
        not_served("not for k = size, NaN, and types other than 32 and 64 bits")
    bottleneck = libraries.module("bottleneck")

    def call() -> Any:
        indices = bottleneck.argpartition(x, size - k, axis=axis)[selected]
        return np.take_along_axis(x, indices, axis), indices

    return call


@contender(
    "cupy.argsort", "top_k", (CUDA,), "sorts everything; ties in any order; int64 indices; new outputs"
)
def _(task: Task) -> Call:
    if task.workload.shape[-1] != task.workload.size:
        not_served("sorts everything: only for one row")
    cupy, x, k = libraries.module("cupy"), to_cupy(largest_only(task)), task.workload.k

    def call() -> Any:
        indices = cupy.argsort(x)[..., : -k - 1 : -1]
        return cupy.take_along_axis(x, indices, -1), indices

    return call
