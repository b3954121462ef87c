"""Calls that are repeated often enough to take the fast path, on host and device memory."""

import functools
import sys

import numpy as np
import pytest

import dmlops
from dmlops import FeatureLevel
from dmlops.array_libraries import detect
from dmlops.calls.call import BoundCall
from tests import reference
from tests.data import assert_same

MOST_REPETITIONS = 8

needs_gil = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="without the GIL there is no short way"
)


def python_calls(function):
    """Return what `function` returns, and how many Python functions it calls."""
    count = 0

    def count_calls(frame, event, argument):
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(count_calls)
    try:
        result = function()
    finally:
        sys.setprofile(before)
    return result, count


def settle(make):
    """Repeat what returns its number of Python calls until that no longer falls; return the numbers."""
    counts = [make()]
    while len(counts) < MOST_REPETITIONS and (len(counts) < 4 or counts[-1] < counts[-2]):
        counts.append(make())
    return counts


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


class Call:
    """A call of a function, and what it should answer.

    Arrays are passed as `prepare` leaves them; without it they are put into memory of their own, or into that
    of a larger array.
    """

    def __init__(self, operator, arrays, *arguments, level=None, prepare=place, **options):
        self.operator, self.arrays, self.arguments, self.options = operator, arrays, arguments, options
        self.level, self.prepare = level, prepare

    def changed(self, *arguments, arrays=None, level=None, prepare=None, **options):
        """Return a call that differs in what is named."""
        return Call(
            self.operator,
            self.arrays if arrays is None else arrays,
            *(arguments or self.arguments),
            level=level or self.level,
            prepare=prepare or self.prepare,
            **self.options | options,
        )

    @functools.cached_property
    def expected(self):
        """The answer of NumPy, and the number of its rows that are defined."""
        options = dict(self.options)
        if self.operator == "nonzero_coordinates" and options.get("fill_value") is None:
            options.pop("fill_value", None)
        default = "int64" if self.level in (None, FeatureLevel.EXTENDED) else "uint32"
        index_dtype = options.pop("index_dtype", default)
        results = getattr(reference, self.operator)(*self.arrays, *self.arguments, **options)
        if self.operator == "top_k":
            values, indices = results
            return [values, indices.astype(index_dtype)], None
        if self.operator == "nonzero_coordinates":
            is_filled = options.get("size") is None or options.get("fill_value") is not None
            return [array.astype(index_dtype) for array in results], None if is_filled else results[1]
        return [results], None

    def made(self, memory, *, given):
        """Return a function that makes the call on new arrays, checks every bit of the answer, and counts.

        What it returns is how many Python functions the call itself took.
        """
        function = getattr(dmlops, self.operator)
        expected, n_rows = self.expected

        def make():
            arrays = [self.prepare(array, memory) for array in self.arrays]
            options = dict(self.options)
            if given:
                out = [place(np.full_like(array, 77), memory) for array in expected]
                options["out"] = tuple(out) if len(out) == 2 else out[0]
                for name in ("index_dtype", "shape", "dtype"):
                    options.pop(name, None)
                if self.options.get("fill_value") is None:
                    options.pop("size", None)
            with dmlops.feature_level(self.level or FeatureLevel.EXTENDED):
                run = functools.partial(function, *arrays, *self.arguments, **options)
                results, count = python_calls(run)
            results = results if isinstance(results, tuple) else (results,)
            if given:
                assert all(result is array for result, array in zip(results, out, strict=True))
            for result, array in zip(results, expected, strict=True):
                rows = slice(n_rows if array.ndim else None)
                assert_same(result[rows] if array.ndim else result, array[rows] if array.ndim else array)
            return count

        return make


def path_of(call):
    """Return which path a call takes, by the functions of dmlops that run.

    ``"fast"``: its arrays go to a native call as they are; ``"converted"``: as what NumPy makes of them;
    ``"vouched"``: after their library has looked at them; ``"ordinary"``: a bound call runs step by step;
    ``"bound"``: it is planned.
    """
    seen = set()

    def note(frame, event, argument):
        if event == "call":
            seen.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return next((path for path, function in PATHS.items() if function.__code__ in seen), "fast")


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
