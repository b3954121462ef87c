"""The input arrays of commands: .npy and .npz files, and standard input. Nothing is ever unpickled."""

import errno
import os
import re
import stat
import sys
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Annotated, Any, BinaryIO, Literal, NamedTuple

import numpy as np
import typer

from dmlops.cli.ending import CommandError, fail, reason_of, users_errors
from dmlops.types.errors import cut

Array = np.ndarray

STANDARD = Path("-")
FILE_HELP = (
    "An .npy or .npz file, - for an .npy stream from standard input, or FILE:NAME for one array of several."
)
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help=FILE_HELP, show_default=False)]

_ADVICE = {
    ".npy": "not an .npy file; numpy.save makes one, of a .csv after numpy.loadtxt",
    ".npz": "not an .npz file; numpy.savez makes one",
    "member": "not an array in NumPy's format; numpy.savez writes arrays in it",
}
_MEMBER = ".npy"  # the suffix of arrays in an archive
_WITH_NAME = re.compile(r"(.+\.npz):(.+)", re.DOTALL)
_TOP_K, _NONZERO = frozenset({"values", "indices"}), frozenset({"coordinates", "count"})
Use = Literal["data", "numbers", "tuples", "positions", "windows"]
"""The use of an array: as data, as any integers, as index tuples, as positions along an axis, or as starts or
lengths, which no command writes."""
# The array that a command takes from another command's results.
_RESULTS: dict[frozenset[str], dict[Use, str]] = {
    _TOP_K: {"data": "values", "numbers": "indices", "positions": "indices"},
    _NONZERO: {"data": "coordinates", "numbers": "coordinates", "tuples": "coordinates"},
}


class Input(NamedTuple):
    """An array, and what titles call it."""

    name: str
    array: Array


def split_name(file: Path) -> tuple[Path, str]:
    """Return the path of a file, and the name of the array in it; "" where none is given.

    Examples
    --------
    >>> split_name(Path("best.npz:values"))[1], split_name(Path("x.npy"))[1]
    ('values', '')
    """
    match = _WITH_NAME.fullmatch(str(file))
    return (Path(match[1]), match[2]) if match and not file.exists() else (file, "")


def open_input(file: Path, use: Use = "data") -> Input:
    """Return an array in native byte order; an .npy file is memory-mapped.

    `file` may be ``FILE:NAME``, or ``-``; `use` chooses one of the results of another command. This fails if
    there is no such array, or several to choose from, or if it is of no use.
    """
    if file == STANDARD:
        with users_errors("standard input"):
            name, array = "standard input", _read_npy("standard input", _standard_input())
    else:
        with users_errors(str(file)):
            name, array = _from_file(file, use)
    dtype = array.dtype
    # The types of ml_dtypes are of this kind too, and have other names.
    if dtype.kind == "V" and dtype.names is None and dtype.name.startswith("void"):
        about = name if file == STANDARD else file
        reason = "bytes without a meaning (NumPy's files hold bfloat16 so: save it as float32)"
        fail(f"{about}: its type is {cut(str(dtype))}, {reason}")
    return Input(name, np.asarray(array, dtype.newbyteorder("=")))


def _from_file(file: Path, use: Use) -> tuple[str, Array]:
    path, name = split_name(file)
    mode = path.stat().st_mode
    if path.suffix != ".npz":
        return path.name, _from_npy(path, stat.S_ISREG(mode))
    with _damage_told(str(path), ".npz"), zipfile.ZipFile(path) as archive:
        names = [each.removesuffix(_MEMBER) for each in archive.namelist() if each.endswith(_MEMBER)]
        chosen = _choose(path, names, name, use)
        with archive.open(f"{chosen}{_MEMBER}") as stream:
            return f"{path.name}:{chosen}", _read_npy(f"{path}:{cut(chosen)}", stream, is_member=True)


def _choose(path: Path, names: Sequence[str], name: str, use: Use) -> str:
    """Return the array to take from a file: the named one, the only one, or the main part of a result."""
    if name:
        if name in names:
            return name
        fail(f"{path}: it has no array {cut(name)}; it has {_names_of(names)}")
    if len(names) == 1:
        return names[0]
    results = frozenset(names)
    if results == _TOP_K and use == "tuples":
        fail(
            f"{path}: the indices of top-k are positions along an axis, not index tuples: add "
            f"--along-axis -1, or the axis of top-k; {path}:indices takes them as tuples"
        )
    if results == _NONZERO and use == "positions":
        fail(f"{path}: coordinates are index tuples, not positions along an axis: leave out --along-axis")
    if use not in _RESULTS.get(results, ()):
        advice = f"; name one, as {path}:{cut(names[0])}" if names else ""
        fail(f"{path}: it has {_names_of(names)}{advice}")
    return _RESULTS[results][use]


def _names_of(names: Sequence[str]) -> str:
    return f"the array{'s' if len(names) > 1 else ''} {cut(', '.join(names))}" if names else "no arrays"


def _from_npy(path: Path, is_regular: bool) -> Array:
    """Map a file into memory; a pipe, which cannot be mapped, is read."""
    if not is_regular:
        with path.open("rb") as stream:
            return _read_npy(str(path), stream)
    with _damage_told(str(path), ".npy"):
        return np.lib.format.open_memmap(path, mode="r")


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    if sys.stdin.isatty():
        fail("standard input: it is a terminal; - reads an .npy stream, as in `dmlops top-k - -k 3 < x.npy`")
    return sys.stdin.buffer


def _read_npy(about: str, stream: IO[bytes], *, is_member: bool = False) -> Array:
    # From an object with only a `read` method, NumPy reads in pieces and never asks for the position.
    source: Any = SimpleNamespace(read=stream.read)
    with _damage_told(about, "member" if is_member else ".npy"):
        array: Array = np.lib.format.read_array(source, allow_pickle=False)
        return array


@contextmanager
def _damage_told(about: str, kind: str) -> Iterator[None]:
    """Turn every error of a damaged file, which may be a SyntaxError or a RecursionError, into a line."""
    try:
        # NumPy warns about headers from Python 2, and about sizes that overflow before it refuses them.
        with warnings.catch_warnings(action="ignore"):
            yield
    except (OSError, MemoryError, CommandError):
        raise
    except Exception as error:  # readers of damaged files raise nearly anything
        text = reason_of(error)
        if isinstance(error, ValueError) and re.search("Python objects|Object arrays", text):
            reason = "it holds Python objects, which are never unpickled; save its elements as numbers"
        elif re.search("magic string|not a zip file", text):
            reason = _ADVICE[kind]
        else:
            reason = f"a damaged {'.npz' if kind == '.npz' else '.npy'} file: {cut(text)}"
        fail(f"{about}: {reason}")
