"""The device functions of `dmlops.device` on a GPU, in kernels that Numba compiles and launches."""

import subprocess
import sys

import pytest

from tests.gpu.numba_cuda import numba_cuda
from tests.scripts import ROOT, plain_blocks
from tests.test_device_functions import DTYPES, check_compact, check_top_k

pytestmark = pytest.mark.filterwarnings("ignore:.*Grid size:Warning")


def launch(kernel, n_blocks, n_threads, *arguments):
    """Launch a kernel as users do; it changes arrays in place."""
    copies = [numba_cuda().to_device(array) for array in arguments]
    kernel[n_blocks, n_threads](*copies)
    for array, copy in zip(arguments, copies, strict=True):
        copy.copy_to_host(array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_type(dtype):
    for largest, k, threads, size in (
        *((True, 1, 32, 32), (False, 8, 32, 256), (True, 32, 32, 160), (False, 32, 32, 1024)),
        *((True, 8, 256, 1000), (False, 256, 256, 1500), (True, 100, 512, 1536), (False, 1000, 1024, 1024)),
    ):
        check_top_k(launch, dtype, k, threads, size, largest)


def test_block_compact():
    for threads in (32, 96, 256, 1024):
        check_compact(launch, "int32", threads)


def test_programs_of_the_page(tmp_path, monkeypatch):
    """The second process takes their kernels from Numba's cache."""
    numba_cuda()
    program = "\n".join(plain_blocks("docs/device.md"))
    program = program.replace("jit\n", "jit(cache=True)\n").replace("jit(fast", "jit(cache=True, fast")
    program += "print(*(sum(each.stats.cache_hits.values()) for each in (gate, gather_dense)))"
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [sys.executable, str(tmp_path / "program.py")]
    assert [subprocess.check_output(command, text=True).split() for _ in range(2)] == [["0", "0"], ["1", "1"]]
