"""The input arrays of commands: files in four formats, and standard input.

An .npy file is memory-mapped, and arrays of .zarr and .safetensors files are read in parts. Nothing is ever
unpickled.
"""

import errno
import importlib
import os
import re
import stat
import sys
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, NoReturn

import numpy as np
import typer

from dmlops.cli.errors import CommandError, reason_of, users_errors

Array = np.ndarray[Any, Any]

STANDARD = Path("-")
FILES_EXTRA = 'pip install "dmlops[files]"'
FILE_HELP = (
    "An .npy, .npz, .zarr or .safetensors file, - for an .npy stream from standard input, or FILE:NAME for "
    "one array of several."
)
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help=FILE_HELP, show_default=False)]

_MEMBER = ".npy"  # the suffix of arrays in an archive
_WITH_NAME = re.compile(r"(.+\.(?:npz|zarr|safetensors)):(.+)", re.DOTALL)
# The array that a command takes from another command's results: as data, and as indices.
_RESULTS = {
    frozenset({"values", "indices"}): ("values", "indices"),
    frozenset({"coordinates", "count"}): ("coordinates", "coordinates"),
}


@dataclass(frozen=True)
class Input:
    """An array that is read as a whole or in parts.

    Attributes
    ----------
    name : str
        What titles call it.
    source : array of NumPy, zarr or safetensors
        It has a shape and a type, and returns parts for slices.
    """

    name: str
    source: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return tuple(self.source.shape)

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The data type, in native byte order."""
        dtype: np.dtype[Any] = self.source.dtype
        return dtype.newbyteorder("=")

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=object))

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def is_mapped(self) -> bool:
        """Whether reading it takes no memory of its own."""
        return isinstance(self.source, np.ndarray)

    def read(self, part: tuple[slice, ...] = ()) -> Array:
        """Return the array, or the part with these slices of its first dimensions."""
        try:
            array = np.asarray(self.source[part or ...])
        except Exception as error:  # each codec of zarr raises its own
            message = f"{self.name}: it cannot be read: {reason_of(error)}"
            raise CommandError(message) from error
        return array.astype(self.dtype, copy=False)


def split_name(file: Path) -> tuple[Path, str]:
    """Return the path of a file, and the name of the array in it; "" where none is given.

    Examples
    --------
    >>> split_name(Path("best.npz:values"))[1], split_name(Path("x.npy"))[1]
    ('values', '')
    """
    match = _WITH_NAME.fullmatch(str(file))
    return (Path(match[1]), match[2]) if match and not file.exists() else (file, "")


def open_input(file: Path, *, as_indices: bool = False) -> Input:
    """Open an array for reading.

    Parameters
    ----------
    file : Path
        A file, ``FILE:NAME``, or ``-``.
    as_indices : bool
        Whether the command takes it as indices; of the results of `top-k`, it then gets the indices.

    Raises
    ------
    CommandError
        If there is no such array, or several to choose from.
    """
    if file == STANDARD:
        with users_errors("standard input"):
            return Input("standard input", _read_npy("standard input", _standard_input()))
    with users_errors(str(file)):
        path, name = split_name(file)
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            chosen, source = _from_zarr(path, name, as_indices)
        elif path.suffix == ".npz":
            chosen, source = _from_npz(path, name, as_indices)
        elif path.suffix == ".safetensors":
            chosen, source = _from_safetensors(path, name, as_indices)
        else:
            chosen, source = "", _from_npy(path, stat.S_ISREG(mode))
    _check_type(str(file), source.dtype)
    return Input(f"{path.name}:{chosen}" if chosen else path.name, source)


def _check_type(about: str, dtype: "np.dtype[Any]") -> None:
    # The types of ml_dtypes are of this kind too, and have other names.
    if dtype.kind == "V" and dtype.names is None and dtype.name.startswith("void"):
        reason = "bytes without a meaning (NumPy's files hold bfloat16 so: save it as float32)"
        message = f"{about}: its type is {dtype}, {reason}"
        raise CommandError(message)


def _choose(path: Path, names: Sequence[str], name: str, as_indices: bool) -> str:
    """Return the array to take from a file: the named one, the only one, or the main part of a result."""
    if name:
        if name in names:
            return name
        message = f"{path}: it has no array {name}; it has {_listed(names)}"
        raise CommandError(message)
    if len(names) == 1:
        return names[0]
    if parts := _RESULTS.get(frozenset(names)):
        return parts[as_indices]
    advice = f"; name one, as {path}:{names[0]}" if names else ""
    message = f"{path}: it has {_listed(names)}{advice}"
    raise CommandError(message)


def _listed(names: Sequence[str]) -> str:
    return f"the array{'s' if len(names) > 1 else ''} {', '.join(names)}" if names else "no arrays"


def _from_npy(path: Path, is_regular: bool) -> Array:
    """Map a file into memory; a pipe, which cannot be mapped, is read."""
    if not is_regular:
        with path.open("rb") as stream:
            return _read_npy(str(path), stream)
    try:
        # NumPy warns about headers from Python 2, and about sizes that overflow before it refuses them.
        with warnings.catch_warnings(action="ignore"):
            return np.lib.format.open_memmap(path, mode="r")
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged header is a SyntaxError, a TokenError, a RecursionError, ...
        _refuse_npy(str(path), error)


def _standard_input() -> Any:
    if sys.stdin is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    if sys.stdin.isatty():
        message = (
            "standard input: it is a terminal; - reads an .npy stream, as in `dmlops top-k - -k 3 < x.npy`"
        )
        raise CommandError(message)
    return sys.stdin.buffer


def _read_npy(about: str, stream: Any) -> Array:
    # From an object with only a `read` method, NumPy reads in pieces and never asks for the position.
    source: Any = SimpleNamespace(read=stream.read)
    try:
        with warnings.catch_warnings(action="ignore"):
            array: Array = np.lib.format.read_array(source, allow_pickle=False)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        _refuse_npy(about, error)
    _check_type(about, array.dtype)
    return array


def _refuse_npy(about: str, error: Exception) -> NoReturn:
    text = reason_of(error)
    if isinstance(error, ValueError) and "magic string" in text:
        reason = "not an .npy file"
    elif isinstance(error, ValueError) and re.search("Python objects|Object arrays", text):
        reason = "it holds Python objects, which are never unpickled; save its elements as numbers"
    else:
        reason = f"a damaged .npy file: {text}"
    message = f"{about}: {reason}"
    raise CommandError(message) from error


def _from_npz(path: Path, name: str, as_indices: bool) -> tuple[str, Array]:
    """Read one array of an archive into memory."""
    with _archive(path) as archive:
        chosen = _choose(path, _arrays_of(archive), name, as_indices)
        with archive.open(f"{chosen}{_MEMBER}") as stream:
            return chosen, _read_npy(f"{path}:{chosen}", stream)


def npz_names(path: Path) -> list[str]:
    """Return the names of the arrays of an .npz file."""
    with _archive(path) as archive:
        return _arrays_of(archive)


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (OSError, MemoryError, CommandError):
        raise
    except Exception as error:  # of the archive, or of compression
        kind = "a damaged" if zipfile.is_zipfile(path) else "not an"
        message = f"{path}: {kind} .npz file: {reason_of(error)}"
        raise CommandError(message) from error


def _arrays_of(archive: zipfile.ZipFile) -> list[str]:
    return [each.removesuffix(_MEMBER) for each in archive.namelist() if each.endswith(_MEMBER)]


def _from_zarr(path: Path, name: str, as_indices: bool) -> tuple[str, Any]:
    if not any((path / each).exists() for each in ("zarr.json", ".zarray", ".zgroup")):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    zarr = library("zarr", path)
    try:
        node = zarr.open(path, mode="r")
    except Exception as error:  # of its JSON, or of a data type or codec that this version of zarr lacks
        message = f"{path}: a zarr store that cannot be read: {reason_of(error)}"
        raise CommandError(message) from error
    if isinstance(node, zarr.Array):
        if name:
            message = f"{path}: it is one array, without names"
            raise CommandError(message)
        return "", node
    names = sorted(each for each, member in node.members(max_depth=None) if isinstance(member, zarr.Array))
    chosen = _choose(path, names, name, as_indices)
    return chosen, node[chosen]


class _Tensor:
    """A tensor of a .safetensors file, which is read when it is indexed."""

    def __init__(self, handle: Any, name: str) -> None:
        self._handle, self._name = handle, name
        self._slices = handle.get_slice(name)
        self.shape = tuple(self._slices.get_shape())
        # The library slices neither scalars nor empty tensors.
        self._is_sliced = bool(self.shape) and 0 not in self.shape
        self.dtype = self[(slice(0),) if self._is_sliced else ...].dtype

    def __getitem__(self, part: Any) -> Array:
        if self._is_sliced and part is not ...:
            return self._slices[part]  # type: ignore[no-any-return]
        return self._handle.get_tensor(self._name)[part]  # type: ignore[no-any-return]


def _from_safetensors(path: Path, name: str, as_indices: bool) -> tuple[str, _Tensor]:
    safetensors = library("safetensors", path)
    with suppress(ModuleNotFoundError):
        importlib.import_module("ml_dtypes")  # tells NumPy of bfloat16
    try:
        handle = safetensors.safe_open(path, framework="numpy")
        chosen = _choose(path, sorted(handle.keys()), name, as_indices)
        return chosen, _Tensor(handle, chosen)
    except safetensors.SafetensorError as error:
        message = f"{path}: a damaged .safetensors file: {reason_of(error)}"
        raise CommandError(message) from error
    except (AttributeError, TypeError) as error:  # of NumPy, which has no float8, and bfloat16 from ml_dtypes
        message = f"{path}: {chosen} has a type that NumPy lacks: {handle.get_slice(chosen).get_dtype()}"
        raise CommandError(message) from error


def library(name: str, path: Path) -> Any:
    """Import the library of a file's format.

    Raises
    ------
    CommandError
        If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        message = f"{path}: this needs {name}: {FILES_EXTRA}"
        raise CommandError(message) from error
