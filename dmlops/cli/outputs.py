"""The output arrays of commands: .npy and .npz files, or an .npy stream on standard output."""

import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, BinaryIO, cast

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from dmlops.cli.ending import StandardStream
from dmlops.cli.errors import CommandError, users_errors
from dmlops.cli.inputs import STANDARD, Array, split_name
from dmlops.cli.output_files import check_output, replaced

OUTPUT_HELP = "Write the result to this .npy or .npz file; - writes an .npy stream to standard output."
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", show_default=False, help=OUTPUT_HELP)
]


def check(output: Path | None, inputs: Sequence[Path], n_results: int = 1) -> None:
    """Check before the work starts whether the results can be written.

    Raises
    ------
    CommandError
        If they cannot, because of the file's name or place.
    """
    if output is None:
        return
    if output == STANDARD:
        if sys.stdout.isatty():
            message = "-o -: standard output is a terminal; pipe it into a command or a file"
            raise CommandError(message)
        return
    suffixes = (".npy", ".npz") if n_results == 1 else (".npz",)
    if output.suffix not in suffixes:
        message = f"-o {output}: the name of the file must end with {' or '.join(suffixes)}"
        raise CommandError(message)
    files = [Path("/dev/stdin") if file == STANDARD else split_name(file)[0] for file in inputs]
    check_output("-o", output, files)


def write(output: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays to a file, or the first of them to standard output."""
    first = next(iter(arrays.values()))
    with users_errors(f"-o {output}"):
        if output == STANDARD:
            _write_npy(cast("StandardStream", sys.stdout).write_bytes, first)
            return
        with replaced(output) as stream:
            if output.suffix == ".npz":
                _write_npz(stream, arrays)
            else:
                _write_npy(stream.write, first)


def _write_npy(write: Callable[[bytes], int], array: Array) -> None:
    # To an object with only a `write` method, NumPy writes in pieces, and its errors are those of the system.
    stream: Any = SimpleNamespace(write=write)
    np.lib.format.write_array(stream, array, allow_pickle=False)


def _write_npz(stream: BinaryIO, arrays: Mapping[str, Array]) -> None:
    # `numpy.savez` has no place for arrays that are named as its own parameters are.
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_npy(member.write, array)


def show(out: Console, name: str, array: Array, *, is_written: bool) -> None:
    """Print what a result is, and its elements unless they are in a file."""
    out.print(Text.assemble((name, "cyan"), f" {array.dtype} {array.shape}"))
    if np.dtype("M8") == array.dtype:  # NumPy cannot print dates without a unit
        array = array.view(np.int64)
    if not is_written:
        out.print(np.array2string(array, threshold=60, edgeitems=3))
