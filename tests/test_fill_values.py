"""What fills the slices of indices out of range, and rows without an element, in each library."""

import numba
import numpy as np
import pytest
from ml_dtypes import bfloat16, float8_e4m3fn

import dmlops
from dmlops import IndexOutOfRangeError, InvalidDescriptorError
from tests import reference
from tests.data import sample

X = np.arange(1, 31, dtype="float32").reshape(6, 5) / 4
PADDED = np.array([[2, -1], [-1, 0], [5, 4], [6, 0], [-6, -5], [3, 3]])
"""Index tuples: padding, the last element, and what no library wraps around."""
FILLS = {"mode": "fill", "fill_value": -2.5, "wrap_negative": False}
RECORD = np.dtype([("name", "S5"), ("score", "f4")])
ROWS = np.array([[0, 0, 3.0], [1, 0, 0]])


def assert_same(actual, expected):
    """Check types, shapes and bytes, of elements of any size."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("complex128", 3 - 4j),
        ("complex64", complex(np.nan, -0.0)),
        ("datetime64[D]", np.datetime64("2026-11-28")),
        ("datetime64[D]", "NaT"),
        ("timedelta64[s]", -90),
        (bfloat16, 0.15),
        (float8_e4m3fn, -448),
        ("float16", np.float16(-0.0)),
        ("bool", True),
        ("uint64", 2**64 - 1),
        (RECORD, np.array(("best", -0.5), RECORD)[()]),
        (RECORD, 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("width", [1, 2])
def test_each_type_holds_its_fill(dtype, fill, width):
    n_bytes = 30 * np.dtype(dtype).itemsize
    x = np.frombuffer(sample("uint8", n_bytes, "bytes").tobytes(), dtype).reshape(6, 5)
    if x.dtype == bool:
        x = x.view("uint8") > 99
    expected = np.empty((6, *x.shape[width:]), x.dtype)
    expected[...] = np.zeros((), x.dtype) if type(fill) is int and fill == 0 else np.array(fill, x.dtype)
    for place, coordinates in enumerate(PADDED[:, :width]):
        if all(0 <= c < n for c, n in zip(coordinates, x.shape, strict=False)):
            expected[place] = x[tuple(coordinates)]
    options = {"mode": "fill", "fill_value": fill, "wrap_negative": False}
    for _ in range(2):
        assert_same(dmlops.gather_nd(x, PADDED[:, :width], **options), expected)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_negative_indices_that_do_not_wrap(dtype):
    for mode, first in (("raise", (2, -1)), ("clip", None)):
        indices = PADDED.astype(dtype)
        for out in (None, np.full(6, 77, "float32")):
            if first is None:
                assert_same(
                    dmlops.gather_nd(X, indices, mode=mode, wrap_negative=False, out=out),
                    reference.gather_nd(X, indices, mode=mode, wrap_negative=False),
                )
                continue
            for _ in range(2):
                with pytest.raises(IndexOutOfRangeError, match=r"tuple \(2, -1\) .* must be in \[0, 4\]"):
                    dmlops.gather_nd(X, indices, wrap_negative=False, out=out)
            assert out is None or (out == 77).all()


def test_more_fills_than_are_kept_as_kinds():
    for fill in range(2100):
        assert dmlops.gather_nd(X[0], [[9]], mode="fill", fill_value=fill).item() == fill


@pytest.mark.parametrize("fill", [(5,), [5], (5, -2)])
def test_later_calls_keep_the_value_of_each_column(fill):
    x = np.ones((2,) * len(fill))
    for size in (4, 7, 5):
        found = np.argwhere(x)
        rows = np.full((max(size, len(found)), len(fill)), fill)
        rows[: len(found)] = found
        assert_same(dmlops.nonzero_coordinates(x, size=size, fill_value=fill).coordinates, rows[:size])


class TestCoordinatesAndCountOfTwoTypes:
    @pytest.mark.parametrize("types", [("int32", "int64"), ("uint64", "int32"), ("int64", "uint32")])
    @pytest.mark.parametrize("shape", [(3, 7), (40, 70, 50), (0, 4)])
    def test_each_has_its_type(self, types, shape):
        x = sample("uint8", shape, "two types") > 200
        expected, count = reference.nonzero_coordinates(x, size=30_000, fill_value=7)
        for _ in range(2):
            out = np.empty(expected.shape, types[0]), np.empty((), types[1])
            dmlops.nonzero_coordinates(x, fill_value=7, out=out)
            assert_same(out[0], expected.astype(types[0]))
            assert_same(out[1], count.astype(types[1]))

    def test_coordinates_fit_where_the_count_does_not(self):
        many = np.broadcast_to(np.zeros(1, bool), (0, 2**17, 2**15))  # without elements to read
        out = np.empty((0, 3), "int32"), np.empty((), "int64")
        assert dmlops.nonzero_coordinates(many, out=out).count == 0
        many = np.broadcast_to(np.zeros(1, bool), (2**17, 2**15))
        out = np.empty((0, 2), "int32"), np.empty((), "int32")
        with pytest.raises(InvalidDescriptorError, match=r"out\[1\]: got int32, but the count reaches"):
            dmlops.nonzero_coordinates(many, out=out)

    def test_one_type_where_it_is_named(self):
        out = np.empty((4, 2), "int32"), np.empty((), "int64")
        with pytest.raises(
            InvalidDescriptorError, match=r"out\[0\]: got int32, but the coordinates are int64"
        ):
            dmlops.nonzero_coordinates(ROWS, index_dtype="int64", out=out)


def test_numba():
    @numba.njit
    def gather(x, indices, fill, wraps, out):
        point = dmlops.gather_nd(x, indices, mode="fill", fill_value=fill, wrap_negative=wraps)
        dmlops.gather_nd(x, indices[:, :1], mode="fill", fill_value=fill, wrap_negative=wraps, out=out)
        return point

    @numba.njit
    def rows(x, size, fills):
        return dmlops.nonzero_coordinates(x, size=size, fill_value=fills)

    @numba.njit
    def read(x, indices, wraps):
        return dmlops.gather_nd(x, indices, wrap_negative=wraps)

    for wraps in (True, False):
        for fill in (-2.5, 3):
            options = {"mode": "fill", "fill_value": fill, "wrap_negative": wraps}
            for x in (X, X[::-1, ::2], X.astype("complex128")):
                out = np.empty((6, x.shape[1]), x.dtype)
                assert_same(gather(x, PADDED, fill, wraps, out), reference.gather_nd(x, PADDED, **options))
                assert_same(out, reference.gather_nd(x, PADDED[:, :1], **options))
    for x in (ROWS, ROWS[:, ::-1], np.zeros((9, 4))):
        for fills in ((4, -1), 5):
            expected = reference.nonzero_coordinates(x, size=5, fill_value=fills)
            for _ in range(2):
                for found, correct in zip(rows(x, 5, fills), expected, strict=True):
                    assert_same(found, correct)
    with pytest.raises(InvalidDescriptorError, match="got 300, but it fills uint8"):
        gather(X.astype("uint8"), PADDED, 300, True, np.empty((6, 5), "uint8"))
    with pytest.raises(InvalidDescriptorError, match=r"got \(1, 2, 3\), but the coordinates have 2 columns"):
        rows(ROWS, 5, (1, 2, 3))
    with pytest.raises(IndexOutOfRangeError, match=r"tuple \(2, -1\)"):
        read(X, PADDED, False)
    assert_same(read(X, PADDED[:3], True), reference.gather_nd(X, PADDED[:3]))


class TestTorch:
    def test_derivative(self):
        torch = pytest.importorskip("torch")
        x, tuples = torch.from_numpy(X).double().requires_grad_(), torch.from_numpy(PADDED)
        dmlops.gather_nd(x, tuples, **FILLS).sum().backward()
        expected = np.zeros_like(X, "float64")
        expected[5, 4] = expected[3, 3] = 1
        assert_same(x.grad.numpy(), expected)

    def test_graphs_and_batches(self):
        torch = pytest.importorskip("torch")
        x, tuples = torch.from_numpy(X), torch.from_numpy(PADDED)
        expected = reference.gather_nd(X, PADDED, **FILLS)

        def gather(x, tuples, fill=-2.5):
            return dmlops.gather_nd(x, tuples, mode="fill", fill_value=fill, wrap_negative=False)

        def find(x):
            return dmlops.nonzero_coordinates(x, size=4, fill_value=(8, -3))

        compiled = torch.compile(gather, fullgraph=True, backend="aot_eager")
        assert_same(compiled(x, tuples).numpy(), expected)
        assert_same(compiled(x, tuples, float("inf")).numpy(), np.where(expected == -2.5, np.inf, expected))
        assert_same(torch.vmap(gather, in_dims=(None, 0))(x, tuples[:, None])[:, 0].numpy(), expected)
        correct = reference.nonzero_coordinates(ROWS, size=4, fill_value=(8, -3))
        rows = torch.from_numpy(ROWS)
        for found in (find(rows), torch.compile(find, fullgraph=True, backend="aot_eager")(rows)):
            for result, each in zip(found, correct, strict=True):
                assert_same(result.numpy(), each)
        batch = torch.stack([rows, torch.zeros_like(rows)])
        coordinates, counts = torch.vmap(find)(batch)
        assert_same(coordinates[0].numpy(), correct[0])
        assert counts.tolist() == [2, 0]
        assert coordinates[1].tolist() == [[8, -3]] * 4

    def test_two_types_in_a_graph(self):
        torch = pytest.importorskip("torch")
        out = torch.empty((3, 2), dtype=torch.int32), torch.empty((), dtype=torch.int64)

        def find(x, out):
            return dmlops.nonzero_coordinates(x, fill_value=-1, out=out)

        for call in (find, torch.compile(find, fullgraph=True, backend="aot_eager")):
            coordinates, count = call(torch.from_numpy(ROWS), out)
            assert (coordinates.tolist(), int(count)) == ([[0, 2], [1, 0], [-1, -1]], 2)
            assert (coordinates.dtype, count.dtype) == (torch.int32, torch.int64)

    def test_refuses(self):
        torch = pytest.importorskip("torch")
        x, tuples = torch.from_numpy(X).requires_grad_(), torch.from_numpy(PADDED)
        for options, text in (
            ({"fill_value": 1}, 'fill_value: got 1, but mode is .raise.; fill_value needs mode="fill"'),
            ({"mode": "fill", "fill_value": 1e39}, r"fill_value: got 1e\+39, but it fills float32"),
        ):
            with pytest.raises(InvalidDescriptorError, match=text):
                dmlops.gather_nd(x, tuples, **options)
        with pytest.raises(TypeError, match="got 'NaT', but torch has no such elements"):
            dmlops.gather_nd(x, tuples, mode="fill", fill_value="NaT")


def test_jax():
    jax = pytest.importorskip("jax")
    module = pytest.importorskip("dmlops.integrations.jax")
    x, tuples = jax.numpy.asarray(X), jax.numpy.asarray(PADDED, "int32")
    expected = reference.gather_nd(X, PADDED, **FILLS)

    def gather(x, tuples):
        return module.gather_nd(x, tuples, **FILLS)

    def find(x):
        return module.nonzero_coordinates(x, size=4, fill_value=(8, -3))

    for call in (gather, jax.jit(gather), lambda x, t: jax.vmap(gather, (None, 0))(x, t[:, None])[:, 0]):
        assert_same(np.asarray(call(x, tuples)), expected)
    gradient = jax.grad(lambda x: gather(x, tuples).sum())(x)
    assert np.argwhere(np.asarray(gradient)).tolist() == [[3, 3], [5, 4]]
    correct, _ = reference.nonzero_coordinates(ROWS, size=4, fill_value=(8, -3))
    for found in (find(ROWS), jax.jit(find)(ROWS), [each[0] for each in jax.vmap(find)(ROWS[None])]):
        assert np.array_equal(found[0], correct)
    with pytest.raises(IndexOutOfRangeError):
        module.gather_nd(x, tuples, wrap_negative=False)
    for options in ({"fill_value": 1}, {"fill_value": 1e39, "mode": "fill"}):
        with pytest.raises(InvalidDescriptorError, match=r"gather_nd\.fill_value: got 1"):
            module.gather_nd(x, tuples, **options)
    with pytest.raises(TypeError, match=r"gather_nd\.fill_value: got a traced array"):
        jax.jit(lambda v: module.gather_nd(x, tuples, mode="fill", fill_value=v))(1.0)


@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize("chunks", [(6, 5), (2, 3)])
def test_dask(chunks, is_lazy):
    da = pytest.importorskip("dask.array")
    gather = pytest.importorskip("dmlops.integrations.dask").gather_nd
    for x, fill in ((X, -2.5), (X.astype("complex128"), 1 - 2j), (X.astype("datetime64[s]"), "NaT")):
        lazy = da.from_array(x, chunks=chunks)
        for mode in ("clip", "fill"):
            options = {"mode": mode, "wrap_negative": False} | (
                {"fill_value": fill} if mode == "fill" else {}
            )
            for tuples in (PADDED, PADDED[:, :1], PADDED[3:4]):
                indices = da.from_array(tuples, chunks=(4, 1)) if is_lazy else tuples
                found = gather(lazy, indices, **options).compute(scheduler="sync")
                assert_same(found, reference.gather_nd(x, tuples, **options))
    with pytest.raises(IndexOutOfRangeError):
        gather(da.from_array(X, chunks=chunks), PADDED, wrap_negative=False)
    with pytest.raises(InvalidDescriptorError, match=r"fill_value: got 1, .* needs mode"):
        gather(X, PADDED, fill_value=1)
