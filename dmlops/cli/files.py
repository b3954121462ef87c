"""The commands that run an operator on files, in blocks if the arrays are large."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.filesize import decimal
from rich.text import Text

import dmlops
from dmlops.cli import outputs
from dmlops.cli.blocks import MEMORY, Blocks, MemoryOption, Part, n_bytes, shown
from dmlops.cli.errors import CommandError, users_errors
from dmlops.cli.inputs import FILE_HELP, STANDARD, Array, FileArgument, Input, open_input
from dmlops.cli.numbers import duration
from dmlops.cli.outputs import OutputOption, Results, results_for
from dmlops.cli.placement import Device, Host, place
from dmlops.errors import IndexOutOfRangeError

DeviceOption = Annotated[Device, typer.Option(help="Where it runs; auto is a GPU if one can be used.")]


class IndexType(StrEnum):
    """The values of `--index-dtype`."""

    UINT32 = "uint32"
    UINT64 = "uint64"
    INT32 = "int32"
    INT64 = "int64"


class Mode(StrEnum):
    """The values of `--mode`."""

    RAISE = "raise"
    CLIP = "clip"
    FILL = "fill"


INDICES_HELP = (
    "Index tuples: a file of the same kinds. Of the results of top-k and nonzero, the indices are taken."
)
LARGEST_ITEM = 16  # bytes
IndexTypeOption = Annotated[
    IndexType, typer.Option(metavar="TYPE", help="The type of the indices: uint32, uint64, int32 or int64.")
]


def top_k(
    file: FileArgument,
    *,
    k: Annotated[
        int, typer.Option("-k", metavar="N", show_default=False, help="The number of elements to select.")
    ],
    axis: Annotated[int, typer.Option(metavar="N", help="The axis to select along.")] = -1,
    smallest: Annotated[
        bool, typer.Option("--smallest", help="Select the smallest elements instead of the largest.")
    ] = False,
    index_dtype: IndexTypeOption = IndexType.INT64,
    device: DeviceOption = Device.AUTO,
    memory: MemoryOption = MEMORY,
    output: OutputOption = None,
) -> None:
    """Select the k largest elements along an axis: sorted, ties by ascending index."""
    limit = n_bytes(memory)
    outputs.check(output, [file], 2)
    x = open_input(file)
    outputs.check_type(output, x.dtype)
    run = _Run("top-k", device, x.dtype)

    def select(part: Part) -> dict[str, Array]:
        values, indices = run(
            lambda data: dmlops.top_k(
                data, k, axis=axis, largest=not smallest, index_dtype=index_dtype.value
            ),
            x.read(part),
        )
        return {"values": values, "indices": indices}

    others = [dim for dim in range(x.ndim) if dim != axis % x.ndim]
    n_rows = math.prod(x.shape[dim] for dim in others)
    n_selected = n_rows * min(max(k, 0), x.size)
    selected_bytes = n_selected * (x.dtype.itemsize + np.dtype(index_dtype).itemsize)
    blocks = Blocks(x.shape, others, x.nbytes + selected_bytes, limit)
    _check_room(x, f"top-k: a row of {x.name} with its results", blocks.part_bytes, memory)
    arrays = run.in_blocks(blocks, select, output)
    order = "smallest" if smallest else "largest"
    run.report(f"top-k of {x.name}: the {k} {order} along axis {axis}", arrays, output)


def nonzero(
    file: FileArgument,
    *,
    size: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", show_default=False, help="Return exactly this many rows."),
    ] = None,
    fill_value: Annotated[
        int | None,
        typer.Option(
            metavar="N", show_default="0", help="With --size: the value of the rows beyond the count."
        ),
    ] = None,
    index_dtype: IndexTypeOption = IndexType.INT64,
    device: DeviceOption = Device.AUTO,
    memory: MemoryOption = MEMORY,
    output: OutputOption = None,
) -> None:
    """List the coordinates of the non-zero elements, in ascending element order."""
    limit = n_bytes(memory)
    if size is None and fill_value is not None:
        message = f"nonzero: --fill-value {fill_value} is for the rows beyond the count: it needs --size"
        raise CommandError(message)
    if size is not None and fill_value is None:
        fill_value = 0
    outputs.check(output, [file], 2)
    x = open_input(file)
    run = _Run("nonzero", device, x.dtype)

    def find(array: Array, size: int | None, fill_value: int | None = None) -> tuple[Array, ...]:
        return run(
            lambda data: dmlops.nonzero_coordinates(
                data, size=size, fill_value=fill_value, index_dtype=index_dtype.value
            ),
            array,
        )

    # There is memory for the coordinates of all elements.
    coordinates_bytes = x.size * x.ndim * np.dtype(index_dtype).itemsize
    blocks = Blocks(x.shape, range(x.ndim), x.nbytes + coordinates_bytes, limit)
    run.n_blocks = blocks.count
    with users_errors("nonzero"), results_for(output) as results:
        if blocks.count == 1:
            with shown(blocks):
                coordinates, count = find(x.read(), size, fill_value)
            results.put("coordinates", coordinates.shape, (), coordinates)
        else:
            if x.size > np.iinfo(index_dtype).max:
                message = (
                    f"nonzero: --index-dtype {index_dtype}: the count reaches {x.size:,}; int64 holds it"
                )
                raise CommandError(message)
            count = np.array(_find_in_blocks(find, x, blocks, size, fill_value, results), index_dtype)
        results.put("count", count.shape, (), count)
    title = f"nonzero of {x.name}: {int(count.reshape(-1)[0]):,} of {x.size:,} elements"
    run.report(title, results.arrays, output)


def _find_in_blocks(
    find: Callable[..., tuple[Array, ...]],
    x: Input,
    blocks: Blocks,
    size: int | None,
    fill_value: int | None,
    results: Results,
) -> int:
    """Collect the coordinates of the non-zero elements, which are counted first; return their number."""
    with shown(blocks, "counting") as parts:
        counts = [int(find(x.read(part), 0)[1]) for part in parts]
    n_rows = sum(counts) if size is None else size
    shape, done = (n_rows, x.ndim), 0
    # Coordinates, or for rows beyond the count what an operator fills them with.
    (rest, _) = find(np.zeros((1,) * x.ndim, np.bool_), 1, fill_value or 0)
    with shown(blocks, "listing") as parts:
        for part, count in zip(parts, counts, strict=True):
            taken = min(count, n_rows - done)
            if taken:
                coordinates, _ = find(x.read(part), taken)
                coordinates += np.array([each.start for each in part], coordinates.dtype)
                results.put("coordinates", shape, (slice(done, done + taken),), coordinates)
            done += taken
    if done < n_rows or n_rows == 0:
        rest = np.broadcast_to(rest, (n_rows - done, x.ndim))
        results.put("coordinates", shape, (slice(done, n_rows),), rest)
    return sum(counts)


def gather(
    file: FileArgument,
    indices: Annotated[Path, typer.Argument(metavar="INDICES", help=INDICES_HELP, show_default=False)],
    *,
    batch_dims: Annotated[
        int, typer.Option(metavar="N", help="The number of leading dimensions that both share.")
    ] = 0,
    mode: Annotated[
        Mode,
        typer.Option(help="For indices out of range: an error, the nearest valid index, or zeros."),
    ] = Mode.RAISE,
    device: DeviceOption = Device.AUTO,
    memory: MemoryOption = MEMORY,
    output: OutputOption = None,
) -> None:
    """Read the elements or slices that index tuples point at (ONNX GatherND)."""
    limit = n_bytes(memory)
    outputs.check(output, [file, indices])
    if file == STANDARD == indices:
        message = "gather: standard input holds one array; name a file for FILE or INDICES"
        raise CommandError(message)
    x, tuples = open_input(file), open_input(indices, as_indices=True)
    outputs.check_type(output, x.dtype)
    run = _Run("gather", device, x.dtype)
    n_dims = max(tuples.ndim - 1, 0)
    # Dimensions that do not match are left to the operator, which says so.
    is_batched = 0 < batch_dims <= n_dims and x.shape[:batch_dims] == tuples.shape[:batch_dims]
    blocks = Blocks(
        tuples.shape,
        range(n_dims) if is_batched or batch_dims == 0 else (),
        tuples.nbytes + _gathered_bytes(x, tuples, batch_dims) + is_batched * x.nbytes,
        limit,
    )
    if is_batched:
        _check_room(x, f"gather: a batch of {x.name} with its results", blocks.part_bytes, memory)
    else:
        _check_room(x, f"gather: {x.name}", x.nbytes, memory)
    whole = None if is_batched else run.place(x.read())

    def read(part: Part) -> dict[str, Array]:
        data = x.read(part[:batch_dims]) if whole is None else whole
        try:
            (gathered,) = run(
                lambda data, tuples: (
                    dmlops.gather_nd(data, tuples, batch_dims=batch_dims, mode=mode.value),
                ),
                *(data, tuples.read(part)),
            )
        except IndexOutOfRangeError as error:
            if blocks.count == 1:
                raise
            first = tuple(each.start for each in part[:-1])
            message = f"of the tuples from position {first} on, whose positions count from there: {error}"
            raise IndexOutOfRangeError(message) from error
        return {"output": gathered}

    arrays = run.in_blocks(blocks, read, output)
    run.report(f"gather from {x.name} by {tuples.name}", arrays, output)


def _check_room(x: Input, what: str, size: int, memory: str) -> None:
    """Check that what must be read as a whole fits into `--memory`, unless the file is memory-mapped."""
    if not x.is_mapped and size > n_bytes(memory):
        message = (
            f"{what} takes {decimal(size)}, more than --memory {memory}, and cannot be read in parts: "
            "save the array as an .npy file, which is memory-mapped, or raise --memory"
        )
        raise CommandError(message)


def _gathered_bytes(x: Input, tuples: Input, batch_dims: int) -> int:
    """Return the size of the result, if the shapes fit."""
    n_indexed = batch_dims + (tuples.shape[-1] if tuples.ndim else 0)
    return math.prod(tuples.shape[:-1]) * math.prod(x.shape[n_indexed:]) * x.dtype.itemsize


def diagonal(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help=FILE_HELP, show_default=False)] = None,
    *,
    begin: Annotated[int, typer.Option(metavar="N", help="The first diagonal of the band.")] = 0,
    end: Annotated[
        int | None,
        typer.Option(
            metavar="N", show_default="begin + 1", help="The diagonal after the last one of the band."
        ),
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
    memory: MemoryOption = MEMORY,
    output: OutputOption = None,
) -> None:
    """Fill a band of diagonals with a value; diagonal 0 is the main one, and those above it are positive."""
    limit = n_bytes(memory)
    outputs.check(output, [] if file is None else [file])
    end = begin + 1 if end is None else end
    if file is not None and (shape is not None or dtype is not None):
        message = "diagonal: FILE has a shape and type of its own; leave --shape and --dtype out"
        raise CommandError(message)
    if file is None and shape is None:
        message = "diagonal: give a FILE, or --shape"
        raise CommandError(message)
    x = None if file is None else open_input(file)
    sizes = _shape(shape or "") if x is None else x.shape
    made: Any = "float32" if dtype is None else dtype
    outputs.check_type(output, made if x is None else x.dtype)
    run = _Run("diagonal", device, None if x is None else x.dtype)
    filling = _value(value, made if x is None else x.dtype)

    def fill(part: Part) -> dict[str, Array]:
        row, column = (each.start for each in part[-2:]) if len(part) >= 2 else (0, 0)
        options: Any = {"value": filling, "begin": begin + row - column, "end": end + row - column}
        if x is not None:
            (filled,) = run(lambda data: (dmlops.diagonal_matrix(data, **options),), x.read(part))
        else:
            options |= {"shape": tuple(each.stop - each.start for each in part), "dtype": made}
            (filled,) = run(lambda like: (dmlops.diagonal_matrix(like=like, **options),), np.zeros(1))
        return {"output": filled}

    # What is made anew and not written to a file is held in memory anyway.
    is_whole = x is None and output in {None, STANDARD}
    element_bytes = LARGEST_ITEM if x is None else 2 * x.dtype.itemsize
    blocks = Blocks(sizes, () if is_whole else range(len(sizes)), math.prod(sizes) * element_bytes, limit)
    arrays = run.in_blocks(blocks, fill, output)
    source = f"shape {sizes}" if x is None else x.name
    run.report(f"diagonal of {source}: {value} on [{begin}, {end})", arrays, output)


class _Run:
    """An operator at work on a device, and the report about it.

    Parameters
    ----------
    command : str
        The name of the command, for errors.
    device : Device
        The value of `--device`. With `auto`, types that a GPU does not take in all commands stay on the CPU.
    dtype : data type, optional
        That of the data.
    """

    def __init__(self, command: str, device: Device, dtype: "np.dtype[Any] | None") -> None:
        self.command, self.n_blocks, self.seconds = command, 1, 0.0
        self._is_plain = dtype is None or dtype.kind in "biuf"
        is_on_cpu = device is Device.AUTO and not self._is_plain
        self._host: Host = place(Device.CPU if is_on_cpu else device)

    def place(self, array: Array) -> Any:
        """Copy an array to the device."""
        return self._host.put(array)

    def __call__(self, operator: Callable[..., tuple[Any, ...]], *arrays: Any) -> tuple[Array, ...]:
        """Run an operator on arrays of NumPy's or of the device; return NumPy arrays."""
        try:
            placed = [self.place(array) if isinstance(array, np.ndarray) else array for array in arrays]
            self._host.wait()
            start = time.perf_counter()
            result = operator(*placed)
        except TypeError as error:
            if self._is_plain or self._host.label == Host.label:
                raise
            message = f"{error}; --device cpu may take it"
            raise TypeError(message) from error
        self._host.wait()
        self.seconds += time.perf_counter() - start
        return tuple(self._host.get(array) for array in result)

    def in_blocks(
        self, blocks: Blocks, compute: Callable[[Part], dict[str, Array]], output: Path | None
    ) -> dict[str, Array]:
        """Compute the results of all parts, and write them to the output; return them."""
        self.n_blocks = blocks.count
        with users_errors(self.command), results_for(output) as results, shown(blocks) as parts:
            for part in parts:
                for name, block in compute(part).items():
                    results.put(name, blocks.shape_of(block.shape), blocks.place_of(part), block)
        return results.arrays

    def report(self, title: str, arrays: dict[str, Array], output: Path | None) -> None:
        """Print the results, or what was written; this comes last, because printing may fail."""
        where = self._host.label + (f", {self.n_blocks:,} blocks" if self.n_blocks > 1 else "")
        with outputs.summary(output, next(iter(arrays))) as out:
            took = f" ({where}, {duration(self.seconds)} with compilation or loading)"
            out.print(Text.assemble((title, "bold"), took))
            for name, array in arrays.items():
                outputs.show(out, name, array, is_written=output is not None)


def _value(text: str, dtype: "np.dtype[Any] | str") -> Any:
    """Return the value to fill a band with: a number, or for dates and durations NumPy's text for one."""
    kind = ""
    with suppress(TypeError):  # of a name that NumPy does not know, such as bfloat16
        kind = np.dtype(dtype).kind
    readers: list[Callable[[], Any]] = [lambda: int(text, 0), lambda: float(text), lambda: complex(text)]
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


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.strip(" ()").split(","))
    except ValueError:
        message = f"--shape: {text!r} is not a shape; write it as 4,4"
        raise CommandError(message) from None
