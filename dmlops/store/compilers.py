"""The compilers of kernels: their versions, and importing them when a kernel must be compiled."""

import functools
import importlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

from dmlops.store.kernel_cache import Key
from dmlops.types.errors import UnsupportedFeatureError

_METADATA = re.compile(r"([^-]+)-([^-]+)(-py[\d.]+)?\.(dist|egg)-info")


def load_compiler(module: str, needs: Sequence[str], key: Key, remedy: str) -> ModuleType:
    """Import the module that compiles a kernel.

    It `needs` packages from elsewhere, which `remedy` installs; Numba is among them if there are any. This
    raises UnsupportedFeatureError if one is not installed, or Numba's compiler is switched off.
    """
    must_be = f"dmlops: the kernel {key.kernel} must be compiled for {key.target_name}"
    try:
        for name in needs:
            importlib.import_module(name)
        compiler = importlib.import_module(module)
    except ImportError as error:
        message = f"{must_be}, but {error}"
        if isinstance(error, ModuleNotFoundError):
            missing = (error.name or str(error)).replace("_", "-")
            message = f"{must_be}, but {missing} is not installed; type: {remedy}"
        raise UnsupportedFeatureError(message) from error
    if needs and sys.modules["numba"].config.DISABLE_JIT:
        message = f"{must_be}, but NUMBA_DISABLE_JIT is set; unset it"
        raise UnsupportedFeatureError(message)
    return compiler


def compiler_versions(*distributions: str) -> str:
    """Return the versions of what compiles a kernel: Python, whose bytecode Numba translates, and these."""
    return f"Python {sys.version_info.major}.{sys.version_info.minor}, {versions(*distributions)}"


def versions(*distributions: str) -> str:
    """Return names and versions of installed distributions, from the names of their metadata folders.

    To import ``importlib.metadata`` would take a third of the time that a first call may take.

    Examples
    --------
    >>> versions("numba", "no-such-package").split()[0]
    'numba'
    """
    found = installed()
    return ", ".join(f"{name} {found[name]}" for name in distributions if name in found)


@functools.cache
def installed() -> Mapping[str, str]:
    """Return the versions of all installed distributions by their normalised names."""
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except (FileNotFoundError, NotADirectoryError, PermissionError):  # such as a zip file
            continue
        for name in names:
            if metadata := _METADATA.fullmatch(name):
                # As in an import, the first folder that has it counts.
                found.setdefault(re.sub(r"[-_.]+", "-", metadata[1]).lower(), metadata[2])
    return found
