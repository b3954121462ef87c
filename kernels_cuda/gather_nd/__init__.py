"""Copy the slices that index tuples point at.

Batch dimensions, tuple dimensions and the outer dimensions of a slice make one table of dimensions; what
remains of a slice is a run of bytes that is contiguous in input and output, cut into units of up to 16
bytes, as strides and addresses allow. A thread moves several of them, a block apart, so that stores (and,
within a run, loads) of a warp lie side by side; it reads all its indices, then all its units, then
writes. Threads of a run share its index tuple in the L1 cache. Where a block begins is divided into
coordinates once; its units are mostly steps along the fastest dimension from there. Where the elements of
slices lie apart in the input, `strided` packs them into such units, and `shifted` shifts slices without gaps
that cannot be cut into such. Units along one or two dimensions are for `plain`.

Bytes moved: the output, the parts of the input that are read, in sectors of 32 bytes, and the indices.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from kernels_cuda.gather_nd.plan_plain import plain_launch, plain_places, plain_variant
from kernels_cuda.gather_nd.plan_strided import (
    Strided,
    shifted_launches,
    shifted_variant,
    strided_launches,
    strided_variant,
)
from kernels_cuda.gather_nd.problem import Problem
from kernels_cuda.gather_nd.sizes import CHECKED_TUPLES, PLAIN_UNITS, THREADS, VECTOR, units_a_thread
from kernels_cuda.layout import (
    NARROW_DEPTH,
    NARROW_LIMIT,
    TABLE_WRITER,
    Table,
    dimension_columns,
    divisor,
    is_wide,
    make_table,
)
from kernels_cuda.runtime.launch import Kernel, Launch, LaunchList, Pointer, load
from kernels_cuda.runtime.variant import Target, Variant

_CHECK_BLOCKS_A_MULTIPROCESSOR = 16


def variants() -> Iterator[Variant]:
    """List every kernel that a plan may load."""
    yield TABLE_WRITER
    yield _CLEAR
    for element_size in (1, 2, 4, 8):
        yield strided_variant(element_size)
    for index_size in (4, 8):
        yield shifted_variant(index_size)
        for is_long in (False, True)[index_size == 8 :]:
            yield _check(index_size, is_long)
        for unit in (1, 2, 4, 8, VECTOR):
            for n_units in (1, PLAIN_UNITS):
                yield plain_variant(unit, index_size, n_units)
        for wide in (False, True):
            for unit in (1, 2, 4, 8, VECTOR):
                yield _gather(unit, index_size, wide)


_CLEAR = Variant("gather_clear", "kernels_cuda.gather_nd.kernels:clear_source")


def _check(index_size: int, is_long: bool) -> Variant:
    return Variant("gather_check", "kernels_cuda.gather_nd.kernels:check_source", (index_size, is_long))


def _gather(unit: int, index_size: int, wide: bool) -> Variant:
    return Variant("gather", "kernels_cuda.gather_nd.kernels:gather_source", (unit, index_size, wide))


@dataclass(frozen=True, slots=True)
class _Copy:
    """The launch for one size of units; the columns of its table, if that is wide, end the parameters."""

    unit: int
    launch: Any
    wide: Table | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A problem with its kernels; see `plan`."""

    variant: str
    workspace_size: int
    _copies: tuple[_Copy, ...]
    _strided: Strided | None
    _check: LaunchList

    def launches(self, x: int, indices: int, output: int) -> LaunchList | None:
        """Return what `launch` launches for addresses like these modulo 16; None where that varies."""
        copy = self._copy_for(x, output)
        if copy is not None:
            return None if copy.wide else copy.launch
        return None if self._strided is None else self._strided.serving(output)

    def launch(self, stream: Any, x: int, indices: int, output: int, workspace: int) -> None:
        """Write the output."""
        copy = self._copy_for(x, output)
        if copy is not None:
            columns = copy.wide.arguments(stream, workspace) if copy.wide else ()
            copy.launch(stream, x, indices, output, *columns)
        elif self._strided is not None:
            self._strided.serving(output)(stream, x, indices, output)

    def _copy_for(self, x: int, output: int) -> _Copy | None:
        return next((copy for copy in self._copies if (x | output) % copy.unit == 0), None)

    def check(self, stream: Any, indices: int, first: int) -> None:
        """Write the position of the first tuple out of range, or 2^63 - 1, as int64 to address `first`."""
        self._check(stream, indices, first)


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
        The dimensions that the coordinates of a tuple index; a tuple without coordinates takes all.
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
    problem = Problem(
        element_size=element_size,
        index_size=index_size,
        is_signed=index_signed,
        dims=(
            *batch,
            *((size, 0, index_stride, output_stride) for size, index_stride, output_stride in tuples),
            *((size, x_stride, 0, output_stride) for size, x_stride, output_stride in slices),
        ),
        n_slice_dims=len(slices),
        coordinate_stride=coordinate_stride,
        bounds=bounds,
        clips=mode == "clip",
    )
    places = plain_places(problem)
    strided = None
    if problem.is_gapless and places is not None:
        strided = shifted_launches(problem, places, target)
    elif slices and bounds and not problem.is_gapless:
        strided = strided_launches(problem, target)
    units = dict.fromkeys((problem.largest_unit, element_size))
    if strided is not None:
        units = {VECTOR: None} if problem.is_gapless and problem.largest_unit == VECTOR else {}
    if problem.n_runs * problem.run == 0:
        units = {}
    copies = tuple(_copy(problem, places, unit, target) for unit in units)

    unit = copies[0].unit if copies else 0
    name = f"{unit}-byte units of {problem.run * element_size}-byte runs, {len(problem.outer)} dimensions"
    if strided is not None and not copies:
        kind = "shifted" if problem.is_gapless else "strided"
        name = f"{8 * element_size}-bit, {kind} runs of {slices[-1][0]} elements"
    return Plan(
        variant=f"gather_nd {name}",
        workspace_size=max((copy.wide.workspace_size for copy in copies if copy.wide), default=0),
        _copies=copies,
        _strided=strided,
        _check=LaunchList([*_check_steps(problem, target)]),
    )


