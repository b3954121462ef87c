"""Contiguous segments written past the cache: memory is not read before it is overwritten.

That pays only for whole lines: a line that is written partly past the cache and partly through it costs
more than one that is just written. So where a segment ends within a line, that part waits on the stack for
the next segment.
"""

from typing import Any

import numpy as np

from kernels_cpu import moves
from kernels_cpu.jit import kernel

ZERO: Any = np.uint64(0)
ONE: Any = np.uint64(1)


@kernel
def stream(
    output: Any,
    start: Any,
    n: Any,
    x: Any,
    x_start: Any,
    x_stride: Any,
    copies: Any,
    value: Any,
    line: Any,
    filled: Any,
) -> Any:
    """Write `n` elements past the cache and return how many of them still wait in `line`.

    All arrays are pointers. The elements come from `x` if `copies`, else they are `value`. `filled` elements
    that belong right before `start` wait in `line` from the call before. At the end of an unbroken stretch,
    `flush`.
    """
    line_elements = moves.line_elements(output)
    done = ZERO
    if filled:
        done = min(line_elements - filled, n)
        if copies:
            for i in range(done):
                line[filled + i] = x[x_start + i * x_stride]
        else:
            for i in range(done):
                line[filled + i] = value
        if filled + done < line_elements:
            return filled + done
        moves.stream_line(line, output, start - filled)
    else:
        done = min(moves.elements_to_line(output, start), n)
        if copies:
            for i in range(done):
                output[start + i] = x[x_start + i * x_stride]
        else:
            for i in range(done):
                output[start + i] = value
    if not copies:
        while done + line_elements <= n:
            moves.stream_fill(output, start + done, value)
            done += line_elements
        for i in range(n - done):
            line[i] = value
        return n - done
    if x_stride == ONE:
        while done + line_elements <= n:
            moves.stream_copy(x, x_start + done, output, start + done)
            done += line_elements
    else:
        while done + line_elements <= n:
            for i in range(line_elements):
                line[i] = x[x_start + (done + i) * x_stride]
            moves.stream_line(line, output, start + done)
            done += line_elements
    for i in range(n - done):
        line[i] = x[x_start + (done + i) * x_stride]
    return n - done


@kernel
def flush(output: Any, end: Any, line: Any, filled: Any) -> Any:
    """Write the `filled` elements that wait in `line` to right before `end`."""
    for i in range(filled):
        output[end - filled + i] = line[i]
