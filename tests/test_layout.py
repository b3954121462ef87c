"""Arrays of any strides give the answers of their packed copies: functions may merge dimensions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dmlops

pytestmark = pytest.mark.quick

STRIDES = (0, 1, 2, 3, 4, 6, 8, 12, 24, -1, -4)  # in elements


@st.composite
def arrays(draw):
    """Return an array of up to five dimensions, packed or with any strides."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    packed = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    strides = draw(
        st.just(packed) | st.lists(st.sampled_from(STRIDES), min_size=len(sizes), max_size=len(sizes))
    )
    steps = [(size - 1) * stride for size, stride in zip(sizes, strides, strict=True) if size]
    before, after = -sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps)
    memory = np.random.default_rng(0).integers(-3, 4, before + after + 1, np.int32)
    return np.lib.stride_tricks.as_strided(memory[before:], sizes, [4 * stride for stride in strides])


@given(arrays())
def test_strides_change_no_answer(x):
    packed = np.ascontiguousarray(x)
    found = dmlops.nonzero_coordinates(x)
    np.testing.assert_array_equal(found.coordinates, np.argwhere(packed))
    np.testing.assert_array_equal(dmlops.gather_nd(x, found.coordinates), packed[packed != 0])
    for axis in {0, x.ndim - 1}:
        order = np.argsort(-packed, axis=axis, kind="stable")[(slice(None),) * axis + (slice(2),)]
        values, indices = dmlops.top_k(x, min(2, x.shape[axis]), axis=axis)
        np.testing.assert_array_equal(indices, order)
        np.testing.assert_array_equal(values, np.take_along_axis(packed, order, axis))
    if x.ndim > 1:
        np.testing.assert_array_equal(dmlops.tril(x), np.tril(packed))
