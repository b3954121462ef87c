"""More than 2^31 and more than 2^32 elements: no index wraps around."""

import pytest

import dmlops

torch = pytest.importorskip("torch")

GIB = 2**30
CHUNK = 2**28
COUNTS = (2**31 + 1, 2**32 + 1)


@pytest.fixture(autouse=True)
def _give_memory_back():
    torch.cuda.empty_cache()
    yield
    torch.cuda.empty_cache()


@pytest.fixture(params=COUNTS, ids=("2^31+1", "2^32+1"))
def count(request):
    """Serve numbers of elements that 31 and 32 bits cannot count."""
    return request.param


def needs(n_bytes):
    """Skip a test that has not so much memory, and some for the rest."""
    free, _ = torch.cuda.mem_get_info()
    if free < n_bytes + 3 * GIB:
        pytest.skip(f"needs {n_bytes / GIB + 3:.0f} GiB of GPU memory, {free / GIB:.0f} GiB are free")


def zeros(*shape):
    """Return bytes of zero on the GPU."""
    return torch.zeros(shape, dtype=torch.uint8, device="cuda")


def chunks(n):
    """Go through n elements in parts that leave room for temporary arrays."""
    for first in range(0, n, CHUNK):
        yield slice(first, min(first + CHUNK, n))


