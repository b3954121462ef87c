"""Contiguous segments written past the cache, so that memory is not read before it is overwritten.

This only pays for whole lines: a line that is written partly past the cache and partly through it costs more
than one that is simply written. If a segment ends within a line, that part therefore waits on the stack for
the next segment. It is copied in whole lines as well, so the waiting line has room on both sides.

All arrays are pointers. `filled` elements from the previous segment, which belong right before `start`, wait
in `line` (of ``memory.stack_line``). Each function returns how many elements wait afterwards. Call `flush` at
the end of an unbroken stretch.
"""

from typing import Any

from kernels_cpu.intrinsics import memory
from kernels_cpu.jit import njit


@njit
def stream_copy(output: Any, start: Any, n: Any, x: Any, x_start: Any, line: Any, filled: Any) -> Any:
    """Write ``x[x_start:x_start + n]`` to `start` on."""
    n_line = memory.line_elements(output)
    if n >= n_line:
        if filled:
            memory.move_bytes(64, x, x_start, line, filled)
            memory.stream_line(line, output, start - filled)
            done = n_line - filled
        else:
            done = memory.elements_to_line(output, start)
            memory.copy(x, x_start, output, start, done)
        while done + n_line <= n:
            memory.stream_copy(x, x_start + done, output, start + done)
            done += n_line
        memory.move_bytes(64, x, x_start + n - n_line, line, n - done - n_line)
        return n - done
    if filled:
        done = min(n_line - filled, n)
        memory.copy(x, x_start, line, filled, done)
        if filled + done < n_line:
            return filled + done
        memory.stream_line(line, output, start - filled)
    else:
        done = min(memory.elements_to_line(output, start), n)
        memory.copy(x, x_start, output, start, done)
    memory.copy(x, x_start + done, line, 0, n - done)
    return n - done


@njit
def stream_strided(
    output: Any, start: Any, n: Any, x: Any, x_start: Any, x_stride: Any, line: Any, filled: Any
) -> Any:
    """Write ``x[x_start + i * x_stride]`` for each i below `n` to `start` on."""
    n_line = memory.line_elements(output)
    done = 0
    if not filled:
        done = min(memory.elements_to_line(output, start), n)
        for i in range(done):
            output[start + i] = x[x_start + i * x_stride]
    for i in range(done, n):
        line[filled] = x[x_start + i * x_stride]
        filled += 1
        if filled == n_line:
            memory.stream_line(line, output, start + i + 1 - n_line)
            filled = 0
    return filled


@njit
def stream_fill(output: Any, start: Any, n: Any, value: Any, line: Any, filled: Any) -> Any:
    """Write `value` to `n` elements from `start` on."""
    n_line = memory.line_elements(output)
    if filled:
        memory.fill_line(line, filled, value)
        done = n_line - filled
        if n < done:
            return filled + n
        memory.stream_line(line, output, start - filled)
    else:
        done = min(memory.elements_to_line(output, start), n)
        for i in range(done):
            output[start + i] = value
    while done + n_line <= n:
        memory.stream_fill(output, start + done, value)
        done += n_line
    memory.fill_line(line, 0, value)
    return n - done


@njit
def flush(output: Any, end: Any, line: Any, filled: Any) -> Any:
    """Write the `filled` elements that wait in `line` to right before `end`."""
    memory.copy(line, 0, output, end - filled, filled)
