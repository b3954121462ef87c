"""Memory: its pages, and how much a process has over calls of many different kinds, whose cache is bounded.

``DMLOPS_MEMORY_CALLS`` sets the number of calls.
"""

import importlib
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest

import dmlops
from tests.marks import exhaustive, nightly
from tests.scripts import run_script

CALLS = int(os.environ.get("DMLOPS_MEMORY_CALLS", "6000"))
MIB = 1 << 20
DTYPES = ("uint8", "int16", "float32", "int64")

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="nobody says how much memory")


def resident_bytes():
    """Return how much memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def refused(x):
    with pytest.raises(dmlops.InvalidDescriptorError):
        dmlops.top_k(x, 10**6)


def execute(x, k):
    desc = dmlops.TensorDesc("FLOAT32", x.shape)
    operator = dmlops.compile(dmlops.TopK1(input_tensor=desc, axis=0, k=k, axis_direction=1))
    outputs = np.empty(k, "float32"), np.empty(k, "uint32")
    fields = ("input_tensor", "output_value_tensor", "output_index_tensor")
    operator.execute(dict(zip(fields, (x, *outputs), strict=True)))


def small_call(rng, memory):
    """Return a call of any kind on a small array of any shape, type and layout."""
    shape, n = [rng.randint(1, 12) for _ in range(rng.randint(2, 3))], rng.randint(1, 40)
    dtype, mode = rng.choice(DTYPES), rng.choice(("raise", "clip", "fill"))
    x = memory[dtype][: int(np.prod(shape))].reshape(shape)[:, :: rng.choice((1, 1, 2))]
    band = {"value": n, "begin": rng.randint(-9, 9), "end": rng.randint(-9, 9)}
    if rng.random() < 0.05:
        return rng.choice((lambda: refused(x), lambda: execute(memory["float32"][: n + 1], n)))
    return rng.choice(
        (
            lambda: dmlops.top_k(x, min(n, len(x)), axis=0, largest=mode == "clip"),
            lambda: dmlops.nonzero_coordinates(x, size=n if mode == "clip" else None),
            lambda: dmlops.gather_nd(x, np.zeros((n, len(shape) - 1), "int64"), mode=mode),
            lambda: dmlops.diagonal_matrix(x, **band),
            lambda: dmlops.diagonal_matrix(shape=(n, shape[0]), dtype=dtype, value=shape[1]),
        )
    )


def call_many_kinds(n_calls, n_before):
    """Print how much memory there is when all is kept that ever is, and after so many calls more."""
    rng, memory = random.Random(0), {dtype: np.ones(4096, dtype) for dtype in DTYPES}
    for n in (n_before, n_calls):
        done = 0
        while done < n:
            call = small_call(rng, memory)
            for _ in range(rng.choice((1, 1, 1, 1, 3))):
                call()
                done += 1
        print(resident_bytes())


def call_largest_kinds():
    """Print how much memory there is before and after calls of which as much is kept as can be.

    They have many dimensions, in no layout that could be seen as one with fewer, and work for many threads.
    """
    dmlops.set_num_threads(16)
    memory = np.ones(1 << 23, "float32")
    # The first of these need the most memory of their own.
    for place, rows in enumerate((8, 9, 900, *range(300, 900))):
        x = memory[: rows * 3**7].reshape(rows, *(3,) * 7)[:, :2, :2, :2, :2, :2, :2, :2]  # gaps everywhere
        out = np.empty((*x.shape[:-1], 1), "float32"), np.empty((*x.shape[:-1], 1), int)
        for _ in range(2):  # the second time it is known how to run it again
            dmlops.top_k(x, 1, out=out)
            dmlops.gather_nd(x, np.zeros((rows, 1), int))
            dmlops.diagonal_matrix(x, value=0)
            dmlops.nonzero_coordinates(x, size=3)
        if place == 2:
            print(resident_bytes())
    print(resident_bytes())


@pytest.mark.parametrize(
    ("call", "most"),
    [exhaustive(f"call_many_kinds({CALLS}, 5000)", 12 * MIB), nightly("call_largest_kinds()", 32 * MIB)],
)
def test_memory(call, most, capsys):
    script = f"import sys; from tests import test_memory_stays_flat; test_memory_stays_flat.{call}"
    for _ in range(2):  # a process that does not have to compile counts
        *printed, has_compiled = run_script(f"{script}; print('numba' in sys.modules)").split()
        if has_compiled == "False":
            break
    before, after = map(int, printed)
    with capsys.disabled():
        print(f" {before / MIB:.1f} MiB before {call}, {after / MIB:.1f} after", end="")
    assert after - before < most


def has_huge_pages(address):
    """Return whether Linux may back the memory at an address by huge pages."""
    areas = Path("/proc/self/smaps").read_text()
    found = re.findall(r"^(\w+)-(\w+) .*?^VmFlags:(.*?)$", areas, re.MULTILINE | re.DOTALL)
    flags = [flags for begin, end, flags in found if int(begin, 16) <= address < int(end, 16)]
    return "hg" in " ".join(flags).split()


@pytest.mark.libraries
@pytest.mark.parametrize("name", ["torch", "jax"])
def test_large_results_have_pages_like_those_of_numpy(name):
    """Neither are they copies of such memory."""
    library, n = pytest.importorskip(name), 1 << 20
    arrays = library if name == "torch" else library.numpy
    zeros = np.zeros((n, 2), "float32")
    if not has_huge_pages(zeros.ctypes.data + zeros.nbytes // 2):
        pytest.skip("this system has none, or does not tell")
    x, indices = arrays.asarray(zeros) + 1, arrays.asarray(np.zeros((n, 1), "int32"))
    fill, address = dmlops.diagonal_matrix, "data_ptr"
    if name == "jax":
        fill = library.jit(importlib.import_module("dmlops.integrations.jax").diagonal_matrix)
        address = "unsafe_buffer_pointer"
    for _ in range(2):
        results = dmlops.tril(x), fill(x), dmlops.gather_nd(x, indices), dmlops.nonzero_coordinates(x)[0]
        for result in results:
            assert has_huge_pages(getattr(result, address)() + zeros.nbytes // 2)
