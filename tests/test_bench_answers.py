"""The benchmark's check of dmlops' answers: it finds mistakes, and only mistakes."""

import numpy as np
import pytest

import dmlops
from bench import answers
from bench.data import NumPySource
from bench.peers import Task
from bench.workloads import DiagonalMatrix, GatherND, NonzeroCoordinates, TopK

pytestmark = pytest.mark.quick


@pytest.fixture(params=["numpy", "torch"])
def convert(request):
    """Return what makes an array of each library that the check has words for."""
    if request.param == "numpy":
        return lambda array: array
    torch = pytest.importorskip("torch")

    def to_torch(array):
        signed = array.view(np.int32) if array.dtype == np.uint32 else array
        return torch.from_numpy(signed)

    return to_torch


def fault_of(convert, workload, inputs, *results):
    """Return what the check says of an answer."""
    task = Task(workload, tuple(map(convert, inputs)))
    answer = tuple(map(convert, results))
    return answers.fault(task, answer if len(answer) > 1 else answer[0])


def fault_of_top_k(convert, row, indices, largest=True):
    """Return what the check says of these indices and the values that they point at."""
    x = np.asarray(row, np.float32)[None]
    indices = np.array([indices], np.uint32)
    workload = TopK(name="", shape=x.shape, k=indices.size, largest=largest)
    return fault_of(convert, workload, (x,), np.take_along_axis(x, indices.astype(np.int64), 1), indices)


@pytest.mark.parametrize("row", [[1] * 8, [1, 1, 1, 1, 1, 0, 0, 0]], ids=["all equal", "the largest"])
def test_ties_out_of_order_are_seen(convert, row):
    assert fault_of_top_k(convert, row, [0, 1, 2, 3]) is None
    # The last one is where it belongs, and the same elements are selected.
    for swapped in ([1, 0, 2, 3], [0, 2, 1, 3], [2, 1, 0, 3]):
        assert fault_of_top_k(convert, row, swapped)
    assert fault_of_top_k(convert, row, [0, 1, 3, 2])


def test_elements_that_are_missed_or_told_twice_are_seen(convert):
    assert fault_of_top_k(convert, [1] * 8, [0, 1, 3])
    assert fault_of_top_k(convert, [1] * 8, [0, 2, 2])
    assert fault_of_top_k(convert, [1, 2, 3, 4], [3, 1])
    assert fault_of_top_k(convert, [1, 2, 3, 4], [0, 2], largest=False)


SPECIAL = np.array([0x7FC00000, 0xFFC00000, 0x7F800123, 0, 1 << 31, 0x7F800000, 0xFF800000], np.uint32)


@pytest.mark.parametrize(
    ("largest", "right"), [(True, [0, 1, 2, 5, 3, 4, 6]), (False, [6, 3, 4, 5, 0, 1, 2])]
)
def test_all_nan_are_ties_and_so_are_both_zeros(convert, largest, right):
    row = SPECIAL.view(np.float32)
    assert fault_of_top_k(convert, row, right, largest) is None
    for first, second in ((0, 1), (1, 2), (3, 4)):
        exchange = {first: second, second: first}
        assert fault_of_top_k(convert, row, [exchange.get(each, each) for each in right], largest)


def test_values_that_are_equal_are_not_the_same(convert):
    gather = GatherND(name="", shape=(2,), tuples=1, coordinates=1, batch_dims=0)
    inputs = np.array([0, 1], np.float32), np.zeros((1, 1), np.uint32)
    assert fault_of(convert, gather, inputs, np.array([0.0], np.float32)) is None
    assert fault_of(convert, gather, inputs, np.array([-0.0], np.float32))
    diagonal = DiagonalMatrix(name="", shape=(2, 2), begin=0, end=1, value=0.0)
    filled = np.array([[0, 1], [1, 0]], np.float32)
    assert fault_of(convert, diagonal, (np.ones((2, 2), np.float32),), filled) is None
    filled[1, 1] = -0.0
    assert fault_of(convert, diagonal, (np.ones((2, 2), np.float32),), filled)


def test_coordinates_that_are_out_of_range_are_seen(convert):
    workload = NonzeroCoordinates(name="", shape=(2, 3), density=0.5)
    x = np.array([[0, 1, 0], [0, 1, 1]], np.float32)
    count = np.array([3], np.uint32)
    assert fault_of(convert, workload, (x,), np.argwhere(x).astype(np.uint32), count) is None
    # Row 0 has no column 4; the element that this would be is the right one.
    beyond = np.array([[0, 1], [0, 4], [1, 2]], np.uint32)
    assert fault_of(convert, workload, (x,), beyond, count)
    assert fault_of(convert, workload, (x,), np.argwhere(x).astype(np.uint32), count - 1)
    assert fault_of(convert, workload, (x,), np.argwhere(x)[:2].astype(np.uint32), count)


@pytest.mark.parametrize("data", ["normal", "ties", "nan"])
def test_answers_by_index(convert, data):
    x = NumPySource().make(data, (3, 60), "float32")
    workload = TopK(name="", shape=x.shape, k=9, is_sorted=False)
    values, indices = dmlops.top_k(x, 9, sorted=False, index_dtype=np.uint32)
    assert fault_of(convert, workload, (x,), values, indices) is None
    order = np.argsort(indices[:, ::-1] % 2, axis=1, kind="stable")
    turned = (np.take_along_axis(array, order, 1) for array in (values, indices))
    assert fault_of(convert, workload, (x,), *turned)
    # The next element in place of a selected one.
    missed = np.setdiff1d(np.arange(60), indices[0])[-1]
    others = np.sort(np.append(indices[0, :-1], np.uint32(missed)))
    indices[0], values[0] = others, x[0, others]
    assert fault_of(convert, workload, (x,), values, indices)


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        ("lengths", (3, 50)),
        ("windows", (3, 50)),
        ("equal", (460,)),
        ("long_tail", (460,)),
        ("numbers", (3, 50)),
    ],
)
def test_rows_of_windows_segments_and_numbers(convert, rows, shape, is_sorted):
    workload = TopK(name="", shape=shape, k=20, rows=rows, is_sorted=is_sorted, data="ties")
    inputs = workload.inputs(NumPySource())
    values, indices = dmlops.top_k(
        inputs[0], 20, sorted=is_sorted, **dict(zip(workload.names, inputs[1:], strict=True))
    )
    assert fault_of(convert, workload, inputs, values, indices) is None
    for row, other in ((0, 1), (2, 9)):
        wrong = values.copy(), indices.copy()
        wrong[1][row, [0, other]] = wrong[1][row, [other, 0]]
        assert fault_of(convert, workload, inputs, *wrong)
