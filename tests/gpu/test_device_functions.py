"""The device functions of `dmlops.device` on a GPU, in kernels that Numba compiles and launches."""

import subprocess
import sys

import pytest

from tests.data import sample
from tests.gpu.numba_cuda import numba_cuda
from tests.scripts import ROOT, run_page
from tests.user_kernels import DTYPES, check_block, check_compact, check_page, check_warp, device

# Small problems are enough to see what a kernel does.
pytestmark = pytest.mark.filterwarnings("ignore:.*Grid size:Warning")


def launch(kernel, n_blocks, n_threads, *arguments):
    """Launch a kernel as users do; it changes arrays in place."""
    cuda = numba_cuda()
    on_device = [cuda.to_device(array) for array in arguments]
    kernel[n_blocks, n_threads](*on_device)
    for array, changed in zip(arguments, on_device, strict=True):
        changed.copy_to_host(array)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k(dtype, largest):
    for k, items in ((1, 1), (8, 8), (32, 5), (32, 32)):
        check_warp(launch, dtype, k, items, largest)
    for k, threads, size in ((1, 32, 40), (8, 128, 1000), (256, 256, 2000), (100, 1024, 3000)):
        check_block(launch, dtype, k, threads, size, largest)


@pytest.mark.parametrize("threads", [32, 96, 256, 1024])
def test_block_compact(threads):
    for dtype in ("float32", "int8", "uint64", "float64"):
        x = sample(dtype, (50, 3 * threads), "flags")
        x[1] = 0
        check_compact(launch, x, threads)


def test_programs_of_the_page():
    check_page(run_page("docs/device.md"))


PROGRAM = """
import numba
import numpy as np
from numba import cuda

from dmlops import device

top_k = device.block_top_k(np.float32, 5, 64, 3000)
SIZE = 3000 * 4
SHARED_BYTES = SIZE + top_k.shared_bytes


@cuda.jit(cache=True)
def kernel(x, values, indices):
    # All of it is dynamic shared memory: the row, then what the function needs.
    row = cuda.shared.array(0, numba.float32)
    scratch = cuda.shared.array(0, numba.uint8)[SIZE:]
    for i in range(cuda.threadIdx.x, 3000, 64):
        row[i] = x[i]
    value, index = top_k(row, 3000, scratch)
    if cuda.threadIdx.x < 5:
        values[cuda.threadIdx.x], indices[cuda.threadIdx.x] = value, index


x = np.arange(3000, dtype=np.float32) % 1000
x, values, indices = map(cuda.to_device, (x, np.zeros(5, np.float32), np.zeros(5, np.int32)))
kernel[1, 64, 0, SHARED_BYTES](x, values, indices)
assert values.copy_to_host().tolist() == [999, 999, 999, 998, 998]
assert indices.copy_to_host().tolist() == [999, 1999, 2999, 998, 1998]
print(sum(kernel.stats.cache_hits.values()))
"""


def test_kernels_in_files_are_cached(tmp_path, monkeypatch):
    """The second process compiles nothing."""
    device()
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [sys.executable, "-W", "ignore", str(tmp_path / "program.py")]
    hits = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert [int(text) for text in hits] == [0, 1]
