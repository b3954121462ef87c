"""Arguments and checks of chunks that the functions on chunked arrays share."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array

from dmlops import TensorDesc
from dmlops.array_libraries.base import describe_numpy_like
from dmlops.types.errors import DmlError, error_text, refuse


def as_dask_array(x: object, where: str) -> da.Array:
    """Return an argument as a dask array without masked elements."""
    try:
        # dask cannot choose chunks for an array without elements.
        x = da.from_array(x, chunks=-1) if isinstance(x, np.ndarray) and x.size == 0 else da.asarray(x)
    except (NotImplementedError, TypeError, ValueError) as error:
        reason = "dask.array.asarray makes no array of it"
        raise TypeError(error_text(where, type(x).__name__, reason, "it must be an array")) from error
    if not isinstance(x, da.Array):  # but another collection of dask's
        raise TypeError(error_text(where, type(x).__name__, "it is not an array", "it must be an array"))
    check_not_masked(meta_from_array(x), where)
    return x


def check_not_masked(chunk: object, where: str) -> None:
    """Refuse masked arrays. The chunks decide, because the description of a dask array may be wrong."""
    if isinstance(chunk, np.ma.MaskedArray):
        reason, allowed = "no operator takes a mask", "call dask.array.ma.filled(x, value) first"
        raise TypeError(error_text(where, "a masked array", reason, allowed))


def describe(x: da.Array, where: str) -> TensorDesc:
    """Describe an array for the checks; sizes that are unknown count as 1."""
    sizes = tuple(1 if math.isnan(size) else size for size in x.shape)
    return describe_numpy_like(x.dtype, sizes, (0,) * x.ndim, where)


@contextmanager
def mark_unknown_sizes(*arrays: Any) -> Iterator[None]:
    """Say in errors that sizes of these arrays, if there are any that dask does not know, are shown as 1."""
    try:
        yield
    except DmlError as error:
        if not any(math.isnan(size) for x in arrays for size in x.shape):
            raise
        message = f"{error} (sizes that Dask does not know are shown as 1)"
        raise type(error)(message) from None


def check_known(x: da.Array, axis: int, where: str) -> None:
    """Refuse an axis along which dask does not know how many elements the chunks have."""
    if math.isnan(x.shape[axis]):
        got = f"chunks of unknown sizes along axis {axis % x.ndim}"
        refuse(where, got, "the result depends on them", "call compute_chunk_sizes() on it first")


def empty_like(x: object, ndim: int, dtype: Any) -> Any:
    """Return the meta of a dask array: an array of the chunks' library, without elements."""
    # dask's meta_from_array converts elements, which is impossible for structured ones.
    return np.empty_like(meta_from_array(x), dtype, shape=(0,) * ndim)


def rechunk(x: da.Array, chunks: Mapping[int, object]) -> da.Array:
    """Return an array in other chunks by axis; Dask leaves one of which all sizes are 0 as it is."""
    if x.ndim == 0 or any(x.shape):
        return x.rechunk(chunks)
    return da.empty_like(x, chunks=tuple([chunks.get(d, sizes) for d, sizes in enumerate(x.chunks)]))


def beside(x: Any, array: object) -> Any:
    """Return an array of indices in the memory of `x`, to which NumPy arrays are copied."""
    return np.asarray(array, like=x) if isinstance(array, np.ndarray) else array
