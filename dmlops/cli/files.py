"""The operators on the user's own .npy files, which are memory-mapped."""

import stat
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, cast

import numpy as np
import typer
from rich.text import Text

import dmlops
from dmlops.array_types import DataTypeName, IndexTypeName, Mode
from dmlops.bench.report import duration
from dmlops.cli.console import out, spinner, summary_of
from dmlops.cli.errors import CommandError, reason_of, users_errors
from dmlops.cli.output_files import check_output, replaced
from dmlops.cli.placement import Device, Host, place

Array = np.ndarray[Any, Any]

FileArgument = Annotated[Path, typer.Argument(metavar="FILE.npy", show_default=False)]
DeviceOption = Annotated[Device, typer.Option(help="auto: a GPU if one can be used.")]
OutputOption = Annotated[Path | None, typer.Option("--output", "-o", help="Write the result to this file.")]
IndexTypeOption = Annotated[str, typer.Option(help="uint32, uint64, int32 or int64.")]


def top_k(
    file: FileArgument,
    *,
    k: Annotated[int, typer.Option("-k", help="The number of elements to select.")],
    axis: Annotated[int, typer.Option(help="The axis to select along.")] = -1,
    smallest: Annotated[
        bool, typer.Option("--smallest", help="Select the smallest elements instead of the largest.")
    ] = False,
    index_dtype: IndexTypeOption = "uint32",
    device: DeviceOption = Device.AUTO,
    output: OutputOption = None,
) -> None:
    """Select the k largest elements along an axis: sorted, ties by ascending index."""
    _check_output(output, [file], ".npz")
    x = _open(file)
    host = place(device)
    with users_errors("top-k"):
        result, seconds = _timed(
            host,
            lambda data: dmlops.top_k(
                data, k, axis=axis, largest=not smallest, index_dtype=cast("IndexTypeName", index_dtype)
            ),
            x,
        )
    order = "smallest" if smallest else "largest"
    _report(
        f"top-k of {file.name}: the {k} {order} along axis {axis}",
        {"values": result[0], "indices": result[1]},
        host,
        seconds,
        output,
    )


def nonzero(
    file: FileArgument,
    *,
    size: Annotated[int | None, typer.Option(help="Return exactly this many rows.")] = None,
    fill_value: Annotated[
        int | None, typer.Option(help="The value of the rows beyond the count; by default 0.")
    ] = None,
    index_dtype: IndexTypeOption = "uint32",
    device: DeviceOption = Device.AUTO,
    output: OutputOption = None,
) -> None:
    """List the coordinates of the non-zero elements, in ascending element order."""
    if size is None and fill_value is not None:
        message = f"nonzero: --fill-value {fill_value} is for the rows beyond the count: it needs --size"
        raise CommandError(message)
    if size is not None and fill_value is None:
        fill_value = 0
    _check_output(output, [file], ".npz")
    x = _open(file)
    host = place(device)
    with users_errors("nonzero"):
        result, seconds = _timed(
            host,
            lambda data: dmlops.nonzero_coordinates(
                data, size=size, fill_value=fill_value, index_dtype=cast("IndexTypeName", index_dtype)
            ),
            x,
        )
    count = int(result[1].reshape(-1)[0])
    _report(
        f"nonzero of {file.name}: {count:,} of {x.size:,} elements",
        {"coordinates": result[0], "count": result[1]},
        host,
        seconds,
        output,
    )


def gather(
    file: FileArgument,
    indices: Annotated[Path, typer.Argument(metavar="INDICES.npy", show_default=False)],
    *,
    batch_dims: Annotated[int, typer.Option(help="The number of leading batch dimensions.")] = 0,
    mode: Annotated[str, typer.Option(help="For indices out of range: raise, clip or fill.")] = "raise",
    device: DeviceOption = Device.AUTO,
    output: OutputOption = None,
) -> None:
    """Read the elements or slices that index tuples point at (ONNX GatherND)."""
    _check_output(output, [file, indices], ".npy", ".npz")
    x, index_tuples = _open(file), _open(indices)
    host = place(device)
    with users_errors("gather"):
        result, seconds = _timed(
            host,
            lambda data, tuples: (
                dmlops.gather_nd(data, tuples, batch_dims=batch_dims, mode=cast("Mode", mode)),
            ),
            x,
            index_tuples,
        )
    _report(f"gather from {file.name} by {indices.name}", {"output": result[0]}, host, seconds, output)


