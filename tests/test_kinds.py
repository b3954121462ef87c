"""Kinds of calls: any size at the price of a known one, with the answer and the errors of a first call."""

import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.kept_calls import known_kinds, needs_gil, nothing_known, path_of, plans_counted
from tests.kind_calls import random_calls


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.quick
def test_any_sequence_of_kinds_and_sizes(seed: int) -> None:
    before, kinds = known_kinds(), set()
    for kind, call, expected in random_calls(seed, 400):
        for got, wanted in zip(call(), expected, strict=True):
            np.testing.assert_array_equal(got, wanted, err_msg=kind)
            assert got.dtype == wanted.dtype
        kinds.add(kind)
        assert known_kinds() <= before + len(kinds)


def test_more_sizes_than_a_cache_has_room_for() -> None:
    x = np.arange(5000, dtype=np.float32)
    dmlops.top_k(x[:7], 2)
    before = known_kinds()
    for n in range(3, 4000):
        values, indices = dmlops.top_k(x[:n], 2)
        assert (values.tolist(), indices.tolist()) == ([n - 1, n - 2], [n - 1, n - 2])
    assert known_kinds() == before


@pytest.mark.quick
def test_tuples_of_any_length_are_gathered_at_new_sizes_without_a_plan() -> None:
    """The result has other dimensions, so the first call of one length says nothing about the others."""
    x = np.arange(300, dtype=np.float32).reshape(10, 30)
    rows, elements = np.array([[3], [1]]), np.array([[3, 2], [1, 29]])
    with nothing_known():
        for n in (4, 5, 6):
            with plans_counted() as plans:
                np.testing.assert_array_equal(dmlops.gather_nd(x[:n], elements), x[[3, 1], [2, 29]])
                np.testing.assert_array_equal(dmlops.gather_nd(x[:n], rows), x[[3, 1]])
            assert len(plans) == (2 if n == 4 else 0)


# Each is a call that is refused, on x of shape (n, m).
REFUSED: dict[str, Callable[[Any, int, int], Any]] = {
    "k": lambda x, n, m: dmlops.top_k(x, m + 1),
    "negative k": lambda x, n, m: dmlops.top_k(x, -1),
    "axis": lambda x, n, m: dmlops.top_k(x, 1, axis=2),
    "lengths": lambda x, n, m: dmlops.top_k(x, 1, lengths=np.zeros(n + 1, np.int64)),
    "out of another shape": lambda x, n, m: dmlops.top_k(
        x, 1, out=(np.empty((n, 2), x.dtype), np.empty((n, 2), np.int64))
    ),
    "out that overlaps": lambda x, n, m: dmlops.tril(x, out=x[::-1]),
    "out within x": lambda x, n, m: dmlops.top_k(x, m, out=(x, np.empty((n, m), np.int64))),
    "size": lambda x, n, m: dmlops.nonzero_coordinates(x, size=-2),
    "rows of out": lambda x, n, m: dmlops.nonzero_coordinates(
        x, size=3, out=(np.empty((4, 2), np.int64), np.empty((), np.int64))
    ),
    "fill": lambda x, n, m: dmlops.nonzero_coordinates(x, size=3, fill_value=1 << 40, index_dtype="int32"),
    "index": lambda x, n, m: dmlops.gather_nd(x, np.array([[0], [n]])),
    "index with out": lambda x, n, m: dmlops.gather_nd(x, np.array([[n]]), out=np.empty((1, m), x.dtype)),
    "batch": lambda x, n, m: dmlops.gather_nd(x, np.zeros((n + 1, 1), np.int64), batch_dims=1),
    "coordinates": lambda x, n, m: dmlops.gather_nd(x, np.zeros((2, 3), np.int64)),
    "value": lambda x, n, m: dmlops.diagonal_matrix(x, value=1e39),
    "shape of out": lambda x, n, m: dmlops.tril(x, out=np.empty((n, m + 1), x.dtype)),
}
SERVED: list[Callable[[Any, int, int], Any]] = [
    lambda x, n, m: dmlops.top_k(x, m),
    lambda x, n, m: dmlops.top_k(x, 1, lengths=np.zeros(n, np.int64)),
    lambda x, n, m: dmlops.top_k(x, 1, out=(np.empty((n, 1), x.dtype), np.empty((n, 1), np.int64))),
    lambda x, n, m: dmlops.tril(x, out=np.empty_like(x)),
    lambda x, n, m: dmlops.nonzero_coordinates(x, size=3),
    lambda x, n, m: dmlops.nonzero_coordinates(x, size=3, fill_value=1, index_dtype="int32"),
    lambda x, n, m: dmlops.nonzero_coordinates(
        x, size=4, out=(np.empty((4, 2), np.int64), np.empty((), np.int64))
    ),
    lambda x, n, m: dmlops.gather_nd(x, np.array([[0], [n - 1]])),
    lambda x, n, m: dmlops.gather_nd(x, np.array([[0]]), out=np.empty((1, m), x.dtype)),
    lambda x, n, m: dmlops.gather_nd(x, np.zeros((n, 1), np.int64), batch_dims=1),
    lambda x, n, m: dmlops.diagonal_matrix(x, value=1.5),
]


