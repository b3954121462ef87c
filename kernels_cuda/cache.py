"""Cubins on disk, in the user's cache directory: a process compiles only what none before it has compiled."""

import functools
import hashlib
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

# Without it nothing can be compiled. It has its version at hand, and does not import Numba.
import numba_cuda

_ELF_MAGIC = b"\x7fELF"


def cache_folder() -> Path | None:
    """Return where compiled code is kept, or None where it is not."""
    return _cache_root() / "cuda" / _code_digest() if _cache_enabled() else None


def kept_cubin(name: str, arch: str) -> bytes | None:
    """Return the cubin of a kernel for an architecture such as ``"sm_90"``, or None if there is none."""
    path = _path(name, arch)
    if path is not None:
        with suppress(OSError):
            found = path.read_bytes()
            if found.startswith(_ELF_MAGIC):
                return found
    return None


def keep_cubin(name: str, arch: str, code: bytes) -> None:
    """Keep a cubin, if there is a place where it can be."""
    path = _path(name, arch)
    if path is not None:
        with suppress(OSError):
            _write_atomically(path, code)


def _path(name: str, arch: str) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / arch / f"{name}.cubin"


def _cache_enabled() -> bool:
    return os.environ.get("DMLOPS_CACHE", "1") != "0"


def _cache_root() -> Path:
    if override := os.environ.get("DMLOPS_CACHE_DIR"):
        return Path(override)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dmlops"


@functools.cache
def _code_digest() -> str:
    # Kernels inline functions of their neighbours: any change of the package makes other cubins.
    digest = hashlib.sha256(f"numba-cuda {numba_cuda.__version__}".encode())
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _write_atomically(path: Path, content: bytes) -> None:
    # Many processes may start at once; a reader sees no file or a whole one.
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except OSError:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
