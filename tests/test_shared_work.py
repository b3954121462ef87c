"""Work that several threads share: every part is done, and its results are in the right place."""

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.data import assert_same, random
from tests.plans import Fenced

pytestmark = pytest.mark.usefixtures("restore_num_threads")
THREADS = pytest.mark.parametrize("n_threads", [1, 2, 5])


@THREADS
@pytest.mark.parametrize("shape", [(1_500_001,), (1201, 1303), (31, 401, 151), (3, 17, 211, 131)])
def test_nonzero_of_each_number_of_columns(n_threads, shape):
    dmlops.set_num_threads(n_threads)
    x = (random(shape).random(shape) < 0.02).astype("float32")
    x[-1, ...] += random("last").random(shape[1:]) < 0.9
    assert_same(dmlops.nonzero_coordinates(x).coordinates, np.argwhere(x))


@THREADS
@pytest.mark.parametrize("shape", [(1, 1001, 1003), (3, 501, 703), (2, 4099, 257)])
def test_diagonals(n_threads, shape):
    """Odd numbers of rows, which the parts do not divide."""
    dmlops.set_num_threads(n_threads)
    x = random(shape).random(shape, dtype="float32")
    for begin, end in ((-300, 200), (200, -300), (0, 0)):
        for given in (x, np.flip(np.flip(x).copy()), None):
            made = {"shape": shape, "dtype": "float32"} if given is None else {}
            fenced = Fenced(np.full(shape, 77, "float32"))
            dmlops.diagonal_matrix(given, value=3, begin=begin, end=end, out=fenced.array)
            answer = reference.diagonal_matrix(given, value=3, begin=begin, end=end, **made)
            assert_same(fenced.array, answer)
            fenced.check()


@THREADS
@pytest.mark.parametrize("n_slice", [1, 3, 7, 100])
def test_gathers(n_threads, n_slice):
    dmlops.set_num_threads(n_threads)
    n = 3_000_001 // n_slice
    x = random(n_slice).random((300, n_slice), dtype="float32")
    picks = random("picks").integers(-300, 300, (n, 1))
    fenced = Fenced(np.full((n, n_slice), 77, "float32"))
    dmlops.gather_nd(x, picks, out=fenced.array)
    assert_same(fenced.array, x[picks[:, 0]])
    fenced.check()