def _refusal(call: Callable[[Any, int, int], Any], n: int, m: int) -> str:
    x = np.arange(n * m, dtype=np.float32).reshape(n, m)
    before = x.copy()
    try:
        call(x, n, m)
    except Exception as error:
        np.testing.assert_array_equal(x, before)
        return f"{type(error).__name__}: {error}"
    return "served"


def refusals() -> list[str]:
    """Return how each bad call is refused."""
    return [_refusal(call, 3, 3 + number) for number, call in enumerate(REFUSED.values())]


def test_refusals_after_hits_are_those_of_a_first_call() -> None:
    code = "import tests.test_kinds as t; print(*t.refusals(), sep='\\n')"
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for number in range(50):
        for call in SERVED:
            assert _refusal(call, 2 + number % 5, 1 + number) == "served"
    after = refusals()
    assert "served" not in after
    assert after == fresh.stdout.splitlines()
    assert after == refusals()


def _compiled_calls() -> Callable[..., Any]:
    numba = pytest.importorskip("numba")

    def calls(x, indices, k, size, value, begin, end, out):  # type: ignore[no-untyped-def]
        best = dmlops.top_k(x, k)
        rows = dmlops.nonzero_coordinates(x)
        some = dmlops.nonzero_coordinates(x, size=size, fill_value=-1)
        picked = dmlops.gather_nd(x, indices)
        band = dmlops.diagonal_matrix(x, value=value, begin=begin, end=end)
        made = dmlops.diagonal_matrix(shape=x.shape, dtype="float32", value=value, begin=begin, end=end)
        dmlops.diagonal_matrix(x, value=value, begin=begin, end=end, out=out)
        return best, rows, some, (picked, band, made, out)

    return numba.njit(calls)  # type: ignore[no-any-return]


def test_compiled_callers_answer_any_sequence_of_sizes_and_values() -> None:
    calls, rng = _compiled_calls(), np.random.default_rng(0)
    for _ in range(300):
        n, m = rng.integers(1, 40, 2)
        x = rng.integers(0, 3, (n, m)).astype(np.float32)
        k, size, n_tuples = int(rng.integers(0, m + 1)), int(rng.integers(0, 60)), int(rng.integers(0, 50))
        indices = rng.integers([-n, -m], [n, m], (n_tuples, 2))
        value, (begin, end) = int(rng.integers(0, 4)), map(int, rng.integers(-9, 9, 2))
        best, rows, some, others = calls(x, indices, k, size, value, begin, end, np.empty_like(x))
        band = reference.diagonal_matrix(x, value=value, begin=begin, end=end)
        made = reference.diagonal_matrix(np.zeros_like(x), value=value, begin=begin, end=end)
        expected = [
            *zip(best, reference.top_k(x, k), strict=True),
            *zip(rows, reference.nonzero_coordinates(x), strict=True),
            *zip(some, reference.nonzero_coordinates(x, size=size, fill_value=-1), strict=True),
            *zip(others, (x[tuple(indices.T)], band, made, band), strict=True),
        ]
        for got, wanted in expected:
            np.testing.assert_array_equal(got, wanted)


