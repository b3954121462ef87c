"""The tables of cases on the GPU: every bit equals that of the CPU."""

import numpy as np
import pytest

import dmlops
from tests import cases
from tests.compiled import DESCRIPTORS, cpu_answer, make_inputs
from tests.data import DTYPES, INDEX_DTYPES, assert_same, random, sample
from tests.gpu.bound import Bound
from tests.gpu.conftest import LIBRARIES
from tests.libraries import call


@pytest.mark.parametrize(
    ("name", "case"),
    [(name, case) for name, library in LIBRARIES.items() for case in cases.ALL if library.supports(case)],
    ids=str,
)
def test_functions(name, case):
    library = LIBRARIES[name]
    for actual, expected in zip(call(library, case), call(library.host, case), strict=True):
        assert_same(actual, expected)


@pytest.mark.parametrize("descriptor", DESCRIPTORS.values(), ids=DESCRIPTORS)
def test_descriptors(descriptor, torch):
    bound = Bound(torch, descriptor)
    for seed in (1, 2, 5):
        inputs = make_inputs(descriptor, seed)
        bound.feed(inputs)
        bound.execute()
        bound.check(cpu_answer(descriptor, inputs))


def test_same_bits_from_run_to_run(gpu_library):
    for case in (cases.TOP_K[-40], *(case for case in cases.ALL if case.name.startswith("one_row"))):
        first = [array.tobytes() for array in call(gpu_library, case)]
        for _ in range(5):
            assert [array.tobytes() for array in call(gpu_library, case)] == first


@pytest.mark.parametrize("k", [1, 7, 100, 1000, 2048, 2049, 5000])
@pytest.mark.parametrize("n", [5000, 70_000, 400_000])
def test_top_k_around_the_limits_of_its_kernels(n, k, gpu_library):
    for dtype in ("float16", "int32", "float64"):
        for kind in ("random", "ties"):
            x = sample(dtype, (2, n), (n, k))
            if kind == "ties":
                x = random((n, k)).integers(0, 3, (2, n)).astype(dtype)
            case = cases.Case("top_k", "limits", lambda x=x: (x,), (k,), {"largest": k % 2 == 0})
            for actual, expected in zip(call(gpu_library, case), call(gpu_library.host, case), strict=True):
                assert_same(actual, expected)