def diagonal(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE.npy]", show_default=False)] = None,
    *,
    begin: Annotated[int, typer.Option(help="The first diagonal of the band.")] = 0,
    end: Annotated[int | None, typer.Option(help="The diagonal after the last one of the band.")] = None,
    value: Annotated[str, typer.Option(help="The value to fill the band with.")] = "1",
    shape: Annotated[str | None, typer.Option(help="Without FILE: the shape, such as 4,4.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Without FILE: the data type.")] = None,
    device: DeviceOption = Device.AUTO,
    output: OutputOption = None,
) -> None:
    """Fill a band of diagonals with a value; diagonal 0 is the main one, and those above it are positive."""
    _check_output(output, [] if file is None else [file], ".npy", ".npz")
    filling = _number("--value", value)
    end = begin + 1 if end is None else end
    if file is None:
        if shape is None:
            message = "diagonal: give a FILE.npy, or --shape"
            raise CommandError(message)
        sizes = _shape(shape)
        dtype = "float32" if dtype is None else dtype
        if output is not None and dtype == "bfloat16":
            message = f"-o {output}: NumPy's files have no bfloat16; float32 holds the same values"
            raise CommandError(message)
        host = place(device)
        with users_errors("diagonal"):
            like = host.put(np.zeros(1, np.uint8))
            result, seconds = _timed(
                host,
                lambda: (
                    dmlops.diagonal_matrix(
                        shape=sizes,
                        dtype=cast("DataTypeName", dtype),
                        value=filling,
                        begin=begin,
                        end=end,
                        like=like,
                    ),
                ),
            )
        title = f"diagonal of shape {sizes}"
    else:
        if shape is not None or dtype is not None:
            message = "diagonal: FILE.npy has a shape and type of its own; leave --shape and --dtype out"
            raise CommandError(message)
        host = place(device)
        x = _open(file)
        with users_errors("diagonal"):
            result, seconds = _timed(
                host,
                lambda data: (dmlops.diagonal_matrix(data, value=filling, begin=begin, end=end),),
                x,
            )
        title = f"diagonal of {file.name}"
    _report(f"{title}: {value} on [{begin}, {end})", {"output": result[0]}, host, seconds, output)


def _open(file: Path) -> Array:
    """Map a .npy file into memory, in native byte order; a pipe, which cannot be mapped, is read."""
    if file.suffix == ".npz":
        message = f"{file}: an .npz holds several arrays; give one .npy"
        raise CommandError(message)
    with users_errors(str(file)):
        is_regular = stat.S_ISREG(file.stat().st_mode)
        try:
            # NumPy warns about headers from Python 2, and about sizes that overflow before it refuses them.
            with warnings.catch_warnings(action="ignore"):
                array = np.lib.format.open_memmap(file, mode="r") if is_regular else _read(file)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # a damaged header is a SyntaxError, a TokenError, a RecursionError, ...
            is_other = isinstance(error, ValueError) and "magic string" in str(error)
            reason = "not an .npy file" if is_other else f"a damaged .npy file: {reason_of(error)}"
            message = f"{file}: {reason}"
            raise CommandError(message) from error
        if array.dtype.kind == "V" and array.dtype.names is None:
            reason = "bytes without a meaning (NumPy's files hold bfloat16 so: save it as float32)"
            message = f"{file}: its type is {array.dtype}, {reason}"
            raise CommandError(message)
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _read(file: Path) -> Array:
    with file.open("rb") as stream:
        # From an object with only a `read` method, NumPy reads in pieces and never asks for the position.
        source: Any = SimpleNamespace(read=stream.read)
        array: Array = np.lib.format.read_array(source, allow_pickle=False)
    return array


def _timed(host: Host, operator: Callable[..., Any], *arrays: Array) -> tuple[tuple[Any, ...], float]:
    placed = [host.put(array) for array in arrays]
    host.wait()
    start = time.perf_counter()
    with spinner():
        result = operator(*placed)
        host.wait()
    seconds = time.perf_counter() - start
    return tuple(host.get(array) for array in result), seconds


def _number(option: str, text: str) -> int | float:
    for read in (lambda: int(text, 0), lambda: float(text)):
        try:
            return read()
        except ValueError:
            continue
    message = f"{option}: {text!r} is not a number"
    raise CommandError(message)


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.strip(" ()").split(","))
    except ValueError:
        message = f"--shape: {text!r} is not a shape; write it as 4,4"
        raise CommandError(message) from None


def _check_output(output: Path | None, inputs: Sequence[Path], *suffixes: str) -> None:
    """Check before the work starts whether the result can be written."""
    if output is None:
        return
    if output.suffix not in suffixes:
        message = f"-o {output}: the name of the file must end with {' or '.join(suffixes)}"
        raise CommandError(message)
    check_output("-o", output, inputs)


def _report(title: str, arrays: dict[str, Array], host: Host, seconds: float, output: Path | None) -> None:
    """Write the result, or print it. The file comes first, because printing may fail."""
    if output is not None:
        with users_errors(f"-o {output}"):
            _write(output, arrays)
    with summary_of(output):
        where = f" ({host.label}, {duration(seconds)} with compilation or loading)"
        out.print(Text.assemble((title, "bold"), where))
        for name, array in arrays.items():
            out.print(Text.assemble((name, "cyan"), f" {array.dtype} {array.shape}"))
            if output is None:
                out.print(np.array2string(array, threshold=60, edgeitems=3))
        if output is not None:
            out.print(f"written to {output}")


def _write(output: Path, arrays: dict[str, Array]) -> None:
    with replaced(output) as stream:
        if output.suffix == ".npz":
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        else:
            np.save(stream, next(iter(arrays.values())))
