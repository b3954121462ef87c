"""Elements, as bytes, of types of which kernels only move the bits, and the expected answers."""

import ml_dtypes
import numpy as np

from tests.data import random

COMPLEX = np.dtype("complex64"), np.dtype("complex128")
TIMES = tuple(np.dtype(name) for name in ("datetime64[D]", "datetime64[ns]", "timedelta64[s]", "timedelta64"))
FLOAT8 = tuple(
    np.dtype(getattr(ml_dtypes, f"float8_{name}"))
    for name in ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")
)
FLOAT8_OF_TORCH = "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"
STRUCTURED = (
    np.dtype("u1,f4"),  # 5 bytes, none of them aligned
    np.dtype("f4,u1", align=True),  # padded to 8
    np.dtype("f8,f8,i4", align=True),  # 24
    np.dtype([("a", "f4", (2,)), ("b", [("c", "M8[s]")])]),  # 16
    np.dtype("f4,S8"),  # 12
)
ALL = (*COMPLEX, *TIMES, *FLOAT8, *STRUCTURED)


class _Bytes:
    """The memory of an array, as NumPy takes it."""

    def __init__(self, array):
        self.array = array
        self.__array_interface__ = {
            "version": 3,
            "data": (array.__array_interface__["data"][0], True),
            "shape": (*array.shape, array.itemsize),
            "strides": (*array.strides, 1),
            "typestr": "|u1",
        }


def raw(x):
    """Return the bytes of an array or a scalar, one more dimension; NumPy itself copies fields alone."""
    if isinstance(x, np.generic):
        return np.frombuffer(x.tobytes(), np.uint8)
    return np.array(_Bytes(x))


def same(actual, dtype, expected):
    """Check that an array has a type, and these bytes, those between fields included."""
    assert (type(actual), actual.dtype) == (np.ndarray, dtype)
    np.testing.assert_array_equal(raw(actual), expected, strict=True)


def sample(dtype, shape):
    """Return random bytes: NaNs of any payload, NaT, bytes between fields; some elements are 0 or -0.0."""
    rng = random(("opaque", dtype, shape))
    patterns = np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), np.uint8)
    patterns = patterns.reshape(*shape, dtype.itemsize)
    signs = np.where(rng.random(patterns.shape) < 0.2, np.uint8(0x80), np.uint8(0))
    kind = rng.integers(0, 3, (*shape, 1))
    return np.choose(kind, [patterns, signs, np.uint8(0)]).view(dtype)[..., 0]


def is_nonzero(x):
    """Return which elements are not zero as NumPy has it; ml_dtypes tells it by their values."""
    if x.dtype in FLOAT8:
        return x.astype(np.float32) != 0
    found = np.zeros(x.shape, bool)
    found[np.nonzero(x)] = True
    return found


def band(shape, begin, end):
    """Return which elements a band fills."""
    rows, columns = np.ogrid[: shape[-2], : shape[-1]]
    return np.broadcast_to((begin <= columns - rows) & (columns - rows < end), shape)


def filled(x, value, begin=0, end=1):
    """Return the bytes of the answer of `diagonal_matrix`."""
    if not isinstance(value, np.generic):
        value = (
            np.zeros((), x.dtype)[()] if type(value) is int and value == 0 else np.array(value, x.dtype)[()]
        )
    return np.where(band(x.shape, begin, end)[..., None], raw(value), raw(x))


def numpy_type(name):
    """Return NumPy's type of a name that torch and JAX use too."""
    return np.dtype(getattr(ml_dtypes, name, None) or name)
