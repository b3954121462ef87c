"""The contenders of the operators beside top_k."""

import functools
from typing import Any

import numpy as np

import dmlops
from bench import libraries
from bench.libraries import arange, empty, not_served, to_int, to_jax, to_long, to_torch
from bench.peers.table import BOTH, OURS, Call, Task, contender
from bench.workloads import CPU, CUDA

NONZERO, GATHER, DIAGONAL, SAMPLE = "nonzero_coordinates", "gather_nd", "diagonal_matrix", "sample"


@contender(OURS, NONZERO, BOTH)
def _(task: Task) -> Call:
    x = task.x
    if not task.workload.given:
        return lambda: dmlops.nonzero_coordinates(x)
    out = empty(x, (_count(task), len(x.shape)), "uint32"), empty(x, (1,), "uint32")
    return lambda: dmlops.nonzero_coordinates(x, out=out)


def _count(task: Task) -> int:
    return int((task.x != 0).sum())


@contender("numpy.argwhere", NONZERO, (CPU,), "int64 coordinates; new outputs")
def _(task: Task) -> Call:
    return functools.partial(np.argwhere, task.x)


@contender("torch.nonzero", NONZERO, BOTH, "int64 coordinates; waits for a GPU")
def _(task: Task) -> Call:
    torch, x = libraries.module("torch"), to_torch(task.x)
    if not task.workload.given:
        return lambda: torch.nonzero(x)
    out = torch.nonzero(x)
    return lambda: torch.nonzero(x, out=out)


@contender("torch.nonzero_static", NONZERO, (CUDA,), "size given; int64; new outputs")
def _(task: Task) -> Call:
    return functools.partial(libraries.module("torch").nonzero_static, to_torch(task.x), size=_count(task))


@contender("onnxruntime.NonZero", NONZERO, (CPU,), "one row per dimension; int64; new outputs")
def _(task: Task) -> Call:
    return libraries.onnx_call("NonZero", {"x": task.x}, {"coordinates": np.int64})


@contender("jax.numpy.nonzero", NONZERO, BOTH, "size given; one array per dimension; int32; new outputs")
def _(task: Task) -> Call:
    return functools.partial(libraries.jit(_jax_nonzero, size=_count(task)), to_jax(task.x))


def _jax_nonzero(x: Any, *, size: int) -> Any:
    return libraries.module("jax").numpy.nonzero(x, size=size)


@contender(OURS, GATHER, BOTH)
def _(task: Task) -> Call:
    (x, indices), workload = task.inputs, task.workload
    batch, mode, out = workload.batch_dims, workload.mode, empty(x, workload.gathered_shape)
    return lambda: dmlops.gather_nd(x, indices, batch_dims=batch, mode=mode, out=out)


def index_key(task: Task) -> tuple[Any, ...]:
    """Return the key for which `x[key]` is the same answer."""
    indices = to_long(task.inputs[1])
    columns = tuple(indices[..., column] for column in range(task.workload.coordinates))
    if task.workload.batch_dims == 0:
        return columns
    return arange(indices, indices.shape[0])[:, None], *columns


@contender("numpy indexing", GATHER, (CPU,), "int64 indices; new outputs")
def _(task: Task) -> Call:
    x, key = task.x, index_key(task)
    return lambda: x[key]


@contender("torch indexing", GATHER, BOTH, "int64 indices; new outputs")
def _(task: Task) -> Call:
    x, key = to_torch(task.x), tuple(map(to_torch, index_key(task)))
    return lambda: x[key]


@contender("onnxruntime.GatherND", GATHER, (CPU,), "int64 indices")
def _(task: Task) -> Call:
    (x, indices), workload = task.inputs, task.workload
    inputs = {"x": x, "indices": to_long(indices)}
    outputs = {"output": empty(x, workload.gathered_shape)}
    return libraries.onnx_call("GatherND", inputs, outputs, batch_dims=workload.batch_dims)


@contender("jax indexing", GATHER, BOTH, "int32 indices, promised to be in bounds; new outputs")
def _(task: Task) -> Call:
    call = libraries.jit(_jax_gather, batch_dims=task.workload.batch_dims)
    return functools.partial(call, to_jax(task.x), to_jax(to_int(task.inputs[1])))


def _jax_gather(x: Any, indices: Any, *, batch_dims: int) -> Any:
    def gather(x: Any, indices: Any) -> Any:
        key = tuple(indices[..., column] for column in range(indices.shape[-1]))
        return x.at[key].get(mode="promise_in_bounds")

    return libraries.module("jax").vmap(gather)(x, indices) if batch_dims else gather(x, indices)


@contender(OURS, DIAGONAL, BOTH)
def _(task: Task) -> Call:
    x, workload = task.x, task.workload
    value, begin, end, out = workload.value, workload.begin, workload.end, empty(x, workload.shape)
    return lambda: dmlops.diagonal_matrix(x, value=value, begin=begin, end=end, out=out)


def band_mask(task: Task) -> Any:
    x, workload = task.x, task.workload
    height, width = workload.shape[-2:]
    steps = arange(x, width) - arange(x, height)[:, None]
    return (steps >= workload.begin) & (steps < workload.end)


