"""Copy the slices that index tuples point at.

Batch dimensions, tuple dimensions and the outer dimensions of a slice make one table of dimensions; what
remains of a slice is a run of bytes that is contiguous in input and output, cut into units of up to 16
bytes, as strides and addresses allow. A thread moves several of them, a block apart, so that stores (and,
within a run, loads) of a warp lie side by side; it reads all its indices, then all its units, then
writes. Threads of a run share its index tuple in the L1 cache. Where a block begins is divided into
coordinates once; its units are mostly steps along the fastest dimension from there.

Bytes moved: the output, the parts of the input that are read, in sectors of 32 bytes, and the indices.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from numba import cuda, types

from kernels_cuda import ptx
from kernels_cuda.compiler import KernelSource, device_function
from kernels_cuda.launch import Kernel, Launches, Target, Variant, load
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
    first_entry,
    is_wide,
    make_table,
    offset_functions,
    table_lengths,
)

i32 = types.int32
u32 = types.uint32
u64 = types.uint64
i64 = types.int64

THREADS = 128
UNITS = 4  # of 16 bytes that a thread moves; wide kernels, which loop over dimensions, move one
SCALAR_UNITS = 2  # of fewer bytes
VECTOR = 16
NO_TUPLE = (1 << 63) - 1  # what `check` writes if all tuples are in range
CHECKED_TUPLES = 8  # of a thread at a time
_CHECK_BLOCKS_A_MULTIPROCESSOR = 16
_SHORT_BOUND = (1 << 32) - 1  # the largest that 32-bit registers compare with


def _index_functions(index_size: int, is_long: bool) -> tuple[Any, Any, Any]:
    """Make what deals with indices of a size in registers of 32 bits, or of 64 if `is_long`.

    Returns
    -------
    register : Numba type
        Unsigned; sums in it wrap, so that a negative index too low for its bound ends up beyond it.
    read : device function
        ``read(address, is_signed)`` returns the bits of an index.
    bring : device function
        ``bring(index, bound, is_signed)`` returns the position that the index names, or the nearest there is,
        and whether it names one.
    """
    register, signed = (u64, i64) if is_long else (u32, i32)
    load_bits = ptx.READ[index_size]
    extends = is_long and index_size == 4

    @device_function
    def read_index(address, is_signed):
        bits = load_bits(address)
        if extends and is_signed != 0:
            return register(i64(i32(bits)))
        return register(bits)

    @device_function
    def bring(index, bound, is_signed):
        limit = register(bound)
        is_negative = is_signed != 0 and signed(index) < 0
        at = register(index + limit) if is_negative else index
        is_in_range = at < limit
        if not is_in_range:
            at = register(0) if is_negative else register(limit - register(1))
        return at, is_in_range

    return register, read_index, bring


def units_a_thread(unit: int, wide: bool) -> int:
    """Return how many units a thread moves."""
    return 1 if wide else UNITS if unit == VECTOR else SCALAR_UNITS


def _gather(unit: int, index_size: int, wide: bool) -> KernelSource:
    depth = depth_of(wide)
    entry = column_entry(wide)
    fastest = first_entry(wide)
    is_vector = unit == VECTOR
    index_register, read_index, bring = _index_functions(index_size, wide or index_size == 8)
    register, divide = arithmetic(wide)
    _, _, three_offsets = offset_functions(wide)
    read = ptx.READ[min(unit, 8)]
    store = ptx.STORE_STREAM[min(unit, 8)]
    scalar = ptx.REGISTER[min(unit, 8)]
    n_units_a_thread = units_a_thread(unit, wide)
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
        found = cuda.local.array(n_units_a_thread, index_register)
        # Along the fastest dimension a block's runs are a stride apart: what the others add is the same for
        # all of them, unless the block goes on past the end of that dimension.
        first = register(register(cuda.blockIdx.x) * register(THREADS * n_units_a_thread))
        first_run = divide(first, multiplier, shift)
        first_within = register(first - register(first_run * register(units_a_run)))
        size = register(fastest(sizes)) if n_dims > 1 else register(n_units)
        first_inner = first_run
        if n_dims > 1:
            rows = divide(first_run, fastest(multipliers), fastest(shifts))
            first_inner = register(first_run - register(rows * size))
        x_base, index_base, output_base = three_offsets(
            register(first_run - first_inner),
            n_dims,
            multipliers,
            shifts,
            sizes,
            x_strides,
            index_strides,
            output_strides,
        )
        # Threads past the end repeat the last unit and do not store it.
        last = register(register(register(n_units) - register(1)) - first)
        thread = u32(cuda.threadIdx.x)
        for k in range(n_units_a_thread):
            at = register(first_within + min(register(thread + u32(k * THREADS)), last))
            run = divide(at, multiplier, shift)
            within = i64(register(at - register(run * register(units_a_run)))) * unit
            inner = register(first_inner + run)
            if inner < size:
                x_at = x_base + i64(inner) * fastest(x_strides)
                index_at = index_base + i64(inner) * fastest(index_strides)
                output_at = output_base + i64(inner) * fastest(output_strides)
            else:
                x_at, index_at, output_at = three_offsets(
                    register(first_run + run),
                    n_dims,
                    multipliers,
                    shifts,
                    sizes,
                    x_strides,
                    index_strides,
                    output_strides,
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
                index, is_in_range = bring(found[k], entry(bounds, c), is_signed)
                if not is_in_range:
                    in_range[k] = u32(clips)
                sources[k] += i64(index) * entry(coordinate_strides, c)
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
            if register(thread + u32(k * THREADS)) <= last:
                if is_vector:
                    ptx.store_stream_u32x4(
                        targets[k], words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3]
                    )
                else:
                    store(targets[k], scalars[k])

    names = ("multipliers", "shifts", "sizes", "x_strides", "index_strides", "output_strides")
    return KernelSource(gather, table_lengths((*names, "bounds", "coordinate_strides"), wide))


def _check(index_size: int, is_long: bool) -> KernelSource:
    index_register, read_index, bring = _index_functions(index_size, is_long)
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
        addresses = cuda.local.array(CHECKED_TUPLES, i64)
        found = cuda.local.array(CHECKED_TUPLES, index_register)
        last = u32(n_tuples - 1)
        step = u32(u32(cuda.gridDim.x) * u32(THREADS * CHECKED_TUPLES))
        start = u32(u32(u32(cuda.blockIdx.x) * u32(THREADS * CHECKED_TUPLES)) + u32(cuda.threadIdx.x))
        lowest = u32(0xFFFFFFFF)
        # A thread goes through tuples in ascending order: its first bad one is its lowest.
        while start <= last and lowest == u32(0xFFFFFFFF):
            for k in range(CHECKED_TUPLES):
                position = min(u32(start + u32(k * THREADS)), last)
                addresses[k] = indices + one_offset(
                    position, n_dims, multipliers, shifts, sizes, index_strides
                )
            bad = u32(0)
            for c in range(NARROW_DEPTH):
                if c >= n_coordinates:
                    break
                for k in range(CHECKED_TUPLES):
                    found[k] = read_index(addresses[k] + c * coordinate_bytes, is_signed)
                for k in range(CHECKED_TUPLES):
                    _, is_in_range = bring(found[k], bounds[c], is_signed)
                    if not is_in_range:
                        bad = u32(bad | u32(1 << k))
            if bad != u32(0):
                k = ptx.popcount_u32(u32(u32(bad & u32(u32(0) - bad)) - u32(1)))
                lowest = min(u32(start + u32(k * u32(THREADS))), last)
            start = u32(start + step)
        lowest = ptx.warp_min(lowest)
        if lowest != u32(0xFFFFFFFF) and u32(cuda.threadIdx.x) & u32(31) == u32(0):
            ptx.reduce_min_u64(first_output, u64(first_position + i64(lowest)))

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
        for is_long in (False, True)[index_size == 8 :]:
            yield Variant("gather_check", _check, (index_size, is_long))
        for wide in (False, True):
            for unit in (1, 2, 4, 8, VECTOR):
                yield Variant("gather", _gather, (unit, index_size, wide))


@dataclass(frozen=True, slots=True)
class _Copy:
    """The launch for one size of units; the columns of its table, if that is wide, end the parameters."""

    unit: int
    launch: Callable[..., None]
    wide: Table | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A problem with its kernels; see `plan`."""

    variant: str
    workspace_size: int
    _copies: tuple[_Copy, ...]
    _clear: Launches
    _checks: tuple[tuple[int, Launches], ...]

    def launch(self, stream: Any, x: int, indices: int, output: int, workspace: int) -> None:
        """Write the output."""
        for copy in self._copies:
            if (x | output) % copy.unit == 0:
                columns = copy.wide.arguments(stream, workspace) if copy.wide else ()
                copy.launch(stream, x, indices, output, *columns)
                return

    def check(self, stream: Any, indices: int, first: int) -> None:
        """Write the position of the first tuple out of range, or 2^63 - 1, as int64 to address `first`."""
        self._clear(stream, first)
        for offset, launch in self._checks:
            launch(stream, indices + offset, first)


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

    # Indices of 32 bits are dealt with in registers of 32 bits, unless a dimension is too large for these.
    is_long = index_size == 8 or any(size > _SHORT_BOUND for size, _ in bounds)
    copies = []
    for unit in dict.fromkeys((vector, element_size)) if n_runs and run else ():
        units_a_run = run * element_size // unit
        n_units = n_runs * units_a_run
        wide = is_wide(n_units, len(outer), len(bounds)) or (is_long and index_size == 4)
        columns = dimension_columns(outer, wide, (element_size, index_size, element_size))
        kernel = load(Variant("gather", _gather, (unit, index_size, wide)), target)
        table = make_table([*columns, *bound_columns], wide, target)
        grid = -(-n_units // (THREADS * units_a_thread(unit, wide)))
        numbers = (
            n_units,
            units_a_run,
            *divisor(units_a_run, wide),
            len(bounds),
            coordinate_stride * index_size,
            int(index_signed),
            int(mode == "clip"),
            max(len(outer), 1),
        )
        if wide:
            copies.append(_Copy(unit, _launch_of_wide(kernel, grid, numbers), table))
        else:
            launch = kernel.prepare(grid, THREADS, 0, 3, *numbers, *table.arguments(None, 0))
            copies.append(_Copy(unit, launch, None))

    listed = [
        *((size, index_stride * index_size) for size, _, index_stride, _ in batch),
        *((size, index_stride * index_size) for size, index_stride, _ in tuples),
    ]
    most_blocks = _CHECK_BLOCKS_A_MULTIPROCESSOR * target.multiprocessors
    check = load(Variant("gather_check", _check, (index_size, is_long)), target)
    checks = []
    for first_coordinate in range(0, len(bounds), NARROW_DEPTH):
        checked = [size for size, _ in bounds[first_coordinate : first_coordinate + NARROW_DEPTH]]
        for position, offset, dims in _narrow_parts(listed):
            n_tuples = prod(size for size, _ in dims)
            table = make_table([*dimension_columns(dims, False, (1,)), checked], False, target)
            launch = check.prepare(
                min(-(-n_tuples // (THREADS * CHECKED_TUPLES)), most_blocks),
                THREADS,
                0,
                2,
                position,
                n_tuples,
                len(checked),
                coordinate_stride * index_size,
                int(index_signed),
                max(len(dims), 1),
                *table.arguments(None, 0),
            )
            checks.append((offset + first_coordinate * coordinate_stride * index_size, launch))
    unit = copies[0].unit if copies else 0
    return Plan(
        variant=f"gather_nd {unit}-byte units of {run * element_size}-byte runs, {len(outer)} dimensions",
        workspace_size=max((copy.wide.workspace_size for copy in copies if copy.wide), default=0),
        _copies=tuple(copies),
        _clear=load(Variant("gather_clear", _clear), target).prepare(1, 1, 0, 1),
        _checks=tuple(checks),
    )


def _launch_of_wide(kernel: Kernel, grid: int, numbers: tuple[int, ...]) -> Callable[..., None]:
    def launch(stream: Any, x: int, indices: int, output: int, *columns: int) -> None:
        kernel.launch(stream, grid, THREADS, 0, x, indices, output, *numbers, *columns)

    return launch


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
