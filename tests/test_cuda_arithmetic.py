"""Integers in CUDA kernels: unsigned types keep their width, as in C; other code has Numba's own types."""

from typing import Any, NamedTuple

import pytest

from tests import inside
from tests.inside import once

pytest.importorskip("numba_cuda")
compiler = inside.compiler
cuda, types = compiler.cuda, compiler.types
u32, u64, i64 = types.uint32, types.uint64, types.int64

SEVEN = 7
FUNCTIONS = {
    "a + b": (lambda a, b: a + b, (u32, u32), u32),
    "a * b - 1": (lambda a, b: a * b - 1, (u32, u32), u32),
    "a & 31": (lambda a, b: a & 31, (u32, u32), u32),
    "a // SEVEN": (lambda a, b: a // SEVEN, (u32, u32), u32),
    "a % b": (lambda a, b: a % b, (u32, u64), u64),
    "a >> 5": (lambda a, b: a >> 5, (u64, u32), u64),
    "a << b": (lambda a, b: a << b, (u32, u64), u32),
    "1 << b": (lambda a, b: 1 << b, (u64, u32), u32),
    "~a": (lambda a, b: ~a, (u32, u32), u32),
    "0 - a": (lambda a, b: 0 - a, (u64, u32), u64),
    "a | b of i64": (lambda a, b: a | b, (u32, i64), i64),
    # A constant with a sign is none of C's unsigned ones.
    "a & -2": (lambda a, b: a & -2, (u32, u32), i64),
    "a < 5": (lambda a, b: a < 5, (u32, u32), types.boolean),
    "a == b": (lambda a, b: a == b, (u32, u64), types.boolean),
}


def result_type(function, arguments):
    """Return the type of what a function returns."""
    _, result = cuda.compile_ptx(function, arguments, device=True, cc=(9, 0))
    return result


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_in_c(name):
    function, arguments, expected = FUNCTIONS[name]
    compiler.import_numba_registries()
    with once.LOCK, compiler.compiler_lock.global_compiler_lock, compiler._typing_as_in_c():
        assert result_type(function, arguments) == expected


class Point(NamedTuple):
    x: Any
    y: Any


class Size(NamedTuple):
    y: Any
    x: Any


def test_named_tuples_of_as_many_numbers_are_not_each_other():
    compiler.import_numba_registries()
    with once.LOCK, compiler.compiler_lock.global_compiler_lock, compiler._typing_as_in_c():
        assert result_type(lambda a, b: Point(a, b).x, (u32, u64)) == u32
        assert result_type(lambda a, b: Size(a, b).x, (u32, u64)) == u64


def test_other_functions_are_compiled_as_numba_does():
    compiler.compile_ptx(cuda.jit(lambda n: None), "nothing", (9, 0))

    def with_closure(a, b):
        def add_to(c):
            return a + c

        return add_to(b)

    assert result_type(with_closure, (i64, i64)) == i64
    assert result_type(lambda a, b: a + b, (u32, u32)) == u64
    assert result_type(lambda a, b: a + 1, (u32, u32)) == i64


def test_numba_has_its_own_rules_back_after_an_error():
    as_numba_does = types.functions.BaseFunction.get_call_type
    kernel = cuda.jit(lambda n: n.nothing)
    with pytest.raises(Exception, match="nothing"):
        compiler.compile_ptx(kernel, "nothing", (9, 0))
    assert types.functions.BaseFunction.get_call_type is as_numba_does
