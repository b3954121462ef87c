"""Parse PTX into instructions, by the PTX ISA reference."""

import random
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

# Shared memory begins here, so that 0 is no address in it.
SHARED_BEGIN = 1024
_ALIGNMENT = 16
_HALVES = {"u16x2": "x", "f16x2": "h", "bf16x2": "e"}


class Type(NamedTuple):
    """A type of PTX and its bits.

    It is b, u, s, f or p for predicates, and of words of two halves x (u16x2), h (f16x2) or e (bf16x2).
    """

    kind: str
    bits: int


def type_named(text):
    """Return the type that a word stands for, or None."""
    if text == "pred":
        return Type("p", 1)
    if text in _HALVES:
        return Type(_HALVES[text], 32)
    found = re.fullmatch(r"([busf])(8|16|32|64)", text)
    return Type(found[1], int(found[2])) if found else None


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes
    ----------
    guard, is_negated : str or None, bool
        The predicate that it depends on, and whether that must be false.
    name, modifiers : str, tuple of str
        Its name, and what follows it after dots.
    operands : tuple of str
        As written; vectors and addresses in their brackets.
    text : str
        All of it, for messages.
    """

    guard: str | None
    is_negated: bool
    name: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    text: str

    @cached_property
    def types(self):
        """The types among the modifiers."""
        return tuple(kind for kind in map(type_named, self.modifiers) if kind)

    @property
    def type(self):
        """The type of what it works on: the last one named."""
        return self.types[-1] if self.types else Type("b", 32)


@dataclass
class Program:
    """A kernel.

    Attributes
    ----------
    instructions, labels : list, dict
        What is done, and where the labels are among it.
    registers, parameters : dict
        Types by name; parameters are in order.
    shared, local : dict
        Where variables begin in shared and in local memory.
    shared_end, local_bytes : int
        Where dynamic shared memory begins, and how much local memory a thread needs.
    """

    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: dict[str, Type] = field(default_factory=dict)
    parameters: dict[str, Type] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    local: dict[str, int] = field(default_factory=dict)
    shared_end: int = SHARED_BEGIN
    local_bytes: int = 0


_DIRECTIVES = re.compile(
    r"(?<![\w:.])\.(?:reg|shared|local|extern|visible|pragma|maxntid|maxnreg)\b[^;\n]*;?"
)
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+([^;]+);")
# Inline PTX, in a line of its own.
_SCOPE = re.compile(r"\{ \.reg [^\n]*")
_LABEL = re.compile(r"([\w$]+):(?!:)")
_STATEMENT = re.compile(r"(?:@(!?)([%\w$]+)\s+)?([\w.:]+)\s*(.*)", re.DOTALL)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*")
_VARIABLE = re.compile(
    r"(\.extern\s+)?(?:\.visible\s+)?\.(shared|local)\s+\.align\s+(\d+)\s+\.(\w+)\s+([\w$]+)(?:\[(\d*)\])?;"
)


def parse(ptx):
    """Return the only kernel of a PTX text."""
    text = re.sub(r"//[^\n]*", "", ptx)
    begin = text.index("{", text.index(".entry"))
    head, body = text[:begin], _SCOPE.sub(_rename, text[begin + 1 : text.rindex("}")])
    program = Program()
    _declare_variables(program, head + body)
    for kind, name in re.findall(r"\.param\s+\.(\w+)\s+([\w$]+)", head):
        program.parameters[name] = type_named(kind)
    for kind, names in _REGISTERS.findall(body):
        for name in names.split(","):
            several = re.fullmatch(r"(%?[\w$]+)<(\d+)>", name.strip())
            numbered = [f"{several[1]}{i}" for i in range(int(several[2]))] if several else [name.strip()]
            program.registers.update(dict.fromkeys(numbered, type_named(kind)))
    for statement in _LABEL.sub(r"\1: ;", _DIRECTIVES.sub("", body)).split(";"):
        _add_statement(program, _without_scopes(statement))
    return program


def _rename(scope):
    """Return the text of a scope, whose registers may have the names of others of another type."""
    text = scope[0]
    for kind, names in _REGISTERS.findall(text):
        text = re.sub(rf"\b({'|'.join(names.split(', '))})\b", rf"\1_{kind}", text)
    return text


def _declare_variables(program, text):
    """Place variables; those in shared memory as badly as an assembler may.

    Each begins at an odd multiple of its alignment, in a random order, the same for each kernel. Dynamic
    arrays are all the same memory, behind the others: it is aligned to 16 bytes, whatever they ask for.
    """
    shared, dynamic = [], []
    for is_extern, space, alignment, kind, name, count in _VARIABLE.findall(text):
        n_bytes = int(count or 1) * type_named(kind).bits // 8
        if is_extern:
            dynamic.append(name)
        elif space == "shared":
            shared.append((name, int(alignment), n_bytes))
        else:
            program.local[name] = round_up(program.local_bytes, _ALIGNMENT)
            program.local_bytes = program.local[name] + n_bytes
    program.local_bytes = round_up(program.local_bytes, _ALIGNMENT)
    random.Random(text).shuffle(shared)
    for name, alignment, n_bytes in shared:
        program.shared[name] = _next_odd_multiple(program.shared_end, alignment)
        program.shared_end = program.shared[name] + n_bytes
    if dynamic:
        program.shared_end = _next_odd_multiple(program.shared_end, _ALIGNMENT)
        program.shared |= dict.fromkeys(dynamic, program.shared_end)


def _without_scopes(statement):
    """Return a statement without the braces of blocks that begin or end beside it."""
    statement = statement.strip()
    while statement.startswith(("{", "}")):
        statement = statement[1:].strip()
    if statement.count("}") > statement.count("{"):
        statement = statement.removesuffix("}")
    return " ".join(statement.split())


def _add_statement(program, text):
    if text.endswith(":"):
        program.labels[text[:-1]] = len(program.instructions)
    elif text:
        negation, guard, name, operands = _STATEMENT.fullmatch(text).groups()
        name, *modifiers = name.split(".")
        operands = tuple(operand.strip() for operand in _OPERAND.findall(operands))
        instruction = Instruction(guard, negation == "!", name, tuple(modifiers), operands, text)
        program.instructions.append(instruction)


def _next_odd_multiple(number, alignment):
    return round_up(number + alignment, 2 * alignment) - alignment


def round_up(number, multiple):
    """Return the next multiple."""
    return -(-number // multiple) * multiple
