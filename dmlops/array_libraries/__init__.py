"""What dmlops needs of array libraries; one file per library, and `detect`, which finds an array's library.

No library is imported on the user's behalf: one that made an array is already in `sys.modules`.
"""

from dmlops.array_libraries.base import ArrayLibrary, Operand
from dmlops.array_libraries.detect import SIGNATURES, as_input, as_output, as_plain, find_library
from dmlops.array_libraries.numpy import NUMPY

__all__ = [
    "NUMPY",
    "SIGNATURES",
    "ArrayLibrary",
    "Operand",
    "as_input",
    "as_output",
    "as_plain",
    "find_library",
]
