"""Find compiled kernels of both devices: in the wheel, in the cache directory, or by compiling them.

A process compiles only what neither the wheel nor the cache directory has.
"""

import functools
import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from dmlops.store import kernel_cache
from dmlops.store.kernel_archive import SUFFIX, Archive, ArchiveError
from dmlops.store.kernel_cache import Key
from dmlops.store.once import is_first_call_thread, tell
from dmlops.types.errors import UnsupportedFeatureError

log = logging.getLogger("dmlops.store.kernel_store")
COMPILING = "compiling %s for %s"

WHEEL = Path(__file__).parents[1] / "kernels"
"""The folder of the archives that a wheel brings (`kernel_archive`); an editable install has none."""

_NATIVE = (".so", ".pyd")


def cannot_load(what: str, error: OSError) -> UnsupportedFeatureError:
    """Return the error that names what the system could not load, such as for too many open files."""
    return UnsupportedFeatureError(
        f"dmlops: {what} cannot be loaded: {error}; call again when files can be opened"
    )


@functools.cache
def wheel_targets() -> tuple[str, ...]:
    """Return the targets for which the wheel has kernels."""
    try:
        names = os.listdir(WHEEL)
    except (FileNotFoundError, NotADirectoryError):  # an installation from source, or in a zip file
        return ()
    except PermissionError as error:
        kernel_cache.warn_once(f"{WHEEL} cannot be read ({error.strerror})")
        return ()
    return tuple(sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)))


def cuda_extra(*, with_compilers: bool = False) -> str:
    """Return the command that installs what CUDA devices need: compilers too, if the wheel has no kernels."""
    with_compilers = with_compilers or not any(name.startswith("sm_") for name in wheel_targets())
    extra = "-jit" if with_compilers else ""
    name = "." if (WHEEL.parents[1] / "pyproject.toml").is_file() else "dmlops"  # of a clone, or installed
    return f'pip install "{name}[cuda{extra}]" (or "{name}[cuda12{extra}]" for a CUDA 12 driver)'


def find_in_wheel(device: str, kernel: str, sources: str, targets: Iterable[str]) -> bytes | None:
    """Return a kernel's code from the first archive that has it; called in `once.apart`.

    `targets` are the archives whose code runs here, best first. An archive of other sources than those that
    are installed, whose digest is `sources`, is not used.
    """
    for target in targets:
        archive = _archive(device, target, sources) if target in wheel_targets() else None
        if archive is not None and kernel in archive.labels:
            try:
                return archive.read(kernel)
            except ArchiveError as error:
                kernel_cache.warn_once(str(error))
    return None


@functools.cache
def _archive(device: str, target: str, sources: str) -> Archive | None:
    path = WHEEL / f"{target}{SUFFIX}"
    try:
        archive = Archive(path)
    except (ArchiveError, FileNotFoundError) as error:  # gone, where another version is being installed
        kernel_cache.warn_once(str(error))
        return None
    if archive.origin[:3] != (device, target, sources):
        kernel_cache.warn_once(
            f"{path} was made for another target, or from other sources than are installed"
        )
        return None
    return archive


def find_or_compile(key: Key, compile_kernel: Callable[[], bytes]) -> bytes:
    """Return a kernel's code, from the cache directory if it is there; called in `once.apart`."""
    code = kernel_cache.read(key)
    if code is None:
        tell(log.info, COMPILING, key.kernel, key.target_name)
        if is_first_call_thread():
            tell(_tell_once)
        start = time.perf_counter()
        code = compile_kernel()
        seconds = time.perf_counter() - start
        tell(log.info, "compiled %s for %s in %.1f s", key.kernel, key.target_name, seconds)
        kernel_cache.keep(key, code)
    return code


@functools.cache
def _tell_once() -> None:
    """Tell users at a terminal or in a notebook why they wait; a program has the log, at the level INFO."""
    with suppress(AttributeError, OSError, ValueError):  # there may be nowhere to write to
        is_read = sys.stderr.isatty() or "ipykernel" in sys.modules
        if is_read and not log.isEnabledFor(logging.INFO):
            print("dmlops: compiling kernels for this machine; later processes find them", file=sys.stderr)


def source_digest(folder: Path, *others: Path) -> str:
    """Return a digest of the contents of all Python files in folders: kernels inline functions of others.

    It is "" where the code that runs is not, or not only, in such files: in a zip file, a frozen program, or
    compiled modules. Nothing then tells the kernels of one version from those of another, so that none is
    taken from the wheel or the cache directory.
    """
    try:
        digests = [_source_digest(folder) for folder in (folder, *others)]
        return hashlib.sha256("".join(digests).encode()).hexdigest() if others else digests[0]
    except OSError as error:
        kernel_cache.warn_once(f"the sources in {folder} cannot be read ({error.strerror or error})")
        return ""


def _raise(error: OSError) -> NoReturn:
    raise error


@functools.cache
def _source_digest(folder: Path) -> str:
    paths: set[str] = set()
    for place, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        paths.update(os.path.join(place, name) for name in names)
    sources = {path for path in paths if path.endswith(".py")}
    # An import takes a source rather than its bytecode, but a native module rather than either.
    hidden = {path for path in paths if path.endswith(_NATIVE)}
    hidden |= {path for path in paths if path.endswith(".pyc") and path[:-1] not in sources}
    if hidden or not (folder / "__init__.py").is_file():
        message = f"{min(hidden)} has none" if hidden else "there are none"
        raise OSError(message)
    digest = hashlib.sha256()
    for path in sorted(map(Path, sources)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()
