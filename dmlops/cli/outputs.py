"""The output arrays of commands: .npy and .npz files, or an .npy stream on standard output.

Files are checked before the work starts, and appear as a whole when it is done.
"""

import os
import stat
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from types import SimpleNamespace
from typing import Annotated, Any, BinaryIO

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from dmlops.cli.ending import fail, users_errors
from dmlops.cli.inputs import STANDARD, Array, split_name

OUTPUT_HELP = "Write the result to this .npy or .npz file; - writes an .npy stream to standard output."
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", show_default=False, help=OUTPUT_HELP)
]


def check(output: Path | None, inputs: Sequence[Path], n_results: int = 1) -> None:
    """Raise a `CommandError` before the work starts if the results cannot be written."""
    if output is None:
        return
    if output == STANDARD:
        if sys.stdout is None or sys.stdout.isatty():
            kind = "closed" if sys.stdout is None else "a terminal"
            fail(f"-o -: standard output is {kind}; pipe it into a command or a file")
        return
    suffixes = (".npy", ".npz") if n_results == 1 else (".npz",)
    if output.suffix not in suffixes:
        fail(f"-o {output}: the name of the file must end with {' or '.join(suffixes)}")
    files = [Path("/dev/stdin") if file == STANDARD else split_name(file)[0] for file in inputs]
    check_output("-o", output, files)


def check_output(option: str, path: Path, inputs: Iterable[Path] = ()) -> None:
    """Raise a `CommandError` if a file cannot be written, or is one of `inputs`, even under another name.

    `option` is the option that names the file.
    """
    about = f"{option} {path}"
    with users_errors(about):
        target = Path(os.path.realpath(path))
        try:
            status = target.stat()
        except FileNotFoundError:
            if not target.parent.is_dir():
                fail(f"{about}: there is no folder {target.parent}")
        else:
            if not stat.S_ISREG(status.st_mode):
                kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
                fail(f"{about}: it is {kind}; name a file")
            for other in inputs:
                with suppress(OSError):  # a file that cannot be read is reported when it is read
                    if os.path.samestat(status, other.stat()):
                        fail(f"{about}: it is the file that {other} is read from; name another file")
            if not os.access(target, os.W_OK):
                fail(f"{about}: the file may not be written")
        TemporaryFile(dir=target.parent).close()


def write(output: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays to a file, or the first of them to standard output."""
    first = next(iter(arrays.values()))
    with users_errors(f"-o {output}"):
        if output == STANDARD:
            _write_npy(sys.stdout.buffer.write, first)
            sys.stdout.buffer.flush()
            return
        with replaced(output) as stream:
            if output.suffix == ".npy":
                _write_npy(stream.write, first)
                return
            # `numpy.savez` has no place for arrays that are named as its own parameters are.
            with zipfile.ZipFile(stream, "w") as archive:
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        _write_npy(member.write, array)


def _write_npy(write: Callable[[bytes], int], array: Array) -> None:
    # To an object with only a `write` method, NumPy writes in pieces, and errors of the system pass through.
    stream: Any = SimpleNamespace(write=write)
    np.lib.format.write_array(stream, array, allow_pickle=False)


def show(out: Console, name: str, array: Array, *, is_written: bool) -> None:
    """Print the type and the shape of a result, and its elements unless they are in a file."""
    out.print(Text.assemble((name, "cyan"), f" {array.dtype} {array.shape}"))
    if np.dtype("M8") == array.dtype:  # NumPy cannot print dates without a unit
        array = array.view(np.int64)
    if not is_written:
        out.print(np.array2string(array, threshold=60, edgeitems=3))


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when everything is written, and is removed otherwise.

    A signal that ends the process at once leaves a hidden folder behind, and `path` as it was. A replaced
    file keeps its permissions, and a symbolic link stays a link.
    """
    target = Path(os.path.realpath(path))
    # The folder is private, as the file that is replaced may be.
    with TemporaryDirectory(dir=target.parent, prefix=".dmlops-") as folder:
        unfinished = Path(folder, "file")
        with unfinished.open("xb") as stream:
            yield stream
        with suppress(FileNotFoundError):
            unfinished.chmod(stat.S_IMODE(target.stat().st_mode))
        unfinished.replace(target)
