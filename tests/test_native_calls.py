"""The native part of the fast path refuses objects that only look like the arrays of an earlier call."""

import ctypes
import sys

import numpy as np
import pytest

import dmlops
from tests.inside import call_words, native_call

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    "call",
    [
        lambda x: dmlops.diagonal_matrix(x, value=3),
        dmlops.nonzero_coordinates,
        lambda x: dmlops.top_k(x, 4),
        lambda x: dmlops.gather_nd(x, [[1]]),
    ],
    ids=["diagonal_matrix", "nonzero_coordinates", "top_k", "gather_nd"],
)
def test_wherever_the_stack_ends_the_error_is_a_recursion_error(call):
    x = np.arange(24, dtype="float32").reshape(4, 6)
    for _ in range(4):
        call(x)

    def deeper(levels):
        return deeper(levels - 1) if levels else call(x)

    n_errors, frame, depth = 0, sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    for levels in range(sys.getrecursionlimit() - depth - 60, sys.getrecursionlimit() - depth):
        try:
            deeper(levels)
        except RecursionError:
            n_errors += 1
    assert n_errors


@pytest.mark.parametrize(
    ("n_arrays", "n_numbers"), [(call_words.MAX_ARRAYS + 1, 0), (2, call_words.MAX_SIZES + 1)]
)
def test_more_than_there_is_room_for_is_refused(n_arrays, n_numbers):
    """A native call copies arrays and numbers to its stack, behind which it must not write."""
    operands = [native_call.ArrayKind(ord("f") | 4 << 32, 0, 1, 4)] * n_arrays
    with pytest.raises(
        ValueError, match=f"at most {call_words.MAX_ARRAYS} arrays, {call_words.MAX_SIZES} numbers"
    ):
        native_call.KindTable(operands, np.ndarray, 0, 0, range(n_numbers), ())


@pytest.mark.parametrize("n_keys", [3, native_call.MAX_KERNELS + 9])
def test_kernels_keep_their_places_while_others_are_added(n_keys):
    """Native code of other threads may be between the number of a kernel and its address."""
    table = native_call.KindTable([], None, 0, 0, (), ())
    words = (ctypes.c_int64 * native_call.TABLE_WORDS).from_address(table.address)
    expected = []
    for key in range(n_keys):
        for _ in range(2):
            table.add_kernel(key, 1000 + key)
        expected += [key, 1000 + key] if key < native_call.MAX_KERNELS else []
        assert (
            words[native_call.KERNEL_LIST : native_call.KERNEL_LIST + 2 * words[native_call.N_KERNELS]]
            == expected
        )
