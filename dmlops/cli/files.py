"""The operators on the user's own .npy files, which are memory-mapped."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape

import dmlops
from dmlops.cli.console import CommandError, duration, out, users_errors
from dmlops.cli.placement import Device, Host, place

Array = np.ndarray[Any, Any]

FileArgument = Annotated[Path, typer.Argument(metavar="FILE.npy", show_default=False)]
DeviceOption = Annotated[Device, typer.Option(help="auto takes a GPU where one can be used.")]
OutputOption = Annotated[Path | None, typer.Option("--output", "-o", help="Write the result here.")]
IndexTypeOption = Annotated[str, typer.Option(help="uint32, uint64, int32 or int64.")]


def top_k(
    file: FileArgument,
    *,
    k: Annotated[int, typer.Option("-k", help="How many elements to select.")],
    axis: Annotated[int, typer.Option(help="The axis to select along.")] = -1,
    smallest: Annotated[
        bool, typer.Option("--smallest", help="Select the smallest, not the largest.")
    ] = False,
    index_dtype: IndexTypeOption = "uint32",
    device: DeviceOption = Device.AUTO,
    output: OutputOption = None,
) -> None:
    """Select the k largest elements along an axis: sorted, ties by ascending index."""
    _check_output(output, ".npz")
    x = _open(file)
    host = place(device)
    with users_errors("top-k"):
        result, seconds = _timed(
            host,
            lambda data: dmlops.top_k(data, k, axis=axis, largest=not smallest, index_dtype=index_dtype),
            x,
        )
    order = "smallest" if smallest else "largest"
    _deliver(
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
        int | None, typer.Option(help="What the rows beyond the count hold; 0 if not given.")
    ] = None,
    index_dtype: IndexTypeOption = "uint32",
    device: DeviceOption = Device.AUTO,
    output: OutputOption = None,
) -> None:
    """List the coordinates of the non-zero elements, in ascending element order."""
    _check_output(output, ".npz")
    if size is not None and fill_value is None:
        fill_value = 0
    x = _open(file)
    host = place(device)
    with users_errors("nonzero"):
        result, seconds = _timed(
            host,
            lambda data: dmlops.nonzero_coordinates(
                data, size=size, fill_value=fill_value, index_dtype=index_dtype
            ),
            x,
        )
    count = int(result[1].reshape(-1)[0])
    _deliver(
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
    batch_dims: Annotated[int, typer.Option(help="How many leading dimensions both files share.")] = 0,
    mode: Annotated[str, typer.Option(help="raise, clip or fill, for indices out of range.")] = "raise",
    device: DeviceOption = Device.AUTO,
    output: OutputOption = None,
) -> None:
    """Gather the elements or slices that index tuples point at (ONNX GatherND)."""
    _check_output(output, ".npy", ".npz")
    x, index_tuples = _open(file), _open(indices)
    host = place(device)
    with users_errors("gather"):
        result, seconds = _timed(
            host,
            lambda data, tuples: (dmlops.gather_nd(data, tuples, batch_dims=batch_dims, mode=mode),),
            x,
            index_tuples,
        )
    _deliver(f"gather from {file.name} by {indices.name}", {"output": result[0]}, host, seconds, output)


def diagonal(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE.npy]", show_default=False)] = None,
    *,
    begin: Annotated[int, typer.Option(help="First diagonal of the band.")] = 0,
    end: Annotated[int | None, typer.Option(help="Diagonal after the last of the band.")] = None,
    value: Annotated[str, typer.Option(help="What the band is filled with.")] = "1",
    shape: Annotated[str | None, typer.Option(help="Without FILE: the shape, as in 4,4.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Without FILE: the data type.")] = None,
    device: DeviceOption = Device.AUTO,
    output: OutputOption = None,
) -> None:
    """Fill a band of diagonals with a value; diagonal 0 is the main one, the upper ones are positive."""
    _check_output(output, ".npy", ".npz")
    filling = _number("--value", value)
    end = begin + 1 if end is None else end
    host = place(device)
    if file is None:
        if shape is None:
            message = "diagonal: give a FILE.npy, or --shape"
            raise CommandError(message)
        sizes = _shape(shape)
        with users_errors("diagonal"):
            like = host.put(np.zeros(1, np.uint8))
            result, seconds = _timed(
                host,
                lambda: (
                    dmlops.diagonal_matrix(
                        shape=sizes, dtype=dtype or "float32", value=filling, begin=begin, end=end, like=like
                    ),
                ),
            )
        title = f"diagonal of shape {sizes}"
    else:
        if shape is not None or dtype is not None:
            message = "diagonal: FILE.npy has a shape and type of its own; leave --shape and --dtype out"
            raise CommandError(message)
        x = _open(file)
        with users_errors("diagonal"):
            result, seconds = _timed(
                host,
                lambda data: (dmlops.diagonal_matrix(data, value=filling, begin=begin, end=end),),
                x,
            )
        title = f"diagonal of {file.name}"
    _deliver(f"{title}: {value} on [{begin}, {end})", {"output": result[0]}, host, seconds, output)


def _open(file: Path) -> Array:
    """Map a .npy file into memory, in native byte order."""
    with users_errors(str(file)):
        if file.suffix == ".npz":
            message = f"{file}: an .npz holds several arrays; give one .npy"
            raise CommandError(message)
        try:
            array = np.lib.format.open_memmap(file, mode="r")
        except ValueError as error:
            if "magic string" in str(error) or "EOF" in str(error):
                message = f"{file}: this is no .npy file"
                raise CommandError(message) from error
            raise
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _timed(host: Host, operator: Callable[..., Any], *arrays: Array) -> tuple[tuple[Any, ...], float]:
    placed = [host.put(array) for array in arrays]
    host.wait()
    start = time.perf_counter()
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
    message = f"{option}: {text!r} is no number"
    raise CommandError(message)


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.strip(" ()").split(",") if size.strip())
    except ValueError:
        message = f"--shape: {text!r} is no shape; write it as 4,4"
        raise CommandError(message) from None


def _check_output(output: Path | None, *suffixes: str) -> None:
    """Find out before the work whether the result can be written."""
    if output is None:
        return
    if output.suffix not in suffixes:
        message = f"-o {output}: the result is {' or '.join(suffixes)}, so name the file that way"
        raise CommandError(message)
    if not output.absolute().parent.is_dir():
        message = f"-o {output}: there is no folder {output.absolute().parent}"
        raise CommandError(message)


def _deliver(title: str, arrays: dict[str, Array], host: Host, seconds: float, output: Path | None) -> None:
    """Print what was computed, and show it or write it."""
    out.print(f"[bold]{escape(title)}[/bold] ({host.label}, {duration(seconds)} with compilation or loading)")
    for name, array in arrays.items():
        out.print(f"[cyan]{name}[/cyan] {array.dtype} {array.shape}")
        if output is None:
            out.print(np.array2string(array, threshold=60, edgeitems=3), markup=False)
    if output is not None:
        with users_errors(f"-o {output}"):
            _write(output, arrays)
        out.print(f"written to {output}", markup=False)


def _write(output: Path, arrays: dict[str, Array]) -> None:
    # The file may be the one that is mapped as input, so it is replaced whole, never written into.
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        with partial.open("xb") as stream:
            if output.suffix == ".npz":
                np.savez(stream, **arrays)  # type: ignore[arg-type]
            else:
                np.save(stream, next(iter(arrays.values())))
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)