class TestTopK:
    def test_one_row(self, count):
        needs(3 * count)
        x = zeros(count)
        places = [count - 1, count // 2, count // 2 - 1, 5]
        for place, value in zip(places, (9, 8, 8, 7), strict=True):
            x[place] = value
        values, indices = dmlops.top_k(x, 6)
        assert values.tolist() == [9, 8, 8, 7, 0, 0]
        assert indices.tolist() == [count - 1, count // 2 - 1, count // 2, 5, 0, 1]

    def test_one_row_of_ties(self, count):
        needs(3 * count)
        x = zeros(count)
        x[: count - 3000] = 1
        values, indices = dmlops.top_k(x, 2900, largest=False)
        assert not values.any()
        assert torch.equal(indices, torch.arange(count - 3000, count - 100, device="cuda"))

    def test_many_rows(self, count):
        needs(3 * count)
        x = zeros(count // 256 + 1, 256)
        x[-1, 200] = 3
        x[-2, 100] = 4
        values, indices = dmlops.top_k(x, 2)
        assert values[-2:].tolist() == [[4, 0], [3, 0]]
        assert indices[-2:].tolist() == [[100, 0], [200, 0]]
        assert not values[:-2].any()

    def test_first_axis(self, count):
        needs(5 * count)
        x = zeros(3, count // 3 + 1)
        x[2, -1] = 5
        x[1, -2] = 4
        values, indices = dmlops.top_k(x, 1, axis=0)
        assert values[0, -3:].tolist() == [0, 4, 5]
        assert indices[0, -3:].tolist() == [0, 1, 2]
        assert not values[0, :-2].any()

    def test_whole_row_sorted(self, count):
        needs(12 * count)
        x = zeros(count)
        x[0] = x[2**31 - 1] = 1
        values, indices = dmlops.top_k(x, count, largest=False)
        assert not values[:-2].any()
        assert values[-2:].tolist() == [1, 1]
        assert indices[-2:].tolist() == [0, 2**31 - 1]
        assert indices[:2].tolist() == [1, 2]
        assert indices[-3].item() == count - 1
        assert indices[2**31 - 3 : 2**31 - 1].tolist() == [2**31 - 2, 2**31]


class TestNonzero:
    def test_few(self, count):
        needs(3 * count)
        x = zeros(3, count // 3 + 1)
        columns = x.shape[1]
        x[0, 0] = x[2, columns - 1] = x[2, 7] = 1
        coordinates, found = dmlops.nonzero_coordinates(x)
        assert found.item() == 3
        assert coordinates.tolist() == [[0, 0], [2, 7], [2, columns - 1]]

    def test_few_of_a_strided_input(self, count):
        needs(3 * count)
        x = zeros(2, count // 2 + 1)
        x[0, -1] = x[1, 5] = 1
        coordinates, found = dmlops.nonzero_coordinates(x.T)
        assert found.item() == 2
        assert coordinates.tolist() == [[5, 1], [x.shape[1] - 1, 0]]

    def test_all(self, count):
        needs(11 * count)
        coordinates, found = dmlops.nonzero_coordinates(zeros(count) + 1)
        assert found.item() == count
        for part in chunks(count):
            expected = torch.arange(part.start, part.stop, device="cuda")
            assert torch.equal(coordinates[part, 0], expected)


class TestGather:
    def test_from_a_large_input(self, count):
        needs(3 * count)
        x = zeros(count // 8 + 1, 8)
        rows = x.shape[0]
        x[-1] = 5
        x[2**28 - 1] = 6
        indices = torch.tensor([[rows - 1], [2**28 - 1], [-1], [0]], device="cuda")
        assert dmlops.gather_nd(x, indices).tolist() == [[5] * 8, [6] * 8, [5] * 8, [0] * 8]

    def test_elements_of_a_long_axis(self, count):
        needs(3 * count)
        x = zeros(count)
        x[-1] = 5
        x[2**31 - 1] = 6
        indices = torch.tensor([[count - 1], [2**31 - 1], [-1], [-count], [count], [2**40]], device="cuda")
        assert dmlops.gather_nd(x, indices, mode="fill").tolist() == [5, 6, 5, 0, 0, 0]
        assert dmlops.gather_nd(x, indices, mode="clip").tolist() == [5, 6, 5, 0, 5, 5]

    def test_to_a_large_output(self, count):
        needs(3 * count)
        x = zeros(2, 1024)
        x[1] = 1
        indices = torch.zeros((count // 1024 + 3, 1), dtype=torch.int32, device="cuda")
        indices[-1] = 1
        result = dmlops.gather_nd(x, indices, mode="clip")
        assert result[-1].tolist() == [1] * 1024
        assert not result[:-1].any()

    def test_many_tuples(self, count):
        needs(7 * count)
        x = zeros(3)
        x[1], x[2] = 1, 2
        indices = torch.zeros((count, 1), dtype=torch.int32, device="cuda")
        indices[-1] = 2
        indices[2**31 - 1] = 1
        result = dmlops.gather_nd(x, indices)
        assert result[-1].item() == 2
        assert result[2**31 - 1].item() == 1
        assert result.sum(dtype=torch.int64).item() == 3
        indices[-1] = 3
        with pytest.raises(dmlops.IndexOutOfRangeError, match=rf"position \({count - 1},\)"):
            dmlops.gather_nd(x, indices)


class TestDiagonal:
    def test_square(self, count):
        needs(4 * count)
        n = int(count**0.5) + 1
        x = zeros(n, n) + 1
        result = dmlops.diagonal_matrix(x, value=0, begin=-(2**40), end=0)
        assert result.sum(dtype=torch.int64).item() == n * (n + 1) // 2
        assert result[-1, -1].item() == 1
        assert not result[-1, :-1].any()
        built = dmlops.diagonal_matrix(shape=(n, n), dtype=torch.uint8, like=x, value=3)
        assert built.sum(dtype=torch.int64).item() == 3 * n

    @pytest.mark.parametrize("step", [1, 2])
    def test_columns_and_steps(self, count, step):
        needs(5 * count)
        n = int(count**0.5) + 1
        x = zeros(n, step * n) + 1
        x = x[:, ::step] if step > 1 else x.T
        result = dmlops.diagonal_matrix(x, value=0, begin=-(2**40), end=0)
        assert result.sum(dtype=torch.int64).item() == n * (n + 1) // 2
        assert result[-1, -1].item() == 1
        assert not result[-1, :-1].any()

    @pytest.mark.parametrize("is_wide", [True, False])
    def test_long_side(self, count, is_wide):
        needs(3 * count)
        shape = (2, count // 2 + 1) if is_wide else (count // 2 + 1, 2)
        x = zeros(*shape) + 1
        last = shape[1] - shape[0]
        result = dmlops.diagonal_matrix(x, value=4, begin=last, end=last + 1)
        assert result[-1, -1].item() == 4
        assert result.sum(dtype=torch.int64).item() == shape[0] * shape[1] + 3 * 2

    def test_many_matrices(self, count):
        needs(3 * count)
        result = dmlops.diagonal_matrix(
            shape=(count // 64 + 1, 8, 8), dtype=torch.uint8, like=zeros(1), value=1
        )
        assert result.sum(dtype=torch.int64).item() == 8 * result.shape[0]
        assert torch.equal(result[-1], torch.eye(8, dtype=torch.uint8, device="cuda"))
