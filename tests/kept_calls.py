"""Calls that are repeated often enough to take the fast path, on host and device memory."""

import sys
from collections import OrderedDict
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import pytest

from tests.inside import CALLS, KINDS, BoundCall, backend, detect

needs_gil = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="without the GIL there is no short way"
)


def known_calls():
    """Return how many calls are known, which are not bound again."""
    return len(CALLS)


def known_kinds():
    """Return how many kinds of calls are known, whose calls native code makes."""
    return len(KINDS)


@contextmanager
def nothing_known(*, are_native=True):
    """Have no call be known at first, so that all are planned anew; and none be native, if they may not."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(CALLS, _calls=OrderedDict()))
        stack.enter_context(mock.patch.multiple(KINDS, _kinds=OrderedDict()))
        if not are_native:
            stack.enter_context(mock.patch.object(KINDS, "keep", return_value=False))
        yield


def calls_made_in_python():
    """Have calls of known kinds be made step by step, in Python."""
    return mock.patch.object(KINDS, "call", return_value=None)


def calls_only_native():
    """Fail at calls that native code does not make by itself."""
    return mock.patch.object(CALLS, "run", side_effect=AssertionError("bound in Python"))


@contextmanager
def plans_counted():
    """Serve a list, to which each plan that is made adds an element."""
    plans, plan = [], backend.plan
    with mock.patch.object(backend, "plan", lambda *given: plans.append(None) or plan(*given)):
        yield plans


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
