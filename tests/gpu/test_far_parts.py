"""Data for every part of a kernel: the last elements of each thread, ties between them, odd offsets.

Each kernel is forced in turn, and the answers are compared with plain NumPy.
"""

import numpy as np
import pytest

import dmlops
from tests import reference
from tests.cases import Case
from tests.data import assert_same, random, sample
from tests.gpu.algorithms import ALGORITHMS, forced
from tests.libraries import Torch, call, expected

FORCED = {
    operator: {algorithm.name: algorithm for algorithm in algorithms}
    for operator, algorithms in ALGORITHMS.items()
}


SEARCHED = {
    # name: shape, axes of the view
    "row": ((70_003,), (0,)),
    "matrix": ((260, 301), (0, 1)),
    "cube": ((40, 41, 43), (0, 1, 2)),
    "four": ((14, 15, 16, 17), (0, 1, 2, 3)),
    "five": ((9, 8, 7, 6, 25), (0, 1, 2, 3, 4)),
    "columns": ((320, 261), (1, 0)),
}


@pytest.mark.parametrize("density", [0.01, 0.5, 0.9])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", SEARCHED)
@pytest.mark.parametrize(
    "algorithm", ["masks", "masks-transposed", "masks-strided", "masks-large_tiles", "scan", "wide"]
)
def test_nonzero(algorithm, shape, dtype, density, torch):
    sizes, axes = SEARCHED[shape]
    x = (random((sizes, density)).random(sizes) < density).astype(dtype)
    x.reshape(-1)[[0, -1]] = 1
    case = Case("nonzero_coordinates", algorithm, lambda: (x.transpose(axes),))
    library = Torch("cuda")
    with forced(FORCED["nonzero_coordinates"][algorithm]):
        found = call(library, case)
    for actual, answer in zip(found, expected(library, case), strict=True):
        assert_same(actual, answer)


@pytest.mark.parametrize("lead", range(16))
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_nonzero_of_what_begins_anywhere(dtype, lead, torch):
    """Memory before and after the input is not zero, and does not count."""
    n = 40_001
    memory = np.ones(n + 32, dtype)
    memory[lead : lead + n] = random(lead).random(n) < 0.3
    x = torch.from_numpy(memory).cuda()[lead : lead + n]
    coordinates, count = dmlops.nonzero_coordinates(x)
    np.testing.assert_array_equal(coordinates.cpu().numpy(), np.argwhere(memory[lead : lead + n]))
    assert count.item() == len(coordinates)


def gathered(x, indices, mode):
    """Return what NumPy gathers by the last axis of `indices`."""
    bounds = np.array(x.shape[: indices.shape[-1]])
    counted = np.where(indices < 0, indices + bounds, indices)
    nearest = np.clip(counted, 0, bounds - 1)
    output = x[tuple(np.moveaxis(nearest, -1, 0))]
    if mode == "fill":
        output[(counted != nearest).any(-1)] = 0
    return output


GATHERS = {
    # name: shape of x, coordinates
    "rows": ((60, 64), 1),
    "odd_rows": ((60, 61), 1),
    "elements": ((50, 61), 2),
    "deep": ((7, 8, 9, 3), 3),
}


