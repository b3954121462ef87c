"""The contenders of top_k on a GPU that are made for serving language models, and CUB.

Their packages are flashinfer-python, cuda-cccl and sglang, whose sources have DeepSelect.
"""

import ctypes
import functools
import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from bench import libraries
from bench.libraries import empty, not_served
from bench.peers.table import INDICES_ALONE, Call, Task, contender
from bench.peers.top_k import largest_only
from bench.workloads import CUDA

FLOATS = ("float16", "bfloat16", "float32")
CUB_SOURCE = Path(__file__).with_name("cub_top_k.cu")
CUB_KEYS = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float"}
# CUB chooses its algorithm by the most elements of a row and the largest k, which are given at compile time.
CUB_SIZES, CUB_KS = (1 << 10, 1 << 13, 1 << 21), (1 << 5, 1 << 12)


def _matrix(
    task: Task,
    dtypes: Collection[str],
    most_k: int = 1 << 31,
    most_size: int = 1 << 31,
    is_sorted: bool | None = None,
) -> Any:
    """Return the matrix of a task; raise NotServedError unless its problem is one of these.

    `is_sorted` is the order that the answer always has, or None if the contender can be asked for either.
    """
    workload, x = task.workload, largest_only(task)
    if len(workload.shape) != 2 or workload.axis != -1 or workload.dtype not in dtypes:
        not_served(f"matrices of {', '.join(dtypes)} only")
    for what, size, most in (("k", workload.k, most_k), ("rows", workload.shape[1], most_size)):
        if size > most:
            not_served(f"{what} up to {most} only")
    if is_sorted not in (None, workload.is_sorted):
        not_served(f"{'always' if is_sorted else 'never'} sorted")
    return x


@contender("flashinfer.top_k", "top_k", (CUDA,), "ties in any order; int64 indices; new outputs")
def _(task: Task) -> Call:
    x, top_k = _matrix(task, FLOATS), libraries.module("flashinfer").top_k
    return functools.partial(top_k, x, task.workload.k, sorted=task.workload.is_sorted)


@contender("flashinfer.top_k stable", "top_k", (CUDA,), "int64 indices; new outputs")
def _(task: Task) -> Call:
    x, top_k = _matrix(task, FLOATS, is_sorted=True), libraries.module("flashinfer").top_k
    return functools.partial(top_k, x, task.workload.k, sorted=True, deterministic=True, tie_break=1)


@contender("cub.DeviceBatchedTopK", "top_k", (CUDA,), "ties in any order; int32 indices")
def _(task: Task) -> Call:
    x, workload = _matrix(task, FLOATS, CUB_KS[-1], CUB_SIZES[-1]), task.workload
    (rows, size), k = workload.shape, workload.k
    most = next(each for each in CUB_SIZES if size <= each)
    most_k = next(each for each in CUB_KS if k <= each)
    top_k = cub_library(CUB_KEYS[workload.dtype], most, most_k, workload.is_sorted).top_k
    values, indices = out = empty(x, (rows, k)), empty(x, (rows, k), "int32")
    n_bytes = ctypes.c_size_t()
    stream_of = libraries.module("torch").cuda.current_stream

    def run(workspace: int | None) -> None:
        addresses = (array.data_ptr() for array in (x, values, indices))
        sizes = map(ctypes.c_int64, (rows, size, k))
        stream = ctypes.c_void_p(stream_of().cuda_stream)
        arguments = (ctypes.c_void_p(workspace), ctypes.byref(n_bytes), *map(ctypes.c_void_p, addresses))
        if error := top_k(*arguments, *sizes, stream):
            not_served(f"CUDA error {error}")

    run(None)  # asks for the size of the workspace
    workspace = empty(x, (max(n_bytes.value, 1),), "uint8")

    def call() -> Any:
        run(workspace.data_ptr())
        return out

    return call


