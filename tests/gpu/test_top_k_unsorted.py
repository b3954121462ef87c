"""`top_k` with ``sorted=False`` and with ``lengths`` on the GPU: every bit as on the CPU, without waiting."""

import numpy as np
import pytest

import dmlops
from dmlops import DeviceMismatchError, InvalidDescriptorError
from tests import reference
from tests.cases import Case
from tests.data import INDEX_DTYPES, LAYOUTS, assert_same, random, sample
from tests.gpu.conftest import LIBRARIES
from tests.gpu.test_large import chunks, needs, zeros
from tests.gpu.test_streams import BUSY_CYCLES, nothing_waits
from tests.libraries import call
from tests.top_k_cases import OF_LENGTHS, UNSORTED, distinct, row_lengths

# Shapes that each algorithm serves: (shape, axis, k).
SHAPES = {
    "rounds": ((3001, 200), 1, 5),
    "rounds-two_of_each_lane": ((3001, 60), 1, 8),
    "warp": ((3000, 200), 1, 20),
    "warp-whole_rows": ((3000, 60), 1, 60),
    "block-few_rows": ((7, 30_000), 1, 300),
    "block-many_rows": ((1100, 5000), 1, 300),
    "grid": ((2, 2_000_001), 1, 500),
    "grid-columns": ((50_257, 256), 0, 50),
    "columns": ((2100, 4099), 0, 3),
    "columns-stacked": ((16_200, 520), 0, 1),
    "tile": ((50, 4000), 1, 2500),
    "partition-few_rows": ((7, 9000), 1, 3000),
    "partition-many_rows": ((1100, 2048), 1, 1000),
    "partition-long_rows": ((200, 30_000), 1, 2000),
    "sampled": ((40, 70_001), 1, 600),
    "sort": ((3, 100_003), 1, 50_000),
    "sort-whole_rows": ((2, 40_000), 1, 40_000),
    "three_dimensions": ((40, 300, 70), 1, 9),
}
# Values that are hard in different ways: hardly any of them tied, nearly all, and half of them NaNs.
VALUES = {
    "random": lambda shape: distinct(shape, "random"),
    "ties": lambda shape: random("ties").integers(0, 3, shape).astype("float16"),
    "nan": lambda shape: np.where(random("nan").random(shape) < 0.5, np.nan, 1).astype("float32"),
}


def check(library, case):
    """Check every bit of a case's answer against that of the same library in host memory."""
    for actual, expected in zip(call(library, case), call(library.host, case), strict=True):
        assert_same(actual, expected)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        (name, case)
        for name, library in LIBRARIES.items()
        for case in (*UNSORTED, *OF_LENGTHS)
        if library.supports(case)
    ],
    ids=str,
)
def test_tables(name, case):
    check(LIBRARIES[name], case)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("name", SHAPES)
def test_each_algorithm(name, values, gpu_library):
    shape, axis, k = SHAPES[name]
    x = VALUES[values](shape)
    lengths = row_lengths(x, axis, k, "uint32" if values == "ties" else "int64")
    for asked in ({"sorted": False}, {"sorted": False, "lengths": lengths}, {"lengths": lengths}):
        options = {"axis": axis, "largest": values in ("random", "nan")} | asked
        check(gpu_library, Case("top_k", name, lambda: (x,), (k,), options))


@pytest.mark.parametrize("layout", ["fortran", "rotated", "every_other", "padded_rows"])
def test_out_of_any_layout(layout, gpu_library):
    x = sample("float32", (40, 30, 5), "out")
    for axis in (0, 1, 2):
        for options in ({}, {"lengths": row_lengths(x, axis, 4, "int32")}):
            values, indices = reference.top_k(x, 4, axis=axis, sorted=False, **options)
            out = tuple(
                gpu_library.from_numpy(LAYOUTS[layout](np.full_like(array, 77)))
                for array in (values, indices)
            )
            given = {name: gpu_library.from_numpy(array) for name, array in options.items()}
            dmlops.top_k(gpu_library.from_numpy(x), 4, axis=axis, sorted=False, **given, out=out)
            assert_same(gpu_library.to_numpy(out[0]), values)
            assert_same(gpu_library.to_numpy(out[1]), indices)


