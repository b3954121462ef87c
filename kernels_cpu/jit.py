"""How CPU kernels are decorated: Numba's `njit` without the GIL, without checks, without Python wrappers.

Kernels are compiled to object code by `compiler`, and called through `linking`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "boundscheck": False,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


def kernel(function: F) -> F:
    """Compile `function` as a kernel, which a plan names and `linking` calls."""
    decorate: Any = numba.njit(**_OPTIONS)
    return decorate(function)  # type: ignore[no-any-return]


def helper(function: F) -> F:
    """Compile `function` for the kernels that call it."""
    decorate: Any = numba.njit(**_OPTIONS)
    return decorate(function)  # type: ignore[no-any-return]


def inline(function: F) -> F:
    """Compile `function` as part of each function that calls it."""
    decorate: Any = numba.njit(inline="always", boundscheck=False, error_model="numpy")
    return decorate(function)  # type: ignore[no-any-return]