def _triangle(task: Task) -> Any:
    """Return the input if its triangle is filled with zeros, as `tril` of other libraries does it."""
    workload = task.workload
    if (workload.begin, workload.value) != (1, 0.0) or workload.end < workload.shape[-1]:
        not_served("triangles of zeros only")
    return task.x


@contender("numpy.tril", DIAGONAL, (CPU,), "new outputs")
def _(task: Task) -> Call:
    return functools.partial(np.tril, _triangle(task))


@contender("torch.tril", DIAGONAL, BOTH)
def _(task: Task) -> Call:
    torch, x = libraries.module("torch"), to_torch(_triangle(task))
    return functools.partial(torch.tril, x, out=torch.empty_like(x))


@contender("torch.where", DIAGONAL, BOTH, "mask made beforehand")
def _(task: Task) -> Call:
    torch, x, mask = libraries.module("torch"), to_torch(task.x), to_torch(band_mask(task))
    value = torch.tensor(task.workload.value, dtype=x.dtype, device=x.device)
    return functools.partial(torch.where, mask, value, x, out=torch.empty_like(x))


@contender("cupy.where", DIAGONAL, (CUDA,), "mask made beforehand; new outputs")
def _(task: Task) -> Call:
    cupy = libraries.module("cupy")
    x, mask = cupy.from_dlpack(task.x), cupy.from_dlpack(band_mask(task))
    return functools.partial(cupy.where, mask, x.dtype.type(task.workload.value), x)


@contender("onnxruntime.Trilu", DIAGONAL, (CPU,))
def _(task: Task) -> Call:
    x = _triangle(task)
    return libraries.onnx_call("Trilu", {"x": x}, {"output": np.empty_like(x)}, upper=0)


@contender("jax.numpy.where", DIAGONAL, BOTH, "computes the mask as well; new outputs")
def _(task: Task) -> Call:
    workload = task.workload
    end = min(workload.end, workload.size)  # JAX's integers have 32 bits
    call = libraries.jit(_jax_band, begin=workload.begin, end=end, value=workload.value)
    return functools.partial(call, to_jax(task.x))


def _jax_band(x: Any, *, begin: int, end: int, value: float) -> Any:
    numpy = libraries.module("jax").numpy
    steps = numpy.arange(x.shape[-1])[None, :] - numpy.arange(x.shape[-2])[:, None]
    return numpy.where((steps >= begin) & (steps < end), value, x)


@contender(OURS, SAMPLE, BOTH)
def _(task: Task) -> Call:
    (x, seeds), workload = task.inputs, task.workload
    k, top_p, out = workload.k, workload.top_p, empty(x, workload.shape[:1], "int64")
    return lambda: dmlops.sample(x, seeds, k=k, top_p=top_p, out=out)


@contender("torch.multinomial", SAMPLE, BOTH, "after softmax, topk or sort, and cumsum; new outputs")
def _(task: Task) -> Call:
    torch, x = libraries.module("torch"), to_torch(task.x)
    k, top_p = task.workload.k, task.workload.top_p

    def draw() -> Any:
        if not k and top_p == 1:
            return torch.multinomial(torch.softmax(x.float(), -1), 1)
        values, indices = torch.topk(x, k) if k else torch.sort(x, descending=True)
        weights = torch.softmax(values.float(), -1)
        if top_p < 1:
            weights = torch.where(weights.cumsum(-1) - weights < top_p, weights, 0)
        return indices.gather(-1, torch.multinomial(weights, 1))

    return draw


@contender("flashinfer.sampling", SAMPLE, (CUDA,), "int32; top_p alone after its softmax; new outputs")
def _(task: Task) -> Call:
    sampling, x = libraries.module("flashinfer").sampling, to_torch(task.x)
    k, top_p = task.workload.k, task.workload.top_p

    def draw() -> Any:
        if k:
            return sampling.top_k_top_p_sampling_from_logits(x, k, top_p)
        if top_p == 1:
            return sampling.sampling_from_logits(x)
        return sampling.top_p_sampling_from_probs(sampling.softmax(x), top_p)

    return draw


@contender("vllm.sample", SAMPLE, (CUDA,), "int64; its native sampler, with the softmax; new outputs")
def _(task: Task) -> Call:
    torch, sampler = libraries.module("torch"), libraries.module("vllm.v1.sample.ops.topk_topp_sampler")
    x, k, top_p = to_torch(task.x), task.workload.k, task.workload.top_p
    counts = torch.full(x.shape[:1], k, device=x.device) if k else None
    shares = torch.full(x.shape[:1], top_p, device=x.device) if top_p < 1 else None

    def draw() -> Any:
        # The filter takes float32, and writes to the logits, which other calls need.
        logits = x.to(torch.float32, copy=bool(k) or top_p < 1)
        kept = sampler.apply_top_k_top_p(logits, counts, shares)
        return sampler.random_sample(torch.softmax(kept, -1, dtype=torch.float32), {})

    return draw
