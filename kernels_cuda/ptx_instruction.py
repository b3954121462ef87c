"""Functions of inline PTX, which kernels call: how they are made. `ptx` lists them."""

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.cuda.extending import intrinsic

from kernels_cuda.runtime.compiler import target_capability

_LLVM_TYPES = {types.uint32: ir.IntType(32), types.uint64: ir.IntType(64), types.int64: ir.IntType(64)}
_REGISTERS = {types.uint32: "r", types.uint64: "l", types.int64: "l"}

# These say how far the compiler may move an instruction.
PURE = "pure"
ORDERED = "ordered"
CONVERGENT = "convergent"
BARRIER = "barrier"


def instruction(
    result: Any, operands: list[Any], text: str | Callable[[], str], effect: str = ORDERED
) -> Any:
    """Make a function of inline PTX.

    Parameters
    ----------
    result : Numba type
        ``void``, a register type, or a tuple of one.
    operands : list of Numba types
        Arguments are cast to these.
    text : str or callable
        PTX in which ``$0`` is the first result (or the first operand if there is none); a callable is asked
        at compile time, when `target_capability` is known.
    effect : str
        ``PURE`` may be moved, merged and dropped; ``ORDERED`` keeps its place among memory accesses;
        ``CONVERGENT`` stays where all lanes meet; ``BARRIER`` does both.
    """
    is_tuple = isinstance(result, types.UniTuple)
    results = [result.dtype] * result.count if is_tuple else [] if result is types.void else [result]
    if is_tuple:
        llvm_result: ir.Type = ir.LiteralStructType([_LLVM_TYPES[part] for part in results])
    else:
        llvm_result = _LLVM_TYPES[result] if results else ir.VoidType()
    function_type = ir.FunctionType(llvm_result, [_LLVM_TYPES[operand] for operand in operands])
    constraints = ["=" + _REGISTERS[part] for part in results] + [_REGISTERS[operand] for operand in operands]
    if effect in (ORDERED, BARRIER):
        constraints.append("~{memory}")
    meets = effect in (CONVERGENT, BARRIER)
    attributes = ("convergent", "nounwind") if meets else ("nounwind",)

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        values = [
            context.cast(builder, argument, found, operand)
            for argument, found, operand in zip(arguments, sig.args, operands, strict=True)
        ]
        body = text if isinstance(text, str) else text()
        assembly = ir.InlineAsm(function_type, body, ",".join(constraints), side_effect=effect != PURE)
        value = builder.call(assembly, values, attrs=attributes)
        if is_tuple:
            parts = [builder.extract_value(value, i) for i in range(len(results))]
            return context.make_tuple(builder, result, parts)
        return value if results else context.get_dummy_value()

    def definition(typing_context: Any, *_: Any) -> Any:
        return result(*operands), generate

    # Numba takes the number of arguments from the signature.
    names = ["typing_context", *(f"operand_{i}" for i in range(len(operands)))]
    definition.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    )
    return intrinsic(definition)


def capability_test(capability: tuple[int, int]) -> Any:
    """Make a constant for the compiler: whether the kernel is compiled for a capability, or a later one."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        return context.get_constant(types.boolean, target_capability() >= capability)

    def test(typing_context: Any) -> Any:
        return types.boolean(), generate

    return intrinsic(test)
