"""GATHER_ND1: copy the slice that each index tuple names.

Tuples are taken in blocks. The first pass over a block turns every tuple into one offset into the input,
and settles what is out of range; the second pass only moves slices, in the widest pieces that fit. Moves
the indices, and each slice once in and once out.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels_cpu import moves, simd
from kernels_cpu.jit import inlined, kernel
from kernels_cpu.streaming import flush, stream
from kernels_cpu.threads import run, split

ZERO: Any = np.uint64(0)
ONE: Any = np.uint64(1)
TWO: Any = np.uint64(2)
THREE: Any = np.uint64(3)
FOUR: Any = np.uint64(4)
AHEAD: Any = np.uint64(4)  # slices: random lines take longest to come, so long ones are asked for early
AHEAD_LINES: Any = np.uint64(16)  # of a slice; the hardware sees where the rest is going
WORD = (1 << 64) - 1
BLOCK: Any = np.uint64(256)  # tuples: their offsets are 2 KiB of stack
OUTSIDE: Any = np.uint64(WORD)  # the offset of a tuple that is out of range
STREAM_BYTES = 4 << 20  # a smaller output may stay in the cache for whoever reads it next
STREAM_SLICE_BYTES = 256  # shorter slices leave too few whole lines
PART_BYTES = 1 << 19  # of indices and slices, some 100 us of work

# What a slice is: one element; bytes in one piece, in ever longer moves; or anything else.
ELEMENT, ELEMENTS, BYTES_4, BYTES_8, BYTES_16, BYTES_32, STREAMED, STRIDED = range(8)
KINDS = ("element", "elements", "4 bytes", "8 bytes", "16 bytes", "32 bytes", "streamed", "strided")

# Fields of the table of unsigned words (negative numbers wrap) that describes a problem to the kernel.
KIND, SLICE, PIECE, CLIPS, SIGNED, N_BOUNDS, N_TUPLES, N_SLICES = np.arange(8, dtype=np.uint64)
COORDINATE, X_OFFSET, INDEX_OFFSET, OUTPUT_OFFSET, DIMENSIONS = np.arange(8, 13, dtype=np.uint64)
# Then (size, x_stride, index_stride, output_stride) for each batch and tuple dimension, (size, x_stride) for
# each coordinate, (size, x_stride, output_stride) for each slice dimension.


@inlined
def _outer_offsets(table: Any, position: Any) -> Any:
    """Return the offsets (x, index, output) of a position in all tuple dimensions but the last."""
    x = table[X_OFFSET]
    index = table[INDEX_OFFSET]
    output = table[OUTPUT_OFFSET]
    field = DIMENSIONS + FOUR * (table[N_TUPLES] - ONE)
    while field > DIMENSIONS:
        field -= FOUR
        quotient = position // table[field]
        coordinate = position - quotient * table[field]
        x += coordinate * table[field + ONE]
        index += coordinate * table[field + TWO]
        output += coordinate * table[field + THREE]
        position = quotient
    return x, index, output


@inlined
def _coordinate(bits: Any, size: Any, is_signed: Any) -> Any:
    """Return a coordinate that counts from the start: one unsigned comparison tells whether it is in range.

    A negative one counts from the end: two's complement makes the sum wrap around, unless it is too negative.
    """
    if not is_signed:
        return np.uint64(bits)
    value = moves.sign_extended(bits)
    return value + (size & np.uint64(np.int64(value) >> np.int64(63)))


@kernel
def _resolve(
    indices: Any, index: Any, index_stride: Any, x: Any, x_stride: Any, n: Any, table: Any, offsets: Any
) -> Any:
    """Write the input offsets of `n` tuples to `offsets`; return whether any of them is out of range."""
    coordinate_stride = table[COORDINATE]
    field = DIMENSIONS + FOUR * table[N_TUPLES]
    end = field + TWO * table[N_BOUNDS]
    start = index
    outside = False
    for i in range(n):
        offsets[i] = x + i * x_stride
    while field + TWO < end:
        size_a, stride_a = table[field], table[field + ONE]
        size_b, stride_b = table[field + TWO], table[field + THREE]
        if table[SIGNED]:
            for i in range(n):
                a = _coordinate(indices[start + i * index_stride], size_a, True)
                b = _coordinate(indices[start + coordinate_stride + i * index_stride], size_b, True)
                outside |= (a >= size_a) | (b >= size_b)
                offsets[i] += a * stride_a + b * stride_b
        else:
            for i in range(n):
                a = _coordinate(indices[start + i * index_stride], size_a, False)
                b = _coordinate(indices[start + coordinate_stride + i * index_stride], size_b, False)
                outside |= (a >= size_a) | (b >= size_b)
                offsets[i] += a * stride_a + b * stride_b
        field += FOUR
        start += TWO * coordinate_stride
    if field < end:
        size, stride = table[field], table[field + ONE]
        is_signed = table[SIGNED] != ZERO
        for i in range(n):
            a = _coordinate(indices[start + i * index_stride], size, is_signed)
            outside |= a >= size
            offsets[i] += a * stride
    if outside:
        outside = _settle(indices, index, index_stride, x, x_stride, n, table, offsets)
    return outside


@kernel
def _settle(
    indices: Any, index: Any, index_stride: Any, x: Any, x_stride: Any, n: Any, table: Any, offsets: Any
) -> Any:
    """Do what `_resolve` does where some coordinates are out of range."""
    is_signed = table[SIGNED] != ZERO
    clips = table[CLIPS] != ZERO
    for i in range(n):
        offset = x + i * x_stride
        start = index + i * index_stride
        field = DIMENSIONS + FOUR * table[N_TUPLES]
        for _ in range(table[N_BOUNDS]):
            bits = indices[start]
            size = table[field]
            value = _coordinate(bits, size, is_signed)
            if value >= size:
                if not clips:
                    offset = OUTSIDE
                    break
                too_low = is_signed and np.int64(moves.sign_extended(bits)) < np.int64(0)
                value = ZERO if too_low else size - ONE
            offset += value * table[field + ONE]
            start += table[COORDINATE]
            field += TWO
        offsets[i] = offset
    return not clips


@kernel
def _copy_slices(
    x: Any, offsets: Any, first: Any, last: Any, output: Any, target: Any, stride: Any, table: Any
) -> Any:
    """Copy the slices at ``offsets[first:last]``, all in the input, to `target`, ``target + stride``, ..."""
    kind = table[KIND]
    n = table[SLICE]
    rest = n - table[PIECE]
    if kind == ELEMENT:
        for i in range(first, last):
            output[target] = x[offsets[i]]
            target += stride
    elif kind == ELEMENTS:
        for i in range(first, last):
            for j in range(n):
                output[target + j] = x[offsets[i] + j]
            target += stride
    elif kind == BYTES_4:
        for i in range(first, last):
            moves.move_bytes(4, x, offsets[i], output, target)
            moves.move_bytes(4, x, offsets[i] + rest, output, target + rest)
            target += stride
    elif kind == BYTES_8:
        for i in range(first, last):
            moves.move_bytes(8, x, offsets[i], output, target)
            moves.move_bytes(8, x, offsets[i] + rest, output, target + rest)
            target += stride
    elif kind == BYTES_16:
        for i in range(first, last):
            moves.move_bytes(16, x, offsets[i], output, target)
            moves.move_bytes(16, x, offsets[i] + rest, output, target + rest)
            target += stride
    elif kind == BYTES_32:
        for i in range(first, last):
            done = ZERO
            while done < rest:
                moves.move_bytes(32, x, offsets[i] + done, output, target + done)
                done += table[PIECE]
            moves.move_bytes(32, x, offsets[i] + rest, output, target + rest)
            target += stride
    else:
        for i in range(first, last):
            _copy_strided(x, offsets[i], output, target, table)
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
def _gather(x: Any, indices: Any, output: Any, table: Any, first: Any, last: Any) -> Any:
    """Copy the slices of tuples `first` to `last`, counted through batch and tuple dimensions."""
    x = moves.pointer(x)
    indices = moves.pointer(indices)
    output = moves.pointer(output)
    table = moves.pointer(table)
    offsets = moves.stack_uint64(256)
    line = moves.stack_lines(output, 1)
    filled = ZERO
    cursor = ZERO
    inner = DIMENSIONS + FOUR * (table[N_TUPLES] - ONE)
    n_inner = table[inner]
    x_stride = table[inner + ONE]
    index_stride = table[inner + TWO]
    output_stride = table[inner + THREE]
    streams = table[KIND] == STREAMED
    line_elements = moves.line_elements(output)
    position = np.uint64(first)
    while position < np.uint64(last):
        outer = position // n_inner
        start = position - outer * n_inner
        stop = min(n_inner, start + (np.uint64(last) - position))
        position += stop - start
        x_outer, index_outer, output_outer = _outer_offsets(table, outer)
        while start < stop:
            n = min(stop - start, BLOCK)
            index = index_outer + start * index_stride
            target = output_outer + start * output_stride
            outside = _resolve(
                indices, index, index_stride, x_outer + start * x_stride, x_stride, n, table, offsets
            )
            start += n
            if streams:
                for i in range(n):
                    if target != cursor:
                        flush(output, cursor, line, filled)
                        filled = ZERO
                    ahead = i + AHEAD
                    if ahead < n and offsets[ahead] != OUTSIDE:
                        for j in range(ZERO, min(table[SLICE], AHEAD_LINES * line_elements), line_elements):
                            moves.prefetch(x, offsets[ahead] + j)
                    inside = offsets[i] != OUTSIDE
                    filled = stream(
                        output, target, table[SLICE], x, offsets[i], ONE, inside, ZERO, line, filled
                    )
                    cursor = target + table[SLICE]
                    target += output_stride
            else:
                i = ZERO
                while i < n:
                    stop_inside = n
                    if outside:
                        stop_inside = i
                        while stop_inside < n and offsets[stop_inside] != OUTSIDE:
                            stop_inside += ONE
                    _copy_slices(x, offsets, i, stop_inside, output, target, output_stride, table)
                    target += (stop_inside - i) * output_stride
                    i = stop_inside
                    while i < n and offsets[i] == OUTSIDE:
                        _copy_strided(x, OUTSIDE, output, target, table)
                        target += output_stride
                        i += ONE
    flush(output, cursor, line, filled)


@kernel
def _find_outside(indices: Any, table: Any, first: Any, last: Any) -> Any:
    """Return the first of tuples `first` to `last` that is out of range, or -1."""
    indices = moves.pointer(indices)
    table = moves.pointer(table)
    offsets = moves.stack_uint64(256)
    inner = DIMENSIONS + FOUR * (table[N_TUPLES] - ONE)
    n_inner = table[inner]
    x_stride = table[inner + ONE]
    index_stride = table[inner + TWO]
    position = np.uint64(first)
    while position < np.uint64(last):
        outer = position // n_inner
        start = position - outer * n_inner
        n = min(n_inner - start, np.uint64(last) - position, BLOCK)
        x, index, _ = _outer_offsets(table, outer)
        x += start * x_stride
        if _resolve(indices, index + start * index_stride, index_stride, x, x_stride, n, table, offsets):
            for i in range(n):
                if offsets[i] == OUTSIDE:
                    return np.int64(position + i)
        position += n
    return np.int64(-1)


@dataclass(frozen=True, slots=True)
class Plan:
    """A gather problem, ready to run any number of times from any thread."""

    variant: str
    workspace_size: int
    table: Any
    check_table: Any
    parts: list[tuple[int, int]]
    check_parts: list[tuple[int, int]]
    threads: int

    def launch(self, x: Any, indices: Any, output: Any, workspace: Any) -> None:
        """Copy the slice of every tuple from `x` to `output`."""
        parts = self.parts
        if len(parts) == 1:
            _gather(x, indices, output, self.table, *parts[0])
        elif parts:
            table = self.table
            run(_gather, [(x, indices, output, table, *part) for part in parts], self.threads)

    def check(self, indices: Any, workspace: Any) -> int:
        """Return the position of the first tuple that is out of range, or -1."""
        parts = self.check_parts
        if len(parts) == 1:
            return int(_find_outside(indices, self.check_table, *parts[0]))
        found = [-1] * len(parts)

        def find(place: int, first: int, last: int) -> None:
            found[place] = int(_find_outside(indices, self.check_table, first, last))

        run(find, [(place, *part) for place, part in enumerate(parts)], self.threads)
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
    x_offset, index_offset, output_offset : int
        Where each array's first element lies.
    threads : int
        How many threads the work may be spread over.

    Returns
    -------
    Plan
        Needs no workspace.
    """
    dimensions = [*batch, *((size, 0, index, output) for size, index, output in tuples)] or [(1, 0, 0, 0)]
    n_tuples = math.prod(size for size, *_ in dimensions)
    n_slice = math.prod(size for size, *_ in slices)
    slice_bytes = n_slice * element_size
    contiguous = not slices or (len(slices) == 1 and slices[0][1:] == (1, 1))
    kind = STRIDED
    if contiguous:
        kind = _contiguous_kind(slice_bytes, element_size, n_tuples, dimensions[-1][3] == n_slice)
    clips = mode == "clip" and all(size for size, _ in bounds)
    piece = {BYTES_4: 4, BYTES_8: 8, BYTES_16: 16, BYTES_32: 32}.get(kind, 0) // element_size
    fields = [kind, n_slice, piece, clips, index_signed, len(bounds), len(dimensions), len(slices)]
    fields += [coordinate_stride, x_offset, index_offset, output_offset]
    for entry in (*dimensions, *bounds, *slices):
        fields += entry
    table = np.array([int(field) & WORD for field in fields], np.uint64)
    check_table = table.copy()
    check_table[CLIPS] = 0
    index_bytes = n_tuples * len(bounds) * index_size
    return Plan(
        variant=f"{KINDS[kind]} a slice",
        workspace_size=0,
        table=table,
        check_table=check_table,
        parts=_parts(n_tuples, index_bytes + n_tuples * slice_bytes, threads) if n_slice else [],
        check_parts=_parts(n_tuples, index_bytes, threads),
        threads=threads,
    )


def _contiguous_kind(slice_bytes: int, element_size: int, n_tuples: int, packed: bool) -> int:
    if slice_bytes == element_size:
        return ELEMENT
    if not simd.WIDTH or slice_bytes < 4:
        return ELEMENTS
    if packed and slice_bytes >= STREAM_SLICE_BYTES and n_tuples * slice_bytes >= STREAM_BYTES:
        return STREAMED
    return (BYTES_4, BYTES_8, BYTES_16, BYTES_32)[min(slice_bytes.bit_length() - 3, 3)]


def _parts(n_tuples: int, n_bytes: int, threads: int) -> list[tuple[int, int]]:
    n_parts = min(2 * threads, n_bytes // PART_BYTES) if threads > 1 else 1
    return split(n_tuples, max(n_parts, 1))
