"""The kernels of GATHER_ND1, which copy the slice that each index tuple names.

Tuples are taken in blocks. The first pass over a block turns every tuple into one offset into the input,
settles what is out of range, and asks for the slice's first line; the second pass only moves slices, in
the widest pieces that fit, and finds their lines on the way. Moves the indices, and each slice once in and
once out.
"""

import functools
from typing import Any

import numpy as np

from kernels_cpu import intrinsics
from kernels_cpu.gather_nd.index_tuples import OUTSIDE, outer_offsets, resolve
from kernels_cpu.gather_nd.table import (
    DIMENSIONS,
    N_BOUNDS,
    N_SLICES,
    N_TUPLES,
    SHORT,
    SLICE,
    SLICE_BYTES,
    STREAMED,
    STRIDED,
    X_OFFSET,
)
from kernels_cpu.jit import helper, inline, kernel
from kernels_cpu.streaming import flush, stream_copy
from kernels_cpu.unsigned import FOUR, ONE, THREE, TWO, ZERO

AHEAD: Any = np.uint64(4)  # slices whose lines are asked for, where a slice has many
AHEAD_LINES: Any = np.uint64(16)  # of a slice; the hardware sees where the rest is going
BLOCK: Any = np.uint64(256)  # tuples: their offsets are 2 KiB of stack, their lines 16 KiB of the first cache


@inline
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
        intrinsics.move_bytes(piece, x, offsets[i], output, target)
        if rest:
            intrinsics.move_bytes(piece, x, offsets[i] + rest, output, target + rest)
        target += stride


@helper
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


@inline
def _ask_for(x: Any, offset: Any, table: Any) -> Any:
    """Ask for the first lines of a long slice."""
    line_elements = intrinsics.line_elements(x)
    for j in range(ZERO, min(table[SLICE], AHEAD_LINES * line_elements), line_elements):
        intrinsics.prefetch(x, offset + j)


@helper
def _copy_long(
    x: Any, offsets: Any, first: Any, last: Any, output: Any, target: Any, stride: Any, table: Any
) -> Any:
    """Copy the slices at ``offsets[first:last]``, longer than a line, to `target` and every `stride` on."""
    line_elements = intrinsics.line_elements(x)
    rest = table[SLICE] - line_elements
    for i in range(first, last):
        if i + AHEAD < last:
            _ask_for(x, offsets[i + AHEAD], table)
        offset = offsets[i]
        for done in range(ZERO, rest, line_elements):
            intrinsics.move_bytes(64, x, offset + done, output, target + done)
        intrinsics.move_bytes(64, x, offset + rest, output, target + rest)
        target += stride


@helper
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


@helper
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
def gather_kernel(kind: int) -> Any:
    """Return the kernel for one kind of slices."""

    @kernel
    def gather(table: Any, first: Any, last: Any, x: Any, indices: Any, output: Any, workspace: Any) -> Any:
        """Copy the slices of tuples `first` to `last`, counted through batch and tuple dimensions.

        Return whether any of these tuples is out of range, as a number.
        """
        table = intrinsics.pointer(table)
        x = intrinsics.at(intrinsics.pointer(x), ZERO - table[X_OFFSET])
        indices = intrinsics.pointer(indices)
        output = intrinsics.pointer(output)
        offsets = intrinsics.stack_uint64(256)
        line = intrinsics.stack_line(output)
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
