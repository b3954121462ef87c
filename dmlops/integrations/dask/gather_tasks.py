"""The tasks of a gather across chunks: sort tuples by chunk, answer them, merge the answers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any

import numpy as np

import dmlops
from dmlops.integrations.dask import chunks
from dmlops.types.array_types import Mode

WHERE_X, WHERE_INDICES = "gather_nd.x", "gather_nd.indices"


def check_range(indices: Any, bounds: Sequence[int], mode: Mode) -> None:
    """Raise the error of a gather from an array with these bounds.

    Raises
    ------
    IndexOutOfRangeError
        If a tuple is out of range.
    """
    if bounds and (mode == "raise" or (mode == "clip" and 0 in bounds)):
        # An array of any size in a single byte.
        element = np.zeros_like(indices, bool, shape=(1,) * len(bounds))
        stand_in = np.broadcast_to(element, bounds)
        # DirectML's levels say nothing about the stand-in.
        with dmlops.feature_level(dmlops.FeatureLevel.EXTENDED):
            dmlops.gather_nd(stand_in, indices, mode=mode)


@dataclass(frozen=True)
class TuplesByChunk:
    """The tuples of a chunk of indices, for each chunk of `x` those that point into it.

    Attributes
    ----------
    sizes : tuple of int
        Those of the chunk of indices, without the last one.
    places : list of array
        Where in the chunk of indices, of which the tuples are counted in element order, they stand.
    tuples : list of array
        Their coordinates within the chunk of `x`.
    """

    sizes: tuple[int, ...]
    places: list[Any]
    tuples: list[Any]


def sort_by_chunk(indices: Any, *, chunks_of_x: Sequence[Sequence[int]], mode: Mode) -> TuplesByChunk:
    """Sort the tuples of a chunk of indices, after `check_range`.

    Parameters
    ----------
    indices : array
        The chunk.
    chunks_of_x : sequence of sequence of int
        The sizes of the chunks along each dimension that is indexed.
    mode : str
        As the function `gather_nd` takes it.
    """
    chunks.check_not_masked(indices, WHERE_INDICES)
    check_range(indices, tuple(map(sum, chunks_of_x)), mode)
    sizes = indices.shape[:-1]
    columns = indices.reshape(math.prod(sizes), indices.shape[-1]).T
    # Chunks of the indexed dimensions are numbered in element order.
    number, n_chunks = np.zeros_like(columns[0], "int64"), 1
    is_in = np.ones_like(columns[0], bool)
    within = []
    for column, of_dimension in zip(columns, chunks_of_x, strict=True):
        bound = sum(of_dimension)
        coordinates = _from_start(column, bound)
        if mode == "clip":
            coordinates = np.clip(coordinates, 0, bound - 1)
        is_in &= (coordinates >= 0) & (coordinates < bound)
        starts = np.asarray(np.cumsum([0, *of_dimension[:-1]]), like=coordinates)
        chunk = np.searchsorted(starts[1:], coordinates, side="right")
        within.append(coordinates - starts[chunk])
        number, n_chunks = number * len(of_dimension) + chunk, n_chunks * len(of_dimension)
    number = np.where(is_in, number, n_chunks)
    places = np.argsort(number)
    ends = np.searchsorted(number[places], np.arange(n_chunks + 1, like=number)).tolist()
    tuples = np.stack(within, axis=-1)[places]
    slices = list(starmap(slice, pairwise(ends)))
    return TuplesByChunk(sizes, [places[part] for part in slices], [tuples[part] for part in slices])


def _from_start(indices: Any, bound: int) -> Any:
    """Return indices as int64 that count from the start; those out of range stay out of range."""
    if indices.dtype == "uint64":
        indices = np.minimum(indices, np.uint64(np.iinfo("int64").max))
    indices = indices.astype("int64")
    return np.where(indices < 0, indices + bound, indices)


def nothing(_: Any) -> None:
    """Wait for tasks: if all tuples are sorted before a chunk of `x` is computed, it is freed at once."""


def answer(x: Any, by_chunk: TuplesByChunk, chunk: int, _: None = None) -> Any:
    """Return the elements that the tuples for a chunk of `x` point at."""
    # Every tuple is in range, and clamping is the cheapest mode.
    return dmlops.gather_nd(x, chunks.beside(x, by_chunk.tuples[chunk]), mode="clip")


def merge(by_chunk: TuplesByChunk, named: Sequence[int], answers: Sequence[Any]) -> Any:
    """Return the answers of chunks of `x` at the positions of their tuples, and zeros elsewhere."""
    copied = answers[0].shape[1:]
    output = np.zeros_like(answers[0], shape=(math.prod(by_chunk.sizes), *copied))
    for chunk, answer in zip(named, answers, strict=True):
        output[chunks.beside(output, by_chunk.places[chunk])] = answer
    return output.reshape((*by_chunk.sizes, *copied))
