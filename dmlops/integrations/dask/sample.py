"""Tokens of chunked logits: each chunk of rows is drawn by itself."""

from typing import Any

import dask.array as da

import dmlops
from dmlops.functions.sample import SPEC, split
from dmlops.integrations.dask import chunks
from dmlops.operators.sample import PARAMETERS, infer_sample
from dmlops.types.data_types import index_data_type, numpy_dtype
from dmlops.types.errors import refuse


def sample(
    logits: object,
    seeds: object,
    *,
    steps: object = 0,
    temperature: object = 1.0,
    k: object = None,
    top_p: object = 1.0,
    min_p: object = 0.0,
    index_dtype: object = "int64",
) -> da.Array:
    """Return one token per row of logits, drawn by a seed, as `dmlops.sample` does.

    Parameters
    ----------
    logits : dask.array.Array
        Of shape (..., n), with one chunk along the last dimension. Arrays of NumPy and lists are converted.
    seeds, steps, temperature, k, top_p, min_p
        As in `dmlops.sample`: numbers, or arrays of NumPy or Dask that broadcast to the shape of `logits`
        without the last dimension.
    index_dtype : data type
        The type of the tokens: uint32, uint64, int32 or int64.

    Returns
    -------
    dask.array.Array
        One token per row, in the shape and the chunks of `logits` without the last dimension.

    Raises
    ------
    InvalidDescriptorError
        If the last dimension has several chunks, an array does not fit, or a parameter is an array and sizes
        of other dimensions are unknown.

    Notes
    -----
    Each task reads one chunk of `logits`, and the part of each array that belongs to its rows.

    Examples
    --------
    >>> import dask.array as da
    >>> logits = da.asarray([[1.0, 3.0, 2.0], [0.0, 0.0, 9.0]], chunks=(1, 3))
    >>> sample(logits, [1, 2], temperature=0.5).compute()
    array([2, 2])
    """
    x = chunks.as_dask_array(logits, "sample.logits")
    given = dict(zip(PARAMETERS, (seeds, steps, temperature, k, top_p, min_p), strict=True))
    names, found, _ = split(list(given.values()))
    where = [f"sample.{name}" for name in names]
    arrays = [chunks.as_dask_array(array, place) for array, place in zip(found, where, strict=True)]
    index_type = index_data_type(index_dtype, "sample.index_dtype")
    with chunks.mark_unknown_sizes(x, *arrays):
        described = [chunks.describe(array, place) for array, place in zip(arrays, where, strict=True)]
        parameters = dict(zip(names, described, strict=True))
        infer_sample(SPEC.words, chunks.describe(x, "sample.logits"), index_type, parameters)
    if x.numblocks[-1] > 1:
        got = f"{x.numblocks[-1]} chunks along the last dimension"
        refuse("sample.logits", got, "a token depends on its whole row", "call rechunk({-1: -1}) on it first")
    if arrays:
        for d in range(x.ndim - 1):
            chunks.check_known(x, d, "sample.logits")
    of_rows = dict(enumerate(x.chunks[:-1]))
    rows = [chunks.rechunk(da.broadcast_to(array, x.shape[:-1]), of_rows)[..., None] for array in arrays]
    options = {name: value for name, value in given.items() if name not in names}
    dtype = numpy_dtype(index_type)
    return da.map_blocks(
        _sample_chunk,
        x,
        *rows,
        names=names,
        options=options | {"index_dtype": dtype},
        drop_axis=x.ndim - 1,
        meta=chunks.empty_like(x, x.ndim - 1, dtype),
    )


def _sample_chunk(x: object, *others: object, names: tuple[str, ...], options: dict[str, Any]) -> object:
    rows = {name: chunks.beside(x, array)[..., 0] for name, array in zip(names, others, strict=True)}
    return dmlops.sample(x, **rows, **options)
