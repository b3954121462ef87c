"""The tables of cases with each way of solving them forced in turn: every bit as on the CPU."""

import functools

import pytest

from tests import cases
from tests.data import assert_same
from tests.gpu.ways import WAYS, CannotServeError, forced
from tests.libraries import Torch, call

TABLES = {
    "top_k": cases.TOP_K,
    "nonzero_coordinates": cases.NONZERO,
    "gather_nd": cases.GATHER,
    "diagonal_matrix": cases.DIAGONAL,
}


@functools.cache
def answer(operator, place):
    """Return what the CPU answers to a case."""
    return call(Torch("cpu"), TABLES[operator][place])


@pytest.mark.parametrize(
    ("operator", "way"), [(operator, way) for operator, ways in WAYS.items() for way in ways], ids=str
)
def test_all_cases(operator, way, torch):
    library, served = Torch("cuda"), 0
    for place, case in enumerate(TABLES[operator]):
        expected = answer(operator, place)
        try:
            with forced(way):
                found = call(library, case)
        except CannotServeError:
            continue
        served += 1
        for actual, array in zip(found, expected, strict=True):
            try:
                assert_same(actual, array)
            except AssertionError as error:
                error.add_note(f"case {case} of {operator}")
                raise
    assert served
