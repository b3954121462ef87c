"""Array libraries: one file for each, and `detect`, which finds the library of an array.

No library is imported on the user's behalf: if a library made an array, it is already in `sys.modules`.
"""

from dmlops.array_libraries.base import ArrayLibrary, Operand
from dmlops.array_libraries.detect import (
    SIGNATURES,
    as_input,
    as_output,
    as_plain,
    compiling_framework,
    find_library,
)
from dmlops.array_libraries.numpy import NUMPY

__all__ = [
    "NUMPY",
    "SIGNATURES",
    "ArrayLibrary",
    "Operand",
    "as_input",
    "as_output",
    "as_plain",
    "compiling_framework",
    "find_library",
]
