"""The decorator of CPU kernels: Numba's `njit` without the GIL and without checks.

Kernels are compiled to object code by `compiler` and called through `linking`. Numba's own wrappers for calls
from Python would only add compilation time.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

from kernels_cpu.numba_frontend import compile_as

F = TypeVar("F", bound=Callable[..., Any])

int64: Any = np.int64
uint64: Any = np.uint64
"""Conversions as kernels use them; `Any`, so that type checkers mix their results with plain integers.

A variable that a loop both changes and passes to a function starts as ``int64(0)``: with a plain 0, Numba
also compiles that function for the constant.
"""


def njit(function: F) -> F:
    """Compile a function as a kernel, or for the kernels that call it."""
    return compile_as(function)  # type: ignore[no-any-return]


def inline(function: F) -> F:
    """Compile a function as part of each function that calls it."""
    decorate: Any = numba.njit(inline="always", boundscheck=False, error_model="numpy")
    return decorate(function)  # type: ignore[no-any-return]
