"""Which library an argument belongs to, and the argument as an array whose memory can be used."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from dmlops.errors import wording
from dmlops.libraries import NUMPY, Library, recognise

_BY_TYPE: dict[type, Library] = {np.ndarray: NUMPY}


def find_library(array: Any) -> Library:
    """Return the library that an array belongs to; scalars and lists belong to NumPy."""
    library = _BY_TYPE.get(type(array))
    if library is None:
        library = _BY_TYPE[type(array)] = recognise(array)
    return library


def signatures(operands: Sequence[Any]) -> Hashable:
    """Return what distinguishes arrays of one library, whose memory can be used as it is; None for others."""
    library = _BY_TYPE.get(operands[0].__class__)
    if library is None:
        return None
    try:
        return library.signatures(operands)
    except RuntimeError:  # torch's sparse tensors have no strides: the long way tells so
        return None


def adopt(array: Any, where: str) -> tuple[Library, Any]:
    """Return an argument's library, and the argument as an array whose memory can be used as it is.

    Raises
    ------
    TypeError
        If the argument is no array and cannot become one; the text begins with `where`.
    """
    library = find_library(array)
    if library is NUMPY and not isinstance(array, np.ndarray):
        try:
            array = np.asarray(array)
        except ValueError:
            got = type(array).__name__
            raise TypeError(wording(where, got, "its rows differ in length", "it must be an array")) from None
    return library, library.adopt(array, where)


def adopt_output(array: Any, where: str) -> tuple[Library, Any]:
    """Return an output's library, and the output as an array whose memory can be written to.

    Raises
    ------
    TypeError
        If it is no array.
    InvalidDescriptorError
        If it cannot be written to.
    """
    library = find_library(array)
    if library is NUMPY and not isinstance(array, np.ndarray):
        raise TypeError(
            wording(where, type(array).__name__, "it is written to", "an output must be an array")
        )
    return library, library.adopt_output(array, where)
