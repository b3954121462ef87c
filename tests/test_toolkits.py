"""Kernels keep within the limits of GPUs whichever CUDA toolkit compiles them; this needs no GPU.

`python -m tests.toolkits FOLDER` installs the toolkits. With ``DMLOPS_TOOLKITS=FOLDER``, these tests try a
sample of kernels on them, and with ``DMLOPS_COMPILE_ALL=1`` all kernels for 9.0.
"""

import functools
import importlib
import itertools
import os
from pathlib import Path

import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("cuda.core")
from dmlops import TensorDataType
from dmlops.operators import Options
from tests import toolkits
from tests.cuda_plans import planned
from tests.marks import COMPILE_ALL
from tests.test_cuda_compile import VARIANTS
from tests.test_cuda_plans import KINDS, PROBLEMS
from tests.test_cuda_top_k_plans import SHARED_BYTES
from tests.test_cuda_workspace import ALGORITHMS, algorithms, top_k

compiler = importlib.import_module("kernels_cuda.runtime.compiler")
capability_of = importlib.import_module("kernels_cuda.runtime.variant").capability_of

T = TensorDataType
FOLDER = os.environ.get("DMLOPS_TOOLKITS")
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not FOLDER, reason="DMLOPS_TOOLKITS is not set: see tests/toolkits.py"),
]
# They compile in seconds, and have static arrays, dynamic shared memory, or both; other targets try the last.
KERNELS = ("dmlops_top_k_list_1", "dmlops_top_k_sample_4", "dmlops_top_k_histogram_1")
# What devices from 8.0 on take of a block's shared memory for themselves.
RESERVED_BYTES = 1 << 10
REGISTERS, REGISTER_GRANULE = 1 << 16, 8
# Toolkits up to 13.0 give dynamic shared memory this alignment, whatever is asked for.
SHARED_ALIGNMENT = 16


@pytest.fixture(scope="module")
def processes():
    """Serve a process for each toolkit."""
    started = toolkits.start(Path(FOLDER))
    yield started
    for process in started.values():
        process.shutdown()


@functools.cache
def largest_blocks():
    """Return the most threads of a block that plans launch each kernel with, by its label."""
    launches = [launch for name, call in KINDS for launch in planned(PROBLEMS[name](), call=call).asked]
    if COMPILE_ALL:
        for choice in ALGORITHMS["top_k"].values():
            launches += forced(choice)
    blocks = {}
    for launch in launches:
        label = launch.variant.label
        blocks[label] = max(launch.block, blocks.get(label, 0))
    return blocks


SHAPES = (
    ((3, 300_000), 40),
    ((40, 700), 9),
    ((2, 20_000, 40), 20),
    ((9, 5000), 5000),
    ((300, 100_003), 2048),
)


def forced(choice):
    """Yield what an algorithm of top-k launches for problems that it serves."""
    types = (T.UINT8, T.FLOAT16, T.FLOAT32, T.INT64)
    for (sizes, k), data_type, is_sorted in itertools.product(SHAPES, types, (True, False)):
        try:
            with algorithms.forced(choice):
                yield from planned(top_k(sizes, k, 1, data_type), Options(is_sorted=is_sorted)).asked
        except algorithms.CannotServeError:
            continue


# Architectures share what Numba makes for a capability.
translate = functools.lru_cache(4)(toolkits.translate)


def check(variant, arch, processes):
    """Compile a kernel by all toolkits, and check that it may run."""
    ir = translate(variant, compiler.ptx_capability(capability_of(arch)))
    futures = {name: process.submit(toolkits.assemble, ir, arch) for name, process in processes.items()}
    by_toolkit = {name: future.result() for name, future in futures.items()}
    reserved = RESERVED_BYTES if capability_of(arch) >= (8, 0) else 0
    # Other architectures may have less than a launch asks for at most: it asks for what they have.
    dynamic_bytes = variant.dynamic_shared_bytes if arch == "sm_90" else 0
    block = largest_blocks().get(variant.label, 1)
    for name, code in by_toolkit.items():
        told = f"{variant.label}, {arch}, toolkit {name}: {code}"
        assert code.shared_bytes % max(code.asked_alignment, SHARED_ALIGNMENT) == 0, told
        assert code.asked_alignment <= SHARED_ALIGNMENT, told
        assert code.shared_bytes + dynamic_bytes <= SHARED_BYTES[arch] + reserved, told
        assert -(-code.registers // REGISTER_GRANULE) * REGISTER_GRANULE * block <= REGISTERS, told
    assert len({code.frame_bytes > 0 for code in by_toolkit.values()}) == 1, by_toolkit


@pytest.mark.parametrize("label", VARIANTS if COMPILE_ALL else KERNELS)
def test_kernels_are_within_the_limits(label, processes):
    check(VARIANTS[label], "sm_90", processes)


@pytest.mark.parametrize("arch", [arch for arch in SHARED_BYTES if arch != "sm_90"])
def test_other_architectures(arch, processes):
    check(VARIANTS[KERNELS[-1]], arch, processes)
