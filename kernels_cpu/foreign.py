"""The operations of native calls beside arithmetic: they read and write memory, and call C functions.

Python has only their names. Compiled code (`plan_compiler`) calls the functions of C, and has the others from
`DEFINITIONS`.
"""

from collections.abc import Callable
from typing import TypeVar

from kernels_cpu.plan_words import Words

_Function = TypeVar("_Function", bound=Callable[..., object])

SYMBOLS: dict[Callable[..., object], str] = {}
"""The names of functions in compiled code. Their annotations are the types of parameters and results."""


def named(symbol: str) -> Callable[[_Function], _Function]:
    """Return a decorator: compiled code calls a function by this name."""

    def register(function: _Function) -> _Function:
        SYMBOLS[function] = symbol
        return function

    return register


@named("integers_at")
def integers_at(address: int) -> Words:
    """Return a pointer to the integers of 64 bits at an address."""
    raise NotImplementedError


@named("address_of")
def address_of(words: Words) -> int:
    """Return the address that a pointer holds."""
    raise NotImplementedError


@named("tail")
def tail(words: Words, number: int) -> Words:
    """Return a pointer to ``words[number]``."""
    raise NotImplementedError


@named("short_integer")
def short_integer(words: Words, number: int) -> int:
    """Return one of the integers of 32 bits from a pointer on."""
    raise NotImplementedError


@named("load_acquire")
def load_acquire(words: Words, number: int) -> int:
    """Return a word; no later access moves before this one."""
    raise NotImplementedError


@named("store_release")
def store_release(words: Words, number: int, word: int) -> None:
    """Write a word; no earlier access moves behind this one."""


@named("acquire_fence")
def acquire_fence() -> None:
    """Keep earlier reads from moving behind later accesses."""


@named("exchange")
def exchange(words: Words, word: int) -> int:
    """Replace the first word, and return the old one."""
    raise NotImplementedError


@named("replace_if")
def replace_if(words: Words, old: int, new: int) -> bool:
    """Replace the first word if it is `old`; return whether it was."""
    raise NotImplementedError


@named("call_entry")
def call_entry(code: int, words: int) -> int:
    """Call the entry of a kernel at an address, which takes the address of its arguments."""
    raise NotImplementedError


@named("call_callback")
def call_callback(code: int, block: int, cell: int, plan: int) -> int:
    """Call a function of three words at an address."""
    raise NotImplementedError


@named("call_describe")
def call_describe(code: int, array: int, tensor: int) -> int:
    """Call DLPack's function that describes an array, which returns 0, or sets an error."""
    raise NotImplementedError


@named("call_driver")
def call_driver(code: int, config: int, function: int, addresses: int, extra: int) -> int:
    """Call the driver's cuLaunchKernelEx, which returns 0, or an error."""
    raise NotImplementedError


# Python's C interface: these two need no GIL.
@named("PyMem_RawMalloc")
def allocate(n_bytes: int) -> int:
    """Return the address of new memory; 0 if there is none."""
    raise NotImplementedError


@named("PyMem_RawFree")
def free(address: int) -> None:
    """Give memory back."""


@named("PyEval_SaveThread")
def release_gil() -> int:
    """Release the GIL; return what `take_gil` needs."""
    raise NotImplementedError


@named("PyEval_RestoreThread")
def take_gil(thread: int) -> None:
    """Take the GIL."""


@named("PyTuple_GetItem")
def tuple_item(items: int, number: int) -> int:
    """Return an item of a tuple, as a borrowed reference."""
    raise NotImplementedError


@named("PyLong_AsLongLong")
def integer_of(item: int) -> int:
    """Return an integer; -1 if there is an error."""
    raise NotImplementedError


@named("PyErr_Occurred")
def pending_error() -> int:
    """Return the type of the error that is set; 0 if there is none."""
    raise NotImplementedError


@named("PyErr_Clear")
def clear_error() -> None:
    """Forget the error that is set."""


@named("PyCapsule_GetPointer")
def capsule_pointer(capsule: int, name: int) -> int:
    """Return the address that a capsule holds."""
    raise NotImplementedError


