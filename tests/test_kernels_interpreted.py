"""Kernels for GPUs without a GPU: `tests.interpreter` runs random problems, compared byte by byte.

Algorithms are forced. With ``DMLOPS_COMPILE_ALL=1``, these are all that plans can choose, which takes many
minutes; otherwise those that compile quickly, and those whose threads copy while they go on.
"""

import math

import numpy as np
import pytest

from dmlops import AxisDirection, TensorDataType, TensorDesc, TopK1
from dmlops.operators import Options
from tests import reference
from tests.gpu.algorithms import ALGORITHMS
from tests.interpreter.problems import run_case
from tests.kernel_sources import needs_compilations
from tests.marks import COMPILE_ALL
from tests.random_cases import RandomCase, random_case

pytest.importorskip("cuda.core")
pytestmark = needs_compilations

# Longer problems take the interpreter seconds each.
MOST_ELEMENTS = 5000
# A cluster has thousands of threads, and every row takes one.
MOST_CLUSTERS = 16
QUICK = {"rounds", "one_pass", "one_pass-1024", "cluster", "cluster_groups", "masks", "elements"}
COPYING = {"sampled"}
CHOICES = [
    pytest.param(
        *(operator, choice),
        id=str(choice),
        marks=[pytest.mark.exhaustive] if choice.name in COPYING else [],
    )
    for operator, choices in ALGORITHMS.items()
    for choice in choices
    if COMPILE_ALL or choice.name in QUICK | COPYING
]


@pytest.mark.parametrize(("operator", "choice"), CHOICES)
def test_each_algorithm(operator, choice):
    n_served = 0
    for number in range(-1, -60, -1):
        case = random_case(operator, number, MOST_ELEMENTS)
        if choice.name.startswith("cluster") and _n_rows(case.descriptor) > MOST_CLUSTERS:
            continue
        try:
            run_case(case, choice)
        except ValueError as error:
            if "does not take" not in str(error):
                raise
            continue
        n_served += 1
        if n_served == 3:
            return
    assert n_served


