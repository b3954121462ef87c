"""Marks of tests."""

import pytest


def exhaustive(*values):
    """Return the arguments of a test that the ordinary run leaves out for its time."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)
