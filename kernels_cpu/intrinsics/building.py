"""Pieces of LLVM IR, and the decorator that makes intrinsics of functions which emit it."""

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def emitted(
    signature: Callable[..., Any], *, literal: int | None = None
) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes an intrinsic of a function which emits its code.

    Parameters
    ----------
    signature : callable
        Returns Numba's signature for the types of the arguments.
    literal : int, optional
        Which argument must be a literal: the function gets it as a plain integer.
    """

    def decorate(emit: Callable[..., Any]) -> Any:
        def definition(typing_context: Any, *kinds: Any) -> Any:
            if literal is not None and not isinstance(kinds[literal], types.IntegerLiteral):
                return None

            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                values = list(arguments)
                if literal is not None:
                    values[literal] = kinds[literal].literal_value
                value = emit(builder, *values)
                return context.get_dummy_value() if value is None else value

            return signature(*kinds), generate

        definition.__name__ = definition.__qualname__ = emit.__name__
        definition.__doc__ = emit.__doc__
        vars(definition)["__signature__"] = inspect.signature(emit)  # Numba's first argument is the context
        return intrinsic(prefer_literal=literal is not None)(definition)

    return decorate


def element_at(builder: Any, array: ir.Value, index: ir.Value, kind: ir.Type | None = None) -> ir.Value:
    """Return the address of an element, as a pointer to `kind` if one is given."""
    address = builder.gep(array, [index])
    return address if kind is None else builder.bitcast(address, kind.as_pointer())


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


def reserved(builder: Any, element: ir.Type, n: int, align: int | None = None) -> ir.Value:
    """Return a pointer to `n` elements on the stack, which live as long as the kernel runs.

    Numba's own way to do this fills the memory with zeros, which takes a small call longer than its work.
    """
    with builder.goto_entry_block():
        memory = builder.alloca(ir.ArrayType(element, n))
    memory.align = align
    return builder.bitcast(memory, element.as_pointer())
