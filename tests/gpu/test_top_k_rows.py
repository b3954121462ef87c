"""Rows of `top_k` as users have them: windows, segments, their own numbers, and NaN last; every algorithm."""

import itertools

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.data import INDEX_DTYPES, assert_same
from tests.gpu.algorithms import ALGORITHMS, CannotServeError, forced
from tests.gpu.arrays import KINDS, to_numpy
from tests.gpu.test_hard_rows import ROWS
from tests.libraries import Torch

torch = pytest.importorskip("torch")

CHOICES = {choice.name: choice for choice in ALGORITHMS["top_k"]}
# Rows of more elements than a block can sort: it first selects some by another algorithm.
LONG = 5003
FLOATS = ("float32", "bfloat16", "float64", "float16")


def sample(rng, shape, dtype):
    """Return elements of which some tie, and some floats are NaN, infinite or zeros of both signs."""
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(max(info.min, -1000), min(info.max, 1000), shape).astype(dtype)
    special = np.array([0.0, -0.0, 1, 2, np.nan, -np.nan, np.inf, -np.inf])
    drawn = np.where(rng.random(shape) < 0.1, rng.choice(special, shape), rng.standard_normal(shape))
    return drawn.astype(dtype)


def windows(rng, n_rows, n, k, dtypes=("int64", "int64")):
    """Return starts and lengths: anywhere, beyond both ends, of no element, of any type."""
    starts = rng.integers(-5, n, n_rows)
    lengths = rng.integers(-2, n, n_rows)
    edges = [(-3, n + 9), (0, n), (1, k), (5, k - 1), (n - 2, 5), (n, 3), (n + 5, 2), (3, n - 4)]
    edges += [(-(1 << 62), (1 << 63) - 1), ((1 << 63) - 1, 7), (2, (1 << 63) - 1), (-(1 << 63), n)]
    for row, (start, length) in zip(range(n_rows), rng.permutation(np.array(edges, object)), strict=False):
        starts[row], lengths[row] = start, length
    limited = [
        np.clip(each, max(np.iinfo(dtype).min, -(1 << 63)), min(np.iinfo(dtype).max, (1 << 63) - 1))
        for each, dtype in zip((starts, lengths), dtypes, strict=True)
    ]
    return [each.astype(dtype) for each, dtype in zip(limited, dtypes, strict=True)]


def check(x, k, axis=-1, **options):
    """Compare a call, whose x begins between two boundaries, with the oracle."""
    library, rows = Torch("cuda"), np.moveaxis(x, axis, -1)
    values, indices = reference.top_k(rows, k, **options)
    arrays = {
        name: library.from_numpy(array) if isinstance(array, np.ndarray) else array
        for name, array in options.items()
    }
    if options.get("indices") is not None and options["indices"].ndim > 1:
        arrays["indices"] = library.from_numpy(
            np.ascontiguousarray(np.moveaxis(options["indices"], -1, axis))
        )
    room = np.zeros(x.size + 3, x.dtype)
    room[3:] = x.ravel()
    found = dmlops.top_k(library.from_numpy(room)[3:].reshape(x.shape), k, axis=axis, **arrays)
    for actual, expected in zip(found, (values, indices), strict=True):
        assert_same(library.to_numpy(actual), np.moveaxis(expected, -1, axis))


@pytest.mark.parametrize("name", ROWS)
def test_windows_with_each_algorithm(name, torch):
    shape, axis, ks = ROWS[name]
    shape = tuple(min(size, 60_001) if axis == d else min(size, 12) for d, size in enumerate(shape))
    rng = np.random.default_rng(len(name))
    served = 0
    for dtype, (most, is_sorted), nan_last in zip(
        ("float32", "bfloat16", "int64", "float32"),
        itertools.product(ks, (True, False)),
        (True, False, False, True),
        strict=True,
    ):
        k = min(most, shape[axis])
        rows = shape[:axis] + shape[axis + 1 :]
        starts, lengths = windows(rng, int(np.prod(rows)), shape[axis], k)
        x = sample(rng, shape, dtype)
        options = {"starts": starts.reshape(rows), "lengths": lengths.reshape(rows), "nan_last": nan_last}
        try:
            with forced(CHOICES[name]):
                check(x, k, axis, sorted=is_sorted, largest=nan_last or is_sorted, **options)
        except CannotServeError:
            continue
        served += 1
    # A copy has no windows.
    assert served or name == "copy"


