"""The one place where the CPU kernels touch Numba's decorators and its on-disk cache."""

import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numba

from kernels_cpu import simd

F = TypeVar("F", bound=Callable[..., Any])


def cache_root() -> Path:
    """Return the user's cache directory for compiled kernels (``DMLOPS_CACHE_DIR`` overrides it)."""
    if override := os.environ.get("DMLOPS_CACHE_DIR"):
        return Path(override)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dmlops"


def cache_enabled() -> bool:
    """Return whether compiled kernels are kept on disk; ``DMLOPS_CACHE=0`` turns that off."""
    return os.environ.get("DMLOPS_CACHE", "1") != "0"


def source_digest(folder: Path) -> str:
    """Return a short digest that changes when any source file in `folder` does.

    Numba's index watches a kernel's own file only; kernels inline functions of their neighbours.
    """
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        stat = file.stat()
        digest.update(f"{file.relative_to(folder)}:{stat.st_mtime_ns}:{stat.st_size}".encode())
    return digest.hexdigest()[:16]


@contextmanager
def _cache_directory(path: Path) -> Iterator[None]:
    # Numba picks the directory while it decorates; the user's own setting must survive us.
    config: Any = numba.config
    previous = config.CACHE_DIR
    config.CACHE_DIR = previous or str(path)
    try:
        yield
    finally:
        config.CACHE_DIR = previous


# Code for vectors and scalar code come from the same source: the width keeps them apart.
_CACHE_DIRECTORY = cache_root() / "cpu" / f"{source_digest(Path(__file__).parent)}-{simd.WIDTH}"


def kernel(function: F) -> F:
    """Compile `function` on its first call, without the GIL, and keep the result on disk."""
    decorate: Any = numba.njit(nogil=True, boundscheck=False, error_model="numpy", cache=cache_enabled())
    with _cache_directory(_CACHE_DIRECTORY):
        return decorate(function)  # type: ignore[no-any-return]


def part(function: F) -> F:
    """Compile `function` for the kernels that call it, not to be called or kept on disk by itself."""
    decorate: Any = numba.njit(
        nogil=True, boundscheck=False, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
    )
    return decorate(function)  # type: ignore[no-any-return]


def quick(function: F) -> F:
    """Compile `function` as `kernel` does, but keep the GIL: for what takes less time than to give it away.

    Only such a function may look into Python objects.
    """
    decorate: Any = numba.njit(boundscheck=False, error_model="numpy", cache=cache_enabled())
    with _cache_directory(_CACHE_DIRECTORY):
        return decorate(function)  # type: ignore[no-any-return]


@functools.cache
def compiled(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """Return a kernel as compiled for arguments of these Numba types.

    To call it saves what a kernel itself does at each call: to look at every argument's type.
    """
    compile_for: Any = function.compile  # type: ignore[attr-defined]
    entry: Callable[..., Any] = compile_for(arguments)
    _sources[entry] = function, arguments
    return entry


_sources: dict[Callable[..., Any], tuple[Any, tuple[Any, ...]]] = {}


def code_of(entry: Callable[..., Any]) -> tuple[int, int] | None:
    """Return where the machine code is of what `compiled` returned, and how many arguments it takes.

    It is called as a C function of its arguments. None for other functions.
    """
    if entry not in _sources:
        return None
    function, arguments = _sources[entry]
    result = function.overloads[arguments]
    return result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name), len(arguments)


def inlined(function: F) -> F:
    """Compile `function` as part of each kernel that calls it."""
    decorate: Any = numba.njit(inline="always", boundscheck=False, error_model="numpy")
    return decorate(function)  # type: ignore[no-any-return]