NEW_SIZES: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = {
    "top_k": (
        lambda x: dmlops.top_k(x, 2).indices,
        lambda x: np.argsort(-x, axis=-1, kind="stable")[:, :2],
    ),
    "nonzero_coordinates": (lambda x: dmlops.nonzero_coordinates(x).coordinates, np.argwhere),
    "gather_nd": (
        lambda x: dmlops.gather_nd(x, (x[:2, :1] > 1).astype("int32")),
        lambda x: x[(x[:2, 0] > 1).astype("int32")],
    ),
    "tril": (dmlops.tril, np.tril),
}


@needs_gil
@pytest.mark.parametrize("name", NEW_SIZES)
def test_new_sizes_of_arrays_of_jax_are_planned_natively(name: str) -> None:
    jax = pytest.importorskip("jax")
    call, expected = NEW_SIZES[name]
    with nothing_known():
        for n in (5, 6, 9, 3, 40, 700):
            x = np.random.default_rng(n).integers(0, 4, (3, n)).astype("float32")
            given = jax.numpy.asarray(x)
            np.testing.assert_array_equal(np.asarray(call(given)), expected(x))
            if n != 5:  # the first size of a kind is planned in Python
                assert path_of(functools.partial(call, jax.numpy.asarray(x[:, 1:]))) != "bound"


@needs_gil
@pytest.mark.quick
@pytest.mark.usefixtures("restore_num_threads")
@pytest.mark.parametrize("name", NEW_SIZES)
def test_new_sizes_are_planned_natively_after_a_return_to_the_default_number_of_threads(name: str) -> None:
    x, (call, expected) = np.random.default_rng(0).integers(0, 4, (3, 50)).astype("float32"), NEW_SIZES[name]
    call(x)
    dmlops.set_num_threads(None)
    call(x[:, :49])  # reads the default anew
    for n in (48, 47):
        np.testing.assert_array_equal(call(x[:, :n]), expected(x[:, :n]))
        assert path_of(functools.partial(call, x[:, : n - 10])) == "fast"


def test_repeated_calls_move_elements_of_sixteen_bytes_whole() -> None:
    """Kernels take such elements in two parts; calls that native code serves have none."""
    jax = pytest.importorskip("jax")
    indices = np.array([[2, 3], [8, 1], [0, 49]])
    with jax.enable_x64(True):
        for n in (50, 60, 60):
            x = np.arange(9.0 * n).reshape(9, n) * (1 - 2j)
            given = jax.numpy.asarray(x)
            for _ in range(2):
                gathered = dmlops.gather_nd(given, jax.numpy.asarray(indices))
                np.testing.assert_array_equal(gathered, x[indices[:, 0], indices[:, 1]])
                np.testing.assert_array_equal(dmlops.tril(given), np.tril(x))
                np.testing.assert_array_equal(dmlops.nonzero_coordinates(given)[0], np.argwhere(x))


def test_a_known_kind_of_arrays_of_jax_refuses_results_of_another_rank() -> None:
    """Outputs of a call that does not fit may have any number of dimensions."""
    jax = pytest.importorskip("jax")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    given, pairs = jax.numpy.asarray(x), np.array([[0, 1], [2, 3]], "int32")
    for _ in range(3):
        lengths = jax.numpy.full(3, 2, "int32")
        np.testing.assert_array_equal(dmlops.top_k(given, 2, lengths=lengths).indices, [[1, 0]] * 3)
        np.testing.assert_array_equal(dmlops.gather_nd(given, jax.numpy.asarray(pairs)), [1, 11])
        np.testing.assert_array_equal(dmlops.gather_nd(given, jax.numpy.asarray(pairs[:, :1])), x[[0, 2]])
        with pytest.raises(dmlops.InvalidDescriptorError, match="shapes must broadcast"):
            dmlops.top_k(given, 2, lengths=jax.numpy.full(5, 2, "int32"))
