"""The output arrays of commands: files in four formats, or an .npy stream on standard output."""

import importlib
import math
import os
import stat
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, BinaryIO, cast

import numpy as np
import typer
from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from dmlops.cli import console
from dmlops.cli.ending import StandardStream
from dmlops.cli.errors import CommandError, reason_of, users_errors
from dmlops.cli.inputs import STANDARD, Array, library, split_name
from dmlops.cli.output_files import check_output, replace, replaced, unfinished_beside
from dmlops.errors import instance_of

OUTPUT_HELP = (
    "Write the result to this .npy, .npz, .zarr or .safetensors file; - writes an .npy stream to standard "
    "output."
)
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", show_default=False, help=OUTPUT_HELP)
]

_FOR_SEVERAL = (".npz", ".zarr", ".safetensors")
_FOR_ONE = (".npy", *_FOR_SEVERAL)
ZEROS = 1 << 24  # bytes that are written at a time
_LIBRARIES = {".zarr": "zarr", ".safetensors": "safetensors"}


def check(output: Path | None, inputs: Sequence[Path], n_results: int = 1) -> None:
    """Check before the work starts whether the results can be written.

    Raises
    ------
    CommandError
        If they cannot: because of the file's name or place, or of a library that is missing.
    """
    if output is None:
        return
    if output == STANDARD:
        if sys.stdout.isatty():
            message = "-o -: standard output is a terminal; pipe it into a command or a file"
            raise CommandError(message)
        return
    suffixes = _FOR_ONE if n_results == 1 else _FOR_SEVERAL
    if output.suffix not in suffixes:
        message = (
            f"-o {output}: the name of the file must end with {', '.join(suffixes[:-1])} or {suffixes[-1]}"
        )
        raise CommandError(message)
    if name := _LIBRARIES.get(output.suffix):
        library(name, output)
    files = [Path("/dev/stdin") if file == STANDARD else split_name(file)[0] for file in inputs]
    check_output("-o", output, files, is_folder=output.suffix == ".zarr")


def check_type(output: Path | None, dtype: "np.dtype[Any] | str") -> None:
    """Check that the format of the output has a data type.

    Raises
    ------
    CommandError
        If it has not. For bfloat16 and float8, NumPy would write bytes without a meaning.
    """
    if output is None:
        return
    name = dtype if isinstance(dtype, str) else dtype.name
    if output.suffix != ".safetensors" and name.startswith(("bfloat16", "float8")):
        message = f"-o {output}: it cannot hold {name}; .safetensors can, and float32 has the same values"
        raise CommandError(message)
    if output.suffix == ".zarr" and dtype == np.dtype("M8"):
        message = f"-o {output}: zarr cannot hold datetime64 without a unit; .npy can"
        raise CommandError(message)
    if output.suffix == ".safetensors" and isinstance(dtype, np.dtype):
        with users_errors(f"-o {output}"):
            _call_safetensors("save", {"x": np.empty(0, dtype)})