@named("PyObject_Type")
def type_of(item: int) -> int:
    """Return the type of an object, as a new reference."""
    raise NotImplementedError


@named("PyObject_GetAttr")
def attribute(item: int, name: int) -> int:
    """Return an attribute of an object, as a new reference; 0 if there is an error."""
    raise NotImplementedError


@named("Py_DecRef")
def drop_reference(item: int) -> None:
    """Give a reference back."""


def stack_integers(n: int) -> Words:
    """Return a pointer to `n` (a constant) integers on the stack, which live as long as the function runs."""
    return [0] * n


DEFINITIONS = {
    "integers_at": "define internal ptr @integers_at(i64 %a) alwaysinline {\n"
    "  %p = inttoptr i64 %a to ptr\n  ret ptr %p\n}\n",
    "address_of": "define internal i64 @address_of(ptr %p) alwaysinline {\n"
    "  %a = ptrtoint ptr %p to i64\n  ret i64 %a\n}\n",
    "tail": "define internal ptr @tail(ptr %p, i64 %i) alwaysinline {\n"
    "  %q = getelementptr i64, ptr %p, i64 %i\n  ret ptr %q\n}\n",
    "short_integer": "define internal i64 @short_integer(ptr %p, i64 %i) alwaysinline {\n"
    "  %q = getelementptr i32, ptr %p, i64 %i\n  %short = load i32, ptr %q\n"
    "  %number = sext i32 %short to i64\n  ret i64 %number\n}\n",
    "load_acquire": "define internal i64 @load_acquire(ptr %p, i64 %i) alwaysinline {\n"
    "  %q = getelementptr i64, ptr %p, i64 %i\n  %word = load atomic i64, ptr %q acquire, align 8\n"
    "  ret i64 %word\n}\n",
    "store_release": "define internal void @store_release(ptr %p, i64 %i, i64 %word) alwaysinline {\n"
    "  %q = getelementptr i64, ptr %p, i64 %i\n  store atomic i64 %word, ptr %q release, align 8\n"
    "  ret void\n}\n",
    "acquire_fence": "define internal void @acquire_fence() alwaysinline {\n  fence acquire\n  ret void\n}\n",
    "exchange": "define internal i64 @exchange(ptr %p, i64 %word) alwaysinline {\n"
    "  %old = atomicrmw xchg ptr %p, i64 %word acq_rel\n  ret i64 %old\n}\n",
    "replace_if": "define internal i1 @replace_if(ptr %p, i64 %old, i64 %new) alwaysinline {\n"
    "  %pair = cmpxchg ptr %p, i64 %old, i64 %new acq_rel monotonic\n"
    "  %was = extractvalue {i64, i1} %pair, 1\n  ret i1 %was\n}\n",
    "call_entry": "define internal i64 @call_entry(i64 %code, i64 %words) alwaysinline {\n"
    "  %f = inttoptr i64 %code to ptr\n  %result = call i64 %f(i64 %words)\n  ret i64 %result\n}\n",
    "call_callback": "define internal i64 @call_callback(i64 %code, i64 %a, i64 %b, i64 %c) alwaysinline {\n"
    "  %f = inttoptr i64 %code to ptr\n  %result = call i64 %f(i64 %a, i64 %b, i64 %c)\n"
    "  ret i64 %result\n}\n",
    "call_describe": "define internal i64 @call_describe(i64 %code, i64 %a, i64 %b) alwaysinline {\n"
    "  %f = inttoptr i64 %code to ptr\n  %status = call i32 %f(i64 %a, i64 %b)\n"
    "  %result = zext i32 %status to i64\n  ret i64 %result\n}\n",
    "call_driver": "define internal i64 @call_driver(i64 %code, i64 %a, i64 %b, i64 %c, i64 %d)"
    " alwaysinline {\n"
    "  %f = inttoptr i64 %code to ptr\n  %status = call i32 %f(i64 %a, i64 %b, i64 %c, i64 %d)\n"
    "  %result = zext i32 %status to i64\n  ret i64 %result\n}\n",
}
"""LLVM assembly for the functions that are not functions of C."""
