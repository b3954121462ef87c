"""From a plan to LLVM IR: a compiler of the small part of Python that plans are written in (`plan_words`).

Native calls are written in it, too; their operations beside arithmetic are in `foreign`.

A plan consists of up to some hundred functions. Numba, which looks for the types of each of their expressions
among all that there are, takes seconds for these; this takes a tenth of one, and needs no Numba. All values
are integers of 64 bits, bools, pointers at words, and tuples of these: a tuple is as many variables, and a
function of tuples one of more arguments (`plan_values`). Everything else is refused with a `TypeError` that
tells the line.

`compiler` optimises the result. As in kernels, results beyond 64 bits wrap around, and a division by zero
gives zero.
"""

import ast
import functools
import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import get_type_hints

from kernels_cpu.foreign import DEFINITIONS, SYMBOLS
from kernels_cpu.plan_expressions import Compiled, Expressions, Foreign
from kernels_cpu.plan_values import (
    BOOL,
    INTEGER,
    POINTER,
    VOID,
    Group,
    Scalar,
    Shape,
    Value,
    built,
    integer,
    kinds_of,
    scalars_of,
    shape_of,
)
from kernels_cpu.plan_words import Words

__all__ = ["POINTER", "plan_ir"]

_KINDS = {int: INTEGER, bool: BOOL, Words: POINTER, type(None): VOID}
"""LLVM types of the annotations of foreign functions."""


@dataclass
class Module:
    """The functions of a plan."""

    texts: list[str] = field(default_factory=list)
    functions: dict[tuple[FunctionType, tuple[Shape, ...]], Compiled] = field(default_factory=dict)
    tables: dict[tuple[int, ...], str] = field(default_factory=dict)
    foreigners: dict[FunctionType, Foreign] = field(default_factory=dict)

    def compiled(self, function: FunctionType, shapes: tuple[Shape, ...]) -> Compiled:
        """Return a function for arguments of some types."""
        found = self.functions.get((function, shapes))
        if found is None:
            name = f"{function.__name__}_{len(self.functions)}"
            body = Body(self, function, name, shapes)
            found = self.functions[function, shapes] = body.compiled()
        return found

    def table(self, content: tuple[int, ...]) -> str:
        """Return the name of a constant tuple in memory."""
        return self.tables.setdefault(content, f"@table_{len(self.tables)}")

    def foreign(self, function: FunctionType) -> Foreign:
        """Return a function that is written in another language, and declare it or add its text."""
        found = self.foreigners.get(function)
        if found is None:
            name, types = SYMBOLS[function], get_type_hints(function)
            result = _KINDS[types.pop("return")]
            parameters = tuple([_KINDS[kind] for kind in types.values()])
            found = self.foreigners[function] = Foreign(name, parameters, result)
            declaration = f"declare {result} @{name}({', '.join(parameters)})\n"
            self.texts.append(DEFINITIONS.get(name, declaration))
        return found

    def text(self) -> str:
        """Return the IR."""
        tables = []
        for content, name in self.tables.items():
            numbers = ", ".join(f"i64 {number}" for number in content)
            tables.append(f"{name} = internal constant [{len(content)} x i64] [{numbers}]\n")
        return "".join([_ARITHMETIC, *tables, *self.texts])


def plan_ir(
    function: FunctionType,
    kinds: Sequence[str],
    entry: str,
    *,
    is_direct: bool = False,
    fit: FunctionType | None = None,
) -> str:
    """Return the IR of a function of integers and pointers.

    Its entry takes these as consecutive words at an address, or as they are where it `is_direct`. Where there
    is a `fit`, another pointer comes first. If that is not null, `fit` takes it and the next one, and what it
    returns is the result unless it is 0.
    """
    module = Module()
    n_before = 0 if fit is None else 1
    compiled = module.compiled(function, tuple(kinds[n_before:]))
    lines = []
    arguments = [f"{kind} %argument{i}" for i, kind in enumerate(kinds)]
    for i, kind in enumerate(() if is_direct else kinds):
        lines.append(f"%address{i} = getelementptr i64, ptr %words, i64 {i}")
        lines.append(f"%argument{i} = load {kind}, ptr %address{i}, align 1")
    if compiled.result not in (INTEGER, BOOL):
        msg = f"{function.__name__}: got a function that returns no integer; a plan returns one"
        raise TypeError(msg)
    if fit is not None:
        lines.append(_fitted(module.compiled(fit, tuple(kinds[:2])).name))
    lines.append(f"%returned = call {compiled.result} @{compiled.name}({', '.join(arguments[n_before:])})")
    widened = "zext i1 %returned to i64" if compiled.result == BOOL else "add i64 %returned, 0"
    lines.append(f"%result = {widened}")
    body = "\n".join(lines)
    parameters = ", ".join(arguments) if is_direct else "ptr %words"
    return f"{module.text()}\ndefine i64 @{entry}({parameters}) {{\n{body}\nret i64 %result\n}}\n"


