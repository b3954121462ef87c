"""A workspace of exactly the required size, at any address: nothing outside it is written."""

import numpy as np
import pytest

import dmlops
from dmlops import (
    AxisDirection,
    InvalidDescriptorError,
    NonzeroCoordinates,
    TensorDataType,
    TensorDesc,
    TopK1,
)
from tests import reference
from tests.data import assert_same, sample

pytestmark = pytest.mark.quick

CANARY = 0xA5


def top_k(shape, k):
    """Describe a selection along the last axis."""
    return TopK1(
        input_tensor=TensorDesc(TensorDataType.FLOAT32, shape),
        axis=len(shape) - 1,
        k=k,
        axis_direction=AxisDirection.DECREASING,
    )


@pytest.fixture(params=[(3, 40, 5), (2, 3000, 700)], ids=str)
def selection(request):
    """Serve operators with arrays and what NumPy answers."""
    rows, columns, k = request.param
    x = sample("float32", (rows, columns), "workspace")
    arrays = {
        "input_tensor": x,
        "output_value_tensor": np.empty((rows, k), "float32"),
        "output_index_tensor": np.empty((rows, k), "uint32"),
    }
    return dmlops.compile(top_k(x.shape, k)), arrays, reference.top_k(x, k)


@pytest.mark.parametrize("start", [0, 1, 3, 8, 64, 255, 256])
def test_nothing_around_it_is_written(selection, start):
    operator, arrays, (values, indices) = selection
    size = operator.workspace_size
    memory = np.full(size + 1024, CANARY, np.uint8)
    aligned = -memory.ctypes.data % 256
    workspace = memory[aligned + start :][:size]
    for _ in range(3):
        arrays["output_value_tensor"][...] = 77
        operator.execute(arrays, workspace)
        assert_same(arrays["output_value_tensor"], values)
        assert_same(arrays["output_index_tensor"], indices.astype("uint32"))
        assert (memory[: aligned + start] == CANARY).all()
        assert (memory[aligned + start + size :] == CANARY).all()
    assert (workspace != CANARY).any()


def test_its_elements_may_be_of_any_type(selection):
    operator, arrays, (values, _) = selection
    n = -(-operator.workspace_size // 8)
    for workspace in (np.empty(n, "float64"), np.empty((n, 2), "int32"), np.empty((2, n, 4), bool)):
        arrays["output_value_tensor"][...] = 77
        operator.execute(arrays, workspace)
        assert_same(arrays["output_value_tensor"], values)
    for workspace in (np.empty(n - 1, "float64"), np.empty((n - 1, 2), "int32")):
        with pytest.raises(InvalidDescriptorError, match=f"{8 * (n - 1)} bytes, .* more"):
            operator.execute(arrays, workspace)


@pytest.mark.parametrize("start", [0, 1, 8, 255])
def test_nonzero_coordinates(start):
    """Its counts are the last words of what it uses."""
    x = np.where(np.arange(900) % 7 == 0, sample("float32", (300, 900), "workspace"), np.float32(0))
    operator = dmlops.compile(
        NonzeroCoordinates(input_tensor=TensorDesc(TensorDataType.FLOAT32, x.T.shape, (1, 900)))
    )
    size = operator.workspace_size
    assert size > 0
    memory = np.full(size + 1024, CANARY, np.uint8)
    first = -memory.ctypes.data % 256 + start
    coordinates, count = np.empty((x.size, 2), "uint32"), np.empty((1, 1), "uint32")
    operator.execute(
        {"input_tensor": x.T, "output_coordinates_tensor": coordinates, "output_count_tensor": count},
        memory[first:][:size],
    )
    expected = np.argwhere(x.T != 0)
    assert count.item() == len(expected)
    np.testing.assert_array_equal(coordinates[: len(expected)], expected)
    assert (memory[:first] == CANARY).all()
    assert (memory[first + size :] == CANARY).all()
