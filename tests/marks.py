"""Marks of tests: `exhaustive` leaves a test out of the ordinary run, `quick` puts it into the quick run."""

import os
import re

import pytest

QUICK_TYPE = "float32"
# Kernels are compiled for each width of the elements.
OTHER_WIDTHS = re.compile(r"\b(bool|u?int(8|16|64)|b?float(16|64))\b")
ORDINARY_TYPES = ("int32", "uint32", "float32")
COMPILE_ALL = os.environ.get("DMLOPS_COMPILE_ALL") == "1"
"""Whether exhaustive tests compile every kernel for every architecture, which takes many minutes."""


def exhaustive(*values):
    """Return arguments of a test that the ordinary run leaves out because they take too long."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def nightly(*values):
    """Return arguments of a test that `.ci/run` leaves out too."""
    return pytest.param(*values, marks=pytest.mark.nightly)


def ordinary(table):
    """Return the cases of a table that name no type of another width than 4 bytes."""
    return [case for case in table if not OTHER_WIDTHS.search(case.name)]


def as_parameters(table):
    """Return a table of cases as parameters: other widths are exhaustive, one type is quick."""
    return [
        exhaustive(case)
        if OTHER_WIDTHS.search(case.name)
        else pytest.param(case, marks=pytest.mark.quick)
        if case.name.startswith(QUICK_TYPE)
        and "long" not in case.name  # long rows have a kernel of their own
        else case
        for case in table
    ]
