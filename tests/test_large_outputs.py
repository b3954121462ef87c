"""NumPy outputs that take over the memory of earlier ones."""

import gc

import numpy as np
import pytest

import dmlops
from dmlops import large_outputs
from dmlops.large_outputs import KEPT, MAX_SIZE, MIN_SIZE

FLOAT32 = np.dtype("float32")


@pytest.fixture(autouse=True)
def _nothing_left():
    large_outputs._left.clear()
    yield
    large_outputs._left.clear()


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_taken_over_by_the_next_array_of_that_size():
    first = large_outputs.empty((MIN_SIZE // 8, 2), FLOAT32)
    was_at = address(first)
    del first
    other = large_outputs.empty((MIN_SIZE // 4 + 1,), FLOAT32)
    assert address(other) != was_at
    second = large_outputs.empty((MIN_SIZE // 8,), np.dtype("int64"))
    assert address(second) == was_at
    assert second.shape == (MIN_SIZE // 8,)
    assert second.dtype == np.int64
    assert second.flags.behaved
    assert second.flags.c_contiguous


def test_memory_in_use_is_left_alone():
    array = large_outputs.empty((MIN_SIZE // 4,), FLOAT32)
    view = array[5:7].reshape(2, 1)
    view[...] = 3
    del array
    gc.collect()
    assert not large_outputs._left
    others = [large_outputs.empty((MIN_SIZE // 4,), FLOAT32) for _ in range(2)]
    for other in others:
        other[:100] = 4
    assert (view == 3).all()
    del view
    assert len(large_outputs._left) == 1


def test_only_a_few_blocks_are_kept():
    arrays = [large_outputs.empty((MIN_SIZE,), np.dtype("uint8")) for _ in range(KEPT + 3)]
    arrays.clear()
    assert len(large_outputs._left) == KEPT


@pytest.mark.parametrize("size", [MIN_SIZE - 1, MAX_SIZE + 1])
def test_other_sizes_are_ordinary_arrays(size):
    assert large_outputs.empty((size,), np.dtype("uint8")).flags.owndata


def test_outputs_of_operators():
    x = np.zeros((MIN_SIZE // 4 // 512, 512), np.float32)
    x[7] = 1
    indices = np.arange(len(x), dtype=np.uint32)[:, None]
    first = dmlops.gather_nd(x, indices, mode="clip")
    was_at = address(first)
    np.testing.assert_array_equal(first, x)
    del first
    second = dmlops.gather_nd(x, indices[::-1].copy(), mode="clip")
    assert address(second) == was_at
    np.testing.assert_array_equal(second, x[::-1])
    third = dmlops.gather_nd(x, indices, mode="clip")
    assert address(third) != was_at
    np.testing.assert_array_equal(second, x[::-1])
