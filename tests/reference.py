"""The meaning of each operator in plain NumPy: the oracles that kernels are compared with."""

import numpy as np
from ml_dtypes import bfloat16

from tests import sampling


def _numbers(x):
    """Return `x` in a type that NumPy can sort and compare; the values stay exact, and set bytes are True."""
    if x.dtype == bfloat16:
        with np.errstate(invalid="ignore"):  # widening a signalling NaN
            return x.astype(np.float32)
    return (x.view(np.uint8) != 0).astype(np.uint8) if x.dtype == bool else x


def top_k(x, k, *, axis=-1, largest=True, sorted=True, nan_last=False, indices=None, **windows):
    """NaN is the largest value and all NaNs tie, as -0.0 and 0.0 do; ties go by ascending index."""
    x = np.atleast_1d(x)
    if indices is not None or windows.get("starts") is not None or windows.get("lengths") is not None:
        return _top_k_of_rows(x, k, axis, indices, windows, largest, sorted, nan_last)
    order = np.argsort(_ranks(x, largest, nan_last), axis=axis, kind="stable")
    indices = np.take(order, range(k), axis=axis)
    if not sorted:
        indices = np.sort(indices, axis=axis)
    return np.take_along_axis(x, indices, axis=axis), indices


def _ranks(x, largest, nan_last):
    """Return numbers that ascend in the order of selection, and are equal where elements tie."""
    numbers = _numbers(x)
    with np.errstate(invalid="ignore"):  # comparing signalling NaNs
        ranks = np.unique(numbers, return_inverse=True)[1].reshape(x.shape)
        ranks = -ranks if largest else ranks
        return (
            np.where(np.isnat(x) if x.dtype.kind in "mM" else numbers != numbers, x.size, ranks)
            if nan_last
            else ranks
        )


def _top_k_of_rows(x, k, axis, numbers, windows, largest, sorted, nan_last):
    """Select from the elements of one row after the other that take part; all other results are padding."""
    n, along = x.shape[axis], np.ndim(numbers) == 1
    starts, lengths, most = (windows.get(name) for name in ("starts", "lengths", "max_length"))
    rows = np.moveaxis(x, axis, -1)
    if numbers is not None and not along:
        numbers = np.moveaxis(np.broadcast_to(numbers, x.shape), axis, -1)
    shapes = [
        rows.shape[:-1],
        np.shape(0 if starts is None else starts),
        np.shape(0 if lengths is None else lengths),
    ]
    shape = np.broadcast_shapes(*shapes)
    rows = np.broadcast_to(rows, (*shape, n))
    numbers = None if numbers is None else np.broadcast_to(numbers, rows.shape)
    values = np.full((*shape, k), padding(x.dtype, largest))
    results = np.full(values.shape, -1).astype(np.int64 if numbers is None else numbers.dtype)
    for place in np.ndindex(*shape):
        begin = 0 if starts is None else int(np.broadcast_to(starts, shape)[place])
        end = n if lengths is None else begin + max(int(np.broadcast_to(lengths, shape)[place]), 0)
        begin, end = min(max(begin, 0), n), max(min(end, n), 0)
        positions = np.arange(begin, end)[:most]
        given = positions
        if numbers is not None:
            positions = positions[numbers[place][positions] != np.array(-1).astype(numbers.dtype)]
            given = numbers[place][positions]
        order = np.lexsort((positions, given, _ranks(rows[place][positions], largest, nan_last)))[:k]
        if not sorted:
            order = order[np.lexsort((positions[order], given[order]))]
        values[place][: len(order)] = rows[place][positions[order]]
        results[place][: len(order)] = given[order]
    last = axis if len(shape) == x.ndim - 1 else -1
    return np.moveaxis(values, -1, last), np.moveaxis(results, -1, last)


def padding(dtype, largest):
    """Return the value of `dtype` that no element loses to."""
    dtype = np.dtype(dtype)
    lowest, highest = -np.inf, np.inf
    if dtype.kind == "b":
        lowest, highest = False, True
    elif dtype.kind in "iu":
        lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.array(lowest if largest else highest, dtype)


sample = sampling.sample


def nonzero_coordinates(x, *, size=None, fill_value=0):
    """NaN is non-zero, -0.0 is zero; one row per non-zero element, one column per dimension.

    The rows that are left have the value `fill_value`, or one for each column.
    """
    with np.errstate(invalid="ignore"):
        found = np.argwhere(_numbers(x) != 0)
    rows = len(found) if size is None else size
    coordinates = np.full((rows, x.ndim), fill_value)
    coordinates[: len(found)] = found[:rows]
    return coordinates, np.array(len(found))


def gather_nd(x, indices, *, batch_dims=0, mode="raise", fill_value=0, wrap_negative=True):
    """ONNX GatherND; a coordinate counts from the end where it is negative, or is out of range."""
    end = batch_dims + indices.shape[-1]
    bounds = x.shape[batch_dims:end]
    output = np.zeros(indices.shape[:-1] + x.shape[end:], x.dtype)
    if mode == "fill":
        output[...] = np.array(fill_value, x.dtype)
    for place in np.ndindex(indices.shape[:-1]):
        coordinates = [int(index) for index in indices[place]]
        lowest = [-n if wrap_negative else 0 for n in bounds]
        if not all(low <= i < n for low, i, n in zip(lowest, coordinates, bounds, strict=True)):
            if mode == "raise":
                raise IndexError(place)
            if mode == "fill":
                continue
        counted = [i + n if i < 0 and wrap_negative else i for i, n in zip(coordinates, bounds, strict=True)]
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