def test_repeated_calls_read_the_lengths_anew(gpu_library):
    host = sample("float32", (50, 700), "repeated")
    x = gpu_library.from_numpy(host)
    for dtype in INDEX_DTYPES:
        lengths = gpu_library.from_numpy(np.zeros(50, dtype))
        out = tuple(gpu_library.from_numpy(np.zeros((50, 90), name)) for name in ("float32", "int64"))
        for turn in range(6):
            numbers = row_lengths(host, 1, 90 + turn, dtype)
            lengths[...] = gpu_library.from_numpy(numbers)
            expected = reference.top_k(host, 90, lengths=numbers, sorted=turn % 2 == 0)
            options = {"lengths": lengths, "sorted": turn % 2 == 0}
            for results in (dmlops.top_k(x, 90, **options), dmlops.top_k(x, 90, **options, out=out)):
                for result, answer in zip(results, expected, strict=True):
                    assert_same(gpu_library.to_numpy(result), answer)


GRAPHS = {
    "rounds": ((30, 100), 1, 5),
    "warp": ((30, 100), 1, 9),
    "block": ((5, 9000), 1, 200),
    "grid": ((2, 2_000_000), 1, 100),
    "sampled": ((40, 70_001), 1, 600),
    "sort": ((2, 50_000), 1, 30_000),
    "columns": ((2100, 4096), 0, 2),
}


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_read_the_lengths_anew(name, is_sorted, torch):
    shape, axis, k = GRAPHS[name]
    x = torch.zeros(shape, device="cuda")
    lengths = torch.zeros(shape[1 - axis], dtype=torch.int32, device="cuda")

    def select():
        return dmlops.top_k(x, k, axis=axis, sorted=is_sorted, lengths=lengths)

    select()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = select()
    for seed in range(3):
        host = sample("int8", shape, seed).astype("float32")
        numbers = row_lengths(host, axis, k + seed, "int32")
        x.copy_(torch.from_numpy(host))
        lengths.copy_(torch.from_numpy(numbers))
        graph.replay()
        torch.cuda.synchronize()
        expected = dmlops.top_k(host, k, axis=axis, sorted=is_sorted, lengths=numbers)
        for result, answer in zip(results, expected, strict=True):
            assert_same(result.cpu().numpy(), answer)


@pytest.mark.parametrize("name", GRAPHS)
def test_nothing_waits(name, torch):
    shape, axis, k = GRAPHS[name]
    host = sample("int8", shape, "late").astype("float32")
    numbers = row_lengths(host, axis, k, "int64")
    late, late_lengths = torch.from_numpy(host).cuda(), torch.from_numpy(numbers).cuda()
    x, lengths = torch.zeros_like(late), torch.zeros_like(late_lengths)
    dmlops.top_k(x, k, axis=axis, sorted=False, lengths=lengths)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        dmlops.top_k(x, k, axis=axis, sorted=False, lengths=lengths)
        torch.cuda.synchronize()
        torch.cuda._sleep(BUSY_CYCLES)
        x.copy_(late)
        lengths.copy_(late_lengths)
        with nothing_waits(torch):
            results = dmlops.top_k(x, k, axis=axis, sorted=False, lengths=lengths)
        assert not stream.query(), "the call waited for its stream"
    stream.synchronize()
    expected = dmlops.top_k(host, k, axis=axis, sorted=False, lengths=numbers)
    for result, answer in zip(results, expected, strict=True):
        assert_same(result.cpu().numpy(), answer)


def test_given_stream(torch):
    host, numbers = sample("float32", (20, 300), "stream"), np.arange(-2, 18)
    late, late_lengths = torch.from_numpy(host).cuda(), torch.from_numpy(numbers).cuda()
    x, lengths = torch.zeros_like(late), torch.zeros_like(late_lengths)
    dmlops.top_k(x, 9, lengths=lengths, sorted=False)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY_CYCLES)
        x.copy_(late)
        lengths.copy_(late_lengths)
    results = dmlops.top_k(x, 9, lengths=lengths, sorted=False, stream=stream)
    assert not stream.query(), "the call waited for its stream"
    stream.synchronize()
    expected = reference.top_k(host, 9, lengths=numbers, sorted=False)
    for result, answer in zip(results, expected, strict=True):
        assert_same(result.cpu().numpy(), answer)


