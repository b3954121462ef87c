"""Calls touch only elements of their arrays: the memory around them is inaccessible.

Every array is flush against pages that end the process when they are touched, at either end and between its
rows. Inputs are read-only, and canaries fill the rest of their pages. `test_random` has random problems.
"""

import signal
import sys
from itertools import product

import numpy as np
import pytest

import dmlops
from tests import opaque_data, reference
from tests.data import assert_same, random, sample
from tests.guarded import Guarded
from tests.marks import exhaustive, nightly
from tests.scripts import run_script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory protection is asked of Linux")


def call_on_rows(dtypes):
    """Call every function on rows of each length up to 130, with pages that end the process between them."""
    for size in range(1, 131):
        for dtype in dtypes:
            values = sample(dtype, (3, size), ("rows", size))
            values[random((size, dtype)).random((3, size)) < 0.5] = 0
            for at_end in (False, True):
                print(size, dtype, at_end, flush=True)
                x = Guarded((3, size), dtype, n_outer=1, at_end=at_end).fill(values, read_only=True)
                found, _ = dmlops.nonzero_coordinates(x)
                assert_same(found, reference.nonzero_coordinates(values)[0])
                band = Guarded((3, size), dtype, n_outer=1, at_end=at_end)
                dmlops.diagonal_matrix(x, value=1, begin=-1, end=size // 2, out=band.array)
                assert_same(band.array, reference.diagonal_matrix(values, value=1, begin=-1, end=size // 2))
                k = min(size, 4)
                best = Guarded((3, k), dtype, n_outer=1, at_end=at_end)
                places = Guarded((3, k), "int64", n_outer=1, at_end=at_end)
                dmlops.top_k(x, k, out=(best.array, places.array))
                assert_same(places.array, reference.top_k(values, k)[1])
                taken = Guarded((2, size), dtype, n_outer=1, at_end=at_end)
                tuples = Guarded((2, 1), "int64", n_outer=1, at_end=at_end).fill([[2], [-3]], read_only=True)
                dmlops.gather_nd(x, tuples, out=taken.array)
                assert_same(taken.array, values[[2, 0]])
                for guarded in (band, best, places, taken):
                    guarded.check((size, dtype))


def call_on_parts(dtypes):
    """Call on elements that kernels take as several integers."""
    shapes = ((1, 1), (2, 3), (7, 5), (3, 64), (65, 17), (2, 3, 33), (40, 300))
    for dtype, shape, at_end in product(map(np.dtype, dtypes), shapes, (True, False)):
        values = opaque_data.sample(dtype, shape)
        bytes_of_values = opaque_data.raw(values)
        backwards = [d for d in range(len(shape)) if len(shape) == 2]
        guarded = [
            Guarded(size, dtype, at_end=at_end, order=order, backwards=reverse)
            for size, order, reverse in (
                (shape, range(len(shape)), backwards),
                (shape, range(len(shape))[::-1], ()),
                ((2, *shape[1:]), None, ()),
            )
        ]
        x, out, picked = guarded
        x.fill(values, read_only=True)
        indices = np.array([[shape[0] - 1], [0]])
        dmlops.gather_nd(x.array, indices, out=picked.array)
        np.testing.assert_array_equal(opaque_data.raw(picked.array), bytes_of_values[indices[:, 0]])
        for value in (0, values.flat[0]):
            dmlops.diagonal_matrix(x.array, value=value, begin=-1, end=3, out=out.array)
            np.testing.assert_array_equal(
                opaque_data.raw(out.array), opaque_data.filled(values, value, -1, 3)
            )
        if values.dtype.names is None:
            found = dmlops.nonzero_coordinates(x.array).coordinates
            np.testing.assert_array_equal(found, np.argwhere(opaque_data.is_nonzero(values)))
        for name, array in enumerate(guarded):
            array.check(name)


@pytest.mark.parametrize(
    ("call", "simd"),
    [
        ("call_on_rows(['float32'])", "1"),
        nightly("call_on_parts(['c8', 'f4,f4,f4'])", "1"),
        nightly("call_on_rows(['uint8', 'float16', 'float64'])", "1"),
        nightly("call_on_rows(['uint8', 'float16', 'float32', 'float64'])", "0"),
        exhaustive("call_on_parts(['c16', 'u1,f4'])", "1"),
        nightly("call_on_parts(['c8', 'u1,f4'])", "0"),
    ],
)
def test_calls_between_pages(call, simd):
    run_script(f"from tests import test_guard_pages; test_guard_pages.{call}", DMLOPS_SIMD=simd)


@pytest.mark.parametrize(("at_end", "place"), [(True, 5), (False, -1)])
def test_the_guard_holds(at_end, place):
    script = f"""
        import ctypes
        from tests.guarded import Guarded
        array = Guarded((5,), "uint8", at_end={at_end}).fill(1)
        print(bytes(array), flush=True)
        ctypes.string_at(array.ctypes.data + {place}, 1)
    """
    with pytest.raises(AssertionError, match=f"exit status -{signal.SIGSEGV}"):
        run_script(script)