def _n_rows(descriptor):
    sizes = descriptor.input_tensor.sizes
    return math.prod(sizes) // sizes[descriptor.axis]


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(("n_elements", "step"), [(20_000, 64), (20_000, 512), (60_000, 512)])
@pytest.mark.parametrize("data_type", [TensorDataType.FLOAT16, TensorDataType.FLOAT32])
def test_few_elements_of_crowded_groups(data_type, n_elements, step, is_sorted):
    """A cluster has no room for a group's candidates, or for those of all, or has room for them."""
    dtype = np.dtype(f"f{data_type.bytes}")
    rows = np.random.default_rng(9).standard_normal((1, n_elements))
    rows = np.where(np.arange(n_elements) % step == 5, rows + 10, rows).astype(dtype)
    run_top_k("cluster", data_type, rows, 50, is_sorted)


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("data_type", "n_elements"), [("FLOAT16", 70_001), ("FLOAT32", 35_001)])
def test_few_groups_have_many_elements(data_type, n_elements, largest, is_sorted):
    """A block that reads a row once has no room for all candidates, and looks for a higher threshold.

    The second row begins and ends between vectors.
    """
    data_type = TensorDataType[data_type]
    rows = np.random.default_rng(9).standard_normal((2, n_elements))
    of_step = np.arange(n_elements) % (512 * 16 // data_type.bytes)
    for n_groups, k in ((40, 50), (90, 128)):
        crowded = np.where(of_step < n_groups, rows + 10, rows)
        crowded[:, [0, -1]] = 20
        crowded = (crowded if largest else -crowded).astype(f"f{data_type.bytes}")
        run_top_k("one_pass", data_type, crowded, k, is_sorted, largest)


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(
    ("name", "n_elements", "k"),
    [("cluster_groups", 20_003, 700), ("cluster_groups-4", 600_067, 20)],
)
@pytest.mark.parametrize(
    ("data_type", "data"),
    [
        (TensorDataType.FLOAT16, "random"),
        (TensorDataType.UINT8, "few"),
        (TensorDataType.UINT32, "few"),
        (TensorDataType.UINT32, "zeros"),
    ],
)
def test_groups_of_long_rows(data_type, data, name, n_elements, k, is_sorted):
    """A row begins between vectors; zeros are the lowest keys, as what is not there is."""
    rng = np.random.default_rng(10)
    rows = rng.integers(0, 200, (2, n_elements))
    rows *= {"random": 1, "few": rng.random(rows.shape) < 0.001, "zeros": 0}[data]
    if data == "few":
        # Outside of all vectors, but for the first of the first row.
        rows[:, [0, -1]] = 201
    dtype = {1: np.uint8, 2: np.float16, 4: np.uint32}[data_type.bytes]
    run_top_k(name, data_type, rows.astype(dtype), k, is_sorted)


def run_top_k(name, data_type, rows, k, is_sorted, largest=True):
    """Have a forced algorithm select from rows, and compare every byte with the oracle's."""
    values, indices = reference.top_k(rows, k, sorted=is_sorted, largest=largest)
    descriptor = TopK1(
        input_tensor=TensorDesc(data_type, rows.shape),
        axis=1,
        k=k,
        axis_direction=AxisDirection.DECREASING if largest else AxisDirection.INCREASING,
        output_value_tensor=TensorDesc(data_type, values.shape),
        output_index_tensor=TensorDesc(TensorDataType.INT64, values.shape),
    )
    after = {"input_tensor": rows, "output_value_tensor": values, "output_index_tensor": indices}
    after = {field: operand.ravel().view(np.uint8) for field, operand in after.items()}
    before = {field: np.zeros_like(operand) for field, operand in after.items()} | {
        "input_tensor": after["input_tensor"]
    }
    (choice,) = (choice for choice in ALGORITHMS["top_k"] if choice.name == name)
    run_case(RandomCase("top_k", name, descriptor, Options(is_sorted=is_sorted), before, after), choice)


TIES = {
    "constant": np.ones_like,
    "two": lambda rows: rows > 0,
    "few": lambda rows: np.floor(rows * 2),
    "mostly_zeros": lambda rows: rows * (rows > 1.9),
    "clamped": lambda rows: rows.clip(-1, 1),
    "close": lambda rows: 1 + np.floor(abs(rows) * 3) / (1 << 23),
    "lowest": lambda rows: np.full_like(rows, -np.inf),
    "last_of_vectors": lambda rows: np.where(np.arange(rows.shape[1]) % 4 == 3, 9, rows),
    # The first element, and one of each of many vectors that lie together, of a later step.
    "late": lambda rows: np.where(_is_late(np.arange(rows.shape[1])), 9, rows),
}


def _is_late(positions):
    return (positions == 0) | ((positions // 512 == 16) & (positions % 4 == 0))


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("kind", TIES)
@pytest.mark.parametrize("n_elements", [100, 256, 1000])
def test_ties_of_short_rows(n_elements, kind, is_sorted):
    """One warp per row finds more elements that equal its threshold than it has room for."""
    rows = np.random.default_rng(11).standard_normal((5, n_elements), np.float32)
    rows = TIES[kind](rows).astype(np.float32)
    for k in (1, 8, 32):
        run_top_k("warp", TensorDataType.FLOAT32, rows, k, is_sorted)


@pytest.mark.parametrize("kind", TIES)
@pytest.mark.parametrize(
    ("name", "k"), [("cluster", 600), ("cluster_groups", 600), ("one_pass", 103), ("one_pass-1024", 30)]
)
def test_ties_of_long_rows(name, k, kind):
    """Blocks find that all keys of a range are equal, or that they are not; or read few vectors again."""
    rows = np.random.default_rng(12).standard_normal((1, 20_003), np.float32)
    rows = TIES[kind](rows).astype(np.float32)
    run_top_k(name, TensorDataType.FLOAT32, rows, k, is_sorted=False)
