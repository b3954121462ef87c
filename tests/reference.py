"""The meaning of each operator in plain NumPy: the oracles that kernels are compared with."""

import numpy as np
from ml_dtypes import bfloat16


def _numbers(x):
    """Return `x` in a type that NumPy can sort and compare; the values stay exact, and set bytes are True."""
    if x.dtype == bfloat16:
        with np.errstate(invalid="ignore"):  # widening a signalling NaN
            return x.astype(np.float32)
    return (x.view(np.uint8) != 0).astype(np.uint8) if x.dtype == bool else x


def top_k(x, k, *, axis=-1, largest=True, sorted=True, lengths=None):
    """NaN is the largest value and all NaNs tie, as -0.0 and 0.0 do; ties go by ascending index."""
    x = np.atleast_1d(x)
    if lengths is not None:
        return _top_k_of_lengths(x, k, axis, largest, sorted, lengths)
    with np.errstate(invalid="ignore"):  # comparing signalling NaNs
        rank = np.unique(_numbers(x), return_inverse=True)[1].reshape(x.shape)
    order = np.argsort(-rank if largest else rank, axis=axis, kind="stable")
    indices = np.take(order, range(k), axis=axis)
    if not sorted:
        indices = np.sort(indices, axis=axis)
    return np.take_along_axis(x, indices, axis=axis), indices


def _top_k_of_lengths(x, k, axis, largest, sorted, lengths):
    """Select from the first elements of one row after the other; the rest of the output is padding."""
    rows = np.moveaxis(x, axis, -1)
    values = np.full((*rows.shape[:-1], k), padding(x.dtype, largest))
    indices = np.full(values.shape, -1)
    for place in np.ndindex(rows.shape[:-1]):
        row = rows[place][: max(int(lengths[place]), 0)]
        n = min(k, len(row))
        values[place][:n], indices[place][:n] = top_k(row, n, largest=largest, sorted=sorted)
    return np.moveaxis(values, -1, axis), np.moveaxis(indices, -1, axis)


def padding(dtype, largest):
    """Return the value of `dtype` that no element loses to."""
    dtype = np.dtype(dtype)
    lowest, highest = -np.inf, np.inf
    if dtype.kind == "b":
        lowest, highest = False, True
    elif dtype.kind in "iu":
        lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.array(lowest if largest else highest, dtype)


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


def diagonal_matrix(x=None, *, shape=None, dtype=None, value=1, begin=0, end=None):
    """Write `value` where topX is in [begin, end), or everywhere else if the bounds are swapped."""
    if x is None:
        x = np.zeros(shape, dtype)
    end = begin + 1 if end is None else end
    rows, columns = np.ogrid[: x.shape[-2], : x.shape[-1]]
    top_x = columns - rows
    use_value = (end >= begin) ^ (top_x >= begin) ^ (top_x < end)
    return np.where(use_value, np.asarray(value).astype(x.dtype), x)