def test_lengths_of_another_library(torch):
    cupy = pytest.importorskip("cupy")
    host, numbers = sample("float32", (20, 300), "library"), np.arange(-2, 18)
    expected = reference.top_k(host, 9, lengths=numbers)
    of_torch = dmlops.top_k(torch.from_numpy(host).cuda(), 9, lengths=cupy.asarray(numbers))
    of_cupy = dmlops.top_k(cupy.asarray(host), 9, lengths=torch.from_numpy(numbers).cuda())
    torch.cuda.synchronize()
    for name, results in (("torch", of_torch), ("cupy", of_cupy)):
        for result, answer in zip(results, expected, strict=True):
            assert_same(LIBRARIES[name].to_numpy(result), answer)


def test_lengths_on_the_host_are_refused(gpu_library):
    x = gpu_library.from_numpy(np.ones((2, 3), "float32"))
    for lengths in (np.array([1, 2]), [1, 2]):
        with pytest.raises(DeviceMismatchError, match=r"top_k\.lengths"):
            dmlops.top_k(x, 2, lengths=lengths)
    with pytest.raises(DeviceMismatchError, match=r"top_k\.lengths"):
        dmlops.top_k(np.ones((2, 3)), 2, lengths=gpu_library.from_numpy(np.array([1, 2])))


def test_out_shares_no_memory_with_the_lengths(torch):
    x, memory = torch.rand((4, 6), device="cuda"), torch.full((100,), 2, device="cuda")
    values = torch.empty((4, 3), device="cuda")
    for _ in range(4):
        for start, is_shared in ((4, False), (0, True), (3, True)):
            out = values, memory[start : start + 12].reshape(4, 3)
            if is_shared:
                with pytest.raises(InvalidDescriptorError, match="shares memory"):
                    dmlops.top_k(x, 3, lengths=memory[:4], out=out)
            else:
                dmlops.top_k(x, 3, lengths=memory[:4], out=out)


def test_same_bits_from_run_to_run(gpu_library):
    x = random("again").integers(0, 4, (9, 40_000)).astype("float16")
    options = {"lengths": row_lengths(x, 1, 3000), "sorted": False}
    case = Case("top_k", "again", lambda: (x,), (3000,), options)
    first = [array.tobytes() for array in call(gpu_library, case)]
    for _ in range(5):
        assert [array.tobytes() for array in call(gpu_library, case)] == first


class TestLarge:
    """Rows of more than 2^32 elements, and more than 2^32 elements in many rows."""

    count = 2**32 + 70_001

    def test_one_row(self, torch):
        needs(2 * self.count)
        x = zeros(self.count)
        places = [5, self.count // 2, 2**32 - 1, 2**32 + 1, self.count - 2, self.count - 1]
        for place in places:
            x[place] = 200 + place % 7
        values, indices = dmlops.top_k(x, 6, sorted=False)
        assert indices.tolist() == places
        assert values.tolist() == [200 + place % 7 for place in places]
        lengths = torch.tensor(2**32 + 2, device="cuda")
        values, indices = dmlops.top_k(x, 6, sorted=False, lengths=lengths)
        # Of the zeros the first two are in.
        assert indices.tolist() == [0, 1, *places[:4]]
        assert values.tolist() == [0, 0, *(200 + place % 7 for place in places[:4])]

    def test_many_rows(self, torch):
        n_rows = self.count // 256 + 1
        needs(3 * n_rows * 256)
        x = zeros(n_rows, 256)
        x[:, 200] = 3
        x[:, 100] = 2
        lengths = torch.full((n_rows,), 256, dtype=torch.int32, device="cuda")
        lengths[-1] = 200
        lengths[-2] = 1
        values, indices = dmlops.top_k(x, 2, sorted=False, lengths=lengths)
        assert values[-2:].tolist() == [[0, 0], [0, 2]]
        assert indices[-2:].tolist() == [[0, -1], [0, 100]]
        for part in chunks(n_rows - 2):
            assert (indices[part] == torch.tensor([100, 200], device="cuda")).all()