def _fitted(fit: str) -> str:
    """Return the IR that calls a `fit`, unless there is no call."""
    return f"""%has_call = icmp ne ptr %argument0, null
br i1 %has_call, label %fit, label %plan
fit:
%misfit = call i64 @{fit}(ptr %argument0, ptr %argument1)
%fits = icmp eq i64 %misfit, 0
br i1 %fits, label %plan, label %refuse
refuse:
ret i64 %misfit
plan:"""


@functools.cache
def _source(function: FunctionType) -> ast.FunctionDef:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef)
    return tree


class Body(Expressions):
    """The body of one function while it is compiled."""

    def compiled(self) -> Compiled:
        """Compile the function, and add it to the module."""
        tree, arguments = _source(self.function), []
        parameters = [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
        for argument, shape in zip(parameters, self.shapes, strict=True):
            names = iter([f"%{argument.arg}.{i}" for i in range(len(kinds_of(shape)))])
            value = built(shape, names)
            arguments += [f"{kind} {name}" for kind, name in scalars_of(value)]
            self.assign(argument, argument.arg, value)
        self.run(tree.body)
        if self.is_open and self.has_result:
            what = "end of a function without the result that it has elsewhere"
            raise self.refused(tree.body[-1], what)
        self.end("ret void")
        reserved, body = "\n".join(self.reserved), "\n".join(self.lines)
        result = self.result_type()
        # To inline functions would make the code twice as large, and take twice as long as all the rest.
        heading = f"define internal {result} @{self.name}({', '.join(arguments)}) noinline"
        self.module.texts.append(f"{heading} {{\nentry:\n{reserved}\n{body}\n}}\n")
        return Compiled(self.name, self.result if self.has_result else None)

    def result_type(self) -> str:
        """Return what LLVM calls the type of the result."""
        if not self.has_result:
            return "void"
        kinds = kinds_of(self.result)
        return kinds[0] if isinstance(self.result, str) else f"{{{', '.join(kinds)}}}"

    def run(self, statements: Sequence[ast.stmt]) -> None:
        """Compile statements, up to the first after which no other is reached."""
        for statement in statements:
            if not self.is_open:
                return
            method = getattr(self, f"run_{type(statement).__name__.lower()}", None)
            if method is None:
                raise self.refused(statement, f"{type(statement).__name__} statement")
            method(statement)

    def run_expr(self, node: ast.Expr) -> None:
        """Compile a call whose result is not needed; docstrings are nothing."""
        if isinstance(node.value, ast.Call):
            self.call(node.value)

    def run_pass(self, node: ast.Pass) -> None:
        """Compile nothing."""

    def run_assign(self, node: ast.Assign) -> None:
        """Compile an assignment."""
        value = self.value(node.value)
        for target in node.targets:
            self.store(target, value)

    def run_annassign(self, node: ast.AnnAssign) -> None:
        """Compile an assignment with a type for readers."""
        assert node.value is not None
        self.store(node.target, self.value(node.value))

    def run_augassign(self, node: ast.AugAssign) -> None:
        """Compile a change of a variable or a word."""
        if isinstance(node.target, ast.Subscript):
            address = self.address(node.target)
            before = self.emit(INTEGER, f"load i64, ptr {address.name}")
            after = self.binary(node, node.op, before, self.number(node.value))
            self.lines.append(f"store i64 {after.name}, ptr {address.name}")
            return
        assert isinstance(node.target, ast.Name)
        before = self.number(ast.copy_location(ast.Name(node.target.id), node))
        self.store(node.target, self.binary(node, node.op, before, self.number(node.value)))

    def run_return(self, node: ast.Return) -> None:
        """Compile the end of a function."""
        if node.value is None:
            self.end("ret void")
            return
        value = self.plain(node, self.value(node.value))
        if not self.has_result:
            self.has_result, self.result = True, shape_of(value)
        if self.result == INTEGER and shape_of(value) == BOOL:
            value = self.as_integer(node, value)
        if shape_of(value) != self.result:
            raise self.refused(node, "function with results of several types")
        if isinstance(value, Scalar):
            self.end(f"ret {value.kind} {value.name}")
            return
        name = "undef"
        for i, part in enumerate(scalars_of(value)):
            text = f"insertvalue {self.result_type()} {name}, {part.kind} {part.name}, {i}"
            name = self.emit("", text).name
        self.end(f"ret {self.result_type()} {name}")

    def run_if(self, node: ast.If) -> None:
        """Compile a condition and its two branches."""
        condition = self.truth(node.test)
        yes, no, after = self.labels("yes", "no", "after")
        self.branch(condition, yes, no)
        is_reached = False
        for label, statements in ((yes, node.body), (no, node.orelse)):
            self.begin_apart(label)
            self.run(statements)
            is_reached = is_reached or self.is_open
            self.end(f"br label %{after}")
        if is_reached:
            self.begin_apart(after)

    def run_while(self, node: ast.While) -> None:
        """Compile a loop that goes on while an expression is true."""
        test, body, after = self.labels("test", "body", "after")
        self.begin(test)
        self.branch(self.truth(node.test), body, after)
        self.begin_apart(body)
        self.loops.append((test, after))
        self.run(node.body)
        self.loops.pop()
        self.end(f"br label %{test}")
        self.begin_apart(after)

    def run_for(self, node: ast.For) -> None:
        """Compile a loop over a range."""
        call = node.iter
        is_range = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"
        if not is_range or not isinstance(call, ast.Call) or node.orelse:
            raise self.refused(node, "loop over anything but a range")
        bounds = [self.number(argument) for argument in call.args]
        if len(bounds) == 1:
            bounds.insert(0, integer(0))
        first, last, step = [*bounds, integer(1)][:3]
        counter = self.reserve(INTEGER)
        self.lines.append(f"store i64 {first.name}, ptr {counter.name}")
        test, body, onward, after = self.labels("test", "body", "onward", "after")
        self.begin(test)
        number = self.emit(INTEGER, f"load i64, ptr {counter.name}")
        goes_up = self.compared("sgt", step, integer(0)).name
        is_below, is_above = (self.compared(how, number, last).name for how in ("slt", "sgt"))
        goes_on = self.emit(BOOL, f"select i1 {goes_up}, i1 {is_below}, i1 {is_above}")
        self.branch(goes_on, body, after)
        self.begin_apart(body)
        self.store(node.target, number)
        self.loops.append((onward, after))
        self.run(node.body)
        self.loops.pop()
        self.begin(onward)
        number = self.emit(INTEGER, f"add i64 {number.name}, {step.name}")
        self.lines.append(f"store i64 {number.name}, ptr {counter.name}")
        self.end(f"br label %{test}")
        self.begin_apart(after)

    def run_break(self, node: ast.Break) -> None:
        """Compile the end of a loop."""
        self.end(f"br label %{self.loops[-1][1]}")

    def run_continue(self, node: ast.Continue) -> None:
        """Compile the end of one round of a loop."""
        self.end(f"br label %{self.loops[-1][0]}")

    def store(self, target: ast.expr, value: Value) -> None:
        """Assign a value to the target of an assignment."""
        if isinstance(target, ast.Name):
            self.assign(target, target.id, self.plain(target, value))
        elif isinstance(target, ast.Subscript):
            number = self.as_integer(target, value)
            self.lines.append(f"store i64 {number.name}, ptr {self.address(target).name}")
        elif isinstance(target, ast.Tuple):
            parts = self.plain(target, value)
            if not isinstance(parts, Group) or len(parts.values) != len(target.elts):
                raise self.refused(target, "assignment of that to several names")
            for element, part in zip(target.elts, parts.values, strict=True):
                self.store(element, part)
        else:
            raise self.refused(target, f"assignment to a {type(target).__name__}")

    def assign(self, node: ast.AST, name: str, value: Value) -> None:
        """Assign a value to a variable, which keeps its first type."""
        if name not in self.places:
            shape = shape_of(value)
            self.places[name] = built(shape, iter([self.reserve(kind).name for kind in kinds_of(shape)]))
        place = self.places[name]
        if shape_of(place) == INTEGER and shape_of(value) == BOOL:
            value = self.as_integer(node, value)
        if shape_of(place) != shape_of(value):
            raise self.refused(node, f"variable of several types, as {name!r} is")
        for to, part in zip(scalars_of(place), scalars_of(value), strict=True):
            self.lines.append(f"store {part.kind} {part.name}, ptr {to.name}")


# The quotient is rounded down, as Python's is, and the remainder belongs to it. Processors end a process that
# divides by zero, and also one that divides the lowest integer by -1. Of a count of 64 or more, they shift by
# its low bits.
_ARITHMETIC = """
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.abs.i64(i64, i1)

define internal i64 @quotient(i64 %a, i64 %b) alwaysinline {
  %is_zero = icmp eq i64 %b, 0
  %is_minus_one = icmp eq i64 %b, -1
  %is_special = or i1 %is_zero, %is_minus_one
  %divisor = select i1 %is_special, i64 1, i64 %b
  %rounded = sdiv i64 %a, %divisor
  %rest = srem i64 %a, %divisor
  %is_inexact = icmp ne i64 %rest, 0
  %signs = xor i64 %rest, %divisor
  %differ = icmp slt i64 %signs, 0
  %is_above = and i1 %is_inexact, %differ
  %one = zext i1 %is_above to i64
  %down = sub i64 %rounded, %one
  %negative = sub i64 0, %a
  %special = select i1 %is_zero, i64 0, i64 %negative
  %result = select i1 %is_special, i64 %special, i64 %down
  ret i64 %result
}

define internal i64 @remainder(i64 %a, i64 %b) alwaysinline {
  %quotient = call i64 @quotient(i64 %a, i64 %b)
  %part = mul i64 %quotient, %b
  %rest = sub i64 %a, %part
  %is_zero = icmp eq i64 %b, 0
  %result = select i1 %is_zero, i64 0, i64 %rest
  ret i64 %result
}

define internal i64 @shift_right(i64 %a, i64 %n) alwaysinline {
  %n_bits = call i64 @llvm.umin.i64(i64 %n, i64 63)
  %result = ashr i64 %a, %n_bits
  ret i64 %result
}
"""
