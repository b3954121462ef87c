"""More than 2^31 elements: no index wraps."""

import pytest

import dmlops

torch = pytest.importorskip("torch")

BEYOND = 2**31 + 1000
NEEDED_BYTES = 20 * 2**30

pytestmark = pytest.mark.skipif(
    torch.cuda.get_device_properties(0).total_memory < NEEDED_BYTES, reason="needs 20 GiB of GPU memory"
)


@pytest.fixture(autouse=True)
def _give_memory_back():
    yield
    torch.cuda.empty_cache()


def test_top_k_of_one_row():
    x = torch.zeros(BEYOND, dtype=torch.uint8, device="cuda")
    places = [BEYOND - 1, 2**31, 2**31 - 1, 5]
    for place, value in zip(places, (9, 8, 8, 7), strict=True):
        x[place] = value
    values, indices = dmlops.top_k(x, 6)
    assert values.tolist() == [9, 8, 8, 7, 0, 0]
    assert indices.tolist() == [BEYOND - 1, 2**31 - 1, 2**31, 5, 0, 1]


def test_top_k_of_many_rows():
    x = torch.zeros((2**23 + 7, 256), dtype=torch.uint8, device="cuda")
    x[-1, 200] = 3
    x[-2, 100] = 4
    values, indices = dmlops.top_k(x, 2)
    assert values[-2:].tolist() == [[4, 0], [3, 0]]
    assert indices[-2:].tolist() == [[100, 0], [200, 0]]
    assert not values[:-2].any()


def test_nonzero():
    x = torch.zeros((3, BEYOND // 3 + 1), dtype=torch.uint8, device="cuda")
    columns = x.shape[1]
    x[0, 0] = x[2, columns - 1] = x[2, 7] = 1
    coordinates, count = dmlops.nonzero_coordinates(x)
    assert count.tolist() == [3]
    assert coordinates.tolist() == [[0, 0], [2, 7], [2, columns - 1]]


def test_gather():
    x = torch.zeros((BEYOND // 8 + 1, 8), dtype=torch.uint8, device="cuda")
    rows = x.shape[0]
    x[-1] = 5
    x[2**28] = 6
    indices = torch.tensor([[rows - 1], [2**28], [-1], [0]], device="cuda")
    assert dmlops.gather_nd(x, indices).tolist() == [[5] * 8, [6] * 8, [5] * 8, [0] * 8]


def test_gather_to_a_large_output():
    x = torch.arange(2, dtype=torch.uint8, device="cuda").reshape(2, 1).expand(2, 1024).contiguous()
    indices = torch.zeros((2**21 + 3, 1), dtype=torch.int32, device="cuda")
    indices[-1] = 1
    result = dmlops.gather_nd(x, indices, mode="clip")
    assert result[-1].tolist() == [1] * 1024
    assert not result[:-1].any()


def test_diagonal_matrix():
    n = 46_400  # n * n exceeds 2^31
    x = torch.ones((n, n), dtype=torch.uint8, device="cuda")
    result = dmlops.diagonal_matrix(x, value=0, begin=-(2**40), end=0)
    assert result.sum(dtype=torch.int64).item() == n * (n + 1) // 2
    assert result[-1, -1].item() == 1
    assert not result[-1, :-1].any()
    built = dmlops.diagonal_matrix(shape=(n, n), dtype=torch.uint8, like=x, value=3)
    assert built.sum(dtype=torch.int64).item() == 3 * n
