"""From a Python function to a cubin: the one place that touches the insides of numba-cuda.

Nothing here needs a GPU or a driver. Numba compiles a kernel to PTX for a compute capability, nvJitLink makes
a cubin of it, and the cubin is kept in the user's cache directory, so that later processes only load it.
"""

import functools
import hashlib
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

with warnings.catch_warnings():
    # Its NumPy deprecations are not ours to answer, and must not stop users who make errors of them.
    warnings.simplefilter("ignore")
    from numba import cuda, types

_LOCK = threading.RLock()
_STATE = threading.local()
# Linked functions, and what each was compiled to for other capabilities than the last.
_LINKED: list[tuple[Any, dict[tuple[int, int], dict[Any, Any]]]] = []
_linked_for: tuple[int, int] | None = None
_ENTRY = re.compile(r"\.entry\s+([^\s(]+)")
_ELF_MAGIC = b"\x7fELF"

# Spellings that numba-cuda still looks up while its modules are imported, and NumPy has dropped.
_DROPPED_BY_NUMPY = {"row_stack": "vstack", "in1d": "isin", "trapz": "trapezoid"}


class KernelSource(NamedTuple):
    """What Numba compiles: every parameter is an int64, or a tuple of them if named in `tables`.

    Attributes
    ----------
    function : callable
        The kernel as a plain Python function.
    tables : mapping of str to int
        Lengths of the parameters that are tuples; a launch passes their elements one by one.
    max_registers : int or None
        Limit on the registers of a thread.
    dynamic_shared_bytes : int
        The most dynamic shared memory that a launch asks for, if that is more than 48 KiB.
    """

    function: Callable[..., None]
    tables: Mapping[str, int] = {}
    max_registers: int | None = None
    dynamic_shared_bytes: int = 0


def device_function(function: Callable[..., Any]) -> Any:
    """Make `function` callable from kernels, each of which takes it in whole.

    Compiled device functions are kept by Numba whatever the architecture; inlined ones are not, so that what
    `target_capability` decides is decided anew for each kernel.
    """
    return cuda.jit(device=True, inline="always")(function)


def linked_function(function: Callable[..., Any]) -> Any:
    """Make `function` callable from kernels, and have it compiled once for all of them.

    The assembler inlines it all the same. For functions of some size: Numba takes a time that grows faster
    than the size of what it compiles in one piece.
    """
    dispatcher = cuda.jit(device=True, forceinline=True)(function)
    _LINKED.append((dispatcher, {}))
    return dispatcher


def target_capability() -> tuple[int, int]:
    """Return the compute capability that the running compilation is for."""
    capability: tuple[int, int] = _STATE.capability
    return capability


@contextmanager
def _compiling_for(capability: tuple[int, int]) -> Iterator[None]:
    # Numba compiles a linked function for the current device, which need not be there, and keeps it.
    from numba.cuda import dispatcher  # noqa: PLC0415

    global _linked_for  # noqa: PLW0603
    if _linked_for != capability:
        for function, kept in _LINKED:
            if _linked_for is not None:
                kept[_linked_for] = dict(function.overloads)
            function.overloads.clear()
            function.overloads.update(kept.get(capability, {}))
    _linked_for = _STATE.capability = capability
    current_device = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(
        compute_capability=_supported_capability(capability)
    )
    try:
        yield
    finally:
        dispatcher.get_current_device = current_device


@contextmanager
def _lent_numpy_names() -> Iterator[None]:
    lent = {old: new for old, new in _DROPPED_BY_NUMPY.items() if not hasattr(np, old)}
    for old, new in lent.items():
        setattr(np, old, getattr(np, new))
    try:
        yield
    finally:
        for old in lent:
            delattr(np, old)


@functools.cache
def _import_numba_registries() -> None:
    # Numba imports these on its first compilation, and looks the names up only then.
    with _lent_numpy_names():
        import numba.cuda.np.arraymath  # noqa: PLC0415
        import numba.cuda.np.arrayobj  # noqa: F401, PLC0415


def _supported_capability(capability: tuple[int, int]) -> tuple[int, int]:
    # An architecture newer than the toolkit runs code for the newest one that it knows.
    from numba.cuda.cudadrv.nvrtc import get_supported_ccs  # noqa: PLC0415

    return max((known for known in get_supported_ccs() if known <= capability), default=capability)


def compile_ptx(source: KernelSource, name: str, capability: tuple[int, int]) -> str:
    """Compile a kernel to PTX whose only entry is `name`.

    Parameters
    ----------
    source : KernelSource
        The kernel and its options.
    name : str
        Name of the entry in the PTX and in profilers: letters, digits and underscores.
    capability : tuple of two ints
        Compute capability, for example ``(9, 0)``.
    """
    arguments = [
        types.UniTuple(types.int64, source.tables[parameter]) if parameter in source.tables else types.int64
        for parameter in signature(source.function).parameters
    ]
    with _LOCK:
        _import_numba_registries()
        with _compiling_for(capability), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ptx: str
            ptx, _ = cuda.compile_ptx(
                source.function, types.void(*arguments), cc=_supported_capability(capability)
            )
    mangled = _ENTRY.search(ptx)
    if mangled is None:
        msg = f"{name}: the PTX has no entry"
        raise RuntimeError(msg)
    return ptx.replace(mangled[1], name)


def compile_cubin(ptx: str, arch: str, max_registers: int | None = None) -> bytes:
    """Assemble PTX for an architecture such as ``"sm_90"``."""
    from cuda.core import Program, ProgramOptions  # noqa: PLC0415

    program = Program(ptx, "ptx", ProgramOptions(arch=arch, max_register_count=max_registers))
    try:
        return bytes(program.compile("cubin").code)
    finally:
        program.close()


def cubin(name: str, make_source: Callable[[], KernelSource], arch: str) -> bytes:
    """Return the cubin of a kernel, from the cache on disk if it is there.

    Parameters
    ----------
    name : str
        Unique name of the kernel among all variants; it becomes the entry's name.
    make_source : callable
        Makes the kernel; not called if the cubin is found.
    arch : str
        For example ``"sm_90"``.
    """
    folder = cache_folder()
    path = None if folder is None else folder / arch / f"{name}.cubin"
    if path is not None:
        with suppress(OSError):
            found = path.read_bytes()
            if found.startswith(_ELF_MAGIC):
                return found
    source = make_source()
    code = compile_cubin(compile_ptx(source, name, capability_of(arch)), arch, source.max_registers)
    if path is not None:
        with suppress(OSError):
            _write_atomically(path, code)
    return code


def capability_of(arch: str) -> tuple[int, int]:
    """Return the compute capability of an architecture.

    Examples
    --------
    >>> capability_of("sm_75"), capability_of("sm_120")
    ((7, 5), (12, 0))
    """
    digits = re.sub(r"\D", "", arch)
    return int(digits[:-1]), int(digits[-1])


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
    digest = hashlib.sha256(f"numba-cuda {version('numba-cuda')}".encode())
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def cache_folder() -> Path | None:
    """Return where compiled code is kept, or None where it is not."""
    return _cache_root() / "cuda" / _code_digest() if _cache_enabled() else None


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
