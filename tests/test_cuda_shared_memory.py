"""Blocks ask for no more shared memory than the device lets them have, whatever the problem."""

import importlib
from unittest import mock

import pytest

pytest.importorskip("cuda.core")
top_k = importlib.import_module("kernels_cuda.top_k")
planning = importlib.import_module("kernels_cuda.top_k.planning")
block_shape = importlib.import_module("kernels_cuda.top_k.block_shape")
Target = importlib.import_module("kernels_cuda.variant").Target

KIB = 1 << 10
# Devices, and what CUDA's programming guide says that their blocks may have.
DEVICES = {"sm_75": 64, "sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_120": 99}
LARGEST_PROBLEM = 1 << 30
# What kernels have of their own besides, at most.
OWN_BYTES = 4 * KIB


def steps(arch, n_rows, axis_size, k, element_size, variant):
    """Return what a plan launches: for each step, the kernel's variant and its sizes."""
    with (
        mock.patch.object(planning, "load", lambda variant, _: variant),
        mock.patch.object(planning, "Launches", list),
    ):
        plan = top_k.plan(
            element_size=element_size,
            index_size=4,
            sign=0,
            flip=0,
            infinity=(1 << 8 * element_size) - 1,
            largest=True,
            k=k,
            axis_size=axis_size,
            rows=[(n_rows, axis_size, k, k)],
            axis_strides=(1, 1, 1),
            target=Target(0, arch, 100, DEVICES[arch] * KIB),
            variant=variant,
        )
    return plan._launches


@pytest.mark.parametrize("element_size", [1, 2, 4, 8])
@pytest.mark.parametrize("arch", DEVICES)
def test_top_k_fits(arch, element_size):
    seen = set()
    for n_rows in (1, 100, 100_000):
        for axis_size in (100, 2000, 5000, 16_384, 70_000, 1 << 20, 1 << 25):
            for k in (1, 32, 400, 1000, 2048, 4096, 5000, axis_size):
                if k > axis_size or n_rows * axis_size > LARGEST_PROBLEM:
                    continue
                for variant in (None, "block", "grid", "tile", "columns", "warp"):
                    try:
                        launches = steps(arch, n_rows, axis_size, k, element_size, variant)
                    except ValueError:
                        # A way that does not serve this problem.
                        continue
                    for step in launches:
                        own = OWN_BYTES
                        if step.kernel.name == "top_k_block":
                            own = block_shape.static_bytes(step.block)
                        assert step.shared_bytes + own <= DEVICES[arch] * KIB, (step.kernel.label, k)
                        assert step.shared_bytes <= max(step.kernel.dynamic_shared_bytes, 48 * KIB)
                        seen.add((step.kernel.name, step.block))
    largest_block = 1024 if DEVICES[arch] >= 99 else 256
    assert ("top_k_block", largest_block) in seen
    assert {name for name, _ in seen} >= {"top_k_maxima", "top_k_tile", "top_k_columns", "top_k_warp"}
