"""Every algorithm of `top_k` on rows that are hard to select from, against plain NumPy.

Of each algorithm and kind of rows one data type is tried; with ``DMLOPS_ALL_TYPES=1``, all of them are.
"""

import os

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.cases import Case
from tests.data import DTYPES, assert_same
from tests.gpu.algorithms import ALGORITHMS, CannotServeError, forced
from tests.hard_rows import KINDS, OF_BITS, hard_rows
from tests.libraries import Torch, call, expected
from tests.top_k_cases import row_lengths

CHOICES = {choice.name: choice for choice in ALGORITHMS["top_k"]}
ALL_TYPES = os.environ.get("DMLOPS_ALL_TYPES") == "1"
TYPES = (
    *("float32", "float16", "int32", "float32", "int64", "uint8", "float32", "bfloat16", "float64", "uint16"),
    *("float32", "int8", "uint32", "float32", "int16", "uint64"),
)
# The rows that an algorithm is tried with, along an axis, and two numbers of elements that are selected.
ROWS = {
    "rounds": ((90, 500), 1, (8, 50)),
    "block": ((5, 20_003), 1, (300, 1500)),
    "block-128": ((5, 4001), 1, (20, 100)),
    "block-256": ((5, 20_003), 1, (40, 300)),
    "block-512": ((3, 50_001), 1, (300, 500)),
    "block-1024": ((2, 100_003), 1, (300, 2048)),
    "grid": ((1, 200_007), 1, (50, 2048)),
    "grid-coarse_groups": ((1, 600_005), 1, (6, 90)),
    "grid-transposed": ((2, 20_001, 9), 1, (5, 50)),
    "grid-transposed-parts": ((1, 50_001, 9), 1, (5, 50)),
    "grid-transposed-many_launches": ((2, 20_001, 9), 1, (5, 50)),
    "grid-strided": ((1, 20_001, 5), 1, (5, 50)),
    "columns": ((5003, 70), 0, (2, 10)),
    "partition-whole_rows": ((5, 4000), 1, (1100, 4000)),
    "partition-selected": ((5, 4000), 1, (1100, 4000)),
    "partition": ((5, 7001), 1, (900, 2500)),
    "partition-0": ((5, 500), 1, (80, 300)),
    "partition-1": ((5, 1001), 1, (150, 900)),
    "partition-2": ((5, 2001), 1, (150, 900)),
    "partition-3": ((5, 4001), 1, (250, 2000)),
    "cluster": ((2, 60_000), 1, (1, 128)),
    "one_pass": ((2, 150_003), 1, (1, 103)),
    "sampled": ((4, 40_003), 1, (300, 2500)),
    "sort": ((1, 50_003), 1, (700, 50_003)),
    "sort-filtered": ((1, 600_003), 1, (700, 50_003)),
    "sort-selected": ((1, 200_003), 1, (700, 20_003)),
    "sort-in_results": ((2, 50_003), 1, (700, 50_003)),
    "copy": ((40, 5001), 1, (5001, 5001)),
    "one_multiprocessor": ((40, 5001), 1, (8, 300)),
    "many_launches": ((40, 5001), 1, (8, 300)),
}


def along(kind, dtype, shape, axis):
    """Return rows of a kind along an axis of a packed array."""
    others = [size for at, size in enumerate(shape) if at != axis]
    rows = hard_rows(kind, dtype, (int(np.prod(others)), shape[axis]))
    if rows is None:
        return None
    return np.ascontiguousarray(np.moveaxis(rows.reshape(*others, shape[axis]), -1, axis))


def check(name, x, axis, k, **options):
    """Have a forced algorithm select from rows, and compare the result with the oracle's."""
    case = Case("top_k", f"{name} {x.dtype}", lambda: (x,), (k,), {"axis": axis} | options)
    library = Torch("cuda")
    with forced(CHOICES[name]):
        found = call(library, case)
    for actual, answer in zip(found, expected(library, case), strict=True):
        assert_same(actual, answer)


