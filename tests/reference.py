"""The meaning of each operator in plain NumPy: the oracles that kernels are compared with."""

import numpy as np
from ml_dtypes import bfloat16


def _numbers(x):
    """Return `x` in a type that NumPy can sort and compare; the values stay exact."""
    if x.dtype == bfloat16:
        with np.errstate(invalid="ignore"):  # widening a signalling NaN
            return x.astype(np.float32)
    return x.astype(np.uint8) if x.dtype == bool else x


def top_k(x, k, *, axis=-1, largest=True):
    """NaN is the largest value and all NaNs tie, as -0.0 and 0.0 do; ties go by ascending index."""
    with np.errstate(invalid="ignore"):  # comparing signalling NaNs
        rank = np.unique(_numbers(x), return_inverse=True)[1].reshape(x.shape)
    order = np.argsort(-rank if largest else rank, axis=axis, kind="stable")
    indices = np.take(order, range(k), axis=axis)
    return np.take_along_axis(x, indices, axis=axis), indices


def nonzero_coordinates(x, *, size=None, fill_value=0):
    """NaN is non-zero, -0.0 is zero; one row per non-zero element, one column per dimension."""
    with np.errstate(invalid="ignore"):
        found = np.argwhere(_numbers(x) != 0)
    rows = len(found) if size is None else size
    coordinates = np.full((rows, x.ndim), fill_value)
    coordinates[: len(found)] = found[:rows]
    return coordinates, np.array(len(found))


def gather_nd(x, indices, *, batch_dims=0, mode="raise"):
    """ONNX GatherND; a coordinate counts from the end where it is negative."""
    end = batch_dims + indices.shape[-1]
    bounds = x.shape[batch_dims:end]
    output = np.zeros(indices.shape[:-1] + x.shape[end:], x.dtype)
    for place in np.ndindex(indices.shape[:-1]):
        coordinates = [int(index) for index in indices[place]]
        if not all(-n <= index < n for index, n in zip(coordinates, bounds, strict=True)):
            if mode == "raise":
                raise IndexError(place)
            if mode == "fill":
                continue
        counted = [index + n if index < 0 else index for index, n in zip(coordinates, bounds, strict=True)]
        nearest = [min(max(index, 0), n - 1) for index, n in zip(counted, bounds, strict=True)]
        output[place] = x[(*place[:batch_dims], *nearest)]
    return output


def diagonal_matrix(x=None, *, shape=None, dtype=None, value=1, begin=0, end=1):
    """Write `value` where topX is in [begin, end), or everywhere else if the bounds are swapped."""
    if x is None:
        x = np.zeros(shape, dtype)
    rows, columns = np.ogrid[: x.shape[-2], : x.shape[-1]]
    top_x = columns - rows
    use_value = (end >= begin) ^ (top_x >= begin) ^ (top_x < end)
    return np.where(use_value, np.asarray(value).astype(x.dtype), x)
