"""The expressions of a plan as LLVM's instructions (`plan_compiler`)."""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import NamedTuple, Protocol

from kernels_cpu import foreign, plan_words
from kernels_cpu.integers import signed
from kernels_cpu.plan_values import (
    BOOL,
    INTEGER,
    POINTER,
    VOID,
    Constant,
    Group,
    Scalar,
    Shape,
    Value,
    bind,
    built,
    constant,
    integer,
    is_known,
    kinds_of,
    scalars_of,
    shape_of,
)

_BINARY: Mapping[type, tuple[str, Callable[[int, int], int]]] = {
    ast.Add: ("add", operator.add),
    ast.Sub: ("sub", operator.sub),
    ast.Mult: ("mul", operator.mul),
    ast.BitAnd: ("and", operator.and_),
    ast.BitOr: ("or", operator.or_),
    ast.BitXor: ("xor", operator.xor),
    ast.LShift: ("shl", operator.lshift),
    ast.RShift: ("shift_right", operator.rshift),
    ast.FloorDiv: ("quotient", operator.floordiv),
    ast.Mod: ("remainder", operator.mod),
}
_COMPARED: Mapping[type, str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "slt",
    ast.LtE: "sle",
    ast.Gt: "sgt",
    ast.GtE: "sge",
}


class Compiled(NamedTuple):
    """The name of a function in LLVM, and the type of its result; None without a result."""

    name: str
    result: Shape | None


class Foreign(NamedTuple):
    """A function of another language: its name, and the types of its parameters and of its result."""

    name: str
    parameters: tuple[str, ...]
    result: str


class Module(Protocol):
    """The state that all functions of a plan share, and their texts so far."""

    texts: list[str]

    def compiled(self, function: FunctionType, shapes: tuple[Shape, ...]) -> Compiled:
        """Return a function for arguments of some types."""

    def table(self, content: tuple[int, ...]) -> str:
        """Return the name of a constant tuple in memory."""

    def foreign(self, function: FunctionType) -> Foreign:
        """Return a function that is written in another language."""


