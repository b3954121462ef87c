"""The kernels of GATHER_ND1, which copy the slice that each index tuple points at.

Tuples are processed in blocks. The first pass over a block turns every tuple into one offset into the input,
handles tuples that are out of range, and prefetches the first line of each slice, unless slices are short and
the input is small. The second pass only moves slices, in the widest pieces that fit. Bytes moved: the
indices, and each slice once in and once out.
"""

import functools
from typing import Any

from kernels_cpu.gather_nd import SHORT, STREAMED, STRIDED
from kernels_cpu.gather_nd.index_tuples import OUTSIDE, outer_offsets, resolve
from kernels_cpu.gather_nd.plan import (
    DIMENSIONS,
    FAR,
    FILL,
    N_BOUNDS,
    N_SLICES,
    N_TUPLES,
    SLICE,
    SLICE_BYTES,
    X_OFFSET,
)
from kernels_cpu.intrinsics import memory
from kernels_cpu.intrinsics.pointers import stack_integers, tail
from kernels_cpu.jit import inline, int64, njit
from kernels_cpu.streaming import flush, stream_copy

AHEAD = 4  # how many slices ahead lines are prefetched, if slices have many lines
AHEAD_LINES = 16  # lines of a slice to prefetch; the hardware predicts the rest
BLOCK = 256  # tuples: their offsets are 2 KiB of stack, their lines 16 KiB of the second cache


@inline
def _copy_pieces(
    piece: Any, x: Any, offsets: Any, first: Any, last: Any, output: Any, target: Any, stride: Any, rest: Any
) -> Any:
    """Copy slices of one piece of `piece` bytes, or of a second one that starts `rest` elements later."""
    for i in range(first, last):
        memory.move_bytes(piece, x, offsets[i], output, target)
        if rest:
            memory.move_bytes(piece, x, offsets[i] + rest, output, target + rest)
        target += stride


