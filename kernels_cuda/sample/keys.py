"""Elements as unsigned keys in the order of their values: how a team reads a row.

A key is 2^(bits - 1) plus or minus the magnitude bits, so that both zeros have the same key, and NaN has 0.
The warps of a row's blocks have segments that follow each other.
"""

import functools
from typing import Any, NamedTuple

from kernels_cuda import ptx
from kernels_cuda.ptx import i64, u32, u64
from kernels_cuda.runtime.compiler import device_function
from kernels_cuda.sample.parameters import WARPS
from kernels_cuda.sample.shared import block_largest, team_functions

IN_FLIGHT = 8
"""Elements that a thread loads before it uses the first."""


class KeyFunctions(NamedTuple):
    """The device functions for one element width."""

    register: Any
    key_at: Any
    segment_of: Any
    begin: Any
    advance: Any
    largest: Any
    team_largest: Any
    first_of: Any


@functools.cache
def key_functions(element_size: int, cluster: int) -> KeyFunctions:
    """Make the functions for one element width."""
    register = ptx.REGISTER[element_size]
    read_if = ptx.READ_IF[element_size]
    bias = 1 << (8 * element_size - 1)
    team = team_functions(cluster)

    @device_function
    def key_of(bits, infinity):
        magnitude = bits & register(bias - 1)
        key = register(bias) + magnitude
        if bits & register(bias) != 0:
            key = register(bias) - magnitude
        if magnitude > register(infinity):
            key = register(0)
        return key

    @device_function
    def key_at(at, p, i, is_there):
        """Return the key of an element, or 0 if it is not there."""
        key = key_of(read_if(at + i64(i) * p.x_step, u32(is_there)), p.infinity)
        if not is_there:
            key = register(0)
        return key

    @device_function
    def segment_of(p, rank, thread):
        """Return where the segment of a thread's warp begins, and where it ends."""
        first = min(i64(rank * WARPS + (thread >> 5)) * p.segment, p.n)
        return u32(first), u32(min(first + p.segment, p.n))

    @device_function
    def begin(at, p, i, end):
        """Load the first keys of a thread, which later loads follow (`advance`)."""
        return (
            key_at(at, p, i, i < end),
            key_at(at, p, i + 32, i + 32 < end),
            key_at(at, p, i + 64, i + 64 < end),
            key_at(at, p, i + 96, i + 96 < end),
        )

    @device_function
    def advance(at, p, i, end, ahead):
        """Return the keys that follow the one at `i`, which is the first of `ahead`."""
        return ahead[1], ahead[2], ahead[3], key_at(at, p, i + 128, i + 128 < end)

    @device_function
    def largest(at, p, rank, thread):
        """Return the largest key of a thread."""
        first, end = segment_of(p, rank, thread)
        best = register(0)
        i = first + (thread & 31)
        while i < end:
            for j in range(IN_FLIGHT):
                place = i + u32(32 * j)
                best = max(best, key_at(at, p, place, place < end))
            i += 32 * IN_FLIGHT
        return best

    @device_function
    def team_largest(own, thread, arrays):
        """Return the largest key of a row."""
        _, _, _, _, mail, room = arrays
        return register(team.largest(block_largest(u64(own), thread, room), 0, thread, mail))

    @device_function
    def first_of(at, p, rank, thread, key, arrays):
        """Return the first index of a key, by the first block."""
        _, _, _, _, mail, room = arrays
        first, end = segment_of(p, rank, thread)
        # The larger, the earlier.
        best = u64(0)
        i = first + (thread & 31)
        while i < end:
            if key_at(at, p, i, True) == key:
                best = max(best, u64(u32(0xFFFFFFFF) - i))
            i += 32
        best = team.largest(block_largest(best, thread, room), 1, thread, mail)
        return i64(u32(0xFFFFFFFF) - u32(best))

    return KeyFunctions(register, key_at, segment_of, begin, advance, largest, team_largest, first_of)
