"""`dmlops.integrations.dask`: chunked arrays give the same results as whole arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

da = pytest.importorskip("dask.array")

import dask  # noqa: E402

import dmlops  # noqa: E402
from dmlops import InvalidDescriptorError  # noqa: E402
from dmlops.integrations.dask import diagonal_matrix, gather_nd, nonzero_coordinates, top_k  # noqa: E402
from tests import reference  # noqa: E402
from tests.dask_arrays import check, chunked, with_unknown_columns, with_unknown_rows  # noqa: E402
from tests.data import assert_same, sample  # noqa: E402
from tests.scripts import run_page  # noqa: E402


@pytest.fixture
def unknown():
    """Give an array of 5 rows that dask does not know the number of."""
    x = sample("float32", (9, 6), "unknown")
    keep = np.arange(9) % 2 == 0
    return x[keep], da.from_array(x, chunks=(4, 4))[da.from_array(keep, chunks=4)]


def masked(x, where=lambda place: True):
    """Mask the elements of the chunks at some places, and leave dask in the belief that there is no mask."""

    def mask(chunk, block_info=None):
        return np.ma.masked_array(chunk, True) if where(block_info[0]["chunk-location"]) else chunk

    return x.map_blocks(mask, meta=np.empty((0,) * x.ndim, x.dtype))


class TestTopK:
    @given(chunked(), st.data())
    def test_equals_the_whole(self, arrays, data):
        x, lazy = arrays
        axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
        k = data.draw(st.integers(0, x.shape[axis]))
        options = {"axis": axis, "largest": data.draw(st.booleans()), "sorted": data.draw(st.booleans())}
        values, indices = top_k(lazy, k, **options)
        expected = reference.top_k(x, k, **options)
        assert_same(values.compute(scheduler="sync"), expected[0])
        assert_same(indices.compute(scheduler="sync"), expected[1])
        assert values.shape == indices.shape == expected[0].shape
        assert (values.dtype, indices.dtype) == (x.dtype, np.int64)

    def test_merges_many_chunks(self):
        x = np.random.default_rng(0).integers(0, 9, (3, 1000)).astype("int16")
        values, indices = top_k(da.from_array(x, chunks=(2, 7)), 20)
        expected = reference.top_k(x, 20)
        check(values, expected[0])
        check(indices, expected[1])
        assert values.numblocks == indices.numblocks == (2, 1)
        for name, dtype in (("uint32", "uint32"), (None, "int64")):
            assert top_k(da.from_array(x, chunks=9), 2, index_dtype=name).indices.compute().dtype == dtype

    @given(chunked(max_ndim=2), st.data())
    def test_rows_equal_the_whole(self, arrays, data):
        x, lazy = arrays
        axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
        n, rows = x.shape[axis], tuple(np.delete(x.shape, axis))
        is_last = axis % x.ndim == x.ndim - 1
        shapes = st.sampled_from([rows, (1,) * len(rows), (), *[(3, *rows)] * is_last])
        integers = np.random.default_rng(data.draw(st.integers(0, 99))).integers
        options = {"largest": data.draw(st.booleans()), "sorted": data.draw(st.booleans())}
        options["nan_last"] = data.draw(st.booleans())
        names = data.draw(st.sets(st.sampled_from(["starts", "lengths", "indices"]), min_size=1))
        for name in names - {"indices"}:
            options[name] = integers(-3, n + 3, data.draw(shapes))
        if "indices" in names:
            options["indices"] = integers(-1, 9, data.draw(st.sampled_from([x.shape, (n,)])))
        if names != {"indices"}:
            options["max_length"] = data.draw(st.sampled_from([None, 0, 3]))
        k = data.draw(st.integers(0, n + 3))
        values, indices = top_k(lazy, k, axis=axis, **options)
        expected = reference.top_k(x, k, axis=axis, **options)
        assert_same(values.compute(scheduler="sync"), expected[0])
        assert_same(indices.compute(scheduler="sync"), expected[1])
        assert values.shape == indices.shape == expected[0].shape

    @pytest.mark.parametrize("beside", [(1, 0), (1,)], ids=str)
    def test_empty_chunks_beside_one_element(self, beside):
        """As a mask leaves them."""
        x, lengths, numbers = np.float32([[3], [5], [4]]), np.array([[1]]), np.array([[1], [7], [6]])
        lazy = da.from_array(x, chunks=((2, 0, 1), (1, 0, 0)))
        rows = {"lengths": da.from_array(lengths[0], chunks=(beside,))}
        for options, others in (
            ({"axis": 0, "lengths": lengths[0]}, rows),
            ({"axis": 1, "lengths": lengths[0]}, rows),
            ({"axis": 0, "indices": numbers}, {"indices": da.from_array(numbers, chunks=((3,), beside))}),
        ):
            values, indices = top_k(lazy, 2, **options | others)
            expected = reference.top_k(x, 2, **options)
            assert_same(values.compute(scheduler="sync"), expected[0])
            assert_same(indices.compute(scheduler="sync"), expected[1])

    @pytest.mark.parametrize("parts", [((0, 0),), ((0, 0, 0),), ((0,), (0, 0))], ids=str)
    def test_no_elements_in_several_chunks(self, parts):
        x = np.zeros((0,) * len(parts), np.float32)
        numbers = da.from_array(np.zeros(0, int), chunks=((0, 0, 0, 0),))
        values, indices = top_k(da.from_array(x, chunks=parts), 2, indices=numbers, lengths=1)
        expected = reference.top_k(x, 2, indices=np.zeros(0, int), lengths=np.array(1))
        assert_same(values.compute(scheduler="sync"), expected[0])
        assert_same(indices.compute(scheduler="sync"), expected[1])

    def test_rows_of_any_integers(self):
        x = np.arange(12, dtype=np.float32)
        most = np.iinfo(np.int64).max
        lazy = da.from_array(x, chunks=5)
        for starts, lengths, n in (
            (np.array([-most - 1, 2, most]), np.array([most, most, most]), [0, 10, 0]),
            (np.uint64([2**64 - 1, 0, 3]), np.uint64([2**64 - 1, 2**64 - 1, 2]), [0, 12, 2]),
            (np.array([-3, -3, 11]), np.int32([5, 2, 2]), [2, 0, 1]),
        ):
            found = top_k(lazy, 12, starts=da.from_array(starts, chunks=2), lengths=lengths).indices
            assert (found.compute(scheduler="sync") >= 0).sum(axis=1).tolist() == n

    def test_segments_have_the_chunks_of_windows(self):
        starts = da.from_array(np.arange(100), chunks=30)
        values, indices = top_k(
            da.arange(1000, chunks=300), 2, starts=starts, lengths=9, index_dtype="uint32"
        )
        assert values.chunks == indices.chunks == ((30, 30, 30, 10), (2,))
        expected = np.arange(100)[:, None] + [8, 7]
        check(values, expected)
        check(indices, expected.astype("uint32"))

    def test_unknown_sizes_elsewhere(self, unknown):
        x, lazy = unknown
        with pytest.raises(InvalidDescriptorError, match=r"top_k\.x.*compute_chunk_sizes"):
            top_k(lazy, 3, axis=1, lengths=2)
        values, indices = top_k(lazy, 3, axis=1)
        expected = reference.top_k(x, 3)
        assert_same(values.compute(), expected[0])
        assert_same(indices.compute(), expected[1])

    def test_refuses(self, unknown):
        lazy = da.ones((4, 6), chunks=2)
        with pytest.raises(InvalidDescriptorError, match=r"top_k\.k: got 7, .* must be in \[0, 6\]$"):
            top_k(lazy, 7)
        with pytest.raises(InvalidDescriptorError, match=r"top_k\.axis"):
            top_k(lazy, 1, axis=2)
        for axis in (0, -2):
            with pytest.raises(InvalidDescriptorError, match="compute_chunk_sizes"):
                top_k(unknown[1], 1, axis=axis)
        with pytest.raises(TypeError, match="foreign byte order"):
            top_k(lazy.astype(">f4"), 1)
        with pytest.raises(TypeError, match=r"top_k\.axis: got 0\.5"):
            top_k(lazy, 1, axis=0.5)


class TestNonzeroCoordinates:
    @given(chunked(min_ndim=0))
    def test_equals_the_whole(self, arrays):
        x, lazy = arrays
        coordinates, count = nonzero_coordinates(lazy)
        expected = dmlops.nonzero_coordinates(x)
        assert_same(coordinates.compute(scheduler="sync"), expected.coordinates)
        assert_same(count.compute(scheduler="sync"), expected.count)

    def test_is_described_right(self):
        x = sample("uint8", (10, 4), "nonzero")
        coordinates, count = nonzero_coordinates(da.from_array(x, chunks=(3, 4)))
        check(coordinates, np.argwhere(x))
        check(count, np.array(np.count_nonzero(x)))
        assert coordinates.numblocks == (4, 1)
        for dtype in ("uint32", "int32", "uint64"):
            coordinates, count = nonzero_coordinates(da.from_array(x, chunks=(3, 4)), index_dtype=dtype)
            check(coordinates, np.argwhere(x).astype(dtype))
            check(count, np.array(np.count_nonzero(x), dtype))

    def test_chunks_of_a_good_size(self):
        with dask.config.set({"array.chunk-size": "2 KiB"}):
            coordinates, _ = nonzero_coordinates(da.zeros((100, 64), chunks=(100, 8)))
        assert coordinates.numblocks == (25, 1)  # of 4 rows, as x has 512 bytes in each

    @pytest.mark.parametrize(("shape", "n_chunks"), [((1, 40, 60), 10), ((40, 60), 10), ((3, 40, 60), 30)])
    def test_no_task_has_more_elements_than_a_chunk(self, shape, n_chunks):
        x = sample("int8", shape, "slabs") > 60
        largest = []

        def watch(chunk):
            largest.append(chunk.size)
            return chunk

        with dask.config.set({"array.chunk-size": "240 B"}):  # four rows of 60 elements
            lazy = da.from_array(x, chunks=(*[3] * (x.ndim - 2), 8, 20)).map_blocks(watch, meta=x)
            coordinates, count = nonzero_coordinates(lazy)
        assert coordinates.numblocks == (n_chunks, 1)
        largest.clear()
        assert_same(coordinates.compute(scheduler="sync"), np.argwhere(x))
        assert count.compute(scheduler="sync") == np.count_nonzero(x)
        assert max(largest) <= 3 * 8 * 20

    def test_unknown_sizes(self):
        x = sample("int8", (5, 6), "columns")
        coordinates, _ = nonzero_coordinates(with_unknown_columns(x, 6))
        assert_same(coordinates.compute(scheduler="sync"), np.argwhere(x))
        for axis, lazy in enumerate((with_unknown_rows(x, 2), with_unknown_columns(x, 3))):
            with pytest.raises(InvalidDescriptorError, match=rf"axis {axis}, .*compute_chunk_sizes\(\)"):
                nonzero_coordinates(lazy)


BANDS = ((0, 1), (-2, 3), (3, -2), (2, 2), (-(2**70), 1), (2**70, -1), (5, 9))


class TestDiagonalMatrix:
    @pytest.mark.parametrize("band", BANDS, ids=str)
    @pytest.mark.parametrize("chunks", [(1, 3, 2), (2, 7, 9), (2, (1, 0, 6), (4, 1, 4))])
    def test_equals_the_whole(self, band, chunks):
        begin, end = band
        x = sample("float16", (2, 7, 9), "diagonal")
        lazy = diagonal_matrix(da.from_array(x, chunks=chunks), value=3, begin=begin, end=end)
        check(lazy, reference.diagonal_matrix(x, value=3, begin=begin, end=end))

    def test_unknown_height_or_width(self):
        x = sample("int32", (6, 8), "unknown")
        for axis, lazy in enumerate((with_unknown_rows(x, 3), with_unknown_columns(x, 4))):
            with pytest.raises(InvalidDescriptorError, match=rf"_matrix\.x: .* axis {axis}, .* compute_"):
                diagonal_matrix(lazy)
            check(diagonal_matrix(lazy.compute_chunk_sizes()), reference.diagonal_matrix(x))

    @pytest.mark.parametrize(("begin", "end"), [(2, None), (1, np.inf), (-np.inf, 0), (np.inf, -3)])
    def test_open_bands(self, begin, end):
        x = sample("int32", (9, 8), "open")
        lazy = diagonal_matrix(da.from_array(x, chunks=(4, 3)), value=7, begin=begin, end=end)
        assert_same(lazy.compute(), reference.diagonal_matrix(x, value=7, begin=begin, end=end))

    def test_unknown_batch(self):
        x = sample("int32", (9, 4, 5), "batch")
        lazy = diagonal_matrix(da.from_array(x, chunks=(4, 3, 3))[da.from_array(np.arange(9) > 2, chunks=4)])
        assert_same(lazy.compute(), reference.diagonal_matrix(x[3:]))

    def test_refuses(self):
        with pytest.raises(InvalidDescriptorError, match="height and width"):
            diagonal_matrix(da.ones(4))
        for value in ("1.5", None, [1, 2]):
            with pytest.raises(TypeError, match=r"diagonal_matrix\.value: .* must be a number"):
                diagonal_matrix(da.ones((4, 4)), value=value)
        with pytest.raises(InvalidDescriptorError, match=r"diagonal_matrix\.value: got 1j, .* a real number"):
            diagonal_matrix(da.ones((4, 4)), value=1j)
        with pytest.raises(TypeError, match=r"diagonal_matrix\.begin: got 0\.5"):
            diagonal_matrix(da.ones((4, 4)), begin=0.5)


OPERATIONS = {
    "top_k": lambda x: top_k(x, 1).values,
    "nonzero_coordinates": lambda x: nonzero_coordinates(x).coordinates,
    "nonzero_coordinates.count": lambda x: nonzero_coordinates(x).count,
    "gather_nd": lambda x: gather_nd(x, [[0]]),
    "gather_nd.chunks": lambda x: gather_nd(x, [[0], [3], [5]]),
    "gather_nd.tuples": lambda x: gather_nd(da.ones((9, 9), chunks=4), x.astype(int)[:, 1:3], mode="clip"),
    "gather_nd.indices": lambda x: gather_nd(np.ones((9, 9)), x.astype(int)[:, 1:3]),
    "diagonal_matrix": diagonal_matrix,
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
class TestMasks:
    def test_are_refused_as_early_as_dask_knows(self, operation):
        lazy = da.ma.masked_greater(da.ones((6, 6), chunks=2), 3)
        with pytest.raises(TypeError, match=r"got a masked array, .*\.filled\("):
            operation(lazy)
        operation(da.ma.filled(lazy, 0)).compute(scheduler="sync")

    @pytest.mark.parametrize(
        "where", [lambda _: True, (0, 0).__eq__, (0, 1).__eq__], ids=["all", "one", "next"]
    )
    def test_are_refused_in_the_chunk(self, operation, where):
        lazy = masked(da.ones((6, 6), chunks=2), where)
        with pytest.raises(TypeError, match=r"got a masked array, .*\.filled\("):
            operation(lazy).compute(scheduler="sync")


class TestWhatIsNoDaskArray:
    x = sample("float32", (6, 6), "numpy")

    def test_numpy_arrays(self):
        check(top_k(self.x, 2).values, reference.top_k(self.x, 2)[0])
        coordinates = nonzero_coordinates(self.x).coordinates
        assert_same(coordinates.compute(scheduler="sync"), np.argwhere(self.x))
        rows = np.array([[5], [1]])
        check(gather_nd(self.x, rows), self.x[[5, 1]])
        check(gather_nd(da.from_array(self.x, chunks=4), rows), self.x[[5, 1]])
        check(diagonal_matrix(self.x), reference.diagonal_matrix(self.x))
        check(top_k(np.zeros((0, 2**30), "int8"), 3).values, np.zeros((0, 3), "int8"))
        check(top_k(da.asarray(7), 1).indices, np.array([0]))

    def test_numbers_and_lists(self):
        check(top_k(7, 1).indices, np.array([0]))
        check(nonzero_coordinates(7).coordinates, np.empty((1, 0), int))
        check(top_k([1, 3, 2], 2).indices, np.array([1, 2]))
        check(nonzero_coordinates([0, 7]).count, np.array(1))
        check(gather_nd([4, 5, 6], [[2], [0]]), np.array([6, 4]))
        check(diagonal_matrix([[5, 5], [5, 5]]), np.array([[1, 5], [5, 1]]))
        rows = [da.arange(3, chunks=1), da.arange(3, chunks=1)]
        check(top_k(rows, 1).indices, np.array([[2], [2]]))


STRUCTURED = np.array([(1, 2.0), (0, 0.0), (3, 0.0)], [("a", "i4"), ("b", "f8")])
DATES = np.array(["2020-01-01", "NaT", "1970-01-01"], "datetime64[D]")


@pytest.mark.parametrize(
    "x", [np.array([1 + 2j, 0, 3]), STRUCTURED, DATES], ids=["complex", "struct", "date"]
)
def test_elements_of_other_types(x):
    lazy = da.from_array(x, chunks=2)
    if x is STRUCTURED:
        with pytest.raises(TypeError, match="structured elements are not tested for zero"):
            nonzero_coordinates(lazy)
    else:
        coordinates, count = nonzero_coordinates(lazy)
        check(coordinates, np.argwhere(x))
        check(count, np.array(len(np.argwhere(x))))
    for indices in ([[2], [0]], da.from_array(np.array([[2], [0]]), chunks=1)):
        result = gather_nd(lazy, indices)
        assert result.dtype == x.dtype
        assert result.compute(scheduler="sync").tolist() == x[[2, 0]].tolist()
    matrix = x[:2, None]
    filled = diagonal_matrix(da.from_array(matrix, chunks=1), value=x[2])
    assert filled.compute(scheduler="sync").tolist() == [[x[2].item()], [x[1].item()]]
    if x.dtype.kind == "M":
        check(top_k(lazy, 3, largest=False).indices, np.array([2, 0, 1]))
    else:
        with pytest.raises(TypeError, match=r"top_k\.x: got"):
            top_k(lazy, 1)


def test_nothing_runs_before_it_is_asked_for():
    def refuse(*_):
        pytest.fail("a task ran")

    x = da.from_array(np.ones((6, 6), "float32"), chunks=2).map_blocks(
        refuse, dtype="float32", meta=np.empty((0, 0), "float32")
    )
    with dask.config.set(scheduler=refuse):
        top_k(x, 2)
        coordinates, _ = nonzero_coordinates(x)
        gather_nd(x, coordinates)
        diagonal_matrix(x)


def test_page_examples():
    run_page("docs/integrations/dask.md")


def test_other_collections_are_no_arrays():
    for delayed in (dask.delayed(np.ones(3)), dask.delayed(1)):
        with pytest.raises(TypeError, match=r"^top_k\.x: got Delayed, but it is not an array"):
            top_k(delayed, 1)
