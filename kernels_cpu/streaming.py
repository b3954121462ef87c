"""Contiguous segments written past the cache: memory is not read before it is overwritten.

That pays only for whole lines: a line that is written partly past the cache and partly through it costs
more than one that is just written. So where a segment ends within a line, that part waits on the stack for
the next segment. It gets there and away in whole lines too, so the waiting line has room on both sides.

All arrays are pointers. `filled` elements that belong right before `start` wait in `line` (of
``moves.stack_line``) from the segment before; each function returns how many wait then. At the end of an
unbroken stretch, `flush`.
"""

from pathlib import Path
from typing import Any

from kernels_cpu import moves
from kernels_cpu.jit import kernel
from kernels_cpu.unsigned import ONE, ZERO


def _largest_cache() -> int:
    """Return the bytes of the largest cache that the first CPU sees."""
    sizes = [32 << 20]
    try:
        folders = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")
        sizes = [int((folder / "size").read_text().strip().removesuffix("K")) << 10 for folder in folders]
    except (OSError, ValueError):
        pass
    return max(sizes, default=32 << 20)


# An output that fits the caches together with the input may stay there for whoever reads it next, and is
# written faster into them.
STREAM_BYTES = _largest_cache() // 2


@kernel
def stream_copy(output: Any, start: Any, n: Any, x: Any, x_start: Any, line: Any, filled: Any) -> Any:
    """Write ``x[x_start:x_start + n]`` to `start` on."""
    n_line = moves.line_elements(output)
    if n >= n_line:
        if filled:
            moves.move_bytes(64, x, x_start, line, filled)
            moves.stream_line(line, output, start - filled)
            done = n_line - filled
        else:
            done = moves.elements_to_line(output, start)
            moves.copy(x, x_start, output, start, done)
        while done + n_line <= n:
            moves.stream_copy(x, x_start + done, output, start + done)
            done += n_line
        moves.move_bytes(64, x, x_start + n - n_line, line, n - done - n_line)
        return n - done
    if filled:
        done = min(n_line - filled, n)
        moves.copy(x, x_start, line, filled, done)
        if filled + done < n_line:
            return filled + done
        moves.stream_line(line, output, start - filled)
    else:
        done = min(moves.elements_to_line(output, start), n)
        moves.copy(x, x_start, output, start, done)
    moves.copy(x, x_start + done, line, ZERO, n - done)
    return n - done


@kernel
def stream_strided(
    output: Any, start: Any, n: Any, x: Any, x_start: Any, x_stride: Any, line: Any, filled: Any
) -> Any:
    """Write ``x[x_start + i * x_stride]`` for each i below `n` to `start` on."""
    n_line = moves.line_elements(output)
    done = ZERO
    if not filled:
        done = min(moves.elements_to_line(output, start), n)
        for i in range(done):
            output[start + i] = x[x_start + i * x_stride]
    for i in range(done, n):
        line[filled] = x[x_start + i * x_stride]
        filled += ONE
        if filled == n_line:
            moves.stream_line(line, output, start + i + ONE - n_line)
            filled = ZERO
    return filled


@kernel
def stream_fill(output: Any, start: Any, n: Any, value: Any, line: Any, filled: Any) -> Any:
    """Write `value` to `n` elements from `start` on."""
    n_line = moves.line_elements(output)
    if filled:
        moves.fill_line(line, filled, value)
        done = n_line - filled
        if n < done:
            return filled + n
        moves.stream_line(line, output, start - filled)
    else:
        done = min(moves.elements_to_line(output, start), n)
        for i in range(done):
            output[start + i] = value
    while done + n_line <= n:
        moves.stream_fill(output, start + done, value)
        done += n_line
    moves.fill_line(line, ZERO, value)
    return n - done


@kernel
def flush(output: Any, end: Any, line: Any, filled: Any) -> Any:
    """Write the `filled` elements that wait in `line` to right before `end`."""
    moves.copy(line, ZERO, output, end - filled, filled)
