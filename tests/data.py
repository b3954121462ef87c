"""Difficult values and memory layouts for tests, and bitwise comparison."""

import zlib

import numpy as np
from ml_dtypes import bfloat16

INTEGERS = tuple(np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64))
FLOATS = (*(np.dtype(f"float{bits}") for bits in (16, 32, 64)), np.dtype(bfloat16))
DTYPES = (np.dtype(bool), *INTEGERS, *FLOATS)
INDEX_DTYPES = tuple(np.dtype(name) for name in ("uint32", "uint64", "int32", "int64"))


def random(name):
    """Return a generator that is the same for `name` in every process."""
    return np.random.default_rng(zlib.crc32(str(name).encode()))


def unsigned(dtype):
    """Return the unsigned type as wide as `dtype`."""
    return np.dtype(f"uint{8 * np.dtype(dtype).itemsize}")


def bits(array):
    """Return the elements' bit patterns."""
    return np.ascontiguousarray(array).view(unsigned(array.dtype)).reshape(array.shape)


def float_from_bits(patterns, dtype):
    """Return the floats that have these bit patterns."""
    return np.array(patterns, unsigned(dtype)).view(dtype)


def special_values(dtype):
    """Return the values of `dtype` at the edges: zeros, extremes, subnormals, infinities, NaNs."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype in INTEGERS:
        lowest, highest = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        return np.array(
            [lowest, lowest + 1, max(lowest, -1), 0, 1, highest // 2, highest - 1, highest], dtype
        )
    infinity = int(bits(np.asarray(np.inf, dtype)))
    lowest_normal = infinity & -infinity
    quiet = lowest_normal >> 1
    magnitudes = [
        *(0, 1, lowest_normal - 1, lowest_normal, int(bits(np.asarray(1, dtype)))),
        *(infinity - 1, infinity, infinity + 1, infinity | quiet, infinity | quiet | 5),
        (1 << (8 * dtype.itemsize - 1)) - 1,
    ]
    sign = 1 << (8 * dtype.itemsize - 1)
    return float_from_bits([*magnitudes, *(sign | magnitude for magnitude in magnitudes)], dtype)


def sample(dtype, shape, name):
    """Return random bit patterns, half of them special values, so that ties and NaNs abound."""
    rng = random(name)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    patterns = np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
    return np.where(rng.random(shape) < 0.5, rng.choice(special_values(dtype), shape), patterns)


def as_strided(start, shape, strides):
    """View the memory from `start` on with `strides` in elements."""
    return np.lib.stride_tricks.as_strided(start, shape, [stride * start.itemsize for stride in strides])


def _every_other(x):
    view = np.zeros([2 * n + 1 for n in x.shape], x.dtype)[(slice(1, None, 2),) * x.ndim]
    view[...] = x
    return view


def _padded_rows(x):
    view = np.zeros((*x.shape[:-1], x.shape[-1] + 3), x.dtype)[..., 1:-2]
    view[...] = x
    return view


def read_only(x):
    """Return a copy that may not be written to."""
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "fortran": np.asfortranarray,
    "rotated": lambda x: np.moveaxis(np.moveaxis(x, 0, -1).copy(), -1, 0),
    "reversed": lambda x: np.flip(np.flip(x).copy()),
    "reversed_rows": lambda x: np.flip(np.flip(x, -1).copy(), -1),
    "every_other": _every_other,
    "padded_rows": _padded_rows,
    "broadcast_first": lambda x: np.broadcast_to(x[:1], x.shape),
    "broadcast_last": lambda x: np.broadcast_to(x[..., :1], x.shape),
    "read_only": read_only,
}

OUTPUT_LAYOUTS = ("fortran", "rotated", "reversed", "reversed_rows", "every_other", "padded_rows")


def unaligned(x):
    """Return `x` in memory that is not aligned to its element size."""
    view = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def storage(x):
    """Return a 1-D copy of the memory that `x` spans, strides in elements, the first element's place."""
    strides = [stride // x.itemsize for stride in x.strides]
    if x.size == 0:
        return np.empty(0, x.dtype), strides, 0
    ends = [(n - 1) * stride for n, stride in zip(x.shape, strides, strict=True)]
    offset = -sum(end for end in ends if end < 0)
    extent = 1 + sum(map(abs, ends))
    lowest = x[(*(slice(None, None, -1 if end < 0 else 1) for end in ends), ...)]
    return as_strided(lowest, (extent,), (1,)).copy(), strides, offset


def assert_same(actual, expected):
    """Check that two arrays agree in shape, data type and every bit."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(bits(actual), bits(expected))