class Expressions:
    """The instructions of one function, and the expressions that they are made of."""

    def __init__(self, module: Module, function: FunctionType, name: str, shapes: tuple[Shape, ...]) -> None:
        self.module, self.function, self.name, self.shapes = module, function, name, shapes
        self.places: dict[str, Value] = {}
        self.reserved: list[str] = []
        self.lines: list[str] = []
        self.n_names = 0
        self.block = "entry"
        self.is_open = True
        self.result: Shape = VOID
        self.has_result = False
        self.loops: list[tuple[str, str]] = []

    def refused(self, node: ast.AST, what: str) -> TypeError:
        """Return the error for a construct that plans must not have."""
        line = self.function.__code__.co_firstlineno + getattr(node, "lineno", 1) - 1
        return TypeError(f"{self.function.__code__.co_filename}:{line}: a plan has no {what}")

    def fresh(self) -> str:
        """Return a name that is not in use."""
        self.n_names += 1
        return f"%v{self.n_names}"

    def emit(self, kind: str, text: str) -> Scalar:
        """Add an instruction that gives a value."""
        name = self.fresh()
        self.lines.append(f"{name} = {text}")
        return Scalar(kind, name)

    def end(self, text: str) -> None:
        """End a block."""
        if self.is_open:
            self.lines.append(text)
        self.is_open = False

    def begin(self, label: str) -> None:
        """Begin a block, to which the one before leads unless it has ended."""
        self.end(f"br label %{label}")
        self.lines.append(f"{label}:")
        self.block, self.is_open = label, True

    def begin_apart(self, label: str) -> None:
        """Begin a block to which the one before does not lead by itself."""
        self.is_open = False
        self.begin(label)

    def labels(self, *names: str) -> list[str]:
        """Return names of blocks."""
        self.n_names += 1
        return [f"{name}{self.n_names}" for name in names]

    def branch(self, condition: Scalar, yes: str, no: str) -> None:
        """Go on with one of two blocks."""
        self.end(f"br i1 {condition.name}, label %{yes}, label %{no}")

    def reserve(self, kind: str) -> Scalar:
        """Make a variable; its value is an address."""
        name = self.fresh()
        self.reserved.append(f"{name} = alloca {kind}")
        return Scalar(kind, name)

    def value(self, node: ast.expr) -> Value:
        """Return the value of an expression."""
        method = getattr(self, f"value_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.refused(node, f"{type(node).__name__} expression")
        found: Value = method(node)
        return found

    def plain(self, node: ast.AST, value: Value) -> Value:
        """Return a value that may be assigned: constant tuples become tuples of constants."""
        if isinstance(value, Constant):
            if not isinstance(value.content, tuple):
                raise self.refused(node, f"variable that is {value.content!r}")
            parts = [self.plain(node, constant(part)) for part in value.content]
            kind = type(value.content)
            return Group(tuple(parts), None if kind is tuple else kind)
        if isinstance(value, Group):
            return Group(tuple([self.plain(node, part) for part in value.values]), value.tuple_class)
        return value

    def number(self, node: ast.expr) -> Scalar:
        """Return the value of an expression, as an integer."""
        return self.as_integer(node, self.value(node))

    def as_integer(self, node: ast.AST, value: Value) -> Scalar:
        """Return a value as an integer."""
        if not isinstance(value, Scalar) or value.kind == POINTER:
            raise self.refused(node, "use of it as an integer")
        if value.kind == BOOL:
            if value.name in ("true", "false"):
                return integer(value.name == "true")
            return self.emit(INTEGER, f"zext i1 {value.name} to i64")
        return value

    def truth(self, node: ast.expr) -> Scalar:
        """Return whether an expression is true."""
        if isinstance(node, ast.BoolOp):
            return self.short_circuit(node, [self.truth for _ in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.emit(BOOL, f"xor i1 {self.truth(node.operand).name}, true")
        value = self.value(node)
        if isinstance(value, Scalar) and value.kind == BOOL:
            return value
        return self.compared("ne", self.as_integer(node, value), integer(0))

    def short_circuit(self, node: ast.BoolOp, how: Sequence[Callable[[ast.expr], Scalar]]) -> Scalar:
        """Return whether all or any of some expressions are true; later ones are computed only if needed."""
        is_and = isinstance(node.op, ast.And)
        (after,) = self.labels("after")
        known = []
        for i, (part, truth) in enumerate(zip(node.values, how, strict=True)):
            found = truth(part)
            known.append(f"[{found.name}, %{self.block}]")
            if i < len(node.values) - 1:
                (onward,) = self.labels("onward")
                yes, no = (onward, after) if is_and else (after, onward)
                self.branch(found, yes, no)
                self.begin_apart(onward)
        self.begin(after)
        return self.emit(BOOL, f"phi i1 {', '.join(known)}")

    def compared(self, how: str, left: Scalar, right: Scalar) -> Scalar:
        """Compare two integers."""
        return self.emit(BOOL, f"icmp {how} i64 {left.name}, {right.name}")

    def value_constant(self, node: ast.Constant) -> Value:
        """Return the value of a number."""
        if not isinstance(node.value, int):
            raise self.refused(node, f"constant {node.value!r}")
        return constant(node.value)

    def value_name(self, node: ast.Name) -> Value:
        """Return the value of a variable, or of a global name."""
        if node.id in self.places:
            place = self.places[node.id]
            names = [self.emit(kind, f"load {kind}, ptr {name}").name for kind, name in scalars_of(place)]
            return built(shape_of(place), iter(names))
        scopes = self.function.__globals__, vars(__import__("builtins"))
        for scope in scopes:
            if node.id in scope:
                return constant(scope[node.id])
        raise self.refused(node, f"name {node.id!r}")

    def value_attribute(self, node: ast.Attribute) -> Value:
        """Return the value of a field of a named tuple, or of an attribute of a module."""
        owner = self.value(node.value)
        if isinstance(owner, Constant) and isinstance(owner.content, ModuleType | tuple):
            return constant(getattr(owner.content, node.attr))
        if isinstance(owner, Group) and node.attr in getattr(owner.tuple_class, "_fields", ()):
            found: Value = owner.values[owner.tuple_class._fields.index(node.attr)]
            return found
        raise self.refused(node, f"attribute {node.attr!r} of that")

    def value_tuple(self, node: ast.Tuple) -> Value:
        """Return the value of a tuple."""
        return Group(tuple([self.plain(node, self.value(part)) for part in node.elts]))

    def value_subscript(self, node: ast.Subscript) -> Value:
        """Return the value of a word, or of an element of a tuple."""
        owner = self.value(node.value)
        if isinstance(owner, Scalar) and owner.kind == POINTER:
            return self.emit(INTEGER, f"load i64, ptr {self.address(node).name}")
        index = self.number(node.slice)
        if isinstance(owner, Constant) and isinstance(owner.content, tuple):
            if is_known(index):
                return constant(owner.content[int(index.name)])
            table = self.module.table(tuple(map(int, owner.content)))
            index = self.from_begin(index, len(owner.content))
            address = self.emit(POINTER, f"getelementptr i64, ptr {table}, i64 {index.name}")
            return self.emit(INTEGER, f"load i64, ptr {address.name}")
        if isinstance(owner, Group) and is_known(index):
            return owner.values[int(index.name)]
        if isinstance(owner, Group):
            return self.element(node, owner, index)
        raise self.refused(node, "element of that")

    def address(self, node: ast.Subscript) -> Scalar:
        """Return the address of a word."""
        words = self.value(node.value)
        if not isinstance(words, Scalar) or words.kind != POINTER:
            raise self.refused(node, "assignment to an element of anything but words")
        index = self.number(node.slice)
        return self.emit(POINTER, f"getelementptr i64, ptr {words.name}, i64 {index.name}")

    def element(self, node: ast.Subscript, owner: Group, index: Scalar) -> Scalar:
        """Return an element of a tuple of integers, by an index that is known when the plan runs."""
        place = self.reserve(f"[{len(owner.values)} x i64]")
        for i, part in enumerate(owner.values):
            number = self.as_integer(node, part)
            address = self.emit(POINTER, f"getelementptr i64, ptr {place.name}, i64 {i}")
            self.lines.append(f"store i64 {number.name}, ptr {address.name}")
        index = self.from_begin(index, len(owner.values))
        address = self.emit(POINTER, f"getelementptr i64, ptr {place.name}, i64 {index.name}")
        return self.emit(INTEGER, f"load i64, ptr {address.name}")

    def from_begin(self, index: Scalar, size: int) -> Scalar:
        """Return an index that counts from the beginning; a negative one counts from the end."""
        is_negative = self.compared("slt", index, integer(0))
        from_end = self.emit(INTEGER, f"add i64 {index.name}, {size}")
        return self.emit(INTEGER, f"select i1 {is_negative.name}, i64 {from_end.name}, i64 {index.name}")

    def value_ifexp(self, node: ast.IfExp) -> Value:
        """Return the value of one of two expressions."""
        yes, no, after = self.labels("yes", "no", "after")
        self.branch(self.truth(node.test), yes, no)
        self.begin_apart(yes)
        left = self.plain(node, self.value(node.body))
        left_block = self.block
        self.end(f"br label %{after}")
        self.begin_apart(no)
        right = self.plain(node, self.value(node.orelse))
        right_block = self.block
        self.begin(after)
        if shape_of(left) != shape_of(right):
            raise self.refused(node, "conditional expression of several types")
        merged = []
        for one, other in zip(scalars_of(left), scalars_of(right), strict=True):
            text = f"phi {one.kind} [{one.name}, %{left_block}], [{other.name}, %{right_block}]"
            merged.append(self.emit(one.kind, text).name)
        return built(shape_of(left), iter(merged))

    def value_boolop(self, node: ast.BoolOp) -> Value:
        """Return the value of `and` or `or` of bools."""
        return self.short_circuit(node, [self.certain_truth for _ in node.values])

    def certain_truth(self, node: ast.expr) -> Scalar:
        """Return a bool; other operands are refused, because `and` and `or` would return one of them."""
        value = self.value(node)
        if not isinstance(value, Scalar) or value.kind != BOOL:
            raise self.refused(node, "value of 'and' or 'or' of anything but bools")
        return value

    def value_compare(self, node: ast.Compare) -> Value:
        """Return the value of a chain of comparisons."""
        found = []
        left = self.value(node.left)
        for how, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.value(comparator)
            if isinstance(how, ast.In | ast.NotIn):
                found.append(self.is_one_of(node, left, right, isinstance(how, ast.NotIn)))
            elif type(how) in _COMPARED:
                numbers = self.as_integer(node, left), self.as_integer(node, right)
                found.append(self.compared(_COMPARED[type(how)], *numbers))
            else:
                raise self.refused(node, f"{type(how).__name__} comparison")
            left = right
        whole = found[0]
        for each in found[1:]:
            whole = self.emit(BOOL, f"and i1 {whole.name}, {each.name}")
        return whole

    def is_one_of(self, node: ast.Compare, value: Value, group: Value, is_negated: bool) -> Scalar:
        """Return whether a value is in a tuple of integers, or is not."""
        number, whole = self.as_integer(node, value), Scalar(BOOL, "false")
        parts = self.plain(node, group)
        for part in parts.values if isinstance(parts, Group) else ():
            equal = self.compared("eq", number, self.as_integer(node, part))
            whole = self.emit(BOOL, f"or i1 {whole.name}, {equal.name}")
        return self.emit(BOOL, f"xor i1 {whole.name}, true") if is_negated else whole

    def value_unaryop(self, node: ast.UnaryOp) -> Value:
        """Return the value of an operator and one integer."""
        if isinstance(node.op, ast.Not):
            return self.truth(node)
        number = self.number(node.operand)
        if isinstance(node.op, ast.USub):
            return self.binary(node, ast.Sub(), integer(0), number)
        if isinstance(node.op, ast.Invert):
            return self.binary(node, ast.BitXor(), integer(-1), number)
        return number

    def value_binop(self, node: ast.BinOp) -> Value:
        """Return the value of an operator and two integers."""
        left = self.number(node.left)
        return self.binary(node, node.op, left, self.number(node.right))

    def binary(self, node: ast.AST, how: ast.operator, left: Scalar, right: Scalar) -> Scalar:
        """Return what an operator gives for two integers."""
        if type(how) not in _BINARY:
            raise self.refused(node, f"{type(how).__name__} operator")
        name, of_constants = _BINARY[type(how)]
        if is_known(left) and is_known(right):
            return integer(signed(of_constants(int(left.name), int(right.name))))
        if name in ("quotient", "remainder", "shift_right"):
            return self.emit(INTEGER, f"call i64 @{name}(i64 {left.name}, i64 {right.name})")
        return self.emit(INTEGER, f"{name} i64 {left.name}, {right.name}")

    def value_call(self, node: ast.Call) -> Value:
        """Return the value of a call."""
        value = self.call(node)
        if value is None:
            raise self.refused(node, "value of a function that returns nothing")
        return value

    def call(self, node: ast.Call) -> Value | None:
        """Call a function, a class of named tuples, or one of Python's own functions of integers."""
        if isinstance(node.func, ast.Attribute) and node.func.attr == "_replace":
            return self.replaced(node, self.value(node.func.value))
        called = self.value(node.func)
        content = called.content if isinstance(called, Constant) else None
        if content is bool:
            return self.truth(node.args[0])
        given = [self.value(argument) for argument in node.args]
        named = {str(keyword.arg): self.value(keyword.value) for keyword in node.keywords}
        if content is plan_words.put_values:
            self.put_values(node, *given)
            return None
        if content is foreign.stack_integers:
            return Scalar(POINTER, self.reserve(f"[{self.as_integer(node, given[0]).name} x i64]").name)
        if isinstance(content, FunctionType) and content in foreign.SYMBOLS:
            return self.call_foreign(node, self.module.foreign(content), given)
        if isinstance(content, FunctionType):
            return self.call_function(node, content, given, named)
        if isinstance(content, type) and hasattr(content, "_fields"):
            bound = bind(content.__new__, [Constant(content), *given], named)
            return Group(tuple([self.plain(node, part) for part in bound[1:]]), content)
        return self.call_builtin(node, content, given)

    def replaced(self, node: ast.Call, given: Value) -> Group:
        """Return a named tuple with other values of some fields."""
        if not isinstance(given, Group) or given.tuple_class is None:
            raise self.refused(node, "replacement of fields of that")
        values = list(given.values)
        for keyword in node.keywords:
            place = given.tuple_class._fields.index(keyword.arg)
            values[place] = self.plain(node, self.value(keyword.value))
        return Group(tuple(values), given.tuple_class)

    def call_builtin(self, node: ast.Call, function: object, given: list[Value]) -> Scalar:
        """Call a function of Python's own."""
        if function is len and isinstance(given[0], Constant):
            return integer(len(given[0].content))
        numbers = [self.as_integer(node, value) for value in given]
        found = numbers[0]
        if function is abs:
            return self.emit(INTEGER, f"call i64 @llvm.abs.i64(i64 {found.name}, i1 false)")
        if function not in (int, min, max):
            raise self.refused(node, f"call of {ast.unparse(node.func)}")
        for number in numbers[1:]:
            arguments = f"i64 {found.name}, i64 {number.name}"
            intrinsic = "smin" if function is min else "smax"
            found = self.emit(INTEGER, f"call i64 @llvm.{intrinsic}.i64({arguments})")
        return found

    def call_function(
        self, node: ast.Call, function: FunctionType, given: list[Value], named: dict[str, Value]
    ) -> Value | None:
        """Call a function, which is compiled for the types of its arguments."""
        values = [self.plain(node, value) for value in bind(function, given, named)]
        name, result = self.module.compiled(function, tuple(map(shape_of, values)))
        arguments = ", ".join(f"{part.kind} {part.name}" for value in values for part in scalars_of(value))
        if result is None:
            self.lines.append(f"call void @{name}({arguments})")
            return None
        if isinstance(result, str):
            return self.emit(result, f"call {result} @{name}({arguments})")
        kinds = kinds_of(result)
        whole = f"{{{', '.join(kinds)}}}"
        found = self.emit("", f"call {whole} @{name}({arguments})").name
        parts = [self.emit(kind, f"extractvalue {whole} {found}, {i}").name for i, kind in enumerate(kinds)]
        return built(result, iter(parts))

    def call_foreign(self, node: ast.Call, function: Foreign, given: list[Value]) -> Value | None:
        """Call a function that is not compiled here."""
        name, parameters, result = function
        if [shape_of(value) for value in given] != list(parameters):
            raise self.refused(node, f"call of {name} with arguments of those types")
        arguments = ", ".join(f"{part.kind} {part.name}" for value in given for part in scalars_of(value))
        call = f"call {result} @{name}({arguments})"
        if result == VOID:
            self.lines.append(call)
            return None
        return self.emit(result, call)

    def put_values(self, node: ast.Call, out: Value, values: Value) -> None:
        """Put the integers of a tuple, and of tuples in it, in order.

        They are counted by one call: a call for each of them would take most of a plan's time.
        """
        count = self.module.compiled(plan_words.count_values, (POINTER, INTEGER)).name  # type: ignore[arg-type]
        (words,) = scalars_of(out)
        end_at = self.emit(POINTER, f"getelementptr i64, ptr {words.name}, i64 {plan_words.END}")
        end = self.emit(INTEGER, f"load i64, ptr {end_at.name}")
        first = self.emit(POINTER, f"getelementptr i64, ptr {words.name}, i64 {end.name}")
        parts = list(scalars_of(self.plain(node, values)))
        for i, part in enumerate(parts):
            number = self.as_integer(node, part)
            place = self.emit(POINTER, f"getelementptr i64, ptr {first.name}, i64 {i}")
            self.lines.append(f"store i64 {number.name}, ptr {place.name}")
        self.lines.append(f"call void @{count}(ptr {words.name}, i64 {len(parts)})")
