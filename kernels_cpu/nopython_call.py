"""Calls from users' nopython functions: native code finds the plan of a call, without Python.

Compiled callers describe a call in a *block*: `N_KEY`, which becomes 0 when it is made, the addresses of the
arrays in the order in which the kernel takes them, the capacity (an integer on which no plan depends), and
the key, which is all else. They call the function that the *cell* names: at first a callback to Python, later
`nopython_call`. This one finds plans in slots of a fixed size, two for each hash, or asks the callback.

No reader waits for a writer. The version of a slot is odd while it is written, and who has read a new word of
it then sees that the version has changed: stores release, and what is read is read before the version.
"""

import importlib

from kernels_cpu.kernel import INTEGERS, Kernel

CALL = Kernel("nopython_call", "kernels_cpu.nopython_call_kernel:nopython_call", 3 * (INTEGERS,), (), True)
N_KEY, ADDRESSES, MAX_ARRAYS, CAPACITY, KEY = 0, 1, 4, 5, 6
FORMAT = 1
"""In the high half of a key's first word. It changes with blocks: Numba keeps callers of older versions."""
FUNCTION, CALLBACK, SLOTS = range(3)
VERSION, N_SLOT_KEY, N_PLAN, CONTENT = range(4)
SLOT_BITS, SLOT_WORDS = 12, 256
# A reader of the last slot may read behind it, if the slot changes meanwhile.
CELL_WORDS = SLOTS + ((1 << SLOT_BITS) + 1) * SLOT_WORDS
# Fields of a plan. After them come the first arguments of its kernel, room for addresses, the table that the
# first argument points at, and overlap candidates, as in `native_call`.
CODE, EXPECTED, WORKSPACE, CAPACITY_AT, TABLE, FIRST_ADDRESS, N_ADDRESSES, N_OVERLAPS = range(8)
ANYTHING = 1 << 62
"""Expected of kernels whose result says nothing of success."""

_offered = ""
_is_wanted = False


def init() -> None:
    """Import the module that is, or will be, on offer; Numba's entry point for extensions."""
    global _is_wanted  # noqa: PLW0603
    _is_wanted = True
    if _offered:
        importlib.import_module(_offered)


def offer(module: str) -> None:
    """Have a module imported, which registers overloads, once Numba begins to compile."""
    global _offered  # noqa: PLW0603
    _offered = module
    if _is_wanted:
        importlib.import_module(module)