@pytest.mark.parametrize("kind", [*KINDS, *OF_BITS])
@pytest.mark.parametrize("name", CHOICES)
def test_each_algorithm(name, kind, torch):
    shape, axis, (k, more) = ROWS.get(name) or ROWS[name.partition("-")[0]]
    first = 7 * list(CHOICES).index(name) + 5 * [*KINDS, *OF_BITS].index(kind)
    by_name, n_served = {dtype.name: dtype for dtype in DTYPES}, 0
    order = {"sorted": False} if name == "copy" else {}
    for dtype in by_name if ALL_TYPES else (*np.roll(TYPES, -first).tolist(), "bool"):
        x = along(kind, by_name[dtype], shape, axis)
        if x is None:
            continue
        try:
            check(name, x, axis, k, **order)
            check(name, x, axis, k, sorted=False, lengths=row_lengths(x, axis, k, "int32"))
            check(name, x, axis, more, largest=False, lengths=row_lengths(x, axis, more), **order)
            check(name, x, axis, more, sorted=False)
        except CannotServeError:
            continue
        n_served += 1
        if not ALL_TYPES:
            return
    # Few types have clusters, and bools are served by those that read bytes.
    assert n_served or kind == "set_bytes"


@pytest.mark.parametrize("k", [4097, 40_001, 59_999])
@pytest.mark.parametrize("kind", ["distinct", "few", "equal_largest", "descending"])
def test_clusters_select_any_k_by_index(kind, k, torch):
    for dtype in ("int8", "float16", "float32", "uint64"):
        x = along(kind, dtype, (2, 60_000), 1)
        check("cluster", x, 1, k, sorted=False)
        check("cluster", x, 1, k, sorted=False, largest=False, lengths=row_lengths(x, 1, k))


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "uint64"])
@pytest.mark.parametrize("n", [1, 7, 20, 31, 60, 64, 65, 128, 200, 256, 301, 512])
def test_rows_of_a_few_lanes(n, dtype, torch):
    """A warp has rows of any number; the last one may be of fewer, and lanes may have nothing of theirs."""
    for n_rows in (1, 7, 33):
        for kind in ("distinct", "few", "specials", "one_above_the_lowest"):
            x = along(kind, dtype, (n_rows, n), 1)
            for k in {1, min(n, 3), min(n, 8), min(n, 64)}:
                check("rounds", x, 1, k, largest=k % 2 == 1, sorted=k != 8)
    check("rounds", along("few", dtype, (5, n, 13), 1), 1, min(n, 6))
    if (n, dtype) == (128, "float32"):
        check("columns", along("few", dtype, (300, 300), 0), 0, 10)  # one launch: parts are not merged
        for name in ("rounds", "block-128", "partition-whole_rows", "sort"):
            check(name, along("distinct", dtype, (3, 9, 1103), 2)[:, 1:8, 3:1003], 2, 20)


@pytest.mark.parametrize("lead", range(16))
@pytest.mark.parametrize("name", ["block-128", "grid", "one_pass"])
def test_rows_that_begin_anywhere(name, lead, torch):
    """Memory before and after a row would win; its own first and last elements are selected instead."""
    dtype, n = ("uint8", 3333) if name != "one_pass" else ("uint16", 9001)
    memory = np.full(n + 32, np.iinfo(dtype).max, dtype)
    row = memory[lead : lead + n]
    row[:] = along("plateau", dtype, (1, n), 1)[0] % 190
    row[:16] = np.arange(200, 216)
    row[-16:] = np.arange(230, 246)
    x = torch.from_numpy(memory.view(f"i{memory.itemsize}")).cuda().view(getattr(torch, dtype))
    x = x[lead : lead + n]
    assert x.data_ptr() % 16 == lead * memory.itemsize % 16
    with forced(CHOICES[name]):
        found = dmlops.top_k(x, 40)
    for actual, answer in zip(found, reference.top_k(row, 40), strict=True):
        np.testing.assert_array_equal(Torch("cuda").to_numpy(actual), answer)