@pytest.mark.parametrize("mode", ["clip", "fill"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize("kind", GATHERS)
@pytest.mark.parametrize("algorithm", ["few", "planar", "unaligned", "units", "wide", "long_registers"])
def test_gather(algorithm, kind, index_dtype, dtype, mode, torch):
    """Tuples whose coordinates are out of range one by one, at both ends, and just beyond them."""
    shape, n_coordinates = GATHERS[kind]
    # Kernels must not read beyond the bounds; if they do, they shall find something there.
    memory = sample(dtype, (2 * shape[0], *shape[1:]), ("gather", shape))
    x = torch.from_numpy(memory.view(np.uint8) if dtype == "uint8" else memory.view("int32")).cuda()
    x, host = x[: shape[0]], memory[: shape[0]]
    bounds = np.array(shape[:n_coordinates])
    indices = random((kind, algorithm)).integers(-bounds, bounds, (3001, n_coordinates)).astype(index_dtype)
    # The bound itself also stands among tuples that are all in range and have no negative coordinate.
    indices[:1000] %= bounds.astype(index_dtype)
    for c in range(n_coordinates):
        indices[7 + c : 1000 : 331, c] = bounds[c]
        for at, value in enumerate((bounds[c], bounds[c] - 1, -bounds[c] - 1, -bounds[c], 0, -1, 1 << 30)):
            indices[1007 + 41 * at + c :: 331, c] = value
    with forced(FORCED["gather_nd"][algorithm]):
        found = dmlops.gather_nd(x, torch.from_numpy(indices).cuda(), mode=mode)
    answer = gathered(host, indices, mode)
    np.testing.assert_array_equal(found.cpu().numpy().view("uint8"), answer.view("uint8"))


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_one_tuple_out_of_range_at_every_place(index_dtype, torch):
    x = torch.zeros((50, 3), device="cuda")
    indices = torch.zeros((3000, 1), dtype=getattr(torch, index_dtype), device="cuda")
    for place in (*range(64), *range(1000, 1064), 2047, 2048, 2999):
        indices[place] = 50 if place % 2 else -51
        with pytest.raises(dmlops.IndexOutOfRangeError, match=rf"position \({place},\)"):
            dmlops.gather_nd(x, indices)
        indices[place] = 0
    assert dmlops.gather_nd(x, indices).shape == (3000, 3)


@pytest.mark.parametrize("apart", [1, 128, 256, 1024, 1029])
def test_the_first_of_two_tuples_out_of_range_is_named(apart, torch):
    """Both may be of one thread, of one warp, of two blocks, and in either coordinate."""
    x = torch.zeros((50, 60), device="cuda")
    for place in (0, 5, 127, 700):
        for columns in ((0, 0), (0, 1), (1, 0), (1, 1)):
            indices = torch.zeros((3000, 2), dtype=torch.int64, device="cuda")
            indices[place, columns[0]] = 77
            indices[place + apart, columns[1]] = 78
            with pytest.raises(dmlops.IndexOutOfRangeError, match=rf"position \({place},\)"):
                dmlops.gather_nd(x, indices)


BANDS = ((0, 1), (-1, 2), (-1000, 5), (3, -2), (40, 200), (1000, 0))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64"])
@pytest.mark.parametrize("layout", ["packed", "gaps", "every_other", "transposed"])
@pytest.mark.parametrize("algorithm", ["elements", "elements-wide", "short_rows", "strided", "transposed"])
def test_diagonal_matrix(algorithm, layout, dtype, torch):
    shape = (2, 133, 261)
    memory = sample(dtype, (2, 133, 600), "diagonal")
    if layout == "transposed":
        memory = sample(dtype, (2, 261, 133), "diagonal")
    host, x = memory, torch.from_numpy(memory).cuda()
    cut = {
        "packed": lambda array: array[..., :261] + 0,
        "gaps": lambda array: array[..., 5:266],
        "every_other": lambda array: array[..., 1:522:2],
        "transposed": lambda array: array.swapaxes(1, 2),
    }[layout]
    host, x = cut(host), cut(x)
    assert host.shape == shape
    for begin, end in BANDS:
        with forced(FORCED["diagonal_matrix"][algorithm]):
            found = dmlops.diagonal_matrix(x, value=5, begin=begin, end=end)
        answer = reference.diagonal_matrix(host, value=5, begin=begin, end=end)
        np.testing.assert_array_equal(found.cpu().numpy(), answer)


@pytest.mark.parametrize("lead", range(16))
@pytest.mark.parametrize("layout", ["packed", "transposed"])
def test_diagonal_matrix_written_anywhere(layout, lead, torch):
    host = sample("uint8", (41, 77), "anywhere")
    x = torch.from_numpy(host).cuda()
    if layout == "transposed":
        x = torch.from_numpy(host.T.copy()).cuda().T
    memory = torch.full((41 * 77 + 32,), 99, dtype=torch.uint8, device="cuda")
    out = memory[lead : lead + 41 * 77].reshape(41, 77)
    dmlops.diagonal_matrix(x, value=5, begin=-2, end=9, out=out)
    np.testing.assert_array_equal(
        out.cpu().numpy(), reference.diagonal_matrix(host, value=5, begin=-2, end=9)
    )
    assert (memory[:lead] == 99).all()
    assert (memory[lead + 41 * 77 :] == 99).all()
