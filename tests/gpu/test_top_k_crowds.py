"""`top_k` whose candidates fall into few bins: equal elements, alone and among others, and close ones."""

import numpy as np
import pytest

from tests import reference
from tests.cases import Case
from tests.data import assert_same
from tests.gpu.algorithms import ALGORITHMS, forced
from tests.libraries import Torch, call

CHOICES = {choice.name: choice for choice in ALGORITHMS["top_k"]}
N_ROWS, N_ELEMENTS = 3, 30_000


def with_equals(rows, share, value):
    """Return rows of which a share of the elements is replaced."""
    return np.where(np.random.default_rng(6).random(rows.shape) < share, value, rows).astype(rows.dtype)


DATA = {
    "codes": lambda rows: np.floor(rows * 40),
    "equal-largest": lambda rows: with_equals(rows, 0.01, 100),
    "equal-largest-unordered": lambda rows: with_equals(rows, 0.01, np.nan),
    "equal-smallest": lambda rows: with_equals(rows, 0.97, 0),
    # Equal elements in one place, and others that differ in their last bits.
    "equal-together": lambda rows: np.where(np.arange(rows.shape[1]) // 3000 == 4, 7, rows),
    "close": lambda rows: 1 + np.floor(abs(rows) * 500) / (1 << 23),
    "close-and-far": lambda rows: np.where(rows > 1.5, 3 + np.floor(rows * 99) / (1 << 21), rows),
    "descending": lambda rows: -np.arange(rows.size, dtype=rows.dtype).reshape(rows.shape),
    "clamped": lambda rows: rows.clip(-1, 1),
}


def check(name, kind, rows, k, all_options):
    """Have a forced algorithm select from rows, and compare each result with the oracle's."""
    for options in all_options:
        with forced(CHOICES[name]):
            found = call(Torch("cuda"), Case("top_k", kind, lambda: (rows,), (k,), options))
        for actual, answer in zip(found, reference.top_k(rows, k, **options), strict=True):
            assert_same(actual, answer)


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("name", ["block-128", "block-256", "block-1024", "grid", "sampled"])
def test_rows(name, kind, torch):
    rows = np.random.default_rng(4).standard_normal((N_ROWS, N_ELEMENTS), np.float32)
    rows = DATA[kind](rows).astype(np.float32)
    for k in (300, 500, 2048):
        if k > 500 and name in ("block-128", "block-256"):
            continue
        check(name, kind, rows, k, ({}, {"sorted": False}, {"largest": False}))


# The largest elements are so far apart that a cluster has them in few groups, or in one: more than one block
# has room for.
CROWDED_GROUPS = {
    "one-of-64": lambda rows: np.where(np.arange(rows.shape[1]) % 64 == 5, rows + 10, rows),
    "one-of-512": lambda rows: np.where(np.arange(rows.shape[1]) % 512 == 5, rows + 10, rows),
    "together": lambda rows: np.where(np.arange(rows.shape[1]) % 4096 < 40, rows + 10, rows),
}


@pytest.mark.parametrize("kind", [*CROWDED_GROUPS, *DATA])
@pytest.mark.parametrize("name", ["cluster", "cluster-4", "cluster-8", "one_pass", "one_pass-1024"])
def test_few_of_long_rows(name, kind, torch):
    rows = np.random.default_rng(7).standard_normal((N_ROWS, 60_000), np.float32)
    rows = (CROWDED_GROUPS | DATA)[kind](rows).astype(np.float32)
    for k in (1, 2, 20, 32, 50, 100, 128):
        check(name, kind, rows, k, ({}, {"sorted": False}, {"largest": False}))


@pytest.mark.parametrize("kind", [*CROWDED_GROUPS, *DATA])
@pytest.mark.parametrize("name", ["one_pass", "one_pass-1024"])
@pytest.mark.parametrize("dtype", [np.float16, np.uint16, np.int32])
def test_long_rows_that_are_read_once(dtype, name, kind, torch):
    """The second and third of three rows begin between vectors, and zeros are the lowest keys of uint16."""
    rows = np.random.default_rng(8).standard_normal((N_ROWS, 150_003), np.float32)
    rows = (CROWDED_GROUPS | DATA)[kind](rows)
    rows = rows.clip(-60_000, 60_000) if dtype == np.float16 else (np.nan_to_num(rows) * 100).clip(0, 60_000)
    rows = rows.astype(dtype)
    lengths = np.array([150_003, 75_001, 700])
    for k in (1, 50, 128):
        all_options = {}, {"sorted": False}, {"largest": False}, {"lengths": lengths, "sorted": False}
        check(name, kind, rows, k, all_options)


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("n_elements", [100, 256, 1000])
def test_short_rows(kind, n_elements, torch):
    rows = np.random.default_rng(5).standard_normal((500, n_elements), np.float32)
    rows = DATA[kind](rows).astype(np.float32)
    for k in (1, 8, 32):
        check("warp", kind, rows, k, ({}, {"largest": False}))
