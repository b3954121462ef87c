"""Layouts as plain integers: merging dimensions keeps the order of elements, and scalars keep their bits."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmlops import TensorDataType
from dmlops.operators.layout import merge
from dmlops.types.scalars import float_bits, float_format, scalar_bits
from tests.data import DTYPES, bits

pytestmark = pytest.mark.quick


def addresses(dims, tensor):
    """Return the addresses that a walk over merged dimensions visits, in order."""
    steps = [range(size) for size, *_ in dims]
    strides = [strides[tensor] for _, *strides in dims]
    return [sum(i * s for i, s in zip(place, strides, strict=True)) for place in itertools.product(*steps)]


@given(
    sizes=st.lists(st.integers(0, 4), max_size=5),
    data=st.data(),
)
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scalar_bits(dtype):
    if dtype.kind in "biu":
        high = 1 if dtype.kind == "b" else int(np.iinfo(dtype).max)
        values = [0, 1, high, *([-1, -high - 1] if dtype.kind == "i" else [])]
    else:
        values = [
            0.0,
            -0.0,
            1.0,
            0.1,
            -1 / 3,
            1e-7,
            6e-8,
            1e-45,
            3e-46,
            65504.0,
            65519.9,
            65520.0,
            3.4e38,
            3.5e38,
        ]
        values += [
            1e308,
            -1e308,
            float("inf"),
            -float("inf"),
            float("nan"),
            1.00390625,
            1.01171875,
        ]
    data_type = TensorDataType[dtype.name.upper()]
    with np.errstate(over="ignore"):
        for value in values:
            rounded = np.array(value).astype(dtype)
            if dtype.kind not in "iu" and np.isinf(rounded) and not np.isinf(value):
                assert float_bits(value, float_format(data_type)) is None, value
            else:
                assert scalar_bits(value, data_type) == int(bits(rounded)), value


def test_scalar_bits_are_rounded_once():
    # A float32 in between would be the middle of two numbers.
    assert scalar_bits(1 + 2**-8 + 2**-40, TensorDataType.BFLOAT16) == 0x3F81
    assert scalar_bits(1 + 2**-8, TensorDataType.BFLOAT16) == 0x3F80