@njit
def _copy_short(
    x: Any, offsets: Any, first: Any, last: Any, output: Any, target: Any, stride: Any, table: Any
) -> Any:
    """Copy the slices at ``offsets[first:last]``, each up to a line, to every `stride` from `target` on."""
    n = table[SLICE]
    n_bytes = table[SLICE_BYTES]
    element_bytes = n_bytes // n
    if n == 1:
        for i in range(first, last):
            output[target] = x[offsets[i]]
            target += stride
    elif n_bytes >= 32:
        _copy_pieces(32, x, offsets, first, last, output, target, stride, n - 32 // element_bytes)
    elif n_bytes >= 16:
        _copy_pieces(16, x, offsets, first, last, output, target, stride, n - 16 // element_bytes)
    elif n_bytes >= 8:
        _copy_pieces(8, x, offsets, first, last, output, target, stride, n - 8 // element_bytes)
    elif n_bytes >= 4:
        _copy_pieces(4, x, offsets, first, last, output, target, stride, n - 4 // element_bytes)
    else:
        for i in range(first, last):
            output[target] = x[offsets[i]]
            output[target + 1] = x[offsets[i] + 1]
            output[target + n - 1] = x[offsets[i] + n - 1]
            target += stride


@inline
def _prefetch_slice(x: Any, offset: Any, table: Any) -> Any:
    """Prefetch the first lines of a long slice."""
    line_elements = memory.line_elements(x)
    for j in range(0, min(table[SLICE], AHEAD_LINES * line_elements), line_elements):
        memory.prefetch(1, x, offset + j)


@njit
def _copy_long(
    x: Any, offsets: Any, first: Any, last: Any, output: Any, target: Any, stride: Any, table: Any
) -> Any:
    """Copy the slices at ``offsets[first:last]``, longer than a line, to every `stride` from `target` on."""
    line_elements = memory.line_elements(x)
    rest = table[SLICE] - line_elements
    for i in range(first, last):
        if i + AHEAD < last:
            _prefetch_slice(x, offsets[i + AHEAD], table)
        offset = offsets[i]
        for done in range(0, rest, line_elements):
            memory.move_bytes(64, x, offset + done, output, target + done)
        memory.move_bytes(64, x, offset + rest, output, target + rest)
        target += stride


@njit
def _copy_strided(x: Any, offset: Any, output: Any, target: Any, table: Any) -> Any:
    """Copy one slice of any layout; with `offset` `OUTSIDE`, fill it."""
    n_dims = table[N_SLICES]
    inner = DIMENSIONS + 4 * table[N_TUPLES] + 2 * table[N_BOUNDS]
    inner += 3 * n_dims
    n_inner = 1
    x_stride = output_stride = 0
    if n_dims:
        inner -= 3
        n_inner = table[inner]
        x_stride = table[inner + 1]
        output_stride = table[inner + 2]
    for row in range(table[SLICE] // n_inner):
        x_row = offset
        output_row = target
        position = row
        field = inner
        for _ in range(1, n_dims):
            field -= 3
            quotient = position // table[field]
            coordinate = position - quotient * table[field]
            x_row += coordinate * table[field + 1]
            output_row += coordinate * table[field + 2]
            position = quotient
        if offset == OUTSIDE:
            for i in range(n_inner):
                output[output_row + i * output_stride] = table[FILL]
        else:
            for i in range(n_inner):
                output[output_row + i * output_stride] = x[x_row + i * x_stride]


@njit
def _copy_streamed(
    x: Any, offsets: Any, n: Any, output: Any, target: Any, table: Any, line: Any, filled: Any
) -> Any:
    """Copy the slices of `n` offsets to `target` and on, past the cache; return how much waits in `line`."""
    size = table[SLICE]
    for i in range(n):
        if i + AHEAD < n and offsets[i + AHEAD] != OUTSIDE:
            _prefetch_slice(x, offsets[i + AHEAD], table)
        if offsets[i] != OUTSIDE:
            filled = stream_copy(output, target, size, x, offsets[i], line, filled)
        else:
            flush(output, target, line, filled)
            filled = 0
            for j in range(size):
                output[target + j] = table[FILL]
        target += size
    return filled


@functools.cache
def gather_kernel(kind: int) -> Any:
    """Return the kernel for one kind of slices."""

    @njit
    def gather(table: Any, first: Any, last: Any, x: Any, indices: Any, output: Any) -> Any:
        """Copy the slices of tuples `first` to `last`, counted through batch and tuple dimensions.

        Return whether any of these tuples is out of range, as a number.
        """
        x = tail(x, -table[X_OFFSET])
        offsets = stack_integers(256)
        line = memory.stack_line(output)
        filled = int64(0)
        any_outside = False
        inner = DIMENSIONS + 4 * (table[N_TUPLES] - 1)
        n_inner = table[inner]
        x_stride = table[inner + 1]
        index_stride = table[inner + 2]
        stride = table[inner + 3]
        position = first
        target = 0
        while position < last:
            outer = position // n_inner
            start = position - outer * n_inner
            n = min(n_inner - start, last - position, BLOCK)
            position += n
            offset, index, output_outer = outer_offsets(table, outer)
            offset += start * x_stride
            index += start * index_stride
            if kind == STREAMED:
                flushed_to = target
            target = output_outer + start * stride
            outside = resolve(indices, index, index_stride, offset, x_stride, n, table, offsets)
            any_outside |= outside
            # The second cache waits for many more lines at a time than the first one. The processor overlaps
            # the loads of short slices by itself, which is enough if a cache holds the input.
            if kind != SHORT or table[FAR]:
                for i in range(n):
                    memory.prefetch(2, x, offsets[i])
            if kind == STREAMED:
                if target != flushed_to:
                    flush(output, flushed_to, line, filled)
                    filled = 0
                filled = _copy_streamed(x, offsets, n, output, target, table, line, filled)
                target += n * stride
            elif kind == STRIDED:
                for i in range(n):
                    _copy_strided(x, offsets[i], output, target, table)
                    target += stride
            else:
                i = int64(0)
                while i < n:
                    stop = n
                    if outside:
                        stop = i
                        while stop < n and offsets[stop] != OUTSIDE:
                            stop += 1
                    if kind == SHORT:
                        _copy_short(x, offsets, i, stop, output, target, stride, table)
                    else:
                        _copy_long(x, offsets, i, stop, output, target, stride, table)
                    target += (stop - i) * stride
                    i = stop
                    while i < n and offsets[i] == OUTSIDE:
                        for j in range(table[SLICE]):
                            output[target + j] = table[FILL]
                        target += stride
                        i += 1
        if kind == STREAMED:
            flush(output, target, line, filled)
        return int64(any_outside)

    return gather
