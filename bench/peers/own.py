"""dmlops, on the arrays of the workload."""

from typing import Any

import dmlops
from bench.libraries import empty
from bench.peers.gather_nd import gathered_shape
from bench.peers.nonzero_coordinates import count
from bench.peers.table import OURS, Call, Task, contender
from bench.peers.top_k import selected_shape
from bench.workloads import CPU, CUDA


@contender(OURS, "top_k", (CPU, CUDA))
def _(task: Task) -> Call:
    x, workload = task.x, task.workload
    shape = selected_shape(workload)
    out = empty(x, shape), empty(x, shape, "uint32")
    k, axis, largest, is_sorted = workload.k, workload.axis, workload.largest, workload.is_sorted
    return lambda: dmlops.top_k(x, k, axis=axis, largest=largest, sorted=is_sorted, out=out)


@contender(OURS, "top_k_rows", (CPU, CUDA))
def _(task: Task) -> Call:
    (x, *others), workload = task.inputs, task.workload
    given: dict[str, Any] = dict(zip(workload.names, others, strict=True))
    k, is_sorted = workload.k, workload.is_sorted
    return lambda: dmlops.top_k(x, k, sorted=is_sorted, **given)


@contender(OURS, "nonzero_coordinates", (CPU, CUDA))
def _(task: Task) -> Call:
    x = task.x
    if not task.workload.given:
        return lambda: dmlops.nonzero_coordinates(x)
    out = empty(x, (count(task), len(x.shape)), "uint32"), empty(x, (1,), "uint32")
    return lambda: dmlops.nonzero_coordinates(x, out=out)


@contender(OURS, "gather_nd", (CPU, CUDA))
def _(task: Task) -> Call:
    (x, indices), workload = task.inputs, task.workload
    batch, mode, out = workload.batch_dims, workload.mode, empty(x, gathered_shape(workload))
    return lambda: dmlops.gather_nd(x, indices, batch_dims=batch, mode=mode, out=out)


@contender(OURS, "diagonal_matrix", (CPU, CUDA))
def _(task: Task) -> Call:
    x, workload = task.x, task.workload
    value, begin, end, out = workload.value, workload.begin, workload.end, empty(x, workload.shape)
    return lambda: dmlops.diagonal_matrix(x, value=value, begin=begin, end=end, out=out)


@contender(OURS, "sample", (CPU, CUDA))
def _(task: Task) -> Call:
    (x, seeds), workload = task.inputs, task.workload
    k, top_p, out = workload.k, workload.top_p, empty(x, workload.shape[:1], "int64")
    return lambda: dmlops.sample(x, seeds, k=k, top_p=top_p, out=out)
