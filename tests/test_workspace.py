"""The size of workspaces: a share of the input or output that does not depend on the data."""

import numpy as np
import pytest

from dmlops import DiagonalMatrix1, NonzeroCoordinates, TensorDataType, TensorDesc
from tests import plans
from tests.compiled import gather_of
from tests.cuda_plans import planned, top_k
from tests.marks import nightly
from tests.plans import kernels_not_loaded

MIB = 1 << 20
# A problem of any size may require this many bytes beyond its share.
SLACK = MIB
TYPES = (TensorDataType.UINT8, TensorDataType.FLOAT16, TensorDataType.FLOAT32, TensorDataType.INT64)


def on_cpu(descriptor):
    """Return the workspace on the CPU; no kernel is loaded, which may have to be compiled."""
    with kernels_not_loaded():
        return plans.planned(descriptor)[0].workspace_size


def on_cuda(arch):
    """Return a function for the workspace on a GPU that need not be there: no kernel is loaded."""
    pytest.importorskip("numba_cuda")
    pytest.importorskip("cuda.core")

    def workspace_of(descriptor, options=None):
        return planned(descriptor, options, arch=arch).plan.workspace_size

    return workspace_of


@pytest.fixture(params=["cpu", "sm_75", "sm_90"])
def workspace_of(request):
    """Serve the workspace of each device in turn."""
    return on_cpu if request.param == "cpu" else on_cuda(request.param)


@pytest.mark.parametrize("data_type", TYPES, ids=str)
@pytest.mark.parametrize(
    ("sizes", "axis", "k"),
    [
        ((1, 1 << 20), 1, 100),
        ((1, 100_000_000), 1, 100),
        ((1, 1 << 28), 1, 1000),
        ((256, 50_257), 1, 50),
        ((8192, 256), 1, 8),
        ((64, 131_072), 1, 2048),
        ((1024, 131_072), 1, 2048),
        ((4096, 65_536), 0, 16),
        ((50_257, 256), 0, 50),
        ((4096, 4095), 0, 8),
        ((2, 50_000, 30, 70), 1, 70),
    ],
)
def test_top_k_of_few(data_type, sizes, axis, k, workspace_of):
    descriptor = top_k(sizes, k, axis, data_type, TensorDataType.UINT32)
    n_bytes = descriptor.input_tensor.element_count * data_type.bytes
    assert workspace_of(descriptor) <= n_bytes // 4 + SLACK


@pytest.mark.parametrize("data_type", TYPES, ids=str)
@pytest.mark.parametrize("sizes", [(1, 1 << 20), (1, 16_000_000), (1, 1 << 28), (64, 131_072)])
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_top_k_of_all(arch, data_type, sizes):
    descriptor = top_k(sizes, sizes[1], 1, data_type, TensorDataType.UINT32)
    # A pair of a key and a position takes one word of 8 bytes, or two.
    pairs = descriptor.input_tensor.element_count * (8 if data_type.bytes <= 4 else 16)
    # Two copies of the pairs, and some counts per tile.
    assert on_cuda(arch)(descriptor) <= 2 * pairs + pairs // 5 + SLACK


@pytest.mark.parametrize("data_type", TYPES, ids=str)
@pytest.mark.parametrize(
    ("sizes", "k"), [((1, 100_000_000), 50_000_000), ((1, 1 << 28), 1 << 27), ((64, 131_072), 100_000)]
)
def test_top_k_of_many_by_index(data_type, sizes, k):
    """Nothing is sorted: there is room for counts alone."""
    pytest.importorskip("numba_cuda")
    pytest.importorskip("cuda.core")
    found = planned(top_k(sizes, k, 1, data_type, TensorDataType.UINT32), {"is_sorted": False})
    n_elements = sizes[0] * sizes[1]
    assert found.plan.workspace_size <= n_elements * max(4, data_type.bytes) // 10 + SLACK


# Bytes for each selected element, by those of an index and of an element.
OF_SELECTED = {4: {1: 10, 2: 8.5, 4: 8.5, 8: 12.5}, 8: {1: 10, 2: 4.25, 4: 4.25, 8: 8.5}}


def most_scratch(n_bytes, size, k, data_type, index_type):
    """Return what docs/operators/top_k.md promises of rows that lie one after the other."""
    n_elements = n_bytes // data_type.bytes
    if size * 3 // 4 < k < size:
        return max(n_elements * (18 if data_type.bytes <= 4 else 36), 272 * MIB)
    n_selected = n_elements // size * k
    limit = max(n_bytes if k > size // 16 else n_bytes // 10, 256 * MIB)
    of_selected = OF_SELECTED[index_type.bytes][data_type.bytes] * n_selected
    return max(limit + limit // 16, of_selected)


@pytest.mark.parametrize("data_type", TYPES, ids=str)
@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("index_type", [TensorDataType.UINT32, TensorDataType.UINT64], ids=str)
@pytest.mark.parametrize("n_problems", [100, nightly(1000)])
def test_top_k_of_any_problem(data_type, is_sorted, index_type, n_problems):
    """No data can ask for more: the workspace is the plan's."""
    workspace_of = on_cuda("sm_90")
    numbers = np.random.default_rng(data_type.bytes)
    large = 0
    for _ in range(n_problems):
        n_rows = int(2 ** numbers.uniform(0, 12))
        size = int(2 ** (30 * numbers.random() ** 0.4)) // n_rows
        if size == 0:
            continue
        shares = [1 / 1000, 1 / 64, 1 / 16, 1 / 15, 1 / 9, 1 / 5, 1 / 4, 1 / 2, 0.9, 1]
        k = max(1, int(size * numbers.choice(shares)))
        descriptor = top_k((n_rows, size), k, 1, data_type, index_type)
        n_bytes = n_rows * size * data_type.bytes
        found = workspace_of(descriptor, {"is_sorted": is_sorted})
        assert found <= most_scratch(n_bytes, size, k, data_type, index_type) + SLACK, (n_rows, size, k)
        large += n_bytes > 2560 * MIB
    assert large > 0 or data_type.bytes < 4


@pytest.mark.parametrize("data_type", TYPES, ids=str)
@pytest.mark.parametrize("sizes", [(5,), (1000,), (1 << 20,), (8192, 8192), (1 << 30,), (64, 100, 100, 100)])
def test_nonzero(data_type, sizes, workspace_of):
    descriptor = NonzeroCoordinates(input_tensor=TensorDesc(data_type, sizes))
    assert workspace_of(descriptor) <= descriptor.input_tensor.element_count // 8 + MIB


@pytest.mark.parametrize("data_type", TYPES, ids=str)
def test_gather_and_diagonal_ask_for_none(data_type, workspace_of):
    x = TensorDesc(data_type, (30, 1000, 1024))
    indices = TensorDesc(TensorDataType.INT64, (1, 50_000, 2))
    band = {"value": 1, "diagonal_fill_begin": -3, "diagonal_fill_end": 5}
    for descriptor in (
        gather_of(x, indices),
        DiagonalMatrix1(input_tensor=x, **band),
        DiagonalMatrix1(output_tensor=TensorDesc(data_type, (3, 5, 7), (1, 9, 100)), **band),
    ):
        assert workspace_of(descriptor) == 0
