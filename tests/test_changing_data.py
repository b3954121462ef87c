"""Elements of the inputs change while a call runs: the answer may be anything, but no access is outside.

In some tests, the memory of an input is also memory that the kernel itself writes to, so that it changes at
the same moment in every run. In the others, threads write to the inputs all the time. Operands and scratch
are flush against pages that end the process when they are touched, canaries fill the rest of their pages, and
scratch holds nothing that an earlier call has left there. `DMLOPS_CHANGING_SECONDS` asks for longer runs, and
`DMLOPS_STRESS_SEED` for others.
"""

import os
import sys
import threading
import time
from itertools import product
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest

import dmlops
from dmlops import IndexOutOfRangeError
from dmlops.calls import fast_path
from dmlops.devices import cpu
from dmlops.operators.top_k import Problem
from kernels_cpu import processor
from kernels_cpu.top_k import plan
from kernels_cpu.top_k.problem import GROUP
from tests import reference
from tests.data import random, sample
from tests.guarded import Guarded
from tests.scripts import run_script
from tests.test_top_k_plans_cpu import key_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory protection is asked of Linux")

SECONDS = float(os.environ.get("DMLOPS_CHANGING_SECONDS", "1"))
SEED = int(os.environ.get("DMLOPS_STRESS_SEED", "0"))
N_THREADS = 2
FAR = 1 << 40
UNWRITTEN = 0xA5


def top_k_plan(dtype, k, rows, row_strides, axis_size, *, sizes=(8, 8), threads=1, length_strides=()):
    """Return the plan of the largest elements of rows; results are packed."""
    result_strides = [int(np.prod(rows[d + 1 :])) * k for d in range(len(rows))]
    index_size, length_size = sizes
    problem = Problem(
        element_size=np.dtype(dtype).itemsize,
        index_size=index_size,
        masks=key_of(np.dtype(dtype)),
        largest=True,
        k=k,
        axis_size=axis_size,
        rows=[(n, x, result, result) for n, x, result in zip(rows, row_strides, result_strides, strict=True)],
        axis_strides=(1, 1, 1),
        length_size=length_size if length_strides else 0,
        length_strides=length_strides,
    )
    return plan(problem, cpu.target()._replace(threads=threads))


