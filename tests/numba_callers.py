"""Functions that `numba.njit` compiles, arrays for them, and the comparison of their results."""

import numba
import numpy as np

import dmlops
from tests import data


def sample(dtype, shape, name="numba"):
    """Return elements with ties, and with NaN or NaT where the type has them."""
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        return data.sample(f"float{4 * dtype.itemsize}", (*shape, 2), name).view(dtype)[..., 0]
    return data.sample("int64" if dtype.kind in "mM" else dtype, shape, name).view(dtype)


def assert_same(results, expected):
    """Compare arrays, or tuples of them, bit by bit."""
    pairs = zip(results, expected, strict=True) if isinstance(expected, tuple) else [(results, expected)]
    for result, array in pairs:
        assert result.shape == array.shape
        assert result.tobytes() == array.astype(result.dtype).tobytes()


@numba.njit
def select(x, k, axis, largest, is_sorted):
    return dmlops.top_k(x, k, axis=axis, largest=largest, sorted=is_sorted)


@numba.njit
def select_into(x, k, axis, lengths, values, indices):
    return dmlops.top_k(x, k, axis=axis, lengths=lengths, out=(values, indices))


@numba.njit
def find(x, size, fill, coordinates, count):
    trimmed = dmlops.nonzero_coordinates(x, index_dtype="uint32")
    sized = dmlops.nonzero_coordinates(x, size=size, fill_value=fill)
    return trimmed, sized, dmlops.nonzero_coordinates(x, out=(coordinates, count))


@numba.njit
def gather(x, tuples, indices, out):
    picked, filled = (
        dmlops.gather_nd(x, tuples),
        dmlops.gather_nd(x, tuples[:, :, :1], batch_dims=1, mode="fill"),
    )
    return picked, filled, dmlops.gather_nd(x, indices, out=out)


@numba.njit
def fill(x, value, begin, end, out):
    new = dmlops.diagonal_matrix(x, value=value, begin=begin, end=end)
    return new, dmlops.diagonal_matrix(x, value=value, begin=begin, end=end, out=out)


@numba.njit
def make(rows, columns, value, out):
    new = dmlops.diagonal_matrix(shape=(rows, columns), dtype="int16", value=value, end=2)
    return new, dmlops.diagonal_matrix(shape=(rows, columns), value=value), dmlops.diagonal_matrix(out=out)
