"""The commands that run an operator on files."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.text import Text

import dmlops
from dmlops.cli import console, outputs
from dmlops.cli.ending import fail, users_errors
from dmlops.cli.inputs import STANDARD, Array, FileArgument, Input, open_input
from dmlops.cli.outputs import OutputOption
from dmlops.cli.placement import Device, place
from dmlops.operators.sample import PARAMETERS
from dmlops.types.errors import counted, cut, shown

DeviceOption = Annotated[Device, typer.Option(help="Where it runs; auto is a GPU if one can be used.")]
INDICES_HELP = (
    "Index tuples: a file of the same kinds. Of the results of nonzero, the coordinates are taken; those of "
    "top-k need --along-axis."
)
_INDEX_TYPE = Literal["uint32", "uint64", "int32", "int64"]
_INDEX_TYPE_HELP = "The type of the indices: uint32, uint64, int32 or int64."
IndexTypeOption = Annotated[_INDEX_TYPE, typer.Option(metavar="TYPE", help=_INDEX_TYPE_HELP)]


def _array_option(text: str) -> Any:
    return typer.Option(metavar="FILE", show_default=False, help=text)


def _number_option(text: str, *names: str) -> Any:
    return typer.Option(*names, metavar="NUMBER|FILE", help=text)


def top_k(
    file: FileArgument,
    *,
    k: Annotated[int, typer.Option("-k", show_default=False, help="The number of elements to select.")],
    axis: Annotated[int, typer.Option(help="The axis to select along.")] = -1,
    smallest: Annotated[
        bool, typer.Option("--smallest", help="Select the smallest elements instead of the largest.")
    ] = False,
    starts: Annotated[
        Path | None, _array_option("For each row, the position of the first element that takes part.")
    ] = None,
    lengths: Annotated[Path | None, _array_option("For each row, how many elements take part.")] = None,
    max_length: Annotated[
        int | None, typer.Option(show_default=False, help="Of each row, at most so many elements take part.")
    ] = None,
    indices: Annotated[
        Path | None,
        _array_option(
            "A number for each element, by which ties go, and which is written instead of its position."
        ),
    ] = None,
    nan_last: Annotated[
        bool, typer.Option("--nan-last", help="Select NaN after all other elements.")
    ] = False,
    index_dtype: Annotated[
        _INDEX_TYPE | None,
        typer.Option(metavar="TYPE", show_default="int64, or that of --indices", help=_INDEX_TYPE_HELP),
    ] = None,
    device: DeviceOption = Device.AUTO,
    output: OutputOption = None,
) -> None:
    """Select the k largest elements along an axis: sorted, ties by ascending index."""
    of_rows = {"starts": starts, "lengths": lengths, "indices": indices}
    given = {name: path for name, path in of_rows.items() if path is not None}
    files = [file, *given.values()]
    outputs.check(output, files, 2)
    _check_one_is_standard("top-k", files)
    x, others = open_input(file), []
    for name, path in given.items():
        others.append(open_input(path, "numbers" if name == "indices" else "windows").array)

    def select(x: object, *others: object) -> object:
        arrays: Any = dict(zip(given, others, strict=True))
        return dmlops.top_k(
            x,
            k,
            axis=axis,
            largest=not smallest,
            max_length=max_length,
            nan_last=nan_last,
            index_dtype=index_dtype,
            **arrays,
        )

    ran = _run("top-k", device, select, x.array, *others)
    order = "smallest" if smallest else "largest"
    title = f"top-k of {x.name}: the {k} {order} along axis {axis}"
    _finish(title, ran, ("values", "indices"), output)


def nonzero(
    file: FileArgument,
    *,
    index_dtype: IndexTypeOption = "int64",
    device: DeviceOption = Device.AUTO,
    output: OutputOption = None,
) -> None:
    """List the coordinates of the non-zero elements, in ascending element order."""
    outputs.check(output, [file], 2)
    x = open_input(file)
    find = partial(dmlops.nonzero_coordinates, index_dtype=index_dtype)
    ran = _run("nonzero", device, find, x.array)
    title = f"nonzero of {x.name}: {ran[0][1].item():,} of {x.array.size:,} elements"
    _finish(title, ran, ("coordinates", "count"), output)


def gather(
    file: FileArgument,
    indices: Annotated[Path, typer.Argument(metavar="INDICES", help=INDICES_HELP, show_default=False)],
    *,
    batch_dims: Annotated[int, typer.Option(help="The number of leading dimensions that both share.")] = 0,
    mode: Annotated[
        Literal["raise", "clip", "fill"],
        typer.Option(help="For indices out of range: an error, the nearest valid index, or --fill-value."),
    ] = "raise",
    fill_value: Annotated[
        str, typer.Option(metavar="NUMBER", help="The value that --mode fill gives.")
    ] = "0",
    wrap_negative: Annotated[
        bool,
        typer.Option(help="Whether negative indices count from the end; they are out of range otherwise."),
    ] = True,
    along_axis: Annotated[
        int | None,
        typer.Option(
            metavar="AXIS",
            show_default=False,
            help="The indices are positions along this axis, as those of top-k are, instead of index tuples.",
        ),
    ] = None,
    device: DeviceOption = Device.AUTO,
    output: OutputOption = None,
) -> None:
    """Read the elements or slices that index tuples point at (ONNX GatherND), or elements along an axis."""
    outputs.check(output, [file, indices])
    _check_one_is_standard("gather", [file, indices])
    fill = _number(fill_value, "--fill-value")
    x = open_input(file)
    tuples = open_input(indices, "tuples" if along_axis is None else "positions")
    arrays, by = (x.array, tuples.array), tuples.name
    if along_axis is not None:
        if batch_dims:
            fail("gather: --along-axis has the other axes as batch dimensions; leave out --batch-dims")
        arrays = _rows_along(along_axis, x, tuples)
        by, batch_dims = f"{by} along axis {along_axis}", x.array.ndim - 1
    read = partial(
        dmlops.gather_nd, batch_dims=batch_dims, mode=mode, fill_value=fill, wrap_negative=wrap_negative
    )
    (result,), how = _run("gather", device, read, *arrays)
    if along_axis is not None:
        result = np.moveaxis(result, -1, along_axis)
    _finish(f"gather from {x.name} by {by}", ([result], how), ("output",), output)


def sample(
    file: FileArgument,
    *,
    seeds: Annotated[str, _number_option("The seed of each row, a 64-bit integer.")],
    steps: Annotated[str, _number_option("The number of the draw with that seed.")] = "0",
    temperature: Annotated[str, _number_option("Divides the logits; 0 takes the largest.")] = "1",
    k: Annotated[str, _number_option("Only the k largest take part; 0 means all.", "-k")] = "0",
    top_p: Annotated[
        str, _number_option("Only the largest that make up this share of the weights take part.")
    ] = "1",
    min_p: Annotated[
        str, _number_option("The least weight that takes part, as a share of the largest.")
    ] = "0",
    index_dtype: IndexTypeOption = "int64",
    device: DeviceOption = Device.AUTO,
    output: OutputOption = None,
) -> None:
    """Draw one token per row of logits: the same for the same seed, on every device and in every batch.

    Parameters are numbers, or files with a number per row. A row in which nothing has a weight gives -1.
    """
    given = seeds, steps, temperature, k, top_p, min_p
    numbers: dict[str, Any] = {}
    paths = {}
    for name, text in zip(PARAMETERS, given, strict=True):
        # Pipes, as those of `<(command)`, have any name.
        if text == str(STANDARD) or ".np" in text or os.sep in text:
            paths[name] = Path(text)
        else:
            numbers[name] = _number(text, f"--{name.replace('_', '-')}" if len(name) > 1 else "-k")
    outputs.check(output, [file, *paths.values()])
    _check_one_is_standard("sample", [file, *paths.values()])
    x, arrays = open_input(file), [open_input(path, "numbers").array for path in paths.values()]

    def draw(x: object, *arrays: object) -> object:
        return dmlops.sample(x, **numbers, **dict(zip(paths, arrays, strict=True)), index_dtype=index_dtype)

    ran = _run("sample", device, draw, x.array, *arrays)
    _finish(f"sample of {x.name}", ran, ("tokens",), output)


def _check_one_is_standard(command: str, files: Sequence[Path]) -> None:
    if list(files).count(STANDARD) > 1:
        fail(f"{command}: standard input holds one array; name files for the others")


def _rows_along(axis: int, x: Input, indices: Input) -> tuple[Array, Array]:
    """Return an array with an axis as its last, and index tuples of positions along it."""
    ndim = x.array.ndim
    if indices.array.ndim != ndim:
        fail(
            f"gather: --along-axis: {x.name} has {counted(ndim, 'dimension')} and {indices.name} "
            f"{indices.array.ndim}; both must have the same number"
        )
    if not -ndim <= axis < ndim:
        fail(f"gather: --along-axis: got {axis}, but {x.name} has {counted(ndim, 'dimension')}")
    return np.moveaxis(x.array, axis, -1), np.moveaxis(indices.array, axis, -1)[..., None]


def _bound(text: str | int) -> float:
    """Return an end of a band: an integer, or an infinity for an open end."""
    try:
        return float(text) if str(text).strip("+-") in ("inf", "infinity") else int(text)
    except ValueError:
        message = f"{shown(text)} is not a valid integer, inf or -inf."
        raise typer.BadParameter(message) from None


def diagonal(
    file: FileArgument,
    *,
    begin: Annotated[
        float,
        typer.Option(metavar="INTEGER", parser=_bound, help="The first diagonal of the band, or -inf."),
    ] = 0,
    end: Annotated[
        float | None,
        typer.Option(
            metavar="INTEGER",
            parser=_bound,
            help="The diagonal after the last one of the band, or inf.",
            show_default="begin + 1",
        ),
    ] = None,
    value: Annotated[str, typer.Option(metavar="NUMBER", help="The value to fill the band with.")] = "1",
    device: DeviceOption = Device.AUTO,
    output: OutputOption = None,
) -> None:
    """Fill a band of diagonals with a value; diagonal 0 is the main one, and those above it are positive."""
    outputs.check(output, [file])
    end = begin + 1 if end is None else end
    number, x = _number(value, "--value"), open_input(file)
    fill = partial(dmlops.diagonal_matrix, value=number, begin=begin, end=end)
    ran = _run("diagonal", device, fill, x.array)
    _finish(f"diagonal of {x.name}: {value} on [{shown(begin)}, {shown(end)})", ran, ("output",), output)


def _run(
    command: str, device: Device, operator: Callable[..., object], *arrays: Array
) -> tuple[list[Array], str]:
    """Run an operator on a device; return its results, and where it ran.

    With `auto`, data of types that not all operators take on a GPU stays on the CPU.
    """
    is_plain = arrays[0].dtype.kind in "biuf"
    host = place(device if is_plain or device is not Device.AUTO else Device.CPU)
    with users_errors(command):
        placed = [host.put(array) for array in arrays]
        results = operator(*placed)
        results = results if isinstance(results, tuple) else (results,)
        return [host.get(array) for array in results], host.label


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


def _number(text: str, option: str) -> complex:
    """Return the number in the text of an option; Python makes an infinity of one that is too large."""
    read: Callable[[str], complex]
    for read in (partial(int, base=0), float, complex):
        with suppress(ValueError):
            value = read(text)
            break
    else:
        fail(f"{option}: {shown(text)} is not a number")
    if not isinstance(value, int) and np.isinf(value) and "inf" not in text.lower():
        fail(f"{option}: {cut(text)} is beyond the range of float64")
    return value
