"""The algorithm of top_k that begins with samples: these mislead, or many elements equal the threshold."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

from tests import reference
from tests.cases import Case
from tests.data import assert_same
from tests.gpu.algorithms import ALGORITHMS, forced
from tests.libraries import Torch, call
from tests.sampled_rows import misleading_rows, rows_of_special_numbers

(SAMPLED,) = (choice for choice in ALGORITHMS["top_k"] if choice.name == "sampled")
N_ELEMENTS = 40_000


def clamped(rows, share):
    """Return rows whose largest elements are all equal."""
    return np.minimum(rows, np.quantile(rows, 1 - share).astype(rows.dtype))


DATA = {
    "misleading": lambda rows: misleading_rows(rows, 4096),
    # In each row the elements of the sample are equal, and the others are.
    "misleading-equal": lambda rows: misleading_rows(clamped(rows, 0.85), 4096),
    # More equals than there is room for: the first of them are listed.
    "clamped": lambda rows: clamped(rows, 0.1),
    "clamped-few": lambda rows: clamped(rows, 0.03),
    "constant": lambda rows: np.full_like(rows, 3),
    "ascending": lambda rows: np.sort(rows, axis=1),
    # As many elements above the threshold as are selected, or one more or less.
    "steps": lambda rows: np.repeat(np.arange(8), 5000)[None].astype(rows.dtype).repeat(len(rows), 0),
}


@pytest.mark.parametrize("dtype", ["float16", "int16", "float32", "int32", "float64"])
@pytest.mark.parametrize("kind", DATA)
def test_rows(kind, dtype, torch):
    rng = np.random.default_rng(3)
    rows = DATA[kind]((1000 * rng.standard_normal((3, N_ELEMENTS))).astype(dtype))
    lengths = np.linspace(0, N_ELEMENTS, len(rows)).astype("int32")
    for k in (1, 300, 2500):
        for options in ({}, {"sorted": False}, {"largest": False}, {"sorted": False, "lengths": lengths}):
            with forced(SAMPLED):
                found = call(Torch("cuda"), Case("top_k", kind, lambda: (rows,), (k,), options))
            expected = reference.top_k(rows, k, **options)
            for actual, answer in zip(found, expected, strict=True):
                assert_same(actual, answer)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.float32])
def test_floats_that_are_the_threshold(dtype, largest, torch):
    rows = rows_of_special_numbers(dtype, N_ELEMENTS + 3, largest, np.random.default_rng(4))
    options = {"largest": largest, "sorted": largest}
    for k in (300, 1500):
        with forced(SAMPLED):
            found = call(Torch("cuda"), Case("top_k", "special", lambda: (rows,), (k,), options))
        for actual, answer in zip(found, reference.top_k(rows, k, **options), strict=True):
            assert_same(actual, answer)
