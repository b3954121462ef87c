"""A call on small NumPy arrays as one step: known kinds, memory apart, and the kernel, without leaving C.

Each of these as a call of its own would take as long as a small kernel does. The GIL is kept all the while:
to give it away and take it back is another such step.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from kernels_cpu.addresses import DATA_FIELD, address_of
from kernels_cpu.jit import code_of, compiled, quick
from kernels_cpu.likeness import are_like, items_of, kinds_table
from kernels_cpu.memory import INSTANCE, operand_of, place_of, words_at

ALIGNMENT = 256  # of the workspace
LEAST_ARGUMENTS, MOST_ARGUMENTS = 5, 8  # of a kernel

# Fields of the table that describes a call: the addresses of the kernel, of the table of kinds, and of room
# for the kernel's arguments; how many pairs of operands must be apart, and how many arguments there are;
# where the operands are among these and how many; and the bits of its result that say that it failed.
_CODE, _KINDS, _ARGUMENTS, _N_CLASHES, _N_ARGUMENTS, _FIRST, _N_OPERANDS, _REFUSED, _CLASHES = range(9)


@intrinsic
def _call(typing_context, code, arguments, n):  # type: ignore[no-untyped-def]
    """Call the C function at `code` with the first `n` words at `arguments`, and return what it does."""
    word = ir.IntType(64)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        code, arguments, n = given
        place = builder.inttoptr(arguments, word.as_pointer())
        words = [builder.load(builder.gep(place, [ir.Constant(word, i)])) for i in range(MOST_ARGUMENTS)]
        end = builder.append_basic_block("called")
        results = []
        counts = range(LEAST_ARGUMENTS, MOST_ARGUMENTS + 1)
        blocks = [builder.append_basic_block(f"call_{count}") for count in counts]
        choice = builder.switch(n, blocks[-1])
        for count, block in zip(counts, blocks, strict=True):
            choice.add_case(ir.Constant(word, count), block)
            builder.position_at_end(block)
            kind = ir.FunctionType(word, [word] * count)
            results.append(builder.call(builder.inttoptr(code, kind.as_pointer()), words[:count]))
            builder.branch(end)
        builder.position_at_end(end)
        result = builder.phi(word)
        for value, block in zip(results, blocks, strict=True):
            result.add_incoming(value, block)
        return result

    return types.int64(types.int64, types.int64, types.int64), generate


@quick
def _run(table: Any, operands: Any) -> bool:
    fields = words_at(place_of(table))
    if not are_like(fields[_KINDS], operands):
        return False
    items = items_of(operands)
    arguments = words_at(fields[_ARGUMENTS])
    first = fields[_FIRST]
    for i in range(fields[_N_OPERANDS]):
        arguments[first + i] = words_at(items[i] + DATA_FIELD)[0]
    at = _CLASHES
    for _ in range(fields[_N_CLASHES]):
        distance = arguments[fields[at + 1]] - arguments[fields[at]]
        if fields[at + 2] < distance < fields[at + 3]:
            return False
        at += 4
    failed: bool = (_call(fields[_CODE], fields[_ARGUMENTS], fields[_N_ARGUMENTS]) & fields[_REFUSED]) != 0
    return not failed


class _Scratch:
    """Memory that all these calls share, as only one thread at a time holds the GIL."""

    def __init__(self) -> None:
        self.memory = np.empty(0, np.uint8)

    def of(self, size: int) -> NDArray[np.uint8]:
        if size > self.memory.size:
            self.memory = np.empty(1 << (size - 1).bit_length(), np.uint8)
        return self.memory


_scratch = _Scratch()


def runner(
    launch: Callable[..., Any],
    arrays: Sequence[NDArray[Any]],
    clashes: Sequence[tuple[int, int, int, int]],
    workspace_size: int,
    *,
    refused: int = 0,
) -> Callable[[tuple[Any, ...]], bool] | None:
    """Return what launches a plan on a tuple of arrays if they are like others.

    Parameters
    ----------
    launch : callable
        The plan's: ``launch(*operands, workspace)``.
    arrays : sequence of ndarray
        Operands of the kinds that are to be known.
    clashes : sequence of (first, second, above, below)
        Operands `first` and `second` are too close, if the second begins more than `above` and less than
        `below` bytes after the first.
    workspace_size : int
        Bytes that the plan needs, with some to spare for `ALIGNMENT`.
    refused : int
        The bits of the kernel's result that say that the operands must be looked at closely.

    Returns
    -------
    callable or None
        It returns whether it did all that was to be done. None where the plan is no single kernel's call.
    """
    if not isinstance(launch, functools.partial) or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    code = code_of(launch.func)
    if code is None or launch.keywords or not LEAST_ARGUMENTS <= code[1] <= MOST_ARGUMENTS:
        return None
    leading = launch.args
    if len(leading) + len(arrays) + 1 != code[1]:
        return None
    first = len(leading)
    scratch = _scratch.of(workspace_size)
    arguments = np.zeros(MOST_ARGUMENTS, np.int64)
    arguments[:first] = [address_of(value) for value in leading]
    arguments[code[1] - 1] = -(-address_of(scratch) // ALIGNMENT) * ALIGNMENT
    kinds = kinds_table(arrays)
    fields = [code[0], address_of(kinds), address_of(arguments), len(clashes), code[1], first, len(arrays)]
    fields.append(refused)
    for i, j, above, below in clashes:
        fields += [first + i, first + j, above, below]
    table = np.array(fields, np.int64)
    run = functools.partial(compiled(_run, operand_of(table), INSTANCE), table)
    vars(run)["keeps"] = launch, kinds, arguments, scratch, [array.dtype for array in arrays]
    return run
