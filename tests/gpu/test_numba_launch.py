"""Kernels are Numba's: those that a plan chooses, launched as ``kernel[blocks, threads](...)``."""

import importlib

import numpy as np
import pytest

from dmlops import DiagonalMatrix1, GatherND1, TensorDataType, TensorDesc
from tests import reference
from tests.cuda_plans import nonzero, planned, top_k
from tests.data import assert_same
from tests.gpu.numba_cuda import numba_cuda

# Small problems are enough to see what a kernel does.
pytestmark = pytest.mark.filterwarnings("ignore:.*Grid size:Warning")

WORKSPACE_BYTES = 1 << 20
FILL = 0xA5


def launched_by_numba(descriptor, inputs, outputs, **arguments):
    """Launch with Numba what a plan launches; return the outputs, and the names of the kernels.

    The other arguments are those of `planned`.
    """
    cuda = numba_cuda()
    compiler = importlib.import_module("kernels_cuda.runtime.compiler")
    capability = tuple(cuda.get_current_device().compute_capability)
    arrays = [cuda.to_device(array) for array in (*inputs, *outputs)]
    workspace = cuda.to_device(np.full(WORKSPACE_BYTES, FILL, np.uint8))
    at = [array.__cuda_array_interface__["data"][0] for array in (*arrays, workspace)]
    arch = "sm_90" if capability >= (9, 0) else "sm_75"
    found = planned(descriptor, arch=arch, at=at, **arguments)
    assert found.plan.workspace_size <= WORKSPACE_BYTES
    for launch in found.asked:
        kernel = compiler.make_kernel(launch.variant, capability)
        compiler.compile_for_numba(kernel)
        arguments = [launch.arguments[name] for name in compiler.parameter_types(kernel)]
        kernel[launch.grid, launch.block, 0, launch.shared_bytes](*arguments)
        assert len(kernel.overloads) == 1
    cuda.synchronize()
    return [array.copy_to_host() for array in arrays[len(inputs) :]], [launch.name for launch in found.asked]


def desc(array):
    """Describe an array of one of these tests."""
    return TensorDesc(TensorDataType[str(array.dtype).upper()], array.shape)


def check(descriptor, inputs, expected, names, **arguments):
    """Launch a plan on the inputs, and compare the outputs and the names of the kernels."""
    outputs = [np.full_like(array, -7) for array in expected]
    found, launched = launched_by_numba(descriptor, inputs, outputs, **arguments)
    for output, array in zip(found, expected, strict=True):
        assert_same(output, array)
    assert launched == names


@pytest.mark.parametrize(("axis_size", "algorithm"), [(300, "rounds"), (5000, "one_pass")])
def test_top_k(axis_size, algorithm):
    x = np.random.default_rng(1).integers(-99, 99, (40, axis_size)).astype(np.float32)
    answer = reference.top_k(x, 7)
    check(top_k(x.shape, 7), [x], answer, [f"top_k_{algorithm}"], algorithm=algorithm)


def test_nonzero_coordinates():
    x = np.random.default_rng(2).integers(0, 3, (300, 200)).astype(np.float32)
    coordinates, count = reference.nonzero_coordinates(x, size=x.size, fill_value=-7)
    check(nonzero(x.shape), [x], [coordinates, count.reshape(1)], ["nonzero_mask", "nonzero_expand"])


def test_gather_nd():
    rng = np.random.default_rng(3)
    x = rng.integers(-99, 99, (30, 20)).astype(np.float32)
    indices = np.stack([rng.integers(-30, 30, 500), rng.integers(-20, 20, 500)], 1)
    descriptor = GatherND1(
        input_tensor=desc(x),
        indices_tensor=desc(indices),
        input_dimension_count=2,
        indices_dimension_count=2,
        batch_dimension_count=0,
        output_tensor=TensorDesc(TensorDataType.FLOAT32, (1, 500)),
    )
    check(descriptor, [x, indices], [x[indices[:, 0], indices[:, 1]][None]], ["gather_planar"])


def test_diagonal_matrix():
    x = np.random.default_rng(4).integers(-99, 99, (3, 50, 70)).astype(np.float32)
    descriptor = DiagonalMatrix1(input_tensor=desc(x), value=5, diagonal_fill_begin=-2, diagonal_fill_end=4)
    check(descriptor, [x], [reference.diagonal_matrix(x, value=5, begin=-2, end=4)], ["diagonal_rows"])
