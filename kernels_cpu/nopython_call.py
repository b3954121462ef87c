"""Calls from users' nopython functions: native code finds the kind of a call, without Python.

Compiled callers write a call into a *block*: the length of the key (0 once the call is made), the key, which
determines the kind, the sizes, and for each array its address, its sizes and, unless it is packed, its
strides in bytes. They call the function whose address is in the *cell*: at first a callback to Python, later
`nopython_call`, which looks the table of the kind (`native_call`) up in slots of a fixed size, two for each
hash, and asks the callback if it is in neither.

No reader waits for a writer. The version of a slot is odd while it is written. A reader reads the slot first
and the version after it; since stores release, a reader of a new word sees that the version has changed.
"""

import importlib
import sys

from kernels_cpu.kernel import INTEGERS, Kernel

CALL = Kernel("nopython_call", "kernels_cpu.nopython_call_kernel:nopython_call", 3 * (INTEGERS,), (), True)
N_KEY, KEY = 0, 1
FORMAT = 4
"""The format of blocks, in the high half of a key's first word: Numba caches callers of older versions."""
# The first word of a key has the number of the operation and, shifted by these numbers of bits, the numbers
# of scalars, arrays and sizes, and whether the caller gives outputs. The scalars follow, and then a word for
# each array, which begins with its type.
N_SCALARS, N_ARRAYS, N_SIZES, HAS_OUT = 8, 16, 20, 28
N_DIMS, IS_PACKED, IS_READ_ONLY = 48, 55, 56
FUNCTION, CALLBACK, SLOTS = range(3)
VERSION, N_SLOT_KEY, TABLE, EXPECTED, CONTENT = range(5)
SLOT_BITS, SLOT_WORDS = 12, 32
MAX_KEY = SLOT_WORDS - CONTENT
# A reader of the last slot may read behind it, if the slot changes meanwhile.
CELL_WORDS = SLOTS + ((1 << SLOT_BITS) + 1) * SLOT_WORDS
ANYTHING = 1 << 62
"""The expected result of a kernel whose result does not depend on success."""

_offered = ""
_HAS_STARTED = "_dmlops_extensions_started"


def init() -> None:
    """Import the module that `offer` names, now or later; Numba's entry point for extensions."""
    # Numba asks once per process, and this module may be imported a second time.
    setattr(sys.modules["numba"], _HAS_STARTED, True)
    if _offered:
        importlib.import_module(_offered)


def offer(module: str) -> None:
    """Have a module imported, which registers overloads, once Numba begins to compile."""
    global _offered  # noqa: PLW0603
    _offered = module
    if hasattr(sys.modules.get("numba"), _HAS_STARTED):
        importlib.import_module(module)
