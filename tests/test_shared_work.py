"""Work that several threads share: every part is done, and its results are in the right place."""

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.data import assert_same, random

pytestmark = pytest.mark.usefixtures("restore_num_threads")
THREADS = pytest.mark.parametrize("n_threads", [1, 2, 5])


def fenced(shape, dtype, order="C"):
    """Return an output, and the memory around it that nobody may write to."""
    n = int(np.prod(shape))
    memory = np.full(n + 2 * 4096, 77, dtype)
    return memory[4096 : 4096 + n].reshape(shape, order=order), memory


def check_fence(memory):
    assert (memory[:4096] == 77).all()
    assert (memory[-4096:] == 77).all()


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
            out, memory = fenced(shape, "float32")
            dmlops.diagonal_matrix(given, value=3, begin=begin, end=end, out=out)
            assert_same(out, reference.diagonal_matrix(given, value=3, begin=begin, end=end, **made))
            check_fence(memory)


@THREADS
@pytest.mark.parametrize("n_slice", [1, 3, 7, 100])
def test_gathers(n_threads, n_slice):
    dmlops.set_num_threads(n_threads)
    n = 3_000_001 // n_slice
    x = random(n_slice).random((300, n_slice), dtype="float32")
    picks = random("picks").integers(-300, 300, (n, 1))
    out, memory = fenced((n, n_slice), "float32")
    dmlops.gather_nd(x, picks, out=out)
    assert_same(out, x[picks[:, 0]])
    check_fence(memory)
