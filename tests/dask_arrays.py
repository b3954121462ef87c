"""Dask arrays for tests, and checks of them."""

import dask.array as da
import numpy as np
from dask.array.utils import assert_eq
from hypothesis import strategies as st

from tests.data import assert_same, sample


def check(actual, expected):
    """Check every bit, and that the chunks are what the lazy array said they would be."""
    assert_same(actual.compute(scheduler="sync"), expected)
    assert_eq(actual, expected, scheduler="sync")


@st.composite
def chunked(draw, min_ndim=1, max_ndim=3, dtypes=("float32", "int8", "uint16", "float64")):
    shape = draw(st.lists(st.integers(0, 12), min_size=min_ndim, max_size=max_ndim))
    chunks = []
    for size in shape:
        cuts = sorted(draw(st.lists(st.integers(0, size), max_size=4)))
        chunks.append(tuple(np.diff([0, *cuts, size]).tolist()))
    x = sample(draw(st.sampled_from(dtypes)), tuple(shape), draw(st.integers(0, 99)))
    return x, da.from_array(x, chunks=tuple(chunks))


def with_unknown_rows(x, rows):
    """Give `x` in chunks of so many rows each, and make dask forget how many."""
    keep = np.ones(len(x), bool)
    return da.from_array(x, chunks=(rows, *x.shape[1:]))[da.from_array(keep, chunks=(rows,))]


def with_unknown_columns(x, columns):
    keep = np.ones(x.shape[1], bool)
    return da.from_array(x, chunks=(2, columns))[:, da.from_array(keep, chunks=(columns,))]
