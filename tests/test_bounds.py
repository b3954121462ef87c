"""Kernels never read or write outside their arrays: the memory there is inaccessible."""

import ctypes
import mmap
import signal
import sys

import numpy as np
import pytest

import dmlops
from dmlops import FeatureLevel
from tests import cases
from tests.compiled import DESCRIPTORS, make_inputs, make_outputs, oracle
from tests.data import as_strided, assert_same, storage
from tests.libraries import NUMPY, expected
from tests.marks import exhaustive
from tests.scripts import run_script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory protection is asked of Linux")


def fenced(size, at_end):
    """Return `size` bytes with an inaccessible page right behind them, or right before them."""
    pages = -(-size // mmap.PAGESIZE) + 2
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    whole = np.frombuffer(memory, np.uint8)
    for page in (0, pages - 1):
        address = ctypes.c_void_p(whole.ctypes.data + page * mmap.PAGESIZE)
        assert ctypes.CDLL(None).mprotect(address, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    start = (pages - 1) * mmap.PAGESIZE - size if at_end else mmap.PAGESIZE
    return whole[start : start + size]


def fence(x, at_end):
    """Return a copy of `x` in the same layout that reaches up to inaccessible memory."""
    buffer, strides, offset = storage(x)
    place = fenced(buffer.nbytes, at_end).view(x.dtype)
    place[...] = buffer
    return as_strided(place[offset:], x.shape, strides)


def check_function(case, at_end):
    """Call a case's function on fenced arrays, outputs included."""
    answers = expected(NUMPY, case)
    out = tuple(fence(np.full_like(answer, 77), at_end) for answer in answers)
    operands = [fence(x, at_end) for x in case.operands()]
    options = dict(case.options, out=out if len(out) == 2 else out[0])
    getattr(dmlops, case.operator)(*operands, *case.arguments, **options)
    for array, answer in zip(out, answers, strict=True):
        assert_same(array, answer)


def check_descriptor(descriptor, at_end):
    """Execute a descriptor on fenced arrays with a fenced workspace of just the size it asks for."""
    operator = dmlops.compile(descriptor, feature_level=FeatureLevel.EXTENDED)
    inputs = {name: fence(x, at_end) for name, x in make_inputs(descriptor, 2).items()}
    outputs = {name: fence(x, at_end) for name, x in make_outputs(descriptor).items()}
    operator.execute(inputs | outputs, workspace=fenced(operator.workspace_size, at_end))
    for name, answer in oracle(descriptor, inputs).items():
        np.testing.assert_array_equal(outputs[name].ravel()[: answer.size], answer.ravel())


def check_all(at_end):
    """Check everything; this runs in a separate process, which a stray access ends."""
    check_functions(at_end, cases.ALL)
    for name, descriptor in DESCRIPTORS.items():
        print(name, flush=True)
        check_descriptor(descriptor, at_end)


def check_functions(at_end, chosen):
    for case in chosen:
        print(case.operator, case, flush=True)
        check_function(case, at_end)


def check_few(at_end):
    """Check the cases of float32 that say so in their names."""
    chosen = [case for case in cases.ALL if "float32" in case.name]
    assert {case.operator for case in chosen} == {case.operator for case in cases.ALL}
    check_functions(at_end, chosen)


# DMLOPS_SIMD=0 turns vector instructions off, so other kernels run; they must pass all cases too.
@pytest.mark.parametrize("simd", [exhaustive("0"), "1"])
@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.exhaustive
def test_all_cases(at_end, simd):
    run_script(f"from tests.test_bounds import check_all; check_all({at_end})", DMLOPS_SIMD=simd)


@pytest.mark.parametrize("at_end", [True, False])
def test_few_cases_without_vector_instructions(at_end):
    run_script(f"from tests.test_bounds import check_few; check_few({at_end})", DMLOPS_SIMD="0")


@pytest.mark.parametrize(("at_end", "place"), [(True, 5), (False, -1)])
def test_the_fence_holds(at_end, place):
    script = f"""
        import ctypes
        from tests.test_bounds import fenced
        memory = fenced(5, {at_end})
        print(bytes(memory), flush=True)
        ctypes.string_at(memory.ctypes.data + {place}, 1)
    """
    with pytest.raises(AssertionError, match=f"exit status -{signal.SIGSEGV}"):
        run_script(script)


def test_the_switch_for_vector_instructions():
    script = "from kernels_cpu import processor; print(processor.WIDTH)"
    assert run_script(script, DMLOPS_SIMD="0") != run_script(script, DMLOPS_SIMD="1")
