"""Copy the slices that index tuples point at.

Batch dimensions, tuple dimensions and the outer dimensions of a slice make one table of dimensions; what
remains of a slice is a run of bytes that is contiguous in input and output, cut into units of up to 16
bytes, as strides and addresses allow. A thread moves `UNITS` of them, a block apart, so that stores (and,
within a run, loads) of a warp lie side by side; it reads all its indices, then all its units, then
writes. Threads of a run share its index tuple in the L1 cache.

Bytes moved: the output, the parts of the input that are read, in sectors of 32 bytes, and the indices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from numba import cuda, types

from kernels_cuda import ptx
from kernels_cuda.compiler import KernelSource, device_function
from kernels_cuda.launch import Kernel, Target, Variant, load
from kernels_cuda.layout import (
    NARROW_DEPTH,
    NARROW_LIMIT,
    TABLE_WRITER,
    Table,
    arithmetic,
    column_entry,
    depth_of,
    dimension_columns,
    divisor,
    is_wide,
    make_table,
    offset_functions,
    table_lengths,
)

i32 = types.int32
u32 = types.uint32
u64 = types.uint64
i64 = types.int64

THREADS = 256
UNITS = 4  # of a thread; wide kernels, which loop over dimensions, move one
VECTOR = 16
NO_TUPLE = (1 << 63) - 1  # what `check` writes if all tuples are in range
_CHECK_BLOCKS_A_MULTIPROCESSOR = 8


def _index_reader(index_size: int) -> Any:
    """Make the function that reads an index as int64; unsigned ones from 2^63 on become 2^63 - 1."""

    @device_function
    def read_narrow(address, is_signed):
        bits = ptx.read_u32(address)
        return i64(i32(bits)) if is_signed else i64(bits)

    @device_function
    def read_long(address, is_signed):
        index = i64(ptx.read_u64(address))
        return i64(NO_TUPLE) if index < 0 and not is_signed else index

    return read_narrow if index_size == 4 else read_long


@device_function
def _from_start(index, bound, is_signed):
    """Count a negative index from the end."""
    return index + bound if is_signed and index < 0 else index


def units_a_thread(wide: bool) -> int:
    """Return how many units a thread moves."""
    return 1 if wide else UNITS


def _gather(unit: int, index_size: int, wide: bool) -> KernelSource:
    depth = depth_of(wide)
    entry = column_entry(wide)
    is_vector = unit == VECTOR
    read_index = _index_reader(index_size)
    register, divide = arithmetic(wide)
    _, _, three_offsets = offset_functions(wide)
    read = ptx.READ[min(unit, 8)]
    store = ptx.STORE_STREAM[min(unit, 8)]
    scalar = ptx.REGISTER[min(unit, 8)]
    n_units_a_thread = units_a_thread(wide)
    n_words = 4 * n_units_a_thread

    def gather(
        x,
        indices,
        output,
        n_units,
        units_a_run,
        multiplier,
        shift,
        n_coordinates,
        coordinate_bytes,
        is_signed,
        clips,
        n_dims,
        multipliers,
        shifts,
        sizes,
        x_strides,
        index_strides,
        output_strides,
        bounds,
        coordinate_strides,
    ):
        words = cuda.local.array(n_words, u32)
        scalars = cuda.local.array(n_units_a_thread, scalar)
        sources = cuda.local.array(n_units_a_thread, i64)
        tuples = cuda.local.array(n_units_a_thread, i64)
        targets = cuda.local.array(n_units_a_thread, i64)
        in_range = cuda.local.array(n_units_a_thread, u32)
        found = cuda.local.array(n_units_a_thread, i64)
        first = i64(cuda.blockIdx.x) * (THREADS * n_units_a_thread) + i64(cuda.threadIdx.x)
        for k in range(n_units_a_thread):
            # Threads past the end repeat the last unit and do not store it.
            position = register(min(first + k * THREADS, n_units - 1))
            run = divide(position, multiplier, shift)
            within = i64(register(position - register(run * register(units_a_run)))) * unit
            x_at, index_at, output_at = three_offsets(
                run, n_dims, multipliers, shifts, sizes, x_strides, index_strides, output_strides
            )
            sources[k] = x + x_at + within
            tuples[k] = indices + index_at
            targets[k] = output + output_at + within
            in_range[k] = u32(1)
        for c in range(depth):
            if c >= n_coordinates:
                break
            for k in range(n_units_a_thread):
                found[k] = read_index(tuples[k] + c * coordinate_bytes, is_signed)
            for k in range(n_units_a_thread):
                bound = entry(bounds, c)
                index = _from_start(found[k], bound, is_signed)
                if index < 0 or index >= bound:
                    in_range[k] = u32(clips)
                    index = bound - 1 if index >= bound else i64(0)
                sources[k] += index * entry(coordinate_strides, c)
        for k in range(n_units_a_thread):
            if is_vector:
                for q in range(4):
                    words[4 * k + q] = u32(0)
            else:
                scalars[k] = scalar(0)
            if in_range[k] != u32(0):
                if is_vector:
                    words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3] = ptx.read_u32x4(
                        sources[k]
                    )
                else:
                    scalars[k] = read(sources[k])
        for k in range(n_units_a_thread):
            if first + k * THREADS < n_units:
                if is_vector:
                    ptx.store_stream_u32x4(
                        targets[k], words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3]
                    )
                else:
                    store(targets[k], scalars[k])

    names = ("multipliers", "shifts", "sizes", "x_strides", "index_strides", "output_strides")
    return KernelSource(gather, table_lengths((*names, "bounds", "coordinate_strides"), wide))


def _check(index_size: int) -> KernelSource:
    read_index = _index_reader(index_size)
    one_offset, _, _ = offset_functions(wide=False)

    def check(
        indices,
        first_output,
        first_position,
        n_tuples,
        n_coordinates,
        coordinate_bytes,
        is_signed,
        n_dims,
        multipliers,
        shifts,
        sizes,
        index_strides,
        bounds,
    ):
        lane = i64(cuda.threadIdx.x) & 31
        step = i64(cuda.gridDim.x) * THREADS
        # A warp goes through tuples in ascending order: its first bad one is its lowest.
        start = i64(cuda.blockIdx.x) * THREADS + i64(cuda.threadIdx.x) - lane
        while start < n_tuples:
            position = start + lane
            address = indices + one_offset(
                min(position, n_tuples - 1), n_dims, multipliers, shifts, sizes, index_strides
            )
            bad = False
            for c in range(NARROW_DEPTH):
                if c >= n_coordinates:
                    break
                bound = bounds[c]
                index = _from_start(read_index(address + c * coordinate_bytes, is_signed), bound, is_signed)
                bad = bad or index < 0 or index >= bound
            lanes = ptx.ballot(bad and position < n_tuples)
            if lanes != u32(0):
                if lane == 0:
                    lowest = ptx.popcount_u32(u32(u32(lanes & u32(u32(0) - lanes)) - u32(1)))
                    ptx.reduce_min_u64(first_output, u64(first_position + start + i64(lowest)))
                return
            start += step

    names = ("multipliers", "shifts", "sizes", "index_strides", "bounds")
    return KernelSource(check, table_lengths(names, wide=False))


def _clear() -> KernelSource:
    def clear(first_output):
        ptx.store_u64(first_output, u64(NO_TUPLE))

    return KernelSource(clear)


def variants() -> Iterator[Variant]:
    """List every kernel that a plan may load."""
    yield TABLE_WRITER
    yield Variant("gather_clear", _clear)
    for index_size in (4, 8):
        yield Variant("gather_check", _check, (index_size,))
        for wide in (False, True):
            for unit in (1, 2, 4, 8, VECTOR):
                yield Variant("gather", _gather, (unit, index_size, wide))


@dataclass(frozen=True, slots=True)
class _Copy:
    """The kernel and its arguments for one size of units."""

    unit: int
    kernel: Kernel
    n_blocks: int
    arguments: tuple[int, ...]
    table: Table


@dataclass(frozen=True, slots=True)
class Plan:
    """A problem with its kernels; see `plan`."""

    variant: str
    workspace_size: int
    _copies: tuple[_Copy, ...]
    _clear: Kernel
    _check: Kernel
    _check_launches: tuple[tuple[int, int, tuple[int, ...]], ...]

    def launch(self, stream: Any, x: int, indices: int, output: int, workspace: int) -> None:
        """Write the output."""
        for copy in self._copies:
            if (x | output) % copy.unit == 0:
                tables = copy.table.arguments(stream, workspace)
                copy.kernel.launch(
                    stream, copy.n_blocks, THREADS, 0, x, indices, output, *copy.arguments, *tables
                )
                return

    def check(self, stream: Any, indices: int, first: int) -> None:
        """Write the position of the first tuple out of range, or 2^63 - 1, as int64 to address `first`."""
        self._clear.launch(stream, 1, 1, 0, first)
        for n_blocks, offset, arguments in self._check_launches:
            self._check.launch(stream, n_blocks, THREADS, 0, indices + offset, first, *arguments)


def plan(
    *,
    element_size: int,
    index_size: int,
    index_signed: bool,
    batch: tuple[tuple[int, int, int, int], ...],
    tuples: tuple[tuple[int, int, int], ...],
    coordinate_stride: int,
    bounds: tuple[tuple[int, int], ...],
    slices: tuple[tuple[int, int, int], ...],
    mode: str,
    x_offset: int,
    index_offset: int,
    output_offset: int,
    target: Target,
) -> Plan:
    """Choose and load the kernels that gather slices.

    Parameters
    ----------
    element_size, index_size : int
        Bytes of an element (1, 2, 4, 8) and of an index (4, 8).
    index_signed : bool
        Whether negative indices count from the end.
    batch : tuple of (size, x_stride, index_stride, output_stride)
        Dimensions that input, indices and output share.
    tuples : tuple of (size, index_stride, output_stride)
        Dimensions that indices and output share.
    coordinate_stride : int
        Elements from coordinate to coordinate of an index tuple.
    bounds : tuple of (size, x_stride)
        The dimensions that the coordinates of a tuple index.
    slices : tuple of (size, x_stride, output_stride)
        Dimensions that input and output share.
    mode : {"clip", "fill"}
        What becomes of indices out of range.
    x_offset, index_offset, output_offset : int
        Not used: addresses are those of the first elements.
    target : Target
        The device.
    """
    del x_offset, index_offset, output_offset
    outer = [
        *batch,
        *((size, 0, index_stride, output_stride) for size, index_stride, output_stride in tuples),
        *((size, x_stride, 0, output_stride) for size, x_stride, output_stride in slices),
    ]
    run = 1
    if slices and slices[-1][1:] == (1, 1):
        run = outer.pop()[0]
    n_runs = prod(size for size, *_ in outer)
    strides = [stride for _, x_stride, _, output_stride in outer for stride in (x_stride, output_stride)]
    strides += [x_stride for _, x_stride in bounds]
    vector = gcd(VECTOR, *(stride * element_size for stride in (run, *strides)))
    bound_columns = [[size for size, _ in bounds], [x_stride * element_size for _, x_stride in bounds]]

    copies = []
    for unit in dict.fromkeys((vector, element_size)) if n_runs and run else ():
        units_a_run = run * element_size // unit
        n_units = n_runs * units_a_run
        wide = is_wide(n_units, len(outer), len(bounds))
        columns = dimension_columns(outer, wide, (element_size, index_size, element_size))
        copies.append(
            _Copy(
                unit=unit,
                kernel=load(Variant("gather", _gather, (unit, index_size, wide)), target),
                n_blocks=-(-n_units // (THREADS * units_a_thread(wide))),
                arguments=(
                    n_units,
                    units_a_run,
                    *divisor(units_a_run, wide),
                    len(bounds),
                    coordinate_stride * index_size,
                    int(index_signed),
                    int(mode == "clip"),
                    max(len(outer), 1),
                ),
                table=make_table([*columns, *bound_columns], wide, target),
            )
        )

    listed = [
        *((size, index_stride * index_size) for size, _, index_stride, _ in batch),
        *((size, index_stride * index_size) for size, index_stride, _ in tuples),
    ]
    most_blocks = _CHECK_BLOCKS_A_MULTIPROCESSOR * target.multiprocessors
    check_launches = []
    for first_coordinate in range(0, len(bounds), NARROW_DEPTH):
        checked = [size for size, _ in bounds[first_coordinate : first_coordinate + NARROW_DEPTH]]
        for position, offset, dims in _narrow_parts(listed):
            n_tuples = prod(size for size, _ in dims)
            table = make_table([*dimension_columns(dims, False, (1,)), checked], False, target)
            arguments = (
                position,
                n_tuples,
                len(checked),
                coordinate_stride * index_size,
                int(index_signed),
                max(len(dims), 1),
                *table.arguments(None, 0),
            )
            first_byte = offset + first_coordinate * coordinate_stride * index_size
            check_launches.append((min(-(-n_tuples // THREADS), most_blocks), first_byte, arguments))
    unit = copies[0].unit if copies else 0
    return Plan(
        variant=f"gather_nd {unit}-byte units of {run * element_size}-byte runs, {len(outer)} dimensions",
        workspace_size=max((copy.table.workspace_size for copy in copies), default=0),
        _copies=tuple(copies),
        _clear=load(Variant("gather_clear", _clear), target),
        _check=load(Variant("gather_check", _check, (index_size,)), target),
        _check_launches=tuple(check_launches),
    )


def _narrow_parts(dims: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Split (size, stride) dimensions into parts for narrow kernels: first position, offset, dimensions."""
    merged: list[tuple[int, int]] = []
    for size, stride in dims:
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    n_positions = prod(size for size, _ in merged)
    if n_positions == 0:
        return
    if not is_wide(n_positions, len(merged)):
        yield 0, 0, merged
        return
    (size, stride), *inner = merged
    n_inner = n_positions // size
    # One dimension alone is cut into ranges; of several the outermost is walked.
    step = 1 if inner else NARROW_LIMIT
    for start in range(0, size, step):
        rest = inner or [(min(step, size - start), stride)]
        for position, offset, part in _narrow_parts(rest):
            yield start * n_inner + position, start * stride + offset, part
