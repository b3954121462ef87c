"""Launches on a GPU as words of 64 bits: what plans write, and compiled host code reads.

A launch is described to the driver by a *frame*: its CUlaunchConfig, room for two CUlaunchAttributes, which
the configuration may point at, the values of the kernel's parameters, and the address of each of these.

A *list* of launches has these words:

=======================  ==========================================================================
words                    content
=======================  ==========================================================================
1                        the address of the driver's cuLaunchKernelEx
1                        the number of launches; each of them follows
1                        the kernel, a CUfunction or CUkernel
1                        the number of its parameters that are pointers, which come first
1                        the number of all its parameters
`VALUES_AT` / 8          the configuration, which still lacks the stream, and the attributes
1 per parameter          its value; 0 for a pointer
2 per pointer            its slot, and its offset in bytes
=======================  ==========================================================================

A pointer is an offset from one of the addresses that the list is launched with, its *slot*. Where the
configuration points at attributes, it means those of its own frame, wherever that is.
"""

import struct
from collections.abc import Iterable, Sequence

# A slot for the null pointer.
NULL_SLOT = -1
# The memory of compiled host code has room for these.
MAX_ADDRESSES = 5
MAX_VALUES = 64

# CUlaunchConfig: grid, block, shared memory, stream, address of the attributes, and their number.
CONFIG = struct.Struct("=7I4xQQI4x")
STREAM_AT, ATTRIBUTES_AT, ATTRIBUTE_AT = 32, 40, CONFIG.size
# CUlaunchAttribute: its kind, and a value of up to three integers.
ATTRIBUTE = struct.Struct("=I4x3I52x")
MAX_ATTRIBUTES = 2
VALUES_AT = ATTRIBUTE_AT + MAX_ATTRIBUTES * ATTRIBUTE.size

Launch = tuple[int, bytes, Sequence[tuple[int, int]]]
"""The kernel, its frame up to the last value, and the slots and offsets of its pointers."""


def fits(n_values: int, slots: Iterable[int]) -> bool:
    """Return whether compiled host code has room for a launch."""
    return n_values <= MAX_VALUES and max(slots, default=NULL_SLOT) < MAX_ADDRESSES


def list_words(driver: int, launches: Sequence[Launch]) -> list[int]:
    """Return the words of a list."""
    words = [driver, len(launches)]
    for kernel, frame, pointers in launches:
        n_values = (len(frame) - VALUES_AT) // 8
        words += [kernel, len(pointers), n_values, *struct.unpack(f"={len(frame) // 8}Q", frame)]
        words += [word for pointer in pointers for word in pointer]
    return words
