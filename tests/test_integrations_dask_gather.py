"""`dmlops.integrations.dask.gather_nd`: gathers across chunks, without collecting them."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

da = pytest.importorskip("dask.array")

import dask  # noqa: E402

import dmlops  # noqa: E402
from dmlops import IndexOutOfRangeError, InvalidDescriptorError  # noqa: E402
from dmlops.integrations.dask import gather_nd, nonzero_coordinates  # noqa: E402
from tests import reference  # noqa: E402
from tests.dask_arrays import check, chunked, with_unknown_columns, with_unknown_rows  # noqa: E402
from tests.data import INDEX_DTYPES, assert_same, sample  # noqa: E402


class TestGatherND:
    def test_gathers_what_nonzero_found(self):
        x = sample("int32", (20, 6), "found")
        lazy = da.from_array(x, chunks=(6, 3))
        found = gather_nd(lazy, nonzero_coordinates(lazy).coordinates)
        assert_same(found.compute(), x[x != 0])

    def test_gathers_that_are_computed_together(self):
        x = da.arange(7, chunks=3)
        together = [gather_nd(y, [[i]], mode=m) for y in (x, x + 1) for i in (1, 9) for m in ("clip", "fill")]
        check(da.concatenate(together), np.array([1, 1, 6, 0, 2, 2, 7, 0]))

    def test_refuses(self):
        x = da.ones((4, 6), chunks=2)
        with pytest.raises(InvalidDescriptorError, match=r"gather_nd\.mode: got 'wrap'"):
            gather_nd(x, da.zeros((3, 1), dtype="int64"), mode="wrap")
        for dtype in ("int8", "uint16", "bool", "float32"):
            with pytest.raises(
                TypeError, match=rf"gather_nd\.indices: got {dtype}, but it is not an index type"
            ):
                gather_nd(x, da.zeros((3, 1), dtype=dtype))
        with pytest.raises(InvalidDescriptorError, match=r"gather_nd\.indices: got 0 dimensions"):
            gather_nd(x, da.asarray(3))
        with pytest.raises(TypeError, match=r"gather_nd\.indices: got list, but dask\.array\.asarray makes"):
            gather_nd(x, [[1], [2, 3]])


class TestGatherNDOfUnknownSizes:
    x = sample("float32", (4, 6), "unknown rows")

    def test_tuple_size(self):
        tuples = np.array([[1, 2], [0, 5]])
        for axis, indices in enumerate((with_unknown_rows(tuples[0], 1), with_unknown_columns(tuples, 1))):
            with pytest.raises(InvalidDescriptorError, match=rf"gather_nd\.indices: .* axis {axis}, "):
                gather_nd(da.from_array(self.x), indices)
        told = r"got shape \(1, 3\), .* \(sizes that Dask does not know are shown as 1\)"
        with pytest.raises(InvalidDescriptorError, match=told):
            gather_nd(self.x, with_unknown_rows(np.zeros((4, 3), int), 2))

    def test_what_is_indexed(self):
        rows = np.array([[3], [0]])
        for x in (with_unknown_rows(self.x, 4), with_unknown_columns(self.x, 3)):
            check(gather_nd(x, rows), self.x[[3, 0]])
        for axis, x in enumerate((with_unknown_rows(self.x, 2), with_unknown_columns(self.x, 2))):
            with pytest.raises(InvalidDescriptorError, match=rf"gather_nd\.x: .* axis {axis}, .* compute_"):
                gather_nd(x, np.hstack([rows, rows]))


@st.composite
def gathers(draw):
    """Draw the arguments of a gather, and the same arguments in chunks."""
    x, lazy = draw(chunked(min_ndim=0))
    bounds = x.shape[: draw(st.integers(0, x.ndim))]
    mode = "fill" if 0 in bounds else draw(st.sampled_from(["raise", "clip", "fill"]))
    dtype = draw(st.sampled_from(INDEX_DTYPES))
    beyond = 0 if mode == "raise" else 3
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=2)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    columns = [
        rng.integers(-n - beyond if dtype.kind == "i" else 0, n + beyond + (n == 0), shape) for n in bounds
    ]
    indices = np.stack(columns, -1).astype(dtype) if columns else np.empty((*shape, 0), dtype)
    if mode != "raise" and indices.size:
        limits = np.iinfo(dtype)
        indices.flat[rng.integers(indices.size)] = draw(st.sampled_from([limits.min, limits.max]))
    given = indices
    if draw(st.booleans()):
        given = da.from_array(indices, chunks=tuple(draw(st.integers(1, 4)) for _ in indices.shape))
    return (x, indices), (lazy, given), {"mode": mode}


@given(gathers())
@pytest.mark.filterwarnings("ignore:Increasing number of chunks")
def test_equals_the_whole(arguments):
    whole, in_chunks, options = arguments
    result = gather_nd(*in_chunks, **options)
    expected = reference.gather_nd(*whole, **options)
    assert result.shape == expected.shape
    assert_same(result.compute(scheduler="sync"), expected)


@pytest.mark.parametrize("mode", ["clip", "fill"])
@pytest.mark.parametrize("given", [np.asarray, lambda indices: da.from_array(indices, chunks=4)])
def test_indices_just_out_of_range(mode, given):
    x = sample("float32", (7,), "ends")
    for indices in (np.arange(-9, 10)[:, None], np.array([[6], [7], [2**63], [2**64 - 1]], "uint64")):
        expected = reference.gather_nd(x, indices, mode=mode)
        check(gather_nd(da.from_array(x, chunks=3), given(indices), mode=mode), expected)


N_CHUNKS, CHUNK = 40, 100_000


class TestMemory:
    """No task sees more than a chunk, and chunks of `x` are not kept for one another."""

    tuples = np.random.default_rng(3).integers(-N_CHUNKS * CHUNK, N_CHUNKS * CHUNK, (60, 1))

    @pytest.mark.parametrize("scheduler", ["sync", "threads"])
    @pytest.mark.parametrize(
        "given", [lambda i: i, lambda i: da.from_array(i, chunks=20)], ids=["known", "lazy"]
    )
    def test_peak(self, given, scheduler):
        x = da.arange(N_CHUNKS * CHUNK, chunks=CHUNK, dtype="int32") * 3
        lazy = gather_nd(x, given(self.tuples))
        lazy.compute()  # loads kernels and modules
        tracemalloc.start()
        try:
            result = lazy.compute(scheduler=scheduler, num_workers=2)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert_same(result, (self.tuples[:, 0] % (N_CHUNKS * CHUNK) * 3).astype("int32"))
        assert peak < N_CHUNKS / 3 * 4 * CHUNK

    def test_chunks_that_no_index_names_are_not_computed(self):
        computed = []

        def record(chunk, block_info=None):
            computed.append(block_info[0]["chunk-location"])
            return chunk

        x = da.zeros((40, 30), chunks=10).map_blocks(record, dtype=float, meta=np.empty((0, 0)))
        gather_nd(x, [[5, 29], [-1, 0]]).compute(scheduler="sync")
        assert sorted(computed) == [(0, 2), (3, 0)]
        computed.clear()
        # At least one, which says what zeros look like.
        gather_nd(x, [[50, 50]], mode="fill").compute(scheduler="sync")
        assert len(computed) == 1

    def test_indices_in_memory_make_chunks_of_a_good_size(self):
        x = da.zeros((30, 64), chunks=(10, 32))
        indices = np.zeros((100, 1), int)
        with dask.config.set({"array.chunk-size": "2 KiB"}):
            result = gather_nd(x, indices)
        assert result.chunks[1] == (32, 32)
        assert max(result.chunks[0]) == 8
        assert sum(result.chunks[0]) == 100
        assert gather_nd(da.zeros((2, 2**30), chunks=-1), np.zeros((0, 2, 1), int)).shape == (0, 2, 2**30)


class TestErrorsAcrossChunks:
    x = da.ones((4, 6), chunks=2)

    def test_indices_in_memory_are_checked_at_once(self):
        for indices in ([[0, 0], [1, 6]], np.array([[0, 0], [1, 6]])):
            with pytest.raises(
                IndexOutOfRangeError, match=r"tuple \(1, 6\) at position \(1,\), .* \[-6, 5\]"
            ):
                gather_nd(self.x, indices)
        with pytest.raises(IndexOutOfRangeError, match='every index is out of range; use mode="fill"'):
            gather_nd(self.x[:0], [[0]], mode="clip")

    def test_lazy_indices_are_checked_by_their_chunk(self):
        lazy = gather_nd(self.x, da.from_array(np.array([[0], [3], [-5]]), chunks=1))
        with pytest.raises(IndexOutOfRangeError, match=r"got tuple \(-5,\) .* \[-4, 3\]"):
            lazy.compute(scheduler="sync")

    def test_lists_of_lazy_arrays(self):
        rows = [da.from_array(np.array([i, j]), chunks=1) for i, j in ((3, 5), (0, -1))]
        with pytest.raises(TypeError, match=r"pass da\.stack\(indices, -1\) for one array per dimension"):
            gather_nd(self.x, rows)
        check(gather_nd(self.x, da.stack(rows)), np.ones(2))


def test_levels_are_those_of_x():
    x, indices = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([[1], [2]])
    with dmlops.feature_level("DML_6_4"):
        gathered = gather_nd(da.from_array(x, chunks=2), indices).compute(scheduler="sync")
    assert gathered.tolist() == x[1:].tolist()


@pytest.mark.parametrize("listed", [[], [[]], [[], []]], ids=str)
def test_index_tuples_without_coordinates_in_lists(listed):
    x = np.arange(6).reshape(2, 3)
    check(gather_nd(da.from_array(x, chunks=2), listed), dmlops.gather_nd(x, listed))