def _copy(problem: Problem, places: tuple[int, ...] | None, unit: int, target: Target) -> _Copy:
    """Return the launch for units of some bytes."""
    plain = None if places is None else plain_launch(problem, places, unit, target)
    if plain is not None:
        return _Copy(unit, plain, None)
    n_bytes, index_bytes, outer = problem.element_size, problem.index_size, problem.outer
    units_a_run = problem.run * n_bytes // unit
    n_units = problem.n_runs * units_a_run
    # Indices of 32 bits are dealt with in registers of 32 bits, unless a dimension is too large for these.
    wide = is_wide(n_units, len(outer), len(problem.bounds))
    wide = wide or (problem.has_long_indices and index_bytes == 4)
    # The others read a first coordinate in any case.
    wide = wide or not problem.bounds
    kernel = load(_gather(unit, index_bytes, wide), target)
    columns = dimension_columns(outer, wide, (n_bytes, index_bytes, n_bytes))
    table = make_table([*columns, *problem.bound_columns], wide, target)
    grid = -(-n_units // (THREADS * units_a_thread(unit, wide)))
    numbers = (
        n_units,
        units_a_run,
        *divisor(units_a_run, wide),
        len(problem.bounds),
        problem.coordinate_bytes,
        problem.least_index(wide or index_bytes == 8),
        int(problem.clips),
        max(len(outer), 1),
    )
    if wide:
        return _Copy(unit, _launch_of_wide(kernel, grid, numbers), table)
    return _Copy(unit, kernel.prepare(grid, THREADS, 0, 3, *numbers, *table.arguments(None, 0)), None)


def _check_steps(problem: Problem, target: Target) -> Iterator[Launch]:
    """Yield what looks for tuples out of range, of the bases ``(indices, first)``."""
    yield Launch(load(_CLEAR, target), 1, 1, 0, (Pointer(1),), ())
    is_long = problem.has_long_indices
    most_blocks = _CHECK_BLOCKS_A_MULTIPROCESSOR * target.multiprocessors
    check = load(_check(problem.index_size, is_long), target)
    for first in range(0, len(problem.bounds), NARROW_DEPTH):
        checked = [size for size, _ in problem.bounds[first : first + NARROW_DEPTH]]
        for position, offset, dims in _narrow_parts(problem.tuple_dims):
            n_tuples = prod(size for size, _ in dims)
            table = make_table([*dimension_columns(dims, False, (1,)), checked], False, target)
            numbers = (
                position,
                n_tuples,
                len(checked),
                problem.coordinate_bytes,
                problem.least_index(is_long),
                max(len(dims), 1),
                *table.arguments(None, 0),
            )
            n_blocks = min(-(-n_tuples // (THREADS * CHECKED_TUPLES)), most_blocks)
            pointers = Pointer(0, offset + first * problem.coordinate_bytes), Pointer(1)
            yield Launch(check, n_blocks, THREADS, 0, pointers, numbers)


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
