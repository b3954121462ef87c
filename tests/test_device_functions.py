"""The device functions of `dmlops.device`, in kernels as users write them, which `tests.interpreter` runs."""

import functools

import numpy as np
import pytest

from tests.data import sample
from tests.gpu.numba_cuda import numba_cuda
from tests.kernel_sources import needs_compilations
from tests.marks import exhaustive, nightly
from tests.scripts import run_page
from tests.user_kernels import (
    DTYPES,
    block_kernel,
    check_block,
    check_compact,
    check_page,
    check_warp,
    device,
    interpret,
    ptx_of,
    warp_kernel,
)

pytest.importorskip("cuda.core")
pytestmark = needs_compilations


@pytest.mark.parametrize(
    ("dtype", "k", "items", "largest"),
    [
        ("float32", 8, 2, True),
        exhaustive("float32", 32, 32, False),
        exhaustive("float32", 1, 1, True),
        exhaustive("float64", 32, 3, False),
        exhaustive("uint16", 32, 2, True),
        *(exhaustive(dtype, 5, 2, largest) for dtype in DTYPES for largest in (True, False)),
    ],
)
def test_warp_top_k(dtype, k, items, largest):
    check_warp(interpret, dtype, k, items, largest)


@pytest.mark.parametrize(
    ("dtype", "k", "threads", "size", "largest"),
    [
        exhaustive("float32", 8, 64, 500, True),
        exhaustive("float32", 256, 256, 700, False),
        exhaustive("float32", 1, 32, 33, True),
        exhaustive("float64", 40, 128, 999, False),
        exhaustive("int64", 3, 1024, 1500, True),
        *(exhaustive(dtype, 5, 32, 203, True) for dtype in ("int8", "float16", "uint64")),
        *(nightly(dtype, 5, 32, 203, False) for dtype in DTYPES),
    ],
)
def test_block_top_k(dtype, k, threads, size, largest):
    check_block(interpret, dtype, k, threads, size, largest)


@pytest.mark.parametrize(
    ("dtype", "threads"), [("int32", 64), exhaustive("float64", 1024), exhaustive("int8", 32)]
)
def test_block_compact(dtype, threads):
    x = sample(dtype, (4, 2 * threads), "flags")
    x[1] = 0
    check_compact(interpret, x, threads)


@pytest.mark.parametrize(
    "capability", [exhaustive((7, 5)), exhaustive((8, 6)), exhaustive((9, 0)), exhaustive((12, 0))], ids=str
)
def test_they_compile_for_each_architecture(capability):
    """They take the instructions that it has, and local arrays stay in registers."""
    rows, counts, values, indices = (np.zeros((2, 1024), t) for t in "fqfi")
    for kernel in (warp_kernel("float32", 32, 32), block_kernel("float32", 8, 256, 1024)):
        ptx = ptx_of(kernel, rows, counts[0], values, indices, capability=capability)
        assert f".target sm_{capability[0]}{capability[1]}" in ptx
        assert ("redux.sync" in ptx) == (capability >= (8, 0))
        assert "local_depot" not in ptx


REFUSED = [
    ("warp_top_k", ("float32", 33, 1), ValueError, r"warp_top_k\.k: got 33; it must be in \[1, 32\]"),
    ("warp_top_k", ("float32", 1, 0), ValueError, r"warp_top_k\.items: got 0; it must be in \[1, 32\]"),
    ("warp_top_k", ("float32", 1.5, 1), ValueError, r"warp_top_k\.k: got 1\.5; it must be in \[1, 32\]"),
    ("warp_top_k", (None, 1, 1), TypeError, "warp_top_k.dtype: got None; it must be one of int8"),
    ("block_top_k", (">f4", 1, 32, 9), TypeError, "block_top_k.dtype: got >f4; it must be one of int8"),
    ("block_top_k", ("float32", 65, 64, 99), ValueError, r"k: got 65; it must be in \[1, 64\]"),
    ("block_top_k", ("float32", 1, 96, 99), ValueError, "threads: got 96; it must be a power of two"),
    ("block_top_k", ("float64", 1, 256, 29000), ValueError, "size: got 29000; it needs .* at most 232448"),
    ("block_compact", (48,), ValueError, "block_compact.threads: got 48; it must be a multiple of 32"),
]


@pytest.mark.parametrize(("name", "arguments", "kind", "text"), REFUSED)
def test_refusals(name, arguments, kind, text):
    with pytest.raises(kind, match=text):
        getattr(device(), name)(*arguments)


def test_kernels_with_other_types_are_refused():
    select, cuda = device().warp_top_k("float32", 1, 1), numba_cuda()

    @cuda.jit
    def kernel(x):
        value, _ = select(x, 3)
        x[0] = value

    with pytest.raises(
        TypeError, match=r"warp_top_k\.keys: got array\(float64, 1d, C\); it must be a contig"
    ):
        ptx_of(kernel, np.zeros(3))


class OnHost(np.ndarray):
    """Stands for a device array."""

    def copy_to_host(self):
        return np.asarray(self)


@pytest.mark.exhaustive
def test_programs_of_the_page(monkeypatch):
    """Without a GPU, the kernels are interpreted; see tests/gpu/test_device_functions.py."""
    cuda = numba_cuda()
    monkeypatch.setattr(cuda, "to_device", lambda array: array.copy().view(OnHost))
    monkeypatch.setattr(cuda, "device_array", lambda shape, dtype: np.full(shape, 7, dtype).view(OnHost))
    dispatcher = type(cuda.jit(lambda: None))
    monkeypatch.setattr(dispatcher, "__getitem__", lambda *of: functools.partial(interpret, of[0], *of[1]))
    check_page(run_page("docs/device.md"))
