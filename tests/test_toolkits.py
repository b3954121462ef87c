"""Kernels keep within the limits of GPUs whichever CUDA toolkit compiles them; this needs no GPU.

`python -m tests.toolkits FOLDER` installs the toolkits. With ``DMLOPS_TOOLKITS=FOLDER``, these tests try a
sample of kernels on them, and with ``DMLOPS_COMPILE_ALL=1`` all kernels for 9.0.
"""

import functools
import importlib
import itertools
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("cuda.core")
from dmlops import TensorDataType
from tests import inside, toolkits
from tests.cuda_plans import planned, top_k
from tests.marks import COMPILE_ALL
from tests.test_cuda_compile import VARIANTS
from tests.test_cuda_plans import KINDS, PROBLEMS
from tests.test_cuda_top_k_plans import SHARED_BYTES

algorithms = importlib.import_module("tests.gpu.algorithms")
compiler = inside.compiler
capability_of = inside.variant.capability_of

T = TensorDataType
FOLDER = os.environ.get("DMLOPS_TOOLKITS")
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not FOLDER, reason="DMLOPS_TOOLKITS is not set: see tests/toolkits.py"),
]
# They compile in seconds, and have static arrays, dynamic shared memory, or both; other targets try the last.
KERNELS = ("dmlops_top_k_list_4", "dmlops_top_k_sample_4", "dmlops_top_k_histogram_1_8_1")
# Devices from 8.0 on take so much of a block's shared memory for themselves.
RESERVED_BYTES = 1 << 10
REGISTERS, REGISTER_GRANULE = 1 << 16, 8
# One toolkit may spill two pairs of registers and another none: one of partition, and list at 4 bytes, where
# the newest one spills none.
FEW_BYTES = 16
# All toolkits give dynamic shared memory this alignment; up to 13.0, they give no more even if asked.
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
    """Return the most threads and dynamic shared memory of a block that plans launch each kernel with."""
    launches = [launch for name, call in KINDS for launch in planned(PROBLEMS[name](), call=call).asked]
    if COMPILE_ALL:
        for choice in algorithms.ALGORITHMS["top_k"]:
            launches += forced(choice)
    blocks = {}
    for launch in launches:
        n_threads, n_bytes = blocks.get(launch.variant.label, (0, 0))
        blocks[launch.variant.label] = max(launch.block, n_threads), max(launch.shared_bytes, n_bytes)
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
                yield from planned(top_k(sizes, k, 1, data_type), {"is_sorted": is_sorted}).asked
        except algorithms.CannotServeError:
            continue


# Architectures share what Numba makes for a capability.
translate = functools.lru_cache(4)(toolkits.translate)


def compiled(processes, function, *arguments):
    """Return what each toolkit makes of a kernel."""
    futures = {name: process.submit(function, *arguments) for name, process in processes.items()}
    return {name: future.result() for name, future in futures.items()}


def check(variant, arch, processes):
    """Compile a kernel by all toolkits, and check that it may run."""
    ir = translate(variant, compiler.ptx_capability(capability_of(arch)))
    by_toolkit = compiled(processes, toolkits.assemble, ir, arch)
    # The plans are for 9.0.
    n_threads, dynamic_bytes = largest_blocks().get(variant.label, (1, 0)) if arch == "sm_90" else (1, 0)
    for name, code in by_toolkit.items():
        check_code(code, arch, dynamic_bytes, n_threads, f"{variant.label}, {arch}, toolkit {name}")
    frames = [code.frame_bytes for code in by_toolkit.values()]
    assert min(frames) > 0 or max(frames) <= FEW_BYTES, by_toolkit


def check_code(code, arch, dynamic_bytes, n_threads, told):
    """Check a kernel of one toolkit."""
    reserved = RESERVED_BYTES if capability_of(arch) >= (8, 0) else 0
    registers = -(-code.registers // REGISTER_GRANULE) * REGISTER_GRANULE
    if code.asked_alignment:
        assert code.shared_bytes % max(code.asked_alignment, SHARED_ALIGNMENT) == 0, (told, code)
        assert code.asked_alignment <= SHARED_ALIGNMENT, (told, code)
    assert code.shared_bytes + dynamic_bytes <= SHARED_BYTES[arch] + reserved, (told, code)
    assert registers * n_threads <= REGISTERS, (told, code)


@pytest.mark.parametrize("label", VARIANTS if COMPILE_ALL else KERNELS)
def test_kernels_are_within_the_limits(label, processes):
    check(VARIANTS[label], "sm_90", processes)


@pytest.mark.parametrize("arch", [arch for arch in SHARED_BYTES if arch != "sm_90"])
def test_other_architectures(arch, processes):
    check(VARIANTS[KERNELS[-1]], arch, processes)


# Four bytes, and then dynamic memory with a requested alignment.
AFTER_FOUR_BYTES = """
.version 7.8
.target sm_90
.address_size 64
.shared .align 4 .b8 fixed[4];
.extern .shared .align {} .b8 dynamic[];
.visible .entry kernel()
{{
    .reg .b32 %r<3>;
    mov.u32 %r1, fixed;
    mov.u32 %r2, dynamic;
    st.shared.u32 [%r1], %r2;
    st.shared.u32 [%r2], %r1;
    ret;
}}
"""


@pytest.mark.parametrize(
    ("asked", "begins"), [(4, (1040,) * 4), (16, (1040,) * 4), (128, (1040, 1040, 1040, 1152))]
)
def test_where_dynamic_shared_memory_begins(asked, begins, processes):
    """The check finds what toolkits do not grant, and that a kernel asks for more than all of them grant."""
    ptx = AFTER_FOUR_BYTES.format(asked).encode()
    by_toolkit = compiled(processes, toolkits.assemble_ptx, ptx, "sm_90")
    assert tuple(code.shared_bytes for code in by_toolkit.values()) == begins
    for code in by_toolkit.values():
        with pytest.raises(AssertionError) if asked > SHARED_ALIGNMENT else nullcontext():
            check_code(code, "sm_90", 0, 32, "")
