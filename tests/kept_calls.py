"""Calls that are repeated often enough to take the fast path, on host and device memory."""

import sys

import numpy as np
import pytest

from tests.inside import BoundCall, detect

needs_gil = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="without the GIL there is no short way"
)


def python_calls(call):
    """Return the code of each Python function that a call runs, in order."""
    called = []

    def note(frame, event, argument):
        if event == "call":
            called.append(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return called


def place(array, memory):
    """Return a copy that owns its memory, or a view into a larger array; rows or columns stay contiguous."""
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    if memory == "own":
        return array.copy(order)
    if array.ndim == 0:
        return np.array([array] * 3)[1:2].reshape(())
    place = np.zeros((len(array) + 2, *array.shape[1:]), array.dtype, order)[1:-1]
    place[...] = array
    return place


def path_of(call):
    """Return which path a call takes, by the functions of dmlops that run.

    ``"fast"``: its arrays go to a native call as they are; ``"converted"``: as what NumPy makes of them;
    ``"vouched"``: after their library has looked at them; ``"ordinary"``: a bound call runs step by step;
    ``"bound"``: it is planned.
    """
    called = python_calls(call)
    return next((path for path, function in PATHS.items() if function.__code__ in called), "fast")


PATHS = {
    "bound": BoundCall.__init__,
    "ordinary": BoundCall.__call__,
    "vouched": detect.as_input,
    "converted": detect.as_plain,
}
"""Functions that tell the paths apart: the first one that runs names the path."""


def settled_path(call):
    """Return which path a call takes when it has been made often enough."""
    for _ in range(3):
        call()
    return path_of(call)
