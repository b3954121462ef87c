"""The tables of cases on the GPU: every bit is as on the CPU."""

import numpy as np
import pytest

import dmlops
from tests import cases
from tests.compiled import DESCRIPTORS, cpu_answer, make_inputs
from tests.data import INDEX_DTYPES, assert_same, random, sample
from tests.gpu.bound import Bound
from tests.gpu.conftest import LIBRARIES
from tests.libraries import call
from tests.top_k_cases import OF_LENGTHS, UNSORTED

TABLES = (*cases.ALL, *UNSORTED, *OF_LENGTHS)


@pytest.mark.parametrize(
    ("name", "case"),
    [(name, case) for name, library in LIBRARIES.items() for case in TABLES if library.supports(case)],
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


# Around the limits of kernels: by name, shapes, an axis, numbers of selected elements, and types.
SELECTIONS = {
    "limits": (
        [(2, n) for n in (5000, 70_000, 400_000)],
        1,
        (1, 7, 100, 1000, 2048, 2049, 5000),
        ("float16", "int32", "float64"),
    ),
    "whole rows": (
        [(3, n) for n in (2000, 4097, 6144, 6145, 8192, 8193, 16_384, 16_385, 100_000)],
        1,
        (None,),
        ("float32", "float16", "int64"),
    ),
    "most of many short rows": (
        [(n_rows, n) for n_rows in (2, 1500) for n in (40, 64, 128, 200, 256)],
        1,
        (33, 64, 100, 199, None),
        ("uint8", "float16", "float32", "float64"),
    ),
    # Columns that do not fill the last warp, parts of columns merged by a second launch, and too few columns.
    "columns": (
        [(300, 30_001), (16_200, 520), (64, 140_000), (1000, 30)],
        0,
        (1, 13, 64, 600),
        ("float32", "int64", "uint8"),
    ),
    "inner axes": ([(3, 90, 33_000), (5, 1000, 17, 100)], 1, (3, 7), ("float32", "int64", "uint8")),
}


@pytest.mark.parametrize("kind", ["random", "ties", "ascending"])
@pytest.mark.parametrize(
    ("shape", "axis", "ks", "dtypes"),
    [(shape, *rest) for shapes, *rest in SELECTIONS.values() for shape in shapes],
    ids=str,
)
def test_top_k_of_each_size(shape, axis, ks, dtypes, kind, gpu_library):
    for dtype in dtypes:
        x = sample(dtype, shape, shape)
        if kind == "ties":
            x = random(shape).integers(0, 3, shape).astype(dtype)
        elif kind == "ascending":
            x = np.sort(x, axis)
        for k in {min(k or shape[axis], shape[axis]) for k in ks}:
            options = {"axis": axis, "largest": (k + len(dtype)) % 2 == 0}
            case = cases.Case("top_k", "size", lambda x=x: (x,), (k,), options)
            for actual, expected in zip(call(gpu_library, case), call(gpu_library.host, case), strict=True):
                assert_same(actual, expected)


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
