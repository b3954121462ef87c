"""Pieces of LLVM IR from which intrinsics are built."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.extending import intrinsic

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def literal_intrinsic(function: Callable[..., Any]) -> Any:
    """Make an intrinsic some of whose arguments may be literals."""
    return intrinsic(prefer_literal=True)(function)


def filled(builder: Any, kind: ir.Type, scalar: ir.Value) -> ir.Value:
    """Return a vector with `scalar` in every lane, or `scalar` where `kind` is no vector."""
    if not isinstance(kind, ir.VectorType):
        return scalar
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    first_lanes = ir.Constant(ir.VectorType(I32, kind.count), [0] * kind.count)
    return builder.shuffle_vector(first, undefined, first_lanes)


def narrowed(builder: Any, word: ir.Value, element: ir.IntType) -> ir.Value:
    """Return the low bits of a word."""
    return word if element == I64 else builder.trunc(word, element)


def declared(builder: Any, name: str, result: ir.Type, *arguments: ir.Type) -> ir.Function:
    """Return one of LLVM's own intrinsics."""
    kind = ir.FunctionType(result, arguments)
    known = builder.module.globals
    return known[name] if name in known else ir.Function(builder.module, kind, name)


def reserved(builder: Any, kind: ir.Type) -> ir.Value:
    """Return memory on the stack, which lives as long as the kernel runs.

    Numba's own way to do this fills the memory with zeros, which takes a small call longer than its work.
    """
    with builder.goto_entry_block():
        return builder.alloca(kind)
