"""GATHER_ND1: copy the slice that each index tuple names.

Tuples are taken in blocks. The first pass over a block turns every tuple into one offset into the input,
settles what is out of range, and asks for the slice's first line; the second pass only moves slices, in the
widest pieces that fit, and finds their lines on the way. Moves the indices, and each slice once in and once
out.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels_cpu import moves, simd, streaming
from kernels_cpu.addresses import Address
from kernels_cpu.index_tuples import (
    CHECKED_COORDINATES,
    CLIPS,
    DIMENSIONS,
    HALF,
    N_BOUNDS,
    N_SLICES,
    N_TUPLES,
    OUTSIDE,
    SLICE,
    SLICE_BYTES,
    WORD,
    X_OFFSET,
    find_outside,
    outer_offsets,
    resolve,
)
from kernels_cpu.jit import compiled, inlined, kernel
from kernels_cpu.memory import BYTES, INTEGER, UNSIGNED, WORDS
from kernels_cpu.streaming import flush, stream_copy
from kernels_cpu.threads import launcher, run, split
from kernels_cpu.unsigned import FOUR, ONE, THREE, TWO, ZERO

AHEAD: Any = np.uint64(4)  # slices whose lines are asked for, where a slice has many
AHEAD_LINES: Any = np.uint64(16)  # of a slice; the hardware sees where the rest is going
BLOCK: Any = np.uint64(256)  # tuples: their offsets are 2 KiB of stack, their lines 16 KiB of the first cache
STREAM_BYTES = streaming.STREAM_BYTES
STREAM_SLICE_BYTES = 256  # shorter slices leave too few whole lines
LINE_BYTES = 64
PART_BYTES = 1 << 19  # of indices and slices, some 100 us of work

# What a slice is: a few bytes in one or two pieces, whole lines, or anything else. Each has its own kernel.
SHORT, LONG, STREAMED, STRIDED = range(4)
KINDS = ("short", "long", "streamed", "strided")


@inlined
def _copy_pieces(
    piece: Any,
    x: Any,
    offsets: Any,
    first: Any,
    last: Any,
    output: Any,
    target: Any,
    stride: Any,
    rest: Any,
) -> Any:
    """Copy slices of one piece of `piece` bytes, or of a second one that starts `rest` elements later."""
    for i in range(first, last):
        moves.move_bytes(piece, x, offsets[i], output, target)
        if rest:
            moves.move_bytes(piece, x, offsets[i] + rest, output, target + rest)
        target += stride


@kernel
def _copy_short(
    x: Any, offsets: Any, first: Any, last: Any, output: Any, target: Any, stride: Any, table: Any
) -> Any:
    """Copy the slices at ``offsets[first:last]`` of up to a line to `target` and every `stride` on."""
    n = table[SLICE]
    n_bytes = table[SLICE_BYTES]
    element_bytes = n_bytes // n
    if n == ONE:
        for i in range(first, last):
            output[target] = x[offsets[i]]
            target += stride
    elif n_bytes >= np.uint64(32):
        _copy_pieces(32, x, offsets, first, last, output, target, stride, n - np.uint64(32) // element_bytes)
    elif n_bytes >= np.uint64(16):
        _copy_pieces(16, x, offsets, first, last, output, target, stride, n - np.uint64(16) // element_bytes)
    elif n_bytes >= np.uint64(8):
        _copy_pieces(8, x, offsets, first, last, output, target, stride, n - np.uint64(8) // element_bytes)
    elif n_bytes >= np.uint64(4):
        _copy_pieces(4, x, offsets, first, last, output, target, stride, n - np.uint64(4) // element_bytes)
    else:
        for i in range(first, last):
            output[target] = x[offsets[i]]
            output[target + ONE] = x[offsets[i] + ONE]
            output[target + n - ONE] = x[offsets[i] + n - ONE]
            target += stride


@inlined
def _ask_for(x: Any, offset: Any, table: Any) -> Any:
    """Ask for the first lines of a long slice."""
    line_elements = moves.line_elements(x)
    for j in range(ZERO, min(table[SLICE], AHEAD_LINES * line_elements), line_elements):
        moves.prefetch(x, offset + j)


@kernel
def _copy_long(
    x: Any, offsets: Any, first: Any, last: Any, output: Any, target: Any, stride: Any, table: Any
) -> Any:
    """Copy the slices at ``offsets[first:last]``, longer than a line, to `target` and every `stride` on."""
    line_elements = moves.line_elements(x)
    rest = table[SLICE] - line_elements
    for i in range(first, last):
        if i + AHEAD < last:
            _ask_for(x, offsets[i + AHEAD], table)
        offset = offsets[i]
        for done in range(ZERO, rest, line_elements):
            moves.move_bytes(64, x, offset + done, output, target + done)
        moves.move_bytes(64, x, offset + rest, output, target + rest)
        target += stride


@kernel
def _copy_strided(x: Any, offset: Any, output: Any, target: Any, table: Any) -> Any:
    """Copy one slice of any layout; with `offset` `OUTSIDE`, fill it with zeros."""
    n_dims = table[N_SLICES]
    inner = DIMENSIONS + FOUR * table[N_TUPLES] + TWO * table[N_BOUNDS]
    inner += THREE * n_dims
    n_inner = ONE
    x_stride = output_stride = ZERO
    if n_dims:
        inner -= THREE
        n_inner = table[inner]
        x_stride = table[inner + ONE]
        output_stride = table[inner + TWO]
    for row in range(table[SLICE] // n_inner):
        x_row = offset
        output_row = target
        position = row
        field = inner
        for _ in range(ONE, n_dims):
            field -= THREE
            quotient = position // table[field]
            coordinate = position - quotient * table[field]
            x_row += coordinate * table[field + ONE]
            output_row += coordinate * table[field + TWO]
            position = quotient
        if offset == OUTSIDE:
            for i in range(n_inner):
                output[output_row + i * output_stride] = 0
        else:
            for i in range(n_inner):
                output[output_row + i * output_stride] = x[x_row + i * x_stride]


@kernel
def _copy_streamed(
    x: Any, offsets: Any, n: Any, output: Any, target: Any, table: Any, line: Any, filled: Any
) -> Any:
    """Copy the slices of `n` offsets to `target` and on, past the cache; return how much waits in `line`."""
    size = table[SLICE]
    for i in range(n):
        if i + AHEAD < n and offsets[i + AHEAD] != OUTSIDE:
            _ask_for(x, offsets[i + AHEAD], table)
        if offsets[i] != OUTSIDE:
            filled = stream_copy(output, target, size, x, offsets[i], line, filled)
        else:
            flush(output, target, line, filled)
            filled = ZERO
            for j in range(size):
                output[target + j] = 0
        target += size
    return filled


@functools.cache
def _kernel_of(kind: int) -> Any:
    """Return the kernel for one kind of slices."""

    @kernel
    def gather(table: Any, first: Any, last: Any, x: Any, indices: Any, output: Any, workspace: Any) -> Any:
        """Copy the slices of tuples `first` to `last`, counted through batch and tuple dimensions.

        Return whether any of these tuples is out of range, as a number.
        """
        table = moves.pointer(table)
        x = moves.at(moves.pointer(x), ZERO - table[X_OFFSET])
        indices = moves.pointer(indices)
        output = moves.pointer(output)
        offsets = moves.stack_uint64(256)
        line = moves.stack_line(output)
        filled = ZERO
        any_outside = ZERO
        inner = DIMENSIONS + FOUR * (table[N_TUPLES] - ONE)
        n_inner = table[inner]
        x_stride = table[inner + ONE]
        index_stride = table[inner + TWO]
        stride = table[inner + THREE]
        position = np.uint64(first)
        target = ZERO
        while position < np.uint64(last):
            outer = position // n_inner
            start = position - outer * n_inner
            n = min(n_inner - start, np.uint64(last) - position, BLOCK)
            position += n
            offset, index, output_outer = outer_offsets(table, outer)
            offset += start * x_stride
            index += start * index_stride
            if kind == STREAMED:
                flushed_to = target
            target = output_outer + start * stride
            outside = resolve(x, indices, index, index_stride, offset, x_stride, n, table, offsets)
            any_outside |= np.uint64(outside)
            if kind == STREAMED:
                if target != flushed_to:
                    flush(output, flushed_to, line, filled)
                    filled = ZERO
                filled = _copy_streamed(x, offsets, n, output, target, table, line, filled)
                target += n * stride
            elif kind == STRIDED:
                for i in range(n):
                    _copy_strided(x, offsets[i], output, target, table)
                    target += stride
            else:
                i = ZERO
                while i < n:
                    stop = n
                    if outside:
                        stop = i
                        while stop < n and offsets[stop] != OUTSIDE:
                            stop += ONE
                    if kind == SHORT:
                        _copy_short(x, offsets, i, stop, output, target, stride, table)
                    else:
                        _copy_long(x, offsets, i, stop, output, target, stride, table)
                    target += (stop - i) * stride
                    i = stop
                    while i < n and offsets[i] == OUTSIDE:
                        for j in range(table[SLICE]):
                            output[target + j] = 0
                        target += stride
                        i += ONE
        if kind == STREAMED:
            flush(output, target, line, filled)
        return any_outside

    return gather


@dataclass(frozen=True, slots=True)
class Plan:
    """A gather problem, ready to run any number of times from any thread."""

    variant: str
    workspace_size: int
    launch: Callable[[Address, Address, Address, Address], int | None]
    """Copies the slice of every tuple: ``launch(x, indices, output, workspace)``."""
    reports: bool
    """Whether `launch` returns if any tuple was out of range, for which a slice was written none the less."""
    _index: Any
    _check_table: Any
    _check_parts: list[tuple[int, int]]
    _threads: int

    def check(self, indices: Address, workspace: Address) -> int:
        """Return the position of the first tuple that is out of range, or -1."""
        parts, table = self._check_parts, self._check_table
        find_in = compiled(find_outside, WORDS, INTEGER, INTEGER, self._index)
        found = [-1] * len(parts)

        def find(place: int, first: int, last: int) -> None:
            found[place] = find_in(table, first, last, indices)

        run(find, [(place, *part) for place, part in enumerate(parts)], self._threads)
        return next((position for position in found if position >= 0), -1)


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
    x_offset: int = 0,
    index_offset: int = 0,
    output_offset: int = 0,
    threads: int,
) -> Plan:
    """Prepare copying, for every index tuple, the slice of the input that it names.

    Parameters
    ----------
    element_size, index_size : int
        Bytes of an element, and of a coordinate.
    index_signed : bool
        Negative coordinates count from the end.
    batch : tuple of (size, x_stride, index_stride, output_stride)
        The dimensions that input, indices and output share, slowest first.
    tuples : tuple of (size, index_stride, output_stride)
        The dimensions that indices and output share.
    coordinate_stride : int
        Between the coordinates of one tuple.
    bounds : tuple of (size, x_stride)
        The input dimension that each coordinate of a tuple indexes.
    slices : tuple of (size, x_stride, output_stride)
        The dimensions of what is copied for each tuple.
    mode : {"clip", "fill"}
        A coordinate that is out of range becomes the nearest one that is not, or its slice becomes zeros.
    x_offset : int
        How many elements the input has below its first one in memory.
    index_offset, output_offset : int
        Ignored: `launch` takes the addresses of first elements.
    threads : int
        How many threads the work may be spread over.

    Returns
    -------
    Plan
        Needs no workspace.
    """
    del index_offset, output_offset
    dimensions = [*batch, *((size, 0, index, output) for size, index, output in tuples)] or [(1, 0, 0, 0)]
    n_tuples = math.prod(size for size, *_ in dimensions)
    n_slice = math.prod(size for size, *_ in slices)
    slice_bytes = n_slice * element_size
    contiguous = not slices or (len(slices) == 1 and slices[0][1:] == (1, 1))
    kind = STRIDED
    if contiguous and (slice_bytes == element_size or simd.WIDTH):
        kind = SHORT if slice_bytes <= LINE_BYTES else LONG
        is_large = slice_bytes >= STREAM_SLICE_BYTES and n_tuples * slice_bytes >= STREAM_BYTES
        if is_large and dimensions[-1][3] == n_slice:
            kind = STREAMED
    clips = mode == "clip" and all(size for size, _ in bounds)
    modulus = 1 << 8 * index_size if index_signed else 0
    highest = modulus // 2 - 1 if index_signed else WORD
    packed = len(bounds) <= CHECKED_COORDINATES and coordinate_stride == 1
    packed = (
        packed and dimensions[-1][2] == len(bounds) and all(size >> 8 * index_size == 0 for size, _ in bounds)
    )
    fields = [n_slice, slice_bytes, clips, modulus, highest, packed, len(bounds), len(dimensions)]
    narrow = all(size <= HALF and 0 <= stride <= HALF for size, stride in bounds)
    fields += [len(slices), coordinate_stride, x_offset, narrow]
    for entry in (*dimensions, *bounds, *slices):
        fields += entry
    table = np.array([int(field) & WORD for field in fields], np.uint64)
    check_table = table.copy()
    check_table[CLIPS] = 0
    index_bytes = n_tuples * len(bounds) * index_size
    elements, index = UNSIGNED[element_size], UNSIGNED[index_size]
    gather = compiled(_kernel_of(kind), WORDS, INTEGER, INTEGER, elements, index, elements, BYTES)
    ranges = _parts(n_tuples, index_bytes + n_tuples * slice_bytes, threads) if n_slice else []
    return Plan(
        variant=f"{KINDS[kind]} slices",
        workspace_size=0,
        launch=launcher(gather, [(table, *part) for part in ranges], threads),
        reports=len(ranges) == 1,
        _index=index,
        _check_table=check_table,
        _check_parts=_parts(n_tuples, index_bytes, threads),
        _threads=threads,
    )


def _parts(n_tuples: int, n_bytes: int, threads: int) -> list[tuple[int, int]]:
    n_parts = min(2 * threads, n_bytes // PART_BYTES) if threads > 1 else 1
    return split(n_tuples, max(n_parts, 1))