@functools.cache
def cub_library(key: str, most: int, most_k: int, is_sorted: bool) -> Any:
    """Compile CUB's top-k for a type and bounds of the sizes, and keep it among the temporary files."""
    headers = libraries.module("cuda.cccl.headers").__path__[0]
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        not_served("nvcc is not installed")
    macros = {"KEY": key, "MOST": most, "MOST_K": most_k, "SORTED": int(is_sorted)}
    words = [importlib.metadata.version("cuda-cccl"), *map(str, macros.values())]
    path = Path(tempfile.gettempdir(), f"dmlops-bench-cub-{'-'.join(words)}.so")
    if not path.exists():
        defined = [f"-DBENCH_{name}={value}" for name, value in macros.items()]
        flags = ["-std=c++17", "-O3", "-arch=native", "-shared", "-Xcompiler=-fPIC", f"-I{headers}/include"]
        unfinished = path.with_suffix(f".{os.getpid()}")
        subprocess.run([nvcc, *flags, *defined, CUB_SOURCE, "-o", unfinished], check=True)
        unfinished.replace(path)
    return ctypes.CDLL(str(path))


@contender("sglang.topk_v2", "top_k", (CUDA,), f"{INDICES_ALONE}, int32; plan made beforehand")
def _(task: Task) -> Call:
    x = _matrix(task, ("float32",), 2048, is_sorted=False)
    module = libraries.module("sglang.kernels.ops.attention.dsv4.topk")
    rows, size = x.shape
    lengths, indices = empty(x, (rows,), "int32").fill_(size), empty(x, (rows, task.workload.k), "int32")
    plan = module.plan_topk_v2(lengths)

    def call() -> Any:
        module.topk_transform_paged_v2(x, lengths, None, indices, 1, plan)
        return indices

    return call


@contender("sglang.topk_bf16_small", "top_k", (CUDA,), f"{INDICES_ALONE}, int32")
def _(task: Task) -> Call:
    x = _matrix(task, ("bfloat16",), 2048, 1 << 14, is_sorted=False)
    top_k = libraries.module("sglang.kernels.ops.attention.dsv4.topk").topk_transform_bf16_small
    rows, size = x.shape
    lengths, indices = empty(x, (rows,), "int32").fill_(size), empty(x, (rows, task.workload.k), "int32")
    pages = empty(x, (rows, 1), "int32").zero_()  # one page holds the whole row, and changes no index

    def call() -> Any:
        top_k(x, lengths, pages, indices, 1 << 14)
        return indices

    return call


def _deep_select(task: Task, is_sorted: bool | None = None, **options: Any) -> Call:
    x, k = _matrix(task, ("bfloat16", "float32"), 4096, is_sorted=is_sorted), task.workload.k
    if k * x.element_size() % 32 or x.shape[1] * x.element_size() % 128:
        not_served("rows of whole 128 bytes, and results of whole 32 bytes, only")
    if task.workload.is_sorted and task.workload.dtype != "float32":
        not_served("sorts float32 only")
    top_k = libraries.module("sglang.kernels.ops.attention.deep_select").topk
    return functools.partial(top_k, x, k, **options)


@contender("sglang.deep_select", "top_k", (CUDA,), "ties in any order; int32 indices; new outputs")
def _(task: Task) -> Call:
    return _deep_select(task, sorted=task.workload.is_sorted, return_value=True)


@contender("sglang.deep_select indices", "top_k", (CUDA,), f"{INDICES_ALONE}, int32; new outputs")
def _(task: Task) -> Call:
    call = _deep_select(task, is_sorted=False)
    return lambda: call()[1]


@contender("sglang.gate_topk", "top_k", (CUDA,), "stable; int32 indices; new outputs")
def _(task: Task) -> Call:
    x, k = _matrix(task, FLOATS, 32, is_sorted=True), task.workload.k
    return functools.partial(libraries.module("sglang.kernels.ops.moe.gate_topk").gate_topk, x, k)
