"""Calls of the operators on NumPy data, by way of any array library, and comparisons with the oracles."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

import dmlops
from tests import reference
from tests.data import assert_same, float_from_bits, random

INT32_MAX, INT64_MIN, INT64_MAX = 2**31 - 1, -(2**63), 2**63 - 1
# Farther from the main diagonal than any element of any matrix.
FAR = 2**100
POSITIVE_NAN, NEGATIVE_NAN = float_from_bits([0x7FC00000, 0xFFC00000], "float32")


def normal(name, shape, dtype="float32"):
    """Return normally distributed values."""
    return random(name).standard_normal(shape).astype(dtype)


def skip_without(library, dtype):
    """Skip a test of a type that the library does not have."""
    if library.name == "cupy" and dtype == bfloat16:
        pytest.skip("CuPy has no bfloat16")


def top_k(library, x, k, **options):
    """Return values and indices as NumPy arrays, the indices as int64."""
    values, indices = dmlops.top_k(library.from_numpy(x), k, **options)
    return library.to_numpy(values), library.to_numpy(indices).astype(np.int64)


def check_top_k(library, x, k, **options):
    """Compare every bit of a top-k with the oracle."""
    values, indices = top_k(library, x, k, **options)
    expected_values, expected_indices = reference.top_k(x, k, **options)
    assert_same(values, expected_values)
    np.testing.assert_array_equal(indices, expected_indices)


def nonzero(library, x, **options):
    """Return the coordinates as an int64 array, and the count as an integer."""
    coordinates, count = dmlops.nonzero_coordinates(library.from_numpy(x), **options)
    return library.to_numpy(coordinates).astype(np.int64), library.to_numpy(count).item()


def check_nonzero(library, x):
    """Compare coordinates and count with NumPy's."""
    coordinates, count = nonzero(library, x)
    assert_same(coordinates, np.argwhere(x).astype(np.int64))
    assert count == np.count_nonzero(x)


def gather_nd(library, x, indices, **options):
    """Return the gathered elements as a NumPy array."""
    indices = library.from_numpy(np.asarray(indices))
    return library.to_numpy(dmlops.gather_nd(library.from_numpy(x), indices, **options))


def triu(library, x, k=0):
    """Return the elements on and above diagonal `k`, zeros below it."""
    return library.to_numpy(dmlops.diagonal_matrix(library.from_numpy(x), value=0, begin=-FAR, end=k))


def tril(library, x, k=0):
    """Return the elements on and below diagonal `k`, zeros above it."""
    return library.to_numpy(dmlops.diagonal_matrix(library.from_numpy(x), value=0, begin=k + 1, end=FAR))
