"""Dask arrays for tests, and checks of them."""

import os
import signal

import dask.array as da
import numpy as np
from dask.array.utils import assert_eq
from hypothesis import strategies as st

from dmlops.integrations.dask import diagonal_matrix, gather_nd, nonzero_coordinates, top_k
from tests import reference
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


def every_function(convert_x, convert_indices):
    """Return lazy results of all functions, and plain NumPy's, of chunks that are converted first."""
    x = np.random.default_rng(0).integers(-2, 3, (120, 80)).astype("float32")
    indices = np.random.default_rng(1).integers(-120, 120, (50, 1))
    lazy = convert_x(da.from_array(x, chunks=20))
    tuples = convert_indices(da.from_array(indices, chunks=(20, 1)))
    results = (
        *top_k(lazy, 7, axis=0),
        *nonzero_coordinates(lazy),
        gather_nd(lazy, tuples),
        gather_nd(lazy, indices),
        diagonal_matrix(lazy, value=5),
    )
    expected = (
        *reference.top_k(x, 7, axis=0),
        *reference.nonzero_coordinates(x),
        *[reference.gather_nd(x, indices)] * 2,
        reference.diagonal_matrix(x, value=5),
    )
    return results, expected


def kill(chunk, once=None, block_info=None):
    """Kill this process when the last chunk is computed; only for the first time, if `once` is a new path."""
    info = block_info[0]
    is_last = all(i + 1 == n for i, n in zip(info["chunk-location"], info["num-chunks"], strict=True))
    if is_last and (once is None or not once.exists()):
        if once is not None:
            once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return chunk
