"""GATHER_ND1: copy the slice that each index tuple names.

Tuples are taken in blocks. The first pass over a block turns every tuple into one offset into the input, coordinate
by coordinate, and settles what is out of range; the second pass only moves slices, in the widest pieces that fit.
Moves the indices, each slice once in and once out.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels_cpu import moves, simd
from kernels_cpu.jit import inlined, kernel
from kernels_cpu.threads import run, split

WORD = (1 << 64) - 1
BLOCK = 256  # tuples: their offsets are 2 KiB of stack
OUTSIDE = np.uint64(WORD)  # the offset of a tuple that is out of range
STREAM_BYTES = 4 << 20  # a smaller output may stay in the cache for whoever reads it next
STREAM_SLICE_BYTES = 256  # shorter slices leave too few whole lines
PART_BYTES = 1 << 19  # of indices and slices, some 100 us of work

# What a slice is: one element; bytes in one piece, in ever longer moves; or anything else.
ELEMENT, ELEMENTS, BYTES_4, BYTES_8, BYTES_16, BYTES_32, STREAMED, STRIDED = range(8)
KINDS = ("element", "elements", "4 bytes", "8 bytes", "16 bytes", "32 bytes", "streamed", "strided")

# Fields of the table of unsigned words (negative numbers wrap) that describes a problem to the kernel.
KIND, SLICE, CLIPS, SIGNED, SIGN, N_BOUNDS, N_TUPLES, N_SLICES, COORDINATE = range(9)
X_OFFSET, INDEX_OFFSET, OUTPUT_OFFSET, OUTER, PIECE, DIMENSIONS = range(9, 15)
# Then (size, x_stride, index_stride, output_stride) for each batch and tuple dimension, (size, x_stride) for each
# coordinate, (size, x_stride, output_stride) for each slice dimension.


@inlined
def _outer_offsets(table, position):  # type: ignore[no-untyped-def]
    """Return the offsets (x, index, output) of a position in all tuple dimensions but the last."""
    x = table[X_OFFSET]
    index = table[INDEX_OFFSET]
    output = table[OUTPUT_OFFSET]
    field = np.uint64(DIMENSIONS) + np.uint64(4) * (table[N_TUPLES] - np.uint64(1))
    while field > np.uint64(DIMENSIONS):
        field -= np.uint64(4)
        quotient = position // table[field]
        coordinate = position - quotient * table[field]
        x += coordinate * table[field + np.uint64(1)]
        index += coordinate * table[field + np.uint64(2)]
        output += coordinate * table[field + np.uint64(3)]
        position = quotient
    return x, index, output


@inlined
def _resolve(indices, index, index_stride, x, x_stride, n, table, offsets):  # type: ignore[no-untyped-def]
    """Write the input offsets of `n` tuples to `offsets`; return whether any of them is out of range."""
    zero = np.uint64(0)
    sign = table[SIGN]
    is_signed = table[SIGNED]
    clips = table[CLIPS] != zero
    field = np.uint64(DIMENSIONS) + np.uint64(4) * table[N_TUPLES]
    outside = False
    for coordinate in range(table[N_BOUNDS]):
        size = table[field]
        stride = table[field + np.uint64(1)]
        field += np.uint64(2)
        first = coordinate == zero
        for i in range(n):
            # Two's complement makes the sum wrap for a negative index from the end, and one unsigned comparison
            # finds what is out of range on either side.
            value = (np.uint64(indices[index + i * index_stride]) ^ sign) - sign
            negative = (value >> np.uint64(63)) & is_signed
            value += size & (zero - negative)
            offset = x + i * x_stride if first else offsets[i]
            if value >= size:
                if clips:
                    value = zero if negative else size - np.uint64(1)
                else:
                    offset = OUTSIDE
                    outside = True
            offsets[i] = offset if offset == OUTSIDE else offset + value * stride
        index += table[COORDINATE]
    return outside


@inlined
def _move(kind, n, x, source, output, target):  # type: ignore[no-untyped-def]
    """Copy one slice of `n` contiguous elements: whole pieces, and one that ends with the slice."""
    if kind == ELEMENTS:
        for i in range(n):
            output[target + i] = x[source + i]
    elif kind == BYTES_4:
        piece = moves.elements_in(4, x)
        moves.move_bytes(4, x, source, output, target)
        moves.move_bytes(4, x, source + n - piece, output, target + n - piece)
    elif kind == BYTES_8:
        piece = moves.elements_in(8, x)
        moves.move_bytes(8, x, source, output, target)
        moves.move_bytes(8, x, source + n - piece, output, target + n - piece)
    elif kind == BYTES_16:
        piece = moves.elements_in(16, x)
        moves.move_bytes(16, x, source, output, target)
        moves.move_bytes(16, x, source + n - piece, output, target + n - piece)
    else:
        piece = moves.elements_in(32, x)
        done = np.uint64(0)
        while done + piece < n:
            moves.move_bytes(32, x, source + done, output, target + done)
            done += piece
        moves.move_bytes(32, x, source + n - piece, output, target + n - piece)


@kernel
def _gather(x, indices, output, table, first, last):  # type: ignore[no-untyped-def]
    """Copy the slices of tuples `first` to `last`, counted through batch and tuple dimensions."""
    x = moves.pointer(x)
    indices = moves.pointer(indices)
    output = moves.pointer(output)
