"""Elements more than 2^31 and 2^32 apart, in sparse memory that exists only where it is touched."""

import mmap
import sys

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.data import as_strided, assert_same, sample

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems may want all of the memory")

# The mmap module has this constant from Python 3.13 on.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
STEPS = [2**31 + 1, 2**32 + 1, -(2**32) - 1]


def sparse_memory(n, dtype):
    """Return `n` zeros, of which those take memory that are written to."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    try:
        return np.frombuffer(mmap.mmap(-1, n * np.dtype(dtype).itemsize, flags=flags), dtype)
    except OSError:
        pytest.skip("the system gives out no addresses that it has no memory for")


def far(array, axis, step):
    """Return a copy whose neighbours along an axis are `step` elements apart."""
    others = [n for d, n in enumerate(array.shape) if d != axis]
    strides = [int(np.prod(others[d + 1 :])) for d in range(len(others))]
    strides.insert(axis, step)
    reach = (array.shape[axis] - 1) * abs(step)
    memory = sparse_memory(reach + array.size, array.dtype)
    placed = as_strided(memory[reach if step < 0 else 0 :], array.shape, strides)
    placed[...] = array
    return placed


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("axis", [0, 1])
def test_top_k(step, axis):
    x = sample("float32", (3, 50) if axis == 0 else (50, 3), "far")
    for along in (0, 1):
        expected = reference.top_k(x, 2, axis=along)
        out = tuple(far(np.zeros_like(array), axis, step) for array in expected)
        dmlops.top_k(far(x, axis, step), 2, axis=along, out=out)
        for got, array in zip(out, expected, strict=True):
            assert_same(got, array)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("axis", [0, 1])
def test_nonzero_coordinates(step, axis):
    x = sample("float32", (3, 50) if axis == 0 else (50, 3), "far")
    coordinates, count = reference.nonzero_coordinates(x)
    out = far(np.zeros_like(coordinates), 1, step), np.zeros((), "int64")
    dmlops.nonzero_coordinates(far(x, axis, step), out=out)
    assert_same(out[0], coordinates)
    assert out[1] == count
    assert_same(dmlops.nonzero_coordinates(far(x, axis, step)).coordinates, coordinates)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_nd(step, axis):
    x = sample("float32", (3, 3, 3), "far")
    indices = np.random.default_rng(2).integers(-3, 3, (7, 2))
    expected = reference.gather_nd(x, indices)
    out = far(np.zeros_like(expected), 1, step)
    dmlops.gather_nd(far(x, axis, step), far(indices, 1, step), out=out)
    assert_same(out, expected)
    assert_same(dmlops.gather_nd(far(x, axis, step), far(indices[:3], 0, step), mode="clip"), expected[:3])


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_diagonal_matrix(step, axis):
    x = sample("float32", (3, 3, 3), "far")
    expected = reference.diagonal_matrix(x, value=7, begin=-1, end=1)
    out = far(np.zeros_like(x), axis, step)
    dmlops.diagonal_matrix(far(x, axis, step), value=7, begin=-1, end=1, out=out)
    assert_same(out, expected)
