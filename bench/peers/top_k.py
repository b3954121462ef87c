"""The contenders of top_k: dmlops and libraries of arrays."""

import functools
import inspect
from typing import Any

import numpy as np

import dmlops
from bench import libraries
from bench.libraries import empty, not_served, to_jax, to_torch
from bench.peers.table import BOTH, OURS, Call, Task, contender
from bench.workloads import CPU, CUDA


def _selected(task: Task, index_type: str) -> tuple[Any, Any]:
    shape = [*task.workload.shape]
    shape[task.workload.axis] = task.workload.k
    return empty(task.x, tuple(shape)), empty(task.x, tuple(shape), index_type)


def largest_only(task: Task) -> Any:
    """Return the input, unless the smallest elements are asked for."""
    if not task.workload.largest:
        not_served("the largest only")
    return task.x


@contender(OURS, "top_k", BOTH)
def _(task: Task) -> Call:
    (x, *others), workload = task.inputs, task.workload
    k, axis, largest, is_sorted = workload.k, workload.axis, workload.largest, workload.is_sorted
    if workload.rows:
        rows = dict(zip(workload.names, others, strict=True))
        return functools.partial(dmlops.top_k, x, k, sorted=is_sorted, **rows)
    out = _selected(task, "uint32")
    return lambda: dmlops.top_k(x, k, axis=axis, largest=largest, sorted=is_sorted, out=out)


@contender("numpy.argpartition", "top_k", (CPU,), "then sorted; ties in any order; int64; new outputs")
def _(task: Task) -> Call:
    x, k, axis = largest_only(task), task.workload.k, task.workload.axis
    size, last = x.shape[axis], [slice(None)] * x.ndim
    last[axis] = slice(-k, None)

    def call() -> Any:
        if k == size:
            indices = np.argsort(x, axis=axis)
        else:
            indices = np.argpartition(x, size - k, axis=axis)[*last]
            order = np.argsort(np.take_along_axis(x, indices, axis), axis=axis)
            indices = np.take_along_axis(indices, order, axis)
        indices = np.flip(indices, axis)
        return np.take_along_axis(x, indices, axis), indices

    return call


@contender("torch.topk", "top_k", BOTH, "ties in any order; int64 indices")
def _(task: Task) -> Call:
    torch, x, workload = libraries.module("torch"), to_torch(task.x), task.workload
    out = tuple(map(to_torch, _selected(task, "int64")))
    k, axis, largest, is_sorted = workload.k, workload.axis, workload.largest, workload.is_sorted
    return lambda: torch.topk(x, k, dim=axis, largest=largest, sorted=is_sorted, out=out)


@contender("torch.sort", "top_k", BOTH, "stable, but sorts everything; int64 indices")
def _(task: Task) -> Call:
    workload = task.workload
    if workload.k < workload.shape[workload.axis]:
        not_served("sorts everything: only for k = size")
    torch, x, axis, largest = libraries.module("torch"), to_torch(task.x), workload.axis, workload.largest
    out = torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)
    return lambda: torch.sort(x, dim=axis, descending=largest, stable=True, out=out)


@contender("onnxruntime.TopK", "top_k", (CPU,), "stable; NaN in any order; int64 indices")
def _(task: Task) -> Call:
    inputs = {"x": largest_only(task), "k": np.array([task.workload.k], np.int64)}
    outputs = dict(zip(("values", "indices"), _selected(task, "int64"), strict=True))
    return libraries.onnx_call("TopK", inputs, outputs, axis=task.workload.axis)


def _jax_top_k(x: Any, *, k: int, axis: int, **options: Any) -> Any:
    jax = libraries.module("jax")
    values, indices = jax.lax.top_k(jax.numpy.moveaxis(x, axis, -1), k, **options)
    return jax.numpy.moveaxis(values, -1, axis), jax.numpy.moveaxis(indices, -1, axis)


@contender("jax.lax.top_k", "top_k", BOTH, "stable; int32 indices; new outputs")
def _(task: Task) -> Call:
    call = libraries.jit(_jax_top_k, k=task.workload.k, axis=task.workload.axis)
    return functools.partial(call, to_jax(largest_only(task)))


@contender("jax.lax.top_k is_stable=False", "top_k", (CUDA,), "ties in any order; int32 indices; new outputs")
def _(task: Task) -> Call:
    if "is_stable" not in inspect.signature(libraries.module("jax").lax.top_k).parameters:
        not_served("needs JAX 0.11")
    call = libraries.jit(_jax_top_k, k=task.workload.k, axis=task.workload.axis, is_stable=False)
    return functools.partial(call, to_jax(largest_only(task)))
