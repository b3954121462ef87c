"""Marks of tests: `exhaustive` leaves a test out of the ordinary run, `quick` puts it into the quick run."""

import os

import pytest

QUICK_TYPE = "float32"
COMPILE_ALL = os.environ.get("DMLOPS_COMPILE_ALL") == "1"
"""Whether exhaustive tests compile every kernel for every architecture, which takes many minutes."""


def exhaustive(*values):
    """Return arguments of a test that the ordinary run leaves out because they take too long."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def with_quick_cases(table):
    """Return a table of cases as parameters; those of one data type are part of the quick run."""
    return [
        pytest.param(case, marks=pytest.mark.quick) if case.name.startswith(QUICK_TYPE) else case
        for case in table
    ]