def select_from_own_lists(dtype, k):
    """Select from a row of which the last element to be selected is where the kernel lists the first one.

    Once the threshold is known, that element is overwritten: fewer than `k` are left.
    """
    dtype, n = np.dtype(dtype), 40 * 1024
    planned = top_k_plan(dtype, k, (), (), n)
    assert planned.variant.startswith("rows")
    record = 8 // dtype.itemsize
    memory = Guarded(((n - record) * dtype.itemsize + planned.workspace_size,), "uint8")
    memory.fill(UNWRITTEN)
    x = memory.array[: n * dtype.itemsize].view(dtype)
    workspace = memory.array[(n - record) * dtype.itemsize :]
    assert workspace.ctypes.data % 64 == 0
    selected = {1: 100, 4: 1 << 30, 8: 1 << 40}[dtype.itemsize]
    x[...] = 1
    # All in different lanes and tiles, so that the threshold is exact.
    lanes = processor.lanes(dtype.itemsize)
    others = np.arange(k - 1)
    x[others // lanes * lanes * GROUP + others % lanes] = selected
    x[-record:] = selected
    values, indices = Guarded((k,), dtype), Guarded((k,), "int64")
    planned.launch(*(array.ctypes.data for array in (x, values.array, indices.array, workspace)))
    assert (x == selected).sum() < k, "nothing has changed"
    for guarded in (memory, values, indices):
        guarded.check(k)
    assert ((indices.array >= 0) & (indices.array < n)).all()


@pytest.mark.parametrize("k", [8, 120, 700])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_fewer_elements_than_counted(dtype, k):
    run_script(
        f"from tests.test_changing_data import select_from_own_lists; select_from_own_lists({dtype!r}, {k})"
    )


def merge_rows_that_grow(k, n):
    """Merge the segments of a row that had no elements when they were searched, and now has some.

    Its length is where the indices of the row before it are written.
    """
    planned = top_k_plan("int8", k, (2,), (n,), n, threads=8, length_strides=(1,))
    assert planned.variant.startswith("rows")
    assert "tasks: 2;" not in planned.variant
    x = Guarded((2, n), "int8")
    x.fill(np.arange(2 * n).reshape(2, n) % 100)
    memory = Guarded((1 + 2 * k,), "int64")
    memory.fill(0)
    lengths, indices = memory.array[:2], memory.array[1:]
    lengths[0] = n
    values = Guarded((2, k), "int8")
    workspace = Guarded((planned.workspace_size,), "uint8")
    workspace.fill(UNWRITTEN)
    arrays = x.array, lengths, values.array, indices, workspace.array
    planned.launch(*(array.ctypes.data for array in arrays))
    assert lengths[1] > 0, "nothing has changed"
    for guarded in (x, memory, values, workspace):
        guarded.check(k)
    assert ((indices >= -1) & (indices < n)).all()


@pytest.mark.parametrize("k", [8, 700])
def test_longer_rows_than_searched(k):
    run_script(
        f"from tests.test_changing_data import merge_rows_that_grow; merge_rows_that_grow({k}, 9_000_000)"
    )


class Change:
    """Runs a function of an executor, and changes data before or after it."""

    def __init__(self, name, change, *, before=False):
        self._run, self._change, self._before = getattr(cpu.Host, name), change, before

    def __get__(self, executor, owner):
        def run(*arguments):
            if self._before:
                self._change()
            answer = self._run(executor, *arguments)
            if not self._before:
                self._change()
            return answer

        return run


def list_what_was_counted():
    """List elements after all of them have become nonzero, or zero: the counted ones are listed."""
    for threads, shape, dtype in product(
        (1, 3), ((70_001,), (301, 1003), (2, 9, 7001)), ("uint8", "float64")
    ):
        dmlops.set_num_threads(threads)
        values = (random(shape).random(shape) < 0.3).astype(dtype)
        for transposes in (False, True):
            x = Guarded(shape, dtype, order=range(len(shape))[:: -1 if transposes else 1])
            for after in (0, 1):
                x.fill(values)
                with mock.patch.object(cpu.Host, "count", Change("count", lambda: x.fill(after))):  # noqa: B023
                    found = dmlops.nonzero_coordinates(x.array).coordinates
                np.testing.assert_array_equal(found, np.argwhere(values))


def test_coordinates_are_those_that_were_counted():
    run_script("from tests.test_changing_data import list_what_was_counted; list_what_was_counted()")


def gather_after_the_check():
    """Gather by indices that were in range when they were checked, and clip those that no longer are."""
    good = random("good").integers(0, 50, (3000, 2))
    bad = np.where(
        random("bad").random((3000, 2)) < 0.2, random("far").choice([FAR, -FAR, 50, -51], (3000, 2)), good
    )
    for n_inner, dtype in product((1, 3, 70), ("uint8", "int64")):
        x = Guarded((50, 50, n_inner), dtype).fill(sample(dtype, (50, 50, n_inner), n_inner))
        for at_first, at_last in ((good, bad), (bad, good)):
            indices = Guarded((3000, 2), "int64")
            out = Guarded((3000, n_inner), dtype)
            change = Change("first_offender", lambda: indices.fill(at_last), before=at_first is bad)  # noqa: B023
            for given in (None, out.array):
                indices.fill(at_first)
                with mock.patch.object(cpu.Host, "first_offender", change):
                    found = dmlops.gather_nd(x, indices.array, out=given)
                # Without `out`, indices were checked as they were used.
                used = good if given is None else at_last
                np.testing.assert_array_equal(found, reference.gather_nd(x, used, mode="clip"))
                out.check(dtype)


def test_indices_that_change_after_the_check():
    run_script("from tests.test_changing_data import gather_after_the_check; gather_after_the_check()")


class Scratch:
    """Guarded scratch in the place of `take_scratch`, which no kernel has written to yet."""

    _of_thread = threading.local()

    def __init__(self, size):
        kept = vars(self._of_thread)
        # It begins at a multiple of what kernels ask for, and a page begins right behind it.
        size = f"{-(-size // 64) * 64}"
        self._guarded = kept.get(size) or kept.setdefault(size, Guarded((int(size),), "uint8"))

    def __enter__(self):
        return self._guarded.fill(UNWRITTEN).ctypes.data

    def __exit__(self, kind, error, trace):
        if error is None:
            self._guarded.check("scratch")


class Case(NamedTuple):
    """A call on inputs that change.

    Attributes
    ----------
    inputs : sequence of Guarded
        The arrays that change, ...
    patterns : sequence of sequence of array
        ... and for each of them what it changes between.
    make_outputs : callable
        Returns the guarded outputs of one thread.
    call : callable
        Takes the outputs as arrays.
    check : callable
        Takes them too, after the call.
    """

    inputs: Any
    patterns: Any
    make_outputs: Any
    call: Any
    check: Any


def element_patterns(shape, dtype):
    """Return zeros, ones, NaNs or -1, ascending and descending elements, and random ones."""
    dtype, n = np.dtype(dtype), int(np.prod(shape))
    ascending = np.arange(n).reshape(shape) / n * (100 if dtype.kind in "iu" else 1)
    bytes_of_ones = np.full(n * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape(shape)
    few = (random(shape).random(shape) < 0.001).astype(dtype)
    regular = [
        np.zeros(shape, dtype),
        np.ones(shape, dtype),
        ascending.astype(dtype),
        -ascending.astype(dtype),
    ]
    return [*regular, few, bytes_of_ones, sample(dtype, shape, ("changing", shape))]


def changing(shape, dtype, **layout):
    """Return an input and what it changes between."""
    return Guarded(shape, dtype, **layout), element_patterns(shape, dtype)


def nonzero_case(shape, dtype, size=None, **layout):
    x, patterns = changing(shape, dtype, **layout)
    n = int(np.prod(shape))

    def make_outputs():
        return [] if size is None else [Guarded((size, len(shape)), "int64"), Guarded((), "int64")]

    def call(*out):
        return dmlops.nonzero_coordinates(
            x.array, size=size, fill_value=None if size is None else -1, out=out or None
        )

    def check(result):
        rows, count = np.asarray(result[0]), int(result[1])
        assert 0 <= count <= n
        assert len(rows) == (count if size is None else size)
        assert ((rows >= (0 if size is None else -1)) & (rows < shape)).all()

    return Case([x], [patterns], make_outputs, call, check)


def top_k_case(shape, dtype, k, *, axis=-1, is_sorted=True, length_dtype=None, **layout):
    x, patterns = changing(shape, dtype, **layout)
    inputs, all_patterns = [x], [patterns]
    lengths, n = None, shape[axis]
    if length_dtype:
        rows = tuple(np.delete(shape, axis))
        lengths = Guarded(rows, length_dtype)
        limits = np.iinfo(length_dtype)
        values = [0, 1, k - 1, k, n // 2, n, limits.min, limits.max]
        inputs.append(lengths)
        all_patterns.append([np.full(rows, value, length_dtype) for value in values])
    result_shape = tuple(k if d == axis % len(shape) else size for d, size in enumerate(shape))

    def make_outputs():
        return [Guarded(result_shape, dtype), Guarded(result_shape, "int64")]

    def call(*out):
        given = None if lengths is None else lengths.array
        return dmlops.top_k(x.array, k, axis=axis, sorted=is_sorted, lengths=given, out=out)

    def check(result):
        indices = result[1]
        assert ((indices >= (0 if lengths is None else -1)) & (indices < n)).all()

    return Case(inputs, all_patterns, make_outputs, call, check)


def gather_case(shape, dtype, n_tuples, width, mode, index_dtype="int64", **layout):
    x = Guarded(shape, dtype, **layout)
    x.fill(77)
    bounds = shape[:width]
    good = random(shape).integers(0, bounds, (n_tuples, width))
    far = np.iinfo(index_dtype).max
    far = random("far").choice(
        [FAR % far, -(FAR % far) - 1, bounds[0], -1 - bounds[0], far, -far], good.shape
    )
    few = np.where(random("few").random(good.shape) < 0.001, far, good)
    indices = Guarded(good.shape, index_dtype)
    patterns = [given.astype(index_dtype) for given in (good, good - bounds, far, few, good[::-1])]

    def make_outputs():
        return [Guarded((n_tuples, *shape[width:]), dtype)]

    def call(out):
        try:
            return dmlops.gather_nd(x.array, indices.array, mode=mode, out=out)
        except IndexOutOfRangeError:
            return np.zeros(0)

    def check(result):
        assert ((result == 77) | ((result == 0) & (mode == "fill"))).all()

    return Case([indices], [patterns], make_outputs, call, check)


def diagonal_case(shape, dtype, **layout):
    x, patterns = changing(shape, dtype, **layout)

    def call(out):
        return dmlops.diagonal_matrix(x.array, value=1, begin=-9, end=70, out=out)

    return Case([x], [patterns], lambda: [Guarded(shape, dtype)], call, lambda result: None)


def cases_of(operator):
    """Yield cases of all algorithms, and of one thread and of several."""
    if operator == "nonzero_coordinates":
        for dtype in ("uint8", "float32", "float64"):
            yield nonzero_case((70_001,), dtype, 70_001)
            yield nonzero_case((3, 301, 203), dtype, 5001)
            yield nonzero_case((301, 203), dtype, order=(1, 0))
            yield nonzero_case((300, 75), dtype, 22_500, n_outer=1)
            yield nonzero_case((20_003, 2), dtype)
            yield nonzero_case((1009, 301), dtype)
    elif operator == "gather_nd":
        for mode in ("raise", "clip", "fill"):
            yield gather_case((50, 3), "float32", 20_000, 1, mode)
            yield gather_case((50, 40, 1), "uint8", 40_000, 2, mode, "int32")
            yield gather_case((50, 40, 2, 30), "float64", 3000, 3, mode)
            yield gather_case((50, 300), "int16", 9000, 1, mode, "int32")
            yield gather_case((50, 40, 30), "int64", 3000, 1, mode, order=(2, 1, 0))
            yield gather_case((50, 40_000), "float32", 300, 1, mode)
    elif operator == "diagonal_matrix":
        yield diagonal_case((3, 300, 157), "float32")
        yield diagonal_case((301, 1057), "uint8", order=(1, 0))
    else:
        for dtype in ("uint8", "float32", "float64"):
            for lengths, is_sorted in ((None, True), ("int64", True), ("uint32", False)):
                options = {"is_sorted": is_sorted, "length_dtype": lengths}
                yield top_k_case((2, 50_000), dtype, 20, **options)
                yield top_k_case((1, 400_000), dtype, 8, **options)
                yield top_k_case((1, 400_000), dtype, 900, **options)
                yield top_k_case((300, 301), dtype, 7, **options)
                yield top_k_case((1500, 90), dtype, 9, axis=0, **options)
                yield top_k_case((9000, 3), dtype, 200, axis=0, **options)
                yield top_k_case((5, 20_000), dtype, 9000, **options)
                yield top_k_case((1, 150_000), dtype, 140_000, **options)


def call_while_inputs_change(operator, seed, seconds):
    """Call an operator from several threads while others write to its inputs."""
    dmlops.set_num_threads(N_THREADS)
    sys.setswitchinterval(1e-5)
    with (
        mock.patch.object(cpu, "take_scratch", Scratch),
        mock.patch.object(fast_path, "take_scratch", Scratch),
    ):
        cases = [*cases_of(operator)]
        for number, case in enumerate(cases):
            _run_case(case, (operator, seed, number), seconds / len(cases))


def _run_case(case, name, seconds):
    print(*name, flush=True)
    errors, ended = [], threading.Event()

    def write(writer):
        rng = random((*name, writer))
        while not ended.is_set():
            number = rng.integers(len(case.inputs))
            array, patterns = case.inputs[number].array, case.patterns[number]
            pattern = patterns[rng.integers(len(patterns))]
            begin, end = sorted(rng.integers(0, len(array) + 1, 2)) if rng.random() < 0.5 else (0, len(array))
            array[begin:end] = pattern[begin:end]

    def call():
        outputs = case.make_outputs()
        for guarded in outputs:
            guarded.fill(0)
        arrays = [guarded.array for guarded in outputs]
        end = time.monotonic() + seconds
        try:
            case.call(*arrays)  # compiles
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                case.check(case.call(*arrays))
                for guarded in (*outputs, *case.inputs):
                    guarded.check(name)
        except BaseException as error:
            errors.append(error)
            raise

    for array, patterns in zip(case.inputs, case.patterns, strict=True):
        array.fill(patterns[0])
    writers = [threading.Thread(target=write, args=(number,)) for number in range(N_THREADS)]
    callers = [threading.Thread(target=call) for _ in range(N_THREADS)]
    for thread in (*writers, *callers):
        thread.start()
    for thread in callers:
        thread.join()
    ended.set()
    for thread in writers:
        thread.join()
    assert not errors, name


@pytest.mark.parametrize("simd", ["1", pytest.param("0", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("operator", ["nonzero_coordinates", "gather_nd", "top_k", "diagonal_matrix"])
def test_inputs_that_change_all_the_time(operator, simd):
    run_script(
        f"""
        from tests.test_changing_data import call_while_inputs_change
        call_while_inputs_change({operator!r}, {SEED}, {SECONDS})
        """,
        DMLOPS_SIMD=simd,
    )
