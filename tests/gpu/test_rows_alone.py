"""A row of `top_k` has the same answer alone, in any batch, at any position and by any algorithm."""

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.data import random, sample
from tests.gpu.algorithms import ALGORITHMS, CannotServeError, forced

# On both sides of where plans choose another algorithm, by the length of rows and by k.
SIZES = [
    *((500, 3), (500, 8), (500, 9), (500, 400), (4000, 8), (4000, 33), (4000, 1100), (4000, 4000)),
    *((20_000, 8), (20_000, 50), (20_000, 300), (20_000, 3000), (70_000, 1), (70_000, 128), (70_000, 2048)),
    *((70_000, 2049), (70_000, 70_000), (400_000, 50), (400_000, 1000)),
]
N_ROWS = 4
LARGEST_BATCH = 1 << 23


def answer(torch, x, k, axis, is_sorted):
    """Return the bytes of the results for each row."""
    given = torch.from_numpy(np.ascontiguousarray(x if axis else x.T)).cuda()
    values, indices = dmlops.top_k(given, k, axis=axis, sorted=is_sorted)
    found = [result.cpu().numpy() if axis else result.cpu().numpy().T for result in (values, indices)]
    return [tuple(part.tobytes() for part in row) for row in zip(*found, strict=True)]


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_any_batch(n, k, is_sorted, torch):
    rng = random((n, k))
    rows = sample("float32", (N_ROWS, n), n)
    rows[1] = rng.integers(0, 40, n)  # many tie
    rows[2] = np.where(rng.random(n) < 0.5, 0, rows[2])
    alone = [answer(torch, row[None], k, 1, is_sorted)[0] for row in rows]
    values, indices = reference.top_k(rows, k, sorted=is_sorted)
    assert alone == [
        (value.tobytes(), index.astype(np.int64).tobytes())
        for value, index in zip(values, indices, strict=True)
    ]
    for n_rows in (2, 5, 40, 300, 3000):
        order = rng.integers(0, N_ROWS, n_rows)
        if n_rows * n > LARGEST_BATCH:
            break
        for axis in (1, 0):
            assert answer(torch, rows[order], k, axis, is_sorted) == [alone[row] for row in order]
    n_served = 0
    for choice in ALGORITHMS["top_k"]:
        try:
            with forced(choice):
                found = answer(torch, rows[::-1], k, 1, is_sorted)
        except CannotServeError:
            continue
        n_served += 1
        assert found == alone[::-1], choice.name
    assert n_served > 1
