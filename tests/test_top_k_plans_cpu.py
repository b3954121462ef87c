"""Plans of top_k on the CPU: results sorted and not, rows with lengths and without, by every algorithm.

Every array lies flush against pages that end the process; see `tests.guarded`.
"""

import os
import sys

import numpy as np
import pytest

from dmlops.devices import cpu
from dmlops.operators.problem import KeyMasks
from dmlops.operators.top_k import Problem
from kernels_cpu.top_k import dispatch, plan
from tests import reference
from tests.data import DTYPES, INDEX_DTYPES, assert_same, bits, random, sample
from tests.guarded import Guarded
from tests.scripts import run_script

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="memory protection is asked of Linux"),
    # All types compile many kernels.
    pytest.mark.exhaustive,
]

# Problems that each algorithm is chosen for: threads, rows (of two dimensions), elements of a row, k.
# Rows are contiguous, or else lie beside each other.
WHOLE_ROWS = {
    "short_rows": [(1, (4, 10), 100, 5), (1, (1, 3), 1900, 96), (1, (1, 70), 9, 1), (2, (2, 1000), 65, 8)],
    "rows": [(1, (2, 1), 20_001, 20), (1, (1, 1), 40_000, 700), (3, (1, 1), 300_000, 30)],
    "columns": [(1, (2, 9), 1500, 30), (1, (1, 3), 9000, 200)],
    "side_by_side": [(1, (1, 67), 1500, 9), (2, (2, 71), 900, 60)],
    "sort": [(1, (1, 5), 301, 150), (1, (3, 1), 1000, 140), (1, (2, 1), 90, 90), (1, (3, 3), 300, 300)],
}
ROWS_WITH_LENGTHS = {
    "short_rows": [(1, (4, 10), 100, 5), (1, (1, 3), 1900, 96), (2, (2, 1000), 65, 8)],
    "rows": [(1, (2, 2), 20_001, 20), (1, (1, 3), 40_000, 700), (3, (2, 1), 150_000, 30)],
    "columns": [(1, (2, 9), 1500, 30), (1, (1, 3), 9000, 200), (2, (2, 71), 900, 60)],
    "sort": [(1, (1, 5), 301, 150), (1, (3, 1), 1000, 140), (2, (2, 3), 90, 90), (1, (3, 3), 300, 300)],
}
BESIDE_EACH_OTHER = ("columns", "side_by_side")
PROBLEMS = int(os.environ.get("DMLOPS_GUARDED_PROBLEMS", "160"))


def key_of(dtype):
    """Return the masks that say how elements compare."""
    width = 8 * dtype.itemsize
    sign = 0 if dtype.kind in "bu" else 1 << width - 1
    if dtype.kind in "biu":
        return KeyMasks(sign, 0, (1 << width) - 1)
    return KeyMasks(sign, sign - 1, int(bits(np.asarray(np.inf, dtype))))


def last_of(dtype, largest):
    """Return the value that no element loses to."""
    if dtype.kind == "b":
        return np.asarray(not largest)
    if dtype.kind in "iu":
        return np.asarray(np.iinfo(dtype).min if largest else np.iinfo(dtype).max, dtype)
    return np.asarray(-np.inf if largest else np.inf, dtype)


def expected_of(x, k, *, largest, is_sorted, lengths, index_dtype):
    """Select from each row on its own."""
    *rows, size = x.shape
    values = np.full((*rows, k), last_of(x.dtype, largest))
    indices = np.full((*rows, k), -1).astype(index_dtype)
    for r in np.ndindex(*rows):
        n = size if lengths is None else min(max(int(lengths[r]), 0), size)
        found = reference.top_k(x[r][:n], min(k, n), largest=largest)[1]
        found = found if is_sorted else np.sort(found)
        values[r][: len(found)], indices[r][: len(found)] = x[r][found], found
    return values, indices


def place(rng, values, order=None):
    """Return guarded memory with these values, in some layout; the last of `order` goes forwards."""
    forwards = order[-1:] if order else []
    order = order or [int(d) for d in rng.permutation(values.ndim)]
    sizes = [values.shape[d] for d in order]
    n_outer = int(rng.integers(values.ndim))
    while np.prod(sizes[:n_outer]) > 100:
        n_outer -= 1
    backwards = [d for d in order if d not in forwards and rng.random() < 0.15]
    guarded = Guarded(
        values.shape,
        values.dtype,
        n_outer=n_outer,
        at_end=rng.random() < 0.5,
        order=order,
        backwards=backwards,
    )
    guarded.fill(values)
    return guarded


def elements(rng, dtype, shape, name):
    """Return elements of which all, most, some or few tie."""
    x = sample(dtype, shape, name)
    kind = rng.integers(4)
    if kind == 0:
        return np.full(shape, x.flat[0])
    if kind == 1:
        return np.where(rng.random(shape) < 0.02, x, np.zeros((), dtype))
    if kind == 2:
        return np.sort(rng.integers(0, 100, shape), axis=-1).astype(dtype)
    return x


