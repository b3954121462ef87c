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
from itertools import cycle, product
from unittest import mock

import numpy as np
import pytest

import dmlops
from dmlops import AxisDirection, TensorDesc, TopK1
from tests import reference
from tests.data import DTYPES, random, sample
from tests.guarded import Guarded
from tests.inside import cpu, processor, top_k_table
from tests.kept_calls import calls_made_in_python
from tests.marks import ORDINARY_TYPES, exhaustive, nightly
from tests.plans import planned
from tests.random_cases import MAKERS, random_case
from tests.scripts import run_script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory protection is asked of Linux")

SECONDS = float(os.environ.get("DMLOPS_CHANGING_SECONDS", "3"))
N_THREADS = 2
N_CALLS = 20
FAR = 1 << 40
UNWRITTEN = 0xA5
# Native calls have scratch memory of their own, without guard pages, and no place to change inputs between.
ORDINARY_WAY = calls_made_in_python()


def top_k_plan(dtype, k, shape, *, largest=True, has_lengths=False):
    """Return the plan of the largest or smallest elements of rows, which have lengths if there are some."""
    results = (*shape[:-1], k)
    descriptor = TopK1(
        input_tensor=TensorDesc(np.dtype(dtype).name.upper(), shape),
        axis=len(shape) - 1,
        k=k,
        axis_direction=AxisDirection.DECREASING if largest else AxisDirection.INCREASING,
        output_index_tensor=TensorDesc("INT64", results),
    )
    lengths = TensorDesc("INT64", shape[:-1]) if has_lengths else None
    return planned(descriptor, {"lengths": lengths})[0]


