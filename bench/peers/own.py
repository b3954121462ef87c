"""dmlops, on the arrays of the workload and on those of CuPy."""

from collections.abc import Callable
from typing import Any

import dmlops
from bench.libraries import empty
from bench.peers.gather_nd import gathered_shape
from bench.peers.nonzero_coordinates import count
from bench.peers.table import OURS, Call, Task, contender
from bench.peers.top_k import selected_shape
from bench.workloads import CPU, CUDA, TopK, TopKOfRows


def _own_top_k(task: Task, x: Any) -> Call:
    workload: TopK = task.workload
    shape = selected_shape(workload)
    k = workload.k
    axis = workload.axis
    largest = workload.largest
    out, is_sorted = (empty(x, shape), empty(x, shape, "uint32")), workload.is_sorted
    return lambda: dmlops.top_k(x, k, axis=axis, largest=largest, sorted=is_sorted, out=out)


def _own_top_k_rows(task: Task, x: Any, *others: Any) -> Call:
    workload: TopKOfRows = task.workload
    k, is_sorted = workload.k, workload.is_sorted
    given: dict[str, Any] = dict(zip(workload.names, others, strict=True))
    return lambda: dmlops.top_k(x, k, sorted=is_sorted, **given)


def _own_nonzero_coordinates(task: Task, x: Any) -> Call:
    if not task.workload.given:
        return lambda: dmlops.nonzero_coordinates(x)
    out = empty(x, (count(task), len(x.shape)), "uint32"), empty(x, (1,), "uint32")
    return lambda: dmlops.nonzero_coordinates(x, out=out)


def _own_gather_nd(task: Task, x: Any, indices: Any) -> Call:
    out, batch = empty(x, gathered_shape(task.workload)), task.workload.batch_dims
    mode = task.workload.mode
    return lambda: dmlops.gather_nd(x, indices, batch_dims=batch, mode=mode, out=out)


def _own_diagonal_matrix(task: Task, x: Any) -> Call:
    workload, out = task.workload, empty(x, task.workload.shape)
    value = workload.value
    begin = workload.begin
    end = workload.end
    return lambda: dmlops.diagonal_matrix(x, value=value, begin=begin, end=end, out=out)


def _own_sample(task: Task, x: Any, seeds: Any) -> Call:
    k, top_p, out = task.workload.k, task.workload.top_p, empty(x, task.workload.shape[:1], "int64")
    return lambda: dmlops.sample(x, seeds, k=k, top_p=top_p, out=out)


def _own(operator: str, prepare: Callable[..., Call]) -> None:
    @contender(OURS, operator, (CPU, CUDA))
    def _(task: Task) -> Call:
        return prepare(task, *task.inputs)


_own("top_k", _own_top_k)
_own("top_k_rows", _own_top_k_rows)
_own("nonzero_coordinates", _own_nonzero_coordinates)
_own("gather_nd", _own_gather_nd)
_own("sample", _own_sample)
_own("diagonal_matrix", _own_diagonal_matrix)
