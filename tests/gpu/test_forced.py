"""The tables of cases with each algorithm forced in turn, against NumPy."""

import dataclasses
import functools

import pytest

from tests import cases
from tests.data import assert_same
from tests.gpu.algorithms import EACH, CannotServeError, forced
from tests.libraries import Torch, call, expected
from tests.top_k_cases import OF_LENGTHS, OF_ROWS, UNSORTED

TABLES = {
    "top_k": (*cases.TOP_K, *UNSORTED, *OF_LENGTHS, *OF_ROWS),
    "nonzero_coordinates": cases.NONZERO,
    "gather_nd": cases.GATHER,
    "diagonal_matrix": cases.DIAGONAL,
}


@functools.cache
def table(operator):
    """Return the cases of an operator, their operands made, and the answers to them."""
    rows = []
    for case in TABLES[operator]:
        operands = case.operands()
        made = dataclasses.replace(case, operands=lambda operands=operands: operands)
        rows.append((made, expected(Torch("cuda"), made)))
    return rows


@pytest.mark.parametrize(("operator", "algorithm"), EACH, ids=str)
def test_all_cases(operator, algorithm, torch):
    library, served = Torch("cuda"), 0
    for case, answers in table(operator):
        try:
            with forced(algorithm):
                found = call(library, case)
            for actual, answer in zip(found, answers, strict=True):
                assert_same(actual, answer)
        except CannotServeError:
            continue
        except Exception as error:
            error.add_note(f"case {case} of {operator}")
            raise
        served += 1
    assert served