def select_from_own_lists(dtype, k):
    """Select the smallest of a row, the last of which are where the kernel lists the first one.

    Once the threshold is known, the first list entry overwrites them. As unsigned elements, its key and its
    position are large, but for some bytes: fewer than `k` elements are left to be selected.
    """
    dtype, n = np.dtype(f"u{dtype}"), 40 * 1024
    planned = top_k_plan(dtype, k, (n,), largest=False)
    assert planned.variant.startswith("rows")
    record = 8 // dtype.itemsize
    memory = Guarded(((n - record) * dtype.itemsize + planned.workspace_size,), "uint8")
    memory.fill(UNWRITTEN)
    x = memory.array[: n * dtype.itemsize].view(dtype)
    workspace = memory.array[(n - record) * dtype.itemsize :]
    assert workspace.ctypes.data % 64 == 0
    selected = 1
    x[...] = 100
    # All in different lanes and tiles, so that the threshold is exact.
    lanes = processor.lanes(dtype.itemsize)
    others = np.arange(k - (record + 1) // 2)
    x[others // lanes * lanes * top_k_table.GROUP + others % lanes] = selected
    x[-record:] = selected
    values, indices = Guarded((k,), dtype), Guarded((k,), "int64")
    planned.launch(*(array.ctypes.data for array in (x, values.array, indices.array, workspace)))
    assert (x <= selected).sum() < k, "nothing has changed"
    for guarded in (memory, values, indices):
        guarded.check(k)
    assert ((indices.array >= 0) & (indices.array < n)).all()


def merge_rows_that_grow(k, dtype, n):
    """Merge the segments of a row that had no elements when they were searched, and now has some.

    Its length is where the indices of the row before it are written.
    """
    dmlops.set_num_threads(8)
    planned = top_k_plan(dtype, k, (2, n), has_lengths=True)
    assert planned.variant.startswith("rows")
    assert "tasks: 2;" not in planned.variant
    x = Guarded((2, n), dtype)
    x.fill(np.arange(2 * n).reshape(2, n) % 100)
    memory = Guarded((1 + 2 * k,), "int64")
    memory.fill(0)
    lengths, indices = memory.array[:2], memory.array[1:]
    lengths[0] = n
    values = Guarded((2, k), dtype)
    workspace = Guarded((planned.workspace_size,), "uint8")
    workspace.fill(UNWRITTEN)
    arrays = x.array, lengths, values.array, indices, workspace.array
    planned.launch(*(array.ctypes.data for array in arrays))
    assert lengths[1] > 0, "nothing has changed"
    for guarded in (x, memory, values, workspace):
        guarded.check(k)
    assert ((indices >= -1) & (indices < n)).all()


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


def list_what_was_counted(dtypes):
    """List elements after all of them have become nonzero, or zero: the counted ones are listed."""
    for threads, shape, dtype in product((1, 3), ((70_001,), (301, 1003), (2, 9, 7001)), dtypes):
        dmlops.set_num_threads(threads)
        values = (random(shape).random(shape) < 0.3).astype(dtype)
        for transposes in (False, True):
            x = Guarded(shape, dtype, order=range(len(shape))[:: -1 if transposes else 1])
            for after in (0, 1):
                x.fill(values)
                change = Change("count", lambda: x.fill(after))  # noqa: B023
                with mock.patch.object(cpu.Host, "count", change), ORDINARY_WAY:
                    found = dmlops.nonzero_coordinates(x.array).coordinates
                np.testing.assert_array_equal(found, np.argwhere(values))


def gather_after_the_check(dtypes):
    """Gather by indices that were in range when they were checked, and clip those that no longer are."""
    good = random("good").integers(0, 50, (3000, 2))
    bad = np.where(
        random("bad").random((3000, 2)) < 0.2, random("far").choice([FAR, -FAR, 50, -51], (3000, 2)), good
    )
    for n_inner, dtype in product((1, 3, 70), dtypes):
        x = Guarded((50, 50, n_inner), dtype).fill(sample(dtype, (50, 50, n_inner), n_inner))
        for at_first, at_last in ((good, bad), (bad, good)):
            indices = Guarded((3000, 2), "int64")
            out = Guarded((3000, n_inner), dtype)
            change = Change("first_outside", lambda: indices.fill(at_last), before=at_first is bad)  # noqa: B023
            for given in (None, out.array):
                indices.fill(at_first)
                with mock.patch.object(cpu.Host, "first_outside", change), ORDINARY_WAY:
                    found = dmlops.gather_nd(x, indices.array, out=given)
                # Without `out`, indices were checked as they were used.
                used = good if given is None else at_last
                np.testing.assert_array_equal(found, reference.gather_nd(x, used, mode="clip"))
                out.check(dtype)


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


def call_while_inputs_change(seconds, dtypes):
    """Call functions on random problems from several threads while others write to their inputs."""
    dmlops.set_num_threads(N_THREADS)
    sys.setswitchinterval(1e-5)
    end = time.monotonic() + seconds
    with mock.patch.object(cpu, "take_scratch", Scratch), ORDINARY_WAY:
        for number, operator in enumerate(cycle(MAKERS)):
            case = random_case(operator, f"changing {number}", dtypes=dtypes)
            if all(memory.size for memory in case.before.values()):
                call_case(case)
            if time.monotonic() > end:
                break


def call_case(case):
    print(case, flush=True)
    guarded = {field: Guarded(kept.shape, "uint8") for field, kept in case.before.items()}
    inputs = {
        field: each.fill(case.before[field]) for field, each in guarded.items() if "output_" not in field
    }
    errors, ended = [], threading.Event()

    def write(writer):
        rng = random((case.name, writer))
        while not ended.is_set():
            for field, array in inputs.items():
                begin, end = sorted(rng.integers(0, len(array) + 1, 2))
                patterns = (case.before[field][begin:end], case.before[field][::-1][begin:end], 0, 0xFF)
                array[begin:end] = patterns[rng.integers(len(patterns))]

    def call():
        outputs = {
            field: Guarded(each.array.shape, "uint8")
            for field, each in guarded.items()
            if field not in inputs
        }
        memory = inputs | {field: each.fill(UNWRITTEN) for field, each in outputs.items()}
        try:
            for _ in range(N_CALLS):
                case.call(memory)
                for field, each in (guarded | outputs).items():
                    each.check(f"{field} of {case}")
        except BaseException as error:
            errors.append(error)
            raise

    writers = [threading.Thread(target=write, args=(number,)) for number in range(N_THREADS)]
    callers = [threading.Thread(target=call) for _ in range(N_THREADS)]
    for thread in (*writers, *callers):
        thread.start()
    for thread in callers:
        thread.join()
    ended.set()
    for thread in writers:
        thread.join()
    assert not errors, case


def change_between_two_reads(dtypes):
    """Change inputs after they have been read once, and before they are read again."""
    for dtype in dtypes:
        for k in (8, 120, 700):
            select_from_own_lists(dtype, k)
        for k in (8, 700):
            merge_rows_that_grow(k, dtype, 9_000_000 // np.dtype(dtype).itemsize)
    list_what_was_counted(dtypes)
    gather_after_the_check(dtypes)


@pytest.mark.parametrize("dtypes", [exhaustive(["int32"]), nightly(["int8", "int64"])], ids=str)
def test_inputs_that_change_between_two_reads(dtypes):
    run_script(f"from tests import test_changing_data as test; test.change_between_two_reads({dtypes})")


@pytest.mark.parametrize(
    ("simd", "dtypes"), [exhaustive("1", ORDINARY_TYPES), nightly("0", tuple(dtype.name for dtype in DTYPES))]
)
def test_inputs_that_change_all_the_time(simd, dtypes):
    call = f"call_while_inputs_change({SECONDS}, {dtypes})"
    run_script(f"from tests import test_changing_data as test; test.{call}", DMLOPS_SIMD=simd)
