"""`top_k` with ``sorted=False``: the elements that it selects, in ascending order of index."""

import numpy as np
import pytest

import dmlops
from dmlops import FeatureLevel
from tests import reference
from tests.data import DTYPES, assert_same, bits, random, sample
from tests.libraries import check
from tests.top_k_cases import UNSORTED


@pytest.mark.parametrize("case", UNSORTED, ids=str)
def test_matches_the_oracle(case, library):
    check(library, case)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_selects_what_sorted_does(dtype):
    x = sample(dtype, (4, 90), "the same")
    for k in (1, 20, 90):
        for largest in (True, False):
            expected = dmlops.top_k(x, k, largest=largest)
            values, indices = dmlops.top_k(x, k, largest=largest, sorted=False)
            order = np.argsort(expected.indices, axis=-1)
            assert_same(indices, np.take_along_axis(expected.indices, order, -1))
            assert_same(bits(values), bits(np.take_along_axis(expected.values, order, -1)))


def test_all_elements_are_the_input():
    x = sample("float32", (3, 2000), "all")
    values, indices = dmlops.top_k(x, 2000, sorted=False)
    assert_same(bits(values), bits(x))
    assert_same(indices, np.broadcast_to(np.arange(2000), x.shape))


def test_takes_lists():
    values, indices = dmlops.top_k([[3, 1, 2], [0, 7, 5]], 2, sorted=False)
    assert_same(values, np.array([[3, 2], [7, 5]]))
    assert_same(indices, np.array([[0, 2], [1, 2]]))


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_any_number_of_threads(n_threads):
    before = dmlops.get_num_threads()
    try:
        dmlops.set_num_threads(n_threads)
        for shape, axis, k in (((700, 500), 1, 30), ((400_000,), 0, 1000), ((500, 700), 0, 30)):
            x = random("threads").integers(0, 50, shape).astype("float32")
            expected = reference.top_k(x, k, axis=axis, sorted=False)
            for got, answer in zip(dmlops.top_k(x, k, axis=axis, sorted=False), expected, strict=True):
                assert_same(got, answer)
    finally:
        dmlops.set_num_threads(before)


def test_directml_levels_take_it():
    x = sample("float32", (1, 1, 4, 30), "levels")
    with dmlops.feature_level(FeatureLevel.DML_6_4):
        values, indices = dmlops.top_k(x, 5, sorted=False)
    expected = reference.top_k(x, 5, sorted=False)
    assert_same(values, expected[0])
    assert_same(indices, expected[1].astype("uint32"))