@pytest.mark.parametrize("dtypes", list(itertools.product(INDEX_DTYPES, INDEX_DTYPES)), ids=str)
def test_types_of_windows(dtypes, torch):
    rng = np.random.default_rng(2)
    starts, lengths = windows(rng, 40, 300, 9, dtypes)
    check(sample(rng, (40, 300), "float32"), 9, starts=starts, lengths=lengths)
    check(sample(rng, (40, 300), "float32"), 9, starts=starts)


@pytest.mark.parametrize(
    ("n", "k", "max_length"), [(300, 9, 50), (70_001, 300, 5000), (300, 400, None), (300, 400, 100)]
)
def test_no_more_than_max_length(n, k, max_length, torch):
    """What is selected from, and not more; results beyond are padding."""
    rng = np.random.default_rng(3)
    starts, lengths = windows(rng, 30, n, min(k, n))
    for is_sorted in (True, False):
        x = sample(rng, (30, n), "float32")
        options = {"max_length": max_length, "sorted": is_sorted, "largest": is_sorted}
        check(x, k, starts=starts, lengths=lengths, **options)
        check(x, k, lengths=lengths, **options)
        check(x, k, starts=starts, **options)


def test_segments(torch):
    """Rows of a one-dimensional array, of any length, which may overlap."""
    rng = np.random.default_rng(4)
    x = sample(rng, 40_000, "float32")
    edges = np.sort(rng.integers(0, x.size, 700))
    starts, lengths = edges[:-1], np.diff(edges)
    values, indices = reference.top_k(x, 10, starts=starts, lengths=lengths)
    for max_length in (None, int(lengths.max())):
        given = [torch.tensor(each, device="cuda") for each in (x, starts, lengths)]
        found = dmlops.top_k(given[0], 10, starts=given[1], lengths=given[2], max_length=max_length)
        for actual, expected in zip(found, (values, indices), strict=True):
            assert_same(actual.cpu().numpy(), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_segments_with_a_heavy_tail(torch, dtype):
    """Lanes of a warp take the short ones; those longer than they hold are shared by blocks."""
    rng, library = np.random.default_rng(4), Torch("cuda")
    x = sample(rng, 60_000, dtype)
    lengths = np.minimum((rng.pareto(0.8, 4000) * 20).astype("int64"), 50_000) - 3
    starts = rng.integers(-9, x.size, 4000)
    assert 100 < (lengths > 1024).sum() < 400
    for k, is_sorted in itertools.product((10, 20), (True, False)):
        expected = reference.top_k(x, k, starts=starts, lengths=lengths, sorted=is_sorted)
        given = [library.from_numpy(each) for each in (x, starts, lengths)]
        found = dmlops.top_k(given[0], k, starts=given[1], lengths=given[2], sorted=is_sorted)
        for actual, answer in zip(found, expected, strict=True):
            assert_same(library.to_numpy(actual), answer)


def test_windows_of_many_dimensions(torch):
    """Rows that need a table of offsets; windows and numbers with strides of their own."""
    rng = np.random.default_rng(5)
    shape, rows = (3, 2, 4, 5, 40), (3, 2, 4, 5)
    x = sample(rng, shape, "float32")
    starts, lengths = (each.reshape(rows) for each in windows(rng, 120, 40, 6))
    numbers = rng.integers(-1, 50, shape)
    values, indices = reference.top_k(x, 6, starts=starts, lengths=lengths, indices=numbers)
    order, back = (4, 2, 0, 3, 1), (2, 4, 1, 3, 0)
    given = [torch.tensor(each.transpose(order), device="cuda").permute(back) for each in (x, numbers)]
    windows_given = [
        torch.tensor(each.transpose(3, 1, 0, 2), device="cuda").permute(2, 1, 3, 0)
        for each in (starts, lengths)
    ]
    found = dmlops.top_k(given[0], 6, starts=windows_given[0], lengths=windows_given[1], indices=given[1])
    for actual, expected in zip(found, (values, indices), strict=True):
        assert_same(actual.cpu().numpy(), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int64", "float64"])
@pytest.mark.parametrize("number_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("n", [1, 100, 1500, 4096, LONG])
def test_ties_by_number(n, number_dtype, dtype, torch):
    """In any order, some of them equal; rows that a block holds, and longer ones."""
    rng = np.random.default_rng(n)
    x, k = sample(rng, (7, n), dtype), min(n, 77)
    info = np.iinfo(number_dtype)
    order = rng.permutation(n)
    rows = (
        order,
        rng.integers(0, 9, n),
        np.full(n, -1),
        np.where(rng.random(n) < 0.5, -1, order[::-1]),
        order.astype(number_dtype) + np.array(info.max - n, number_dtype),
        order + (info.min if info.min else 1 << 31),
        rng.integers(-3, 3, n),
    )
    numbers = np.stack([row.astype(number_dtype) for row in rows])
    starts, lengths = windows(rng, 7, n, k)
    for is_sorted in (True, False):
        check(x, k, indices=numbers, sorted=is_sorted, largest=is_sorted)
        check(x, k + 5, indices=numbers, sorted=is_sorted, starts=starts, lengths=lengths, nan_last=True)


@pytest.mark.parametrize("name", ["tie", "few", "excluded", "distinct"])
@pytest.mark.parametrize("algorithm", [name for name in CHOICES if "-" not in name])
def test_numbers_with_each_algorithm(algorithm, name, torch):
    """It finds some elements first: all tie, many tie at the cut-off, or the first ones take no part."""
    rng = np.random.default_rng(6)
    n = {"partition": LONG, "columns": LONG}.get(algorithm, 40_003)
    x = {
        "tie": np.ones((3, n), "float32"),
        "few": rng.integers(0, 40, (3, n)).astype("float32"),
        "excluded": rng.standard_normal((3, n)).astype("float32"),
        "distinct": rng.standard_normal((3, n)).astype("float32"),
    }[name]
    numbers = np.stack([rng.permutation(n) for _ in range(3)])
    if name == "excluded":
        # A few of the first ones, all of these, and nearly all elements.
        for row, n_excluded in enumerate((20, 3000, n - 30)):
            numbers[row][np.argsort(-x[row])[:n_excluded]] = -1
    for k, is_sorted in ((50, True), (2000, False)):
        try:
            with forced(CHOICES[algorithm]):
                check(x, k, indices=numbers, sorted=is_sorted)
        except CannotServeError:
            continue


@pytest.mark.parametrize(("n", "k"), [(5003, 5003), (20_000, 4096), (30_001, 12_000)])
def test_many_elements_by_number(n, k, torch):
    """More are selected than a block sorts: rows are sorted by number first."""
    rng = np.random.default_rng(8)
    for dtype, number_dtype, is_sorted in (("float32", "int64", True), ("int8", "uint32", False)):
        x = sample(rng, (3, n), dtype)
        numbers = np.stack([rng.permutation(n), rng.integers(-2, 90, n), np.arange(n)[::-1] - 9])
        starts, lengths = windows(rng, 3, n, k)
        options = {"indices": numbers.astype(number_dtype), "sorted": is_sorted}
        check(x, k, **options)
        check(x, k, starts=starts, lengths=lengths, **options)
    check(sample(rng, (3, n), "float64"), k, indices=rng.permutation(n).astype("int32"), largest=False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float64"])
def test_many_long_rows_by_number(dtype, torch):
    """In any order, with many ties, with few elements that take part, and with equal numbers."""
    n, n_rows, rng = 33_001, 84, np.random.default_rng(9)
    drawn = rng.standard_normal(n).astype("float32")
    kinds = (
        30 * drawn,
        np.sort(30 * drawn),
        np.ones(n),
        rng.integers(0, 9, n),
        np.where(rng.random(n) < 0.02, 2, 1),
        np.concatenate([np.sort(part)[::-1] for part in np.array_split(30 * drawn, 60)]),
    )
    numbered = (
        rng.permutation(n),
        np.arange(n)[::-1] + (1 << 40),
        rng.integers(0, 5000, n),
        np.full(n, 3),
        np.where(rng.random(n) < 0.5, -1, rng.permutation(n)),
        np.where(rng.random(n) < 0.99, -1, rng.permutation(n)),
        np.full(n, -1),
    )
    x = np.stack([kinds[row % len(kinds)] for row in range(n_rows)]).astype(dtype)
    numbers = np.stack([numbered[row % len(numbered)] for row in range(n_rows)])
    starts = rng.integers(-5, 40, n_rows)
    lengths = np.where(
        rng.random(n_rows) < 0.3, rng.integers(0, 5000, n_rows), n - rng.integers(0, 50, n_rows)
    )
    for is_sorted in (True, False):
        check(x, 700, indices=numbers, sorted=is_sorted, largest=is_sorted)
    check(x, 900, indices=numbers.astype("int32"), starts=starts, lengths=lengths, nan_last=True)


def test_results_feed_the_next_call(torch):
    """Shards that interleave, selected apart and merged, give what the whole gives."""
    rng = np.random.default_rng(7)
    x = rng.integers(0, 300, (6, 20_000)).astype("float32")
    whole = torch.tensor(x, device="cuda")
    expected = dmlops.top_k(whole, 500)
    positions = torch.arange(x.shape[1], device="cuda")
    shards = [
        dmlops.top_k(whole[:, rank::16], 700, indices=positions[rank::16], lengths=torch.tensor(1300).cuda())
        for rank in range(16)
    ]
    values, numbers = (torch.cat([shard[part] for shard in shards], dim=1) for part in (0, 1))
    found = dmlops.top_k(values, 500, indices=numbers)
    for actual, answer in zip(found, expected, strict=True):
        assert torch.equal(actual, answer)


@pytest.mark.parametrize("kind", KINDS)
def test_integers_are_windows_of_all_rows(kind):
    """On a chosen stream too, and with an `out`; the caller's current stream takes no part then."""
    rng = np.random.default_rng(5)
    x = sample(rng, (3, 900), "float32")
    tensor, stream = Torch("cuda").from_numpy(x), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for start, length in ((2, 600), (-7, 2**63 - 1), (2**40, 3), (890, 20), (0, -4)):
        expected = reference.top_k(x, 30, starts=np.array(start), lengths=np.array(length))
        for chosen in (None, None, stream):
            found = dmlops.top_k(KINDS[kind](tensor), 30, starts=start, lengths=length, stream=chosen)
            stream.synchronize()
            for result, answer in zip(found, expected, strict=True):
                assert_same(to_numpy(result), answer)


def test_integers_are_windows_in_graphs_and_with_a_derivative():
    x = sample(np.random.default_rng(6), (3, 900), "float32")
    tensor = Torch("cuda").from_numpy(x)
    expected = reference.top_k(x, 30, starts=np.array(5), lengths=np.array(100))
    graph = torch.cuda.CUDAGraph()
    dmlops.top_k(tensor, 30, starts=5, lengths=100)
    with torch.cuda.graph(graph):
        found = dmlops.top_k(tensor, 30, starts=5, lengths=100)
    for _ in range(2):
        found.values.zero_()
        graph.replay()
        for result, answer in zip(found, expected, strict=True):
            assert_same(to_numpy(result), answer)
    found = dmlops.top_k(tensor.clone().requires_grad_(), 30, starts=5, lengths=100)
    assert_same(to_numpy(found.indices), expected[1])
    found.values.sum().backward()
