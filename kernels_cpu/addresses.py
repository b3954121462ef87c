"""Where an array's memory is; known without Numba, so that `import dmlops` is quick."""

import ctypes
from typing import Any

from numpy.typing import NDArray

Address = int | NDArray[Any]
"""The address of an operand's element [0, ..., 0], or the NumPy array that begins there."""

# NumPy's C interface fixes it: an array is Python's header of every object, and then the pointer to its data.
DATA_FIELD = object.__basicsize__
TYPE_FIELD = DATA_FIELD - ctypes.sizeof(ctypes.c_void_p)  # the last one of that header

_pointer_at = ctypes.c_size_t.from_address


def address_of(operand: Address) -> int:
    """Return where element [0, ..., 0] of an array is; an address is returned as it is."""
    if isinstance(operand, int):
        return operand
    return _pointer_at(id(operand) + DATA_FIELD).value
