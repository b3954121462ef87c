"""The commands that run an operator on files."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.text import Text

import dmlops
from dmlops.cli import console, outputs
from dmlops.cli.console import duration
from dmlops.cli.ending import CommandError, users_errors
from dmlops.cli.inputs import FILE_HELP, STANDARD, Array, FileArgument, open_input
from dmlops.cli.options import INT64, Device, integer_option
from dmlops.cli.outputs import OutputOption
from dmlops.cli.placement import place

DeviceOption = Annotated[Device, typer.Option(help="Where it runs; auto is a GPU if one can be used.")]
INDICES_HELP = (
    "Index tuples: a file of the same kinds. Of the results of top-k and nonzero, the indices are taken."
)
IndexTypeOption = Annotated[
    Literal["uint32", "uint64", "int32", "int64"],
    typer.Option(metavar="TYPE", help="The type of the indices: uint32, uint64, int32 or int64."),
]


def top_k(
    file: FileArgument,
    *,
    k: Annotated[int, integer_option("The number of elements to select.", "-k", show_default=False)],
    axis: Annotated[int, integer_option("The axis to select along.")] = -1,
    smallest: Annotated[
        bool, typer.Option("--smallest", help="Select the smallest elements instead of the largest.")
    ] = False,
    index_dtype: IndexTypeOption = "int64",
    device: DeviceOption = Device.AUTO,
    output: OutputOption = None,
) -> None:
    """Select the k largest elements along an axis: sorted, ties by ascending index."""
    outputs.check(output, [file], 2)
    x = open_input(file)

    def select(data: Any) -> tuple[Any, ...]:
        return dmlops.top_k(data, k, axis=axis, largest=not smallest, index_dtype=index_dtype)

    ran = _run("top-k", device, select, x.array)
    order = "smallest" if smallest else "largest"
    title = f"top-k of {x.name}: the {k} {order} along axis {axis}"
    _finish(title, ran, ("values", "indices"), output)


def nonzero(
    file: FileArgument,
    *,
    size: Annotated[
        int | None, integer_option("Return exactly this many rows.", min=0, show_default=False)
    ] = None,
    fill_value: Annotated[
        int | None,
        integer_option("With --size: the value of the rows behind the count.", show_default="0"),
    ] = None,
    index_dtype: IndexTypeOption = "int64",
    device: DeviceOption = Device.AUTO,
    output: OutputOption = None,
) -> None:
    """List the coordinates of the non-zero elements, in ascending element order."""
    if size is None and fill_value is not None:
        message = f"nonzero: --fill-value {fill_value} is for the rows beyond the count: it needs --size"
        raise CommandError(message)
    if size is not None and fill_value is None:
        fill_value = 0
    outputs.check(output, [file], 2)
    x = open_input(file)

    def find(data: Any) -> tuple[Any, ...]:
        return dmlops.nonzero_coordinates(data, size=size, fill_value=fill_value, index_dtype=index_dtype)

    ran = _run("nonzero", device, find, x.array)
    title = f"nonzero of {x.name}: {ran[0][1].item():,} of {x.array.size:,} elements"
    _finish(title, ran, ("coordinates", "count"), output)


def gather(
    file: FileArgument,
    indices: Annotated[Path, typer.Argument(metavar="INDICES", help=INDICES_HELP, show_default=False)],
    *,
    batch_dims: Annotated[int, integer_option("The number of leading dimensions that both share.")] = 0,
    mode: Annotated[
        Literal["raise", "clip", "fill"],
        typer.Option(help="For indices out of range: an error, the nearest valid index, or zeros."),
    ] = "raise",
    device: DeviceOption = Device.AUTO,
    output: OutputOption = None,
) -> None:
    """Read the elements or slices that index tuples point at (ONNX GatherND)."""
    outputs.check(output, [file, indices])
    if file == STANDARD == indices:
        message = "gather: standard input holds one array; name a file for FILE or INDICES"
        raise CommandError(message)
    x, tuples = open_input(file), open_input(indices, as_indices=True)

    def read(data: Any, tuples: Any) -> tuple[Any, ...]:
        return (dmlops.gather_nd(data, tuples, batch_dims=batch_dims, mode=mode),)

    ran = _run("gather", device, read, x.array, tuples.array)
    _finish(f"gather from {x.name} by {tuples.name}", ran, ("output",), output)


def diagonal(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help=FILE_HELP, show_default=False)] = None,
    *,
    begin: Annotated[int, integer_option("The first diagonal of the band.")] = 0,
    end: Annotated[
        int | None,
        integer_option("The diagonal after the last one of the band.", show_default="begin + 1"),
    ] = None,
    value: Annotated[str, typer.Option(metavar="NUMBER", help="The value to fill the band with.")] = "1",
    shape: Annotated[
        str | None,
        typer.Option(metavar="SIZES", show_default=False, help="Without FILE: the shape, such as 4,4."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="TYPE", show_default="float32", help="Without FILE: the data type."),
    ] = None,
    device: DeviceOption = Device.AUTO,
    output: OutputOption = None,
) -> None:
    """Fill a band of diagonals with a value; diagonal 0 is the main one, and those above it are positive."""
    outputs.check(output, [] if file is None else [file])
    end = begin + 1 if end is None else end
    if file is not None and (shape is not None or dtype is not None):
        message = "diagonal: FILE has a shape and type of its own; leave --shape and --dtype out"
        raise CommandError(message)
    options: Any = {"begin": begin, "end": end}
    if file is not None:
        source, array = open_input(file)
        options["value"] = _value(value, array.dtype)
        ran = _run("diagonal", device, lambda data: (dmlops.diagonal_matrix(data, **options),), array)
    else:
        if shape is None:
            message = "diagonal: give a FILE, or --shape"
            raise CommandError(message)
        dtype = "float32" if dtype is None else dtype
        # NumPy would write bytes without a meaning.
        if output is not None and dtype.startswith(("bfloat16", "float8")):
            message = f"-o {output}: it cannot hold {dtype}; float32 has the same values"
            raise CommandError(message)
        sizes = _shape(shape)
        source, like = f"shape {sizes}", np.zeros(1)
        options |= {"value": _value(value, dtype), "shape": sizes, "dtype": dtype}
        ran = _run("diagonal", device, lambda like: (dmlops.diagonal_matrix(like=like, **options),), like)
    _finish(f"diagonal of {source}: {value} on [{begin}, {end})", ran, ("output",), output)


def _run(
    command: str, device: Device, operator: Callable[..., tuple[Any, ...]], *arrays: Array
) -> tuple[list[Array], str]:
    """Run an operator on a device; return its results, and where it ran for how long.

    With `auto`, data of types that not all operators take on a GPU stays on the CPU.
    """
    is_plain = arrays[0].dtype.kind in "biuf"
    host = place(device if is_plain or device is not Device.AUTO else Device.CPU)
    with users_errors(command), console.spinner():
        placed = [host.put(array) for array in arrays]
        host.wait()
        start = time.perf_counter()
        results = operator(*placed)
        host.wait()
        took = duration(time.perf_counter() - start)
        return [host.get(array) for array in results], f"{host.label}, {took} with compilation or loading"


def _finish(title: str, ran: tuple[list[Array], str], names: Sequence[str], output: Path | None) -> None:
    """Write the results before anything is printed, because printing may fail."""
    results, how = ran
    arrays = dict(zip(names, results, strict=True))
    if output is not None:
        outputs.write(output, arrays)
    out = console.err if output == STANDARD else console.out
    out.print(Text.assemble((title, "bold"), f" ({how})"))
    for name, array in arrays.items():
        outputs.show(out, name, array, is_written=output is not None)
    if output is not None:
        out.print(f"written to {f'standard output: {names[0]}' if output == STANDARD else output}")


def _value(text: str, dtype: "np.dtype[Any] | str") -> Any:
    """Return the value to fill a band with: a number, or for dates and durations NumPy's text for one."""
    kind = ""
    with suppress(TypeError):  # of a name that NumPy does not know, such as bfloat16
        kind = np.dtype(dtype).kind
    readers: list[Callable[[], Any]] = [lambda: int(text, 0), lambda: _finite(float, text)]
    readers.append(lambda: _finite(complex, text))
    if kind == "M":
        readers.append(lambda: np.datetime64(text))
    if kind == "m" and text == "NaT":
        return text
    for read in readers:
        try:
            return read()
        except ValueError:
            continue
    message = f"--value: {text!r} is not a number"
    raise CommandError(message)


def _finite(number: Callable[[str], Any], text: str) -> Any:
    """Read a number; Python makes an infinity of one that is too large."""
    value = number(text)
    is_infinite = math.isinf(value.real) or math.isinf(value.imag)
    if is_infinite and "inf" not in text.lower():
        message = f"--value: {text} is beyond the range of float64"
        raise CommandError(message)
    return value


def _shape(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(size) for size in text.strip(" ()").split(","))
    except ValueError:
        sizes = (1 << 64,)
    if not all(size in INT64 for size in sizes):
        message = f"--shape: {text!r} is not a shape of 64-bit integers; write it as 4,4"
        raise CommandError(message)
    return sizes