@pytest.mark.parametrize(
    ("shape", "axis", "k"),
    [
        ((300, 30_001), 0, 13),  # columns that do not fill the last warp
        ((16_200, 520), 0, 1),  # parts of columns, merged by a second launch
        ((3, 90, 33_000), 1, 7),
        ((5, 1000, 17, 100), 1, 3),
        ((64, 140_000), 0, 64),  # every element wins
        ((1000, 30), 0, 600),  # too few columns, and too large a k, for a lane each
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("kind", "dtype"), [("random", "float32"), ("ties", "int64"), ("ascending", "uint8")]
)
def test_top_k_along_other_axes(shape, axis, k, kind, dtype, gpu_library):
    x = sample(dtype, shape, (shape, k))
    if kind == "ties":
        x = random((shape, k)).integers(0, 3, shape).astype(dtype)
    elif kind == "ascending":
        x = np.sort(x, axis)
    for largest in (True, False):
        case = cases.Case("top_k", "axis", lambda: (x,), (k,), {"axis": axis, "largest": largest})
        for actual, expected in zip(call(gpu_library, case), call(gpu_library.host, case), strict=True):
            assert_same(actual, expected)


@pytest.mark.parametrize("n", [2000, 4097, 6144, 6145, 8192, 8193, 16_384, 16_385, 100_000])
def test_top_k_of_whole_rows(n, gpu_library):
    for dtype in ("float32", "float16", "int64"):
        for kind in ("random", "ties"):
            x = sample(dtype, (3, n), ("whole", n))
            if kind == "ties":
                x = random(("whole", n)).integers(0, 3, (3, n)).astype(dtype)
            case = cases.Case("top_k", "whole", lambda x=x: (x,), (n,), {"largest": kind == "ties"})
            for actual, expected in zip(call(gpu_library, case), call(gpu_library.host, case), strict=True):
                assert_same(actual, expected)


@pytest.mark.parametrize(("n", "k"), [(40, 33), (64, 64), (128, 100), (200, 199), (256, 64), (256, 256)])
def test_top_k_of_most_of_many_short_rows(n, k, gpu_library):
    for dtype in ("uint8", "float16", "float32", "float64"):
        x = sample(dtype, (1500, n), ("most", n))
        x[::3] = random(("most", n)).integers(0, 3, (500, n)).astype(dtype)
        for rows in (1500, 2):
            case = cases.Case("top_k", "most", lambda x=x[:rows]: (x,), (k,), {"largest": k % 2 == 0})
            for actual, expected in zip(call(gpu_library, case), call(gpu_library.host, case), strict=True):
                assert_same(actual, expected)


@pytest.mark.parametrize(
    "shape",
    [(64, 1000), (160, 33), (32, 16), (4096, 500), (3, 96, 50), (70, 32, 40), (33, 1000), (64, 15)],
    ids=str,
)
def test_nonzero_of_matrices_whose_columns_are_contiguous(shape, gpu_library):
    for dtype in ("uint8", "float16", "float32", "float64"):
        for density in (0.01, 0.6):
            x = (random((shape, density)).random(shape) < density).astype(dtype)
            turned = gpu_library.from_numpy(x).swapaxes(-1, -2)
            for given, expected in (
                (turned, x.swapaxes(-1, -2)),
                (turned[..., 1:, :], x.swapaxes(-1, -2)[..., 1:, :]),
            ):
                result = dmlops.nonzero_coordinates(given)
                np.testing.assert_array_equal(gpu_library.to_numpy(result.coordinates), np.argwhere(expected))
                assert gpu_library.to_numpy(result.count) == np.count_nonzero(expected)


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES, ids=str)
def test_gather_raises_as_on_the_cpu(index_dtype, gpu_library):
    indices = random("raise").integers(0, 4, (40_000, 2)).astype(index_dtype)
    indices[30_000:, 1] = 5
    texts = []
    for library in (gpu_library, gpu_library.host):
        with pytest.raises(dmlops.IndexOutOfRangeError) as error:
            dmlops.gather_nd(library.from_numpy(np.ones((4, 5))), library.from_numpy(indices))
        texts.append(str(error.value))
    assert texts[0] == texts[1]
    assert "position (30000,)" in texts[0]


def test_outputs_of_any_layout(gpu_library):
    x = sample("float32", (40, 30, 50), "layout")
    for stride in (1, 2):
        out = gpu_library.from_numpy(np.zeros((40, 50 * stride, 30), "float32")[:, ::stride])
        view = out.swapaxes(1, 2)
        assert dmlops.diagonal_matrix(gpu_library.from_numpy(x), begin=-3, end=9, out=view) is view
        expected = dmlops.diagonal_matrix(x, begin=-3, end=9)
        np.testing.assert_array_equal(gpu_library.to_numpy(view).view("uint32"), expected.view("uint32"))


def test_trimmed_size_is_exact(gpu_library):
    for density in (0, 0.001, 0.5, 1):
        x = (random(density).random((1300, 700)) < density).astype("float32")
        result = dmlops.nonzero_coordinates(gpu_library.from_numpy(x))
        np.testing.assert_array_equal(gpu_library.to_numpy(result.coordinates), np.argwhere(x))
        assert gpu_library.to_numpy(result.count) == np.count_nonzero(x)


def test_every_type_of_the_library(gpu_library):
    for dtype in DTYPES:
        case = cases.Case("top_k", str(dtype), lambda d=dtype: (sample(d, (3, 90), "type"),), (90,))
        if gpu_library.supports(case):
            for actual, expected in zip(call(gpu_library, case), call(gpu_library.host, case), strict=True):
                assert_same(actual, expected)
