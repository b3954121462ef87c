"""What threads do together: maxima, sums, places in an order, and keys in shared memory by 16 bytes."""

import functools
from typing import Any, NamedTuple

from kernels_cuda import ptx
from kernels_cuda.ptx import u32, u64
from kernels_cuda.runtime.compiler import device_function, linked_function
from kernels_cuda.strided import VECTOR


@device_function
def warp_maximum_u64(value):
    """Return the largest of the warp's values."""
    high = u32(value >> 32)
    best_high = ptx.warp_max(high)
    low = u32(0)
    if high == best_high:
        low = u32(value)
    return (u64(best_high) << 32) | u64(ptx.warp_max(low))


def warp_maximum(key_type: Any) -> Any:
    """Return the device function for the largest key of a warp."""
    return warp_maximum_u64 if key_type is u64 else ptx.warp_max


@device_function
def add_over_lanes(amount, n_lanes):
    """Return the sum of `amount` over each `n_lanes` neighbouring lanes, a power of two."""
    distance = u32(1)
    while distance < n_lanes:
        amount += ptx.shuffle_xor_u32(amount, distance)
        distance <<= 1
    return amount


@linked_function
def bits_before(bits, place):
    """Return how many of the bits at an address are set, before number `place` of them."""
    count = u32(0)
    first = u32(0)
    while first < place:
        words = ptx.load_shared_u32x4(bits + (first >> 3))
        for word in range(4):
            n_before = min(max(place, first) - first, u32(32))
            count += ptx.popcount_u32(words[word] & u32((u64(1) << n_before) - 1))
            first += 32
    return count


@device_function
def lanes_per_pair(n_pairs, n_threads, thread):
    """Return the bits of the lanes that rank one pair, and the pair that this thread writes, if any."""
    bits = u32(0)
    while bits < 5 and n_pairs << (bits + 1) <= n_threads:
        bits += 1
    place = thread >> bits
    if thread & ((1 << bits) - 1) != 0:
        place = n_pairs
    return bits, place


@device_function
def place_in_order(lows, n_first, n_pairs, pair):
    """Return the place of a pair by position, if the first `n_first` and the others are in order each."""
    first = n_first
    end = n_pairs
    place = pair
    if pair >= n_first:
        first = u32(0)
        end = n_first
        place = pair - n_first
    place -= first
    while first < end:
        middle = (first + end) >> 1
        if lows[middle] > lows[pair]:
            first = middle + 1
        else:
            end = middle
    return place + first


class Vectors(NamedTuple):
    """Device functions for 16-byte vectors in shared memory; `vector` is a local array of `size`.

    A thread has several keys under way: four of 32 bits, or two of 64.
    """

    size: int
    load: Any
    store: Any


@functools.cache
def vectors_at(key_type: Any) -> Vectors:
    """Make the functions for one type of keys: `load(vector, address)` and `store(vector, address)`."""
    if key_type is u64:

        @device_function
        def load(vector, at):
            vector[0], vector[1] = ptx.load_shared_u64x2(at)

        @device_function
        def store(vector, at):
            ptx.store_shared_u64x2(at, vector[0], vector[1])

    else:

        @device_function
        def load(vector, at):
            vector[0], vector[1], vector[2], vector[3] = ptx.load_shared_u32x4(at)

        @device_function
        def store(vector, at):
            ptx.store_shared_u32x4(at, vector[0], vector[1], vector[2], vector[3])

    return Vectors(2 if key_type is u64 else 4, load, store)


@functools.cache
def shared_vectors(key_type: Any) -> Vectors:
    """Make the functions for the vectors of an array, by number; it begins on a multiple of 16 bytes."""
    size, load_at, store_at = vectors_at(key_type)

    @device_function
    def load(vector, array, number):
        load_at(vector, ptx.shared_address(array) + number * VECTOR)

    @device_function
    def store(vector, array, number):
        store_at(vector, ptx.shared_address(array) + number * VECTOR)

    return Vectors(size, load, store)
