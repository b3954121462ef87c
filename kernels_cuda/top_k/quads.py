"""Shared keys by 16 bytes: four of 32 bits or two of 64, so that a thread has several of them under way."""

import functools
from typing import Any, NamedTuple

from numba import types

from kernels_cuda.ptx import (
    load_shared_u32x4,
    load_shared_u64x2,
    shared_address,
    store_shared_u32x4,
    store_shared_u64x2,
)
from kernels_cuda.runtime.compiler import device_function

u32 = types.uint32
u64 = types.uint64

QUAD_BYTES = 16


class QuadFunctions(NamedTuple):
    """Device functions for quads of a shared array, by their numbers; `quad` is a local array of `size`."""

    size: int
    load: Any
    store: Any


@functools.cache
def quad_functions(key_type: Any) -> QuadFunctions:
    """Make the functions for one type of keys; arrays begin on a multiple of 16 bytes."""

    @device_function
    def place_of(array, number):
        return shared_address(array) + number * QUAD_BYTES

    if key_type is u64:

        @device_function
        def load(quad, array, number):
            quad[0], quad[1] = load_shared_u64x2(place_of(array, number))

        @device_function
        def store(quad, array, number):
            store_shared_u64x2(place_of(array, number), quad[0], quad[1])

    else:

        @device_function
        def load(quad, array, number):
            quad[0], quad[1], quad[2], quad[3] = load_shared_u32x4(place_of(array, number))

        @device_function
        def store(quad, array, number):
            store_shared_u32x4(place_of(array, number), quad[0], quad[1], quad[2], quad[3])

    return QuadFunctions(2 if key_type is u64 else 4, load, store)
