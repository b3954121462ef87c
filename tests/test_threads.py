"""Threads: their number, answers that do not depend on it, and calls from several threads."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dmlops
from tests import cases, reference
from tests.data import assert_same, random
from tests.libraries import NUMPY, call, check
from tests.marks import exhaustive, nightly, ordinary
from tests.scripts import run_script

pytestmark = pytest.mark.usefixtures("restore_num_threads")
LARGE = [
    case
    for case in ordinary(cases.ALL)
    if case.name.startswith(
        ("one_row", "many_rows", "sort_all", "axis0-tall", "density0.5", "size-large", "large-")
    )
]


class TestNumThreads:
    def test_set_and_get(self):
        for n in (1, 3, 64):
            dmlops.set_num_threads(n)
            assert dmlops.get_num_threads() == n

    def test_none_returns_to_the_default(self, monkeypatch):
        monkeypatch.delenv("DMLOPS_NUM_THREADS", raising=False)
        dmlops.set_num_threads(7)
        dmlops.set_num_threads(None)
        assert dmlops.get_num_threads() == len(os.sched_getaffinity(0))
        monkeypatch.setenv("DMLOPS_NUM_THREADS", "5")
        dmlops.set_num_threads(None)
        assert dmlops.get_num_threads() == 5

    @pytest.mark.parametrize(("count", "expected"), [(6, 6), (None, 1), (5000, 1024)])
    def test_a_system_that_tells_only_how_many_processors_there_are(self, count, expected, monkeypatch):
        monkeypatch.delenv("DMLOPS_NUM_THREADS", raising=False)
        monkeypatch.delattr(os, "sched_getaffinity")
        for name in ("cpu_count", "process_cpu_count"):
            monkeypatch.setattr(os, name, lambda: count, raising=False)
        dmlops.set_num_threads(None)
        assert dmlops.get_num_threads() == expected

    @pytest.mark.parametrize("n", [0, -1, 2.5, "2", True, 2000])
    def test_errors(self, n):
        dmlops.set_num_threads(2)
        with pytest.raises(
            ValueError, match=r"^set_num_threads\.n: got .*, but it must be a whole number in \[1, 1024\]"
        ):
            dmlops.set_num_threads(n)
        assert dmlops.get_num_threads() == 2

    @pytest.mark.parametrize("n", [1, exhaustive(2), 3, exhaustive(8)])
    def test_answers_do_not_depend_on_it(self, n):
        dmlops.set_num_threads(n)
        for case in LARGE:
            check(NUMPY, case)


@pytest.mark.parametrize("n", [2, 5])
def test_many_parts_that_do_not_divide_the_work(n):
    dmlops.set_num_threads(n)
    x = random("parts").random((2, 4099, 257), dtype="float32")
    picks = random("picks").integers(-4099, 4099, (20_003, 1))
    assert_same(dmlops.gather_nd(x[0], picks), x[0][picks[:, 0]])
    for mask in (x > 0.98, x.reshape(2, 4099, 1, 257) > 0.98, x.ravel() > 0.98):
        assert_same(dmlops.nonzero_coordinates(mask).coordinates, np.argwhere(mask))
    for given in (x, np.flip(np.flip(x).copy()), None):
        band = {"value": 3, "begin": -300, "end": 200}
        if given is None:
            band |= {"shape": x.shape, "dtype": "float32"}
        assert_same(dmlops.diagonal_matrix(given, **band), reference.diagonal_matrix(given, **band))


@pytest.mark.parametrize("step", [5, -5])
def test_single_rows_with_gaps_are_shared(step):
    """What counts is how much memory is read, not how many elements: a column is shared like a longer row."""
    n, k = 1_000_000, 30
    x = random("gaps").integers(0, 1 << 16, 5 * n).astype("float32")[::step]
    desc = dmlops.TensorDesc("FLOAT32", x.shape, (abs(step),))
    sizes = []
    for n_threads in (1, 2):
        dmlops.set_num_threads(n_threads)
        found = dmlops.top_k(x, k)
        expected = np.argsort(-x, kind="stable")[:k]
        assert_same(found.indices, expected)
        assert_same(found.values, x[expected])
        compiled = dmlops.compile(dmlops.TopK1(input_tensor=desc, axis=0, k=k, axis_direction=1))
        sizes.append(compiled.workspace_size)
    assert sizes[1] > sizes[0]


@pytest.mark.parametrize("text", ["0", "two", "-4", "1.5", "9" * 5000])
def test_bad_environment_variable_is_named(text, monkeypatch):
    monkeypatch.setenv("DMLOPS_NUM_THREADS", text)
    dmlops.set_num_threads(None)
    with pytest.raises(ValueError, match=rf"^DMLOPS_NUM_THREADS: got '?{text[:9]}.*in \[1, 1024\]$"):
        dmlops.top_k([1.0, 2.0], 1)
    monkeypatch.undo()


def test_concurrent_callers():
    dmlops.set_num_threads(2)
    chosen = [*LARGE, *ordinary(cases.ALL)[::37]]
    answers = [call(NUMPY, case) for case in chosen]
    start = threading.Barrier(4, timeout=60)

    def work(first):
        start.wait()
        for place in range(first, first + len(chosen)):
            case, expected = chosen[place % len(chosen)], answers[place % len(chosen)]
            for actual, array in zip(call(NUMPY, case), expected, strict=True):
                assert actual.tobytes() == array.tobytes(), case
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, [caller * len(chosen) // 4 for caller in range(4)]))


@pytest.mark.usefixtures("restore_num_threads")
def test_one_compiled_operator_in_many_threads():
    dmlops.set_num_threads(2)
    x = np.random.default_rng(0).standard_normal((64, 20000)).astype("float32")
    desc = dmlops.TensorDesc("FLOAT32", x.shape)
    operator = dmlops.compile(dmlops.TopK1(input_tensor=desc, axis=1, k=40, axis_direction=1))
    expected = np.argsort(-x, axis=1, kind="stable")[:, :40]

    def work(_):
        outputs = np.empty((64, 40), "float32"), np.empty((64, 40), "uint32")
        operator.execute({"input_tensor": x, **dict(zip(operator.outputs, outputs, strict=True))})
        return np.array_equal(outputs[1], expected)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(40)))


@pytest.mark.parametrize("attempt", [0, *map(nightly, range(1, 6))])
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="there is no affinity")
def test_a_finalizer_that_runs_when_all_threads_have_stopped(attempt):
    """A thread that stops may hold a lock."""
    script = f"""
        import gc, os, sys
        import numpy as np, dmlops
        gc.set_threshold(1 << 30)  # only the last collection runs
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        x = np.random.default_rng({attempt}).standard_normal((64, 2000)).astype("float32")
        right = np.argsort(-x, axis=1, kind="stable")[:, :40].tobytes()

        class Late:
            def __del__(self, top_k=dmlops.top_k, write=os.write, is_finalizing=sys.is_finalizing):
                for _ in range(3):
                    assert top_k(x, 40).indices.tobytes() == right  # np.array_equal imports modules
                write(1, b"%d" % is_finalizing())

        for _ in range(2):
            dmlops.top_k(x, 40)
        late = Late()
        late.itself = late  # so that it goes with the last garbage collection
        del late
        for _ in range({attempt % 3 + 1}):
            dmlops.top_k(x, 40)
    """
    assert run_script(script, DMLOPS_NUM_THREADS="4") == "1"


@pytest.mark.nightly
def test_a_first_call_in_a_thread_of_little_stack(tmp_path):
    script = """
        import threading
        import dmlops

        threading.stack_size(65536)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(dmlops.top_k([3.0, 1.0, 2.0], 2).values))
        thread.start()
        thread.join()
        print(answers[0].tolist(), threading.stack_size())
    """
    assert run_script(script, DMLOPS_CACHE_DIR=str(tmp_path)).strip() == "[3.0, 2.0] 65536"


def test_while_another_thread_imports_torch():
    """A module is in `sys.modules` before it has its attributes."""
    script = """
        import sys, types
        import dmlops
        sys.modules["torch.compiler"] = types.ModuleType("torch.compiler")
        print(dmlops.top_k([1, 3, 2], 1).indices, dmlops.eye(1), dmlops.tril([[1, 2]]))
    """
    assert run_script(script).split() == ["[1]", "[[1.]]", "[[1", "0]]"]


@pytest.mark.parametrize(
    "dtype", ["float32", exhaustive("int8"), exhaustive("bfloat16"), exhaustive("int64")]
)
@pytest.mark.parametrize("n_threads", [2, exhaustive(5), exhaustive(40)])
def test_whole_sorts_are_merged_from_segments(dtype, n_threads):
    """Few distinct elements tie across segments; a row may be strided, and some of it left out."""
    dmlops.set_num_threads(n_threads)
    rng, n = random("whole sorts"), 70_001
    tied = rng.integers(-3, 4, n).astype(dtype)
    info = np.iinfo(dtype) if dtype.startswith("int") else None
    distinct = rng.integers(info.min, info.max, n, dtype, endpoint=True) if info else rng.standard_normal(n)
    rows = np.stack([tied, distinct.astype(dtype), np.sort(tied), np.full(n, 3, dtype)])
    for row in (*rows, rows.T[:, 1], rows[1, ::-1]):
        for k, options in ((n, {}), (n - 9999, {"largest": False})):
            expected = reference.top_k(row, k, **options)
            for result, answer in zip(dmlops.top_k(row, k, **options), expected, strict=True):
                assert_same(result, answer)
    few = dmlops.top_k(rows[:2], n)
    for result, answer in zip(few, reference.top_k(rows[:2], n), strict=True):
        assert_same(result, answer)
