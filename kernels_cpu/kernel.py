"""Kernels by name, and loaded kernels: all that plans need, without Numba and LLVM."""

import functools
import importlib
import struct
from array import array
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

INTEGER = "i64"
ELEMENT_SIZES = (1, 2, 4, 8)
INDEX_SIZES = (4, 8)
WORD_MASK = (1 << 64) - 1


def pointer(kind: str, element_size: int) -> str:
    """Return the type of a parameter that points at integers.

    Examples
    --------
    >>> pointer("u", 4), pointer("i", 1)
    ('*u32', '*i8')
    """
    return f"*{kind}{8 * element_size}"


BYTES, INTEGERS = pointer("u", 1), pointer("i", 8)


class Kernel(NamedTuple):
    """One kernel that can be compiled."""

    name: str
    """Unique together with `parameters` and `signature`: letters, digits and underscores."""
    source: str
    """``"module:attribute"``, which is imported only to compile: the kernel, or where there are `parameters`
    the function that returns it."""
    signature: tuple[str, ...]
    """The type of each argument: ``"i64"``, ``"6i64"`` for a tuple of six of these, or ``"*u32"`` for a
    pointer to uint32 and so on."""
    parameters: tuple[Hashable, ...] = ()
    """The arguments of the function that makes the kernel."""
    uses_python: bool = False
    """Whether the kernel takes its arguments as a C function does, and may call Python's C interface."""
    fit: str = ""
    """Of a plan: the source of the `fit` that comes first (`call_words`)."""

    @property
    def is_plan(self) -> bool:
        """Whether it is a plain function of integers and words, by the module that it is in."""
        module_name, _, _ = self.source.partition(":")
        return module_name.endswith((".plan", ".fit", "call_kernel", "kind_kernel"))

    @property
    def label(self) -> str:
        """The kernel's name in the store and in log messages."""
        types = "_".join(kind.replace("*", "p") for kind in self.signature)
        return "_".join([self.name, *(str(parameter) for parameter in self.parameters), types])


def plan_kernel(operator: str, n_inputs: int = 2, device: str = "cpu") -> Kernel:
    """Return the kernel that plans an operator, and fits its problem first where there is a call.

    It takes the words of a call, or the null pointer; of the problem; of the host or the device; of what was
    measured there if plans have more than two inputs; and of the plan. It returns 0 if all went well.
    """
    package = f"kernels_{device}.{operator}"
    name = f"{operator}_plan" if device == "cpu" else f"{operator}_{device}_plan"
    pointers = (INTEGERS,) * (2 + n_inputs)
    return Kernel(name, f"{package}.plan:plan", pointers, fit=f"kernels_cpu.{operator}.fit:fit")


def imported(source: str) -> Any:
    """Import what the `source` of a kernel names."""
    module_name, _, attribute = source.partition(":")
    return getattr(importlib.import_module(module_name), attribute)


class LoadedKernel(NamedTuple):
    """Machine code that is ready to be called."""

    address: int
    """Where it is: ``int64_t entry(const int64_t *arguments)``."""
    call: Callable[[bytes], int]
    """Takes the arguments as consecutive 64-bit words in a bytes object (`packer`), and returns an integer.
    It lets go of the GIL."""

    def __call__(self, *arguments: int) -> int:
        """Call the kernel."""
        return self.call(packer(len(arguments))(*arguments))


@functools.cache
def packer(count: int) -> Callable[..., bytes]:
    """Return a function that packs `count` integers as a kernel's arguments."""
    return struct.Struct(f"={count}q").pack


class Table:
    """Integers of 64 bits at an address, by which a plan describes its problem to a kernel."""

    __slots__ = ("address", "words")

    def __init__(self, words: Sequence[int]) -> None:
        try:
            self.words = array("q", words)
        except OverflowError:  # an unsigned integer beyond the signed ones
            self.words = array("Q", [word & WORD_MASK for word in words])
        self.address, _ = self.words.buffer_info()


Arguments = Sequence[int | Table]
"""Arguments of a kernel; a table stands for its address."""


def packed(arguments: Arguments) -> bytes:
    """Return integers and tables as a kernel's arguments; the caller keeps the tables alive."""
    words = _words(arguments)
    return packer(len(words))(*words)


def _words(arguments: Arguments) -> list[int]:
    # Tables may be of another import of this module, where dmlops is imported a second time.
    return [argument if isinstance(argument, int) else argument.address for argument in arguments]


Load = Callable[[Kernel], LoadedKernel]
"""A function that finds or compiles a kernel, and links it."""