class Results:
    """The named arrays that a command makes, as a whole or block by block.

    Blocks are collected in memory, or for an output file in memory-mapped files beside it.
    """

    def __init__(self, output: Path | None, stack: ExitStack) -> None:
        self.arrays: dict[str, Array] = {}
        self._output, self._stack = output, stack
        self._folder: Path | None = None

    def put(self, name: str, shape: tuple[int, ...], where: tuple[slice, ...], block: Array) -> None:
        """Put a block into its place in an array of this shape."""
        if block.shape == shape:
            self.arrays[name] = block
            return
        if name not in self.arrays:
            self.arrays[name] = self._empty(name, shape, block.dtype)
        self.arrays[name][where] = block

    def _empty(self, name: str, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> Array:
        if self._output is None or self._output == STANDARD:
            return np.empty(shape, dtype)
        with users_errors(f"-o {self._output}"):
            if self._folder is None:
                self._folder = self._stack.enter_context(unfinished_beside(self._output))
            path = self._folder / f"{name}.npy"
            n_bytes = math.prod(shape) * dtype.itemsize
            told = f"{name} of shape {shape} takes {decimal(n_bytes)}"
            if n_bytes >= 1 << 63:
                message = f"{told}: no file can be so large"
                raise OSError(message)
            try:
                array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
                _reserve(array)
            except OSError as error:
                message = f"{told}: {reason_of(error)}"
                raise OSError(message) from error
        return array

    def write(self) -> None:
        """Write the arrays to the output."""
        output = self._output
        if output is None:
            return
        with users_errors(f"-o {output}"):
            name, first = next(iter(self.arrays.items()))
            mapped = None if self._folder is None else self._folder / f"{name}.npy"
            if output.suffix == ".npy" and mapped is not None and mapped.exists():
                replace(output, mapped)
            elif output == STANDARD:
                _write_npy(cast("StandardStream", sys.stdout).write_bytes, first)
            else:
                write(output, self.arrays)


@contextmanager
def results_for(output: Path | None) -> Iterator[Results]:
    """Collect results, and write them at the end of the ``with`` block if it ends without an error."""
    with ExitStack() as stack:
        results = Results(output, stack)
        yield results
        results.write()


@contextmanager
def summary(output: Path | None, first: str) -> Iterator[Console]:
    """Give the console for a summary of results, and say at the end where they are.

    This comes last, because printing may fail.

    Parameters
    ----------
    output : Path, optional
        The value of ``-o``.
    first : str
        The name of the first result.
    """
    out = console.err if output == STANDARD else console.out
    with console.summary_of(output):
        yield out
        if output is not None:
            out.print(f"written to {f'standard output: {first}' if output == STANDARD else output}")


def show(out: Console, name: str, value: Any, *, is_written: bool) -> None:
    """Print what a result is, and its elements unless they are in a file."""
    is_array = isinstance(value, np.ndarray)
    told = f"{value.dtype} {value.shape}" if is_array else instance_of(value)
    out.print(Text.assemble((name, "cyan"), f" {told}"))
    if is_array and np.dtype("M8") == value.dtype:  # NumPy cannot print dates without a unit
        value = value.view(np.int64)
    if not is_written:
        out.print(np.array2string(value, threshold=60, edgeitems=3) if is_array else repr(value))


def write(output: Path, arrays: dict[str, Array]) -> None:
    """Write arrays to a file in the format that its suffix names."""
    if output.suffix == ".zarr":
        with unfinished_beside(output) as folder:
            _write_zarr(folder / "store", arrays)
            replace(output, folder / "store")
        return
    with replaced(output) as stream:
        if output.suffix == ".npz":
            _write_npz(stream, arrays)
        elif output.suffix == ".safetensors":
            _write_safetensors(Path(stream.name), arrays)
        else:
            _write_npy(stream.write, next(iter(arrays.values())))


def _write_npy(write: Callable[[bytes], int], array: Array) -> None:
    # To an object with only a `write` method, NumPy writes in pieces, and its errors are those of the system.
    stream: Any = SimpleNamespace(write=write)
    np.lib.format.write_array(stream, array, allow_pickle=False)


def _write_npz(stream: BinaryIO, arrays: dict[str, Array]) -> None:
    # `numpy.savez` has no place for arrays that are named as its own parameters are.
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_npy(member.write, np.asarray(array))


def _write_zarr(store: Path, arrays: dict[str, Array]) -> None:
    """Write a store of one array, or a group of several."""
    zarr = importlib.import_module("zarr")
    with warnings.catch_warnings(action="ignore"):  # about types that Zarr's standard does not have yet
        if len(arrays) > 1:
            zarr.create_group(store)
        for name, array in arrays.items():
            zarr.create_array(store, name=name if len(arrays) > 1 else None, data=np.asarray(array))


def _write_safetensors(path: Path, arrays: dict[str, Array]) -> None:
    # The library writes the memory of an array as it lies there.
    in_order = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    mode = path.stat().st_mode
    _call_safetensors("save_file", in_order, path)
    path.chmod(stat.S_IMODE(mode))  # the library makes a file that only its owner may read


def _call_safetensors(function: str, *arguments: Any) -> None:
    library = importlib.import_module("safetensors.numpy")
    try:
        getattr(library, function)(*arguments)
    except importlib.import_module("safetensors").SafetensorError as error:  # of a type, or of the system
        raise OSError(str(error)) from error


def _reserve(array: "np.memmap[Any, Any]") -> None:
    """Take the space of a new file now: a full disk kills a process that writes to mapped memory."""
    with Path(str(array.filename)).open("r+b") as stream:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, array.offset + array.nbytes)
            return
        stream.seek(array.offset)
        for begin in range(0, array.nbytes, ZEROS):
            stream.write(bytes(min(ZEROS, array.nbytes - begin)))
