"""`mode="raise"` finds a tuple out of range anywhere, and the first in C order if there are several."""

import numpy as np
import pytest

import dmlops
from tests.data import random

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("restore_num_threads")]

SHAPE = (5, 4, 3, 6, 7)


def tuples_in_range(shape, width, dtype, name):
    """Return tuples, negative coordinates among them where the type has such."""
    lowest = -1 if np.dtype(dtype).kind == "i" else 0
    columns = [random((name, n)).integers(lowest * n, n, shape) for n in SHAPE[:width]]
    return np.stack(columns, -1).astype(dtype)


def check_first(x, indices, place, coordinate):
    """Check that the error names a tuple and its coordinate."""
    outside = tuple(indices[place].tolist())
    with pytest.raises(dmlops.IndexOutOfRangeError) as error:
        dmlops.gather_nd(x, indices)
    start = f"gather_nd.indices: got tuple {outside} at position {place}, but coordinate {coordinate} is "
    assert str(error.value).startswith(start)


@pytest.mark.parametrize(
    ("width", "dtype"), [(1, "int64"), (2, "int64"), (3, "int64"), (5, "int64"), (2, "uint32")]
)
def test_one_index_out_of_range_anywhere(width, dtype):
    """130 tuples: two blocks of 64, and two tuples more."""
    x = np.zeros(SHAPE, "float32")
    indices = tuples_in_range((130,), width, dtype, "anywhere")
    dmlops.gather_nd(x, indices)
    for place in range(130):
        for coordinate in {0, width // 2, width - 1}:
            kept = indices[place, coordinate]
            bound = SHAPE[coordinate]
            wrong = [bound] if dtype == "uint32" else [bound, -bound - 1]
            indices[place, coordinate] = wrong[place % len(wrong)]
            check_first(x, indices, (place,), coordinate)
            indices[place, coordinate] = kept
    dmlops.gather_nd(x, indices)


@pytest.mark.parametrize("stride", [0, 8, 800, -8])
def test_single_coordinates_of_any_stride(stride):
    """A dimension of one element may have any stride."""
    x = np.arange(5, dtype="float32")
    indices = tuples_in_range((70, 1), 1, "int64", "single")[..., 0]
    given = np.lib.stride_tricks.as_strided(indices, (70, 1), (8, stride))
    np.testing.assert_array_equal(dmlops.gather_nd(x, given), x[indices[:, 0]])
    for place in (0, 31, 63, 64, 69):
        kept = indices[place, 0]
        indices[place, 0] = -6
        check_first(x, given, (place,), 0)
        indices[place, 0] = kept


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_two_indices_out_of_range_in_two_parts(n_threads):
    dmlops.set_num_threads(n_threads)
    n = 1_000_003
    x = np.zeros((100, 2), "float32")
    indices = random("parts").integers(-100, 100, (n, 1))
    rng = random(("pairs", n_threads))
    places = [(0, n - 1), (n // 2, n - 1), (0, 1), (n - 2, n - 1)]
    places += [tuple(sorted(rng.choice(n, 2, replace=False).tolist())) for _ in range(6)]
    for first, second in places:
        kept = indices[[first, second], 0]
        indices[[first, second], 0] = 100, -101
        check_first(x, indices, (first,), 0)
        indices[[first, second], 0] = kept
    dmlops.gather_nd(x, indices)
