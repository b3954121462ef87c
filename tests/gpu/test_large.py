"""More than 2^31 and more than 2^32 elements on a GPU: no index wraps around."""

import importlib

import pytest

import dmlops
from tests.gpu.conftest import LIBRARIES
from tests.peer_bugs.large import CALLS, CHUNK, GB, check, zeros


@pytest.fixture(autouse=True)
def _give_memory_back():
    yield
    for library in LIBRARIES.values():
        if library.name == "cupy":
            library.cupy.get_default_memory_pool().free_all_blocks()
        else:
            library.torch.cuda.empty_cache()


def needs(n_bytes):
    """Skip a test for which the GPU has not enough memory, and some for the rest."""
    error, free, _ = importlib.import_module("cuda.bindings.runtime").cudaMemGetInfo()
    assert error == 0
    if free < n_bytes + 3 * GB:
        pytest.skip(f"needs {n_bytes / GB + 3:.0f} GB of GPU memory, {free / GB:.0f} GB are free")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_calls(library, name):
    needs(CALLS[name].n_bytes)
    check(LIBRARIES[library], name)


def chunks(n):
    """Go through n elements in parts that leave room for temporary arrays."""
    for first in range(0, n, CHUNK):
        yield slice(first, min(first + CHUNK, n))


@pytest.mark.parametrize("count", [2_121_269_248, 2**32 + 1])
def test_all_are_found(count, torch):
    """torch's CUDA nonzero read illegal memory for 2121269248 ones, and not for one element less.

    https://github.com/pytorch/pytorch/issues/80337
    """
    needs(11 * count)
    coordinates, found = dmlops.nonzero_coordinates(zeros(LIBRARIES["torch"], (count,)) + 1)
    assert found.item() == count
    for part in chunks(count):
        assert torch.equal(coordinates[part, 0], torch.arange(part.start, part.stop, device="cuda"))


@pytest.mark.parametrize("left_out", [0, 470])
@pytest.mark.parametrize("count", [2**31 + 1, 2**32 + 1])
def test_whole_rows_are_sorted(count, left_out, torch):
    """torch's CUDA top-k returned index 0 many times where k exceeds 2^32.

    https://github.com/pytorch/pytorch/issues/173622
    """
    needs(12 * count)
    x = zeros(LIBRARIES["torch"], (count,))
    x[0] = x[2**31 - 1] = 1
    k = count - left_out
    values, indices = dmlops.top_k(x, k, largest=bool(left_out))
    if left_out:
        values, indices = values.roll(-2), indices.roll(-2)
    assert not values[:-2].any()
    assert values[-2:].tolist() == [1, 1]
    assert indices[-2:].tolist() == [0, 2**31 - 1]
    for part in chunks(k - 2):
        expected = torch.arange(part.start, part.stop, device="cuda") + 1
        expected += expected >= 2**31 - 1
        assert torch.equal(indices[part], expected)


def test_the_position_of_an_index_out_of_range(torch):
    count = 2**32 + 1
    needs(7 * count)
    indices = torch.zeros((count, 1), dtype=torch.int32, device="cuda")
    indices[-1] = 3
    with pytest.raises(dmlops.IndexOutOfRangeError, match=rf"position \({count - 1},\)"):
        dmlops.gather_nd(zeros(LIBRARIES["torch"], (3,)), indices)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_both_triangles_of_65537_rows(is_transposed, torch):
    """torch's CUDA tril and triu were wrong for 65537 rows and columns, where a product wrapped.

    https://github.com/pytorch/pytorch/issues/136211
    """
    needs(15 * GB)
    n = 0x10001
    x = torch.ones((n, n), dtype=torch.uint8, device="cuda")
    x = x.T if is_transposed else x
    for result, corner in ((dmlops.tril(x), 0), (dmlops.triu(x), 1)):
        assert result.sum(dtype=torch.int64).item() == n * (n + 1) // 2
        assert (result[0, -1].item(), result[-1, 0].item()) == (corner, 1 - corner)
