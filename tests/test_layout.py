"""Layouts as plain integers: merging dimensions keeps the order of elements, and scalars keep their bits."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmlops.operators.layout import merge

pytestmark = pytest.mark.quick


def addresses(dims, tensor):
    """Return the addresses that a walk over merged dimensions visits, in order."""
    steps = [range(size) for size, *_ in dims]
    strides = [strides[tensor] for _, *strides in dims]
    return [sum(i * s for i, s in zip(place, strides, strict=True)) for place in itertools.product(*steps)]


@given(sizes=st.lists(st.integers(0, 4), max_size=5), data=st.data())
def test_merging_keeps_the_walk(sizes, data):
    choices = st.lists(
        st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 24, -1, -4]), min_size=len(sizes), max_size=len(sizes)
    )
    packed = [int(np.prod(sizes[axis + 1 :])) for axis in range(len(sizes))]
    tensors = [data.draw(st.just(packed) | choices) for _ in range(2)]
    merged = merge(sizes, *tensors)
    assert all(size != 1 for size, *_ in merged)
    assert len(merged) <= len(sizes)
    for tensor, strides in enumerate(tensors):
        unmerged = tuple(zip(sizes, strides, strict=True))
        assert addresses(merged, tensor) == addresses(unmerged, 0)


@pytest.mark.parametrize(
    ("sizes", "strides", "expected"),
    [
        ((), (), ()),
        ((1, 1), (5, 9), ()),
        ((2, 3, 4), (12, 4, 1), ((24, 1),)),
        ((2, 3, 4), (0, 0, 0), ((24, 0),)),
        ((2, 3, 4), (-12, -4, -1), ((24, -1),)),
        ((2, 3, 4), (16, 4, 1), ((2, 16), (12, 1))),
        ((2, 1, 4), (4, 77, 1), ((8, 1),)),
    ],
)
def test_merged_dimensions(sizes, strides, expected):
    assert merge(sizes, strides) == expected
