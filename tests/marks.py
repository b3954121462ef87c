"""Marks of tests: `exhaustive` leaves a test out of the ordinary run, `quick` puts it into the quick run."""

import pytest

QUICK_TYPES = ("float32", "uint8")


def exhaustive(*values):
    """Return arguments of a test that the ordinary run leaves out because they take too long."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def with_quick_cases(table):
    """Return a table of cases as parameters; those of two data types are part of the quick run."""
    return [
        pytest.param(case, marks=pytest.mark.quick) if case.name.startswith(QUICK_TYPES) else case
        for case in table
    ]