def lengths_of(rng, rows, n, k, dtype):
    """Return lengths below and above what rows have, and around `k`."""
    limits = np.iinfo(dtype)
    any_length = rng.integers(0, n + 1, rows).astype(dtype)
    around_k = np.clip(k + rng.integers(-2, 3, rows), 0, None).astype(dtype)
    extreme = rng.choice(np.array([limits.min, limits.max, 0, 1, n, n + 1], object), rows).astype(dtype)
    return np.choose(rng.integers(3, size=rows), [any_length, around_k, extreme])


def strides_of(array):
    """Return the strides in elements."""
    return [stride // array.itemsize for stride in array.strides]


def check_problem(algorithm, threads, rows, n, k, *, has_lengths, number):
    """Plan, launch and check a random problem of an algorithm."""
    name = f"{algorithm} {threads} {rows} {n} {k} {has_lengths} {number}"
    rng = random(name)
    choices = DTYPES, INDEX_DTYPES, INDEX_DTYPES
    dtype, index_dtype, length_dtype = (choice[rng.integers(len(choice))] for choice in choices)
    largest, is_sorted = rng.random() < 0.5, has_lengths and rng.random() < 0.5
    x = elements(rng, dtype, (*rows, n), name)
    lengths = lengths_of(rng, rows, n, k, length_dtype) if has_lengths else None
    expected = expected_of(
        x, k, largest=largest, is_sorted=is_sorted, lengths=lengths, index_dtype=index_dtype
    )
    memory = {"x": place(rng, x, [0, 2, 1] if algorithm in BESIDE_EACH_OTHER else [0, 1, 2])}
    if has_lengths:
        memory["lengths"] = place(rng, lengths)
    for output, values in zip(("values", "indices"), expected, strict=True):
        memory[output] = place(rng, np.full(values.shape, 7).astype(values.dtype))
    x, values, indices = (strides_of(memory[operand].array) for operand in ("x", "values", "indices"))
    lengths_keywords = {}
    if has_lengths:
        lengths_keywords = {
            "length_size": length_dtype.itemsize,
            "length_signed": length_dtype.kind == "i",
            "length_strides": strides_of(memory["lengths"].array),
            "padding": int(bits(last_of(dtype, largest))),
        }
    problem = Problem(
        element_size=dtype.itemsize,
        index_size=index_dtype.itemsize,
        masks=key_of(dtype),
        largest=largest,
        k=k,
        axis_size=n,
        rows=[(rows[d], x[d], values[d], indices[d]) for d in range(2)],
        axis_strides=(x[2], values[2], indices[2]),
        is_sorted=is_sorted,
        **lengths_keywords,
    )
    made = plan(problem, cpu.target()._replace(threads=threads))
    assert made.variant.startswith(algorithm)
    # The workspace begins at a multiple of 64, and ends where its page does or less than 64 bytes before.
    workspace = memory["workspace"] = Guarded((-(-made.workspace_size // 64) * 64,), "uint8")
    workspace.fill(rng.integers(0, 256, workspace.array.size))
    operands = ("x", "lengths", "values", "indices", "workspace")
    made.launch(*[memory[operand].array.ctypes.data for operand in operands if operand in memory])
    for output, answer in zip(("values", "indices"), expected, strict=True):
        assert_same(memory[output].array, answer)
    for operand, guarded in memory.items():
        guarded.check(operand)


def check_problems(algorithm, *, has_lengths):
    """Check random problems of an algorithm, with lengths or only unsorted."""
    dispatch.TASK_TIME = 1000  # so that rows as short as these are worth several threads
    problems = (ROWS_WITH_LENGTHS if has_lengths else WHOLE_ROWS)[algorithm]
    for number in range(max(PROBLEMS // 10, len(problems))):
        problem = problems[number % len(problems)]
        print(algorithm, problem, "lengths" if has_lengths else "", number, flush=True)
        check_problem(algorithm, *problem, has_lengths=has_lengths, number=number)


SIMD = pytest.mark.parametrize("simd", ["0", "1"])
CHECK = "from tests.test_top_k_plans_cpu import check_problems; check_problems({!r}, has_lengths={})"


@SIMD
@pytest.mark.parametrize("algorithm", WHOLE_ROWS)
def test_unsorted(algorithm, simd):
    run_script(CHECK.format(algorithm, False), DMLOPS_SIMD=simd)


@SIMD
@pytest.mark.parametrize("algorithm", ROWS_WITH_LENGTHS)
def test_lengths(algorithm, simd):
    run_script(CHECK.format(algorithm, True), DMLOPS_SIMD=simd)
