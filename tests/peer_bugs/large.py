"""Calls on arrays of 2^31 and 2^32 elements, some of which broke other libraries.

The arrays are zeros, of which few are replaced. Of most answers, the elements that are not zero are told, by
their index.
"""

from typing import Any, NamedTuple

import numpy as np

import dmlops

GB = 10**9
CHUNK = 1 << 28
FAR = 2**100


class Large(NamedTuple):
    """A call of `function` on zeros of a shape and type, with replaced elements, and further arrays.

    The answers are lists, or what is not zero in them. `n_bytes` of memory are needed; the tables
    below have GB for reports, and bytes per element for others.
    """

    shape: tuple[int, ...]
    placed: dict[Any, Any]
    function: Any
    answers: tuple[Any, ...]
    others: tuple[Any, ...] = ()
    dtype: str = "uint8"
    n_bytes: float = 3


def top_k(k, **options):
    return lambda x: dmlops.top_k(x, k, **options)


def gather(mode):
    return lambda x, indices: (dmlops.gather_nd(x, indices, mode=mode),)


def band(begin, end, **options):
    return lambda x: (dmlops.diagonal_matrix(x, value=3, begin=begin, end=end, **options),)


def _ones_but_for(n, x):
    x[:-n] = 1
    return x


def _of(n):
    """Return calls on arrays of about n elements: no index wraps around."""
    side, rows = int(n**0.5) + 1, n // 8 + 1
    places = [5, n // 2, n - 2, n - 1]
    picks = np.array([[n - 1], [2**31 - 1], [-1], [-n], [n], [2**40]])
    elements = {-1: 5, 2**31 - 1: 6}
    return {
        "one row": Large(
            (n,),
            {n - 1: 9, n // 2: 8, n // 2 - 1: 8, 5: 7},
            top_k(6),
            ([9, 8, 8, 7, 0, 0], [n - 1, n // 2 - 1, n // 2, 5, 0, 1]),
        ),
        "one row of ties": Large(
            (n,),
            {},
            lambda x: dmlops.top_k(_ones_but_for(3000, x), 2900, largest=False),
            ({}, [*range(n - 3000, n - 100)]),
        ),
        "one row with a length": Large(
            (n,),
            dict.fromkeys(places, 3),
            lambda x, n: dmlops.top_k(x, 4, sorted=False, lengths=n),
            ([0, 3, 3, 3], [0, *places[:3]]),
            others=(np.array(n - 1),),
        ),
        "many rows": Large(
            (n // 256 + 1, 256),
            {(-1, 200): 3, (-2, 100): 4},
            top_k(1),
            ({(-1, 0): 3, (-2, 0): 4}, {(-1, 0): 200, (-2, 0): 100}),
        ),
        "columns": Large(
            (3, n // 3 + 1),
            {(2, -1): 5, (1, -2): 4},
            top_k(1, axis=0),
            ({(0, -1): 5, (0, -2): 4}, {(0, -1): 2, (0, -2): 1}),
            dtype="uint8",
            n_bytes=5,
        ),
        "nonzero": Large(
            (3, n // 3 + 1),
            {(0, 0): 1, (2, 7): 1, (2, -1): 1},
            dmlops.nonzero_coordinates,
            ([[0, 0], [2, 7], [2, n // 3]], 3),
        ),
        "nonzero of a strided input": Large(
            (2, n // 2 + 1),
            {(0, -1): 1, (1, 5): 1},
            lambda x: dmlops.nonzero_coordinates(x.T),
            ([[5, 1], [n // 2, 0]], 2),
        ),
        "gather of slices": Large(
            (rows, 8),
            {-1: 5, 2**28 - 1: 6},
            gather("raise"),
            ([[5] * 8, [6] * 8, [5] * 8, [0] * 8],),
            others=(np.array([[rows - 1], [2**28 - 1], [-1], [0]]),),
        ),
        "gather of elements": Large((n,), elements, gather("fill"), ([5, 6, 5, 0, 0, 0],), (picks,)),
        "gather of nearest": Large((n,), elements, gather("clip"), ([5, 6, 5, 0, 5, 5],), (picks,)),
        "gather to a large output": Large(
            (n // 1024 + 3, 1),
            {-1: 1},
            lambda i, x: (dmlops.gather_nd(x, i, mode="clip"),),
            ({-1: 1},),
            others=(np.eye(2, 1, -1, "uint8").repeat(1024, 1),),
            dtype="int32",
        ),
        "gather by many tuples": Large(
            (n, 1),
            {-1: 2, 2**31 - 1: 1},
            lambda i, x: (dmlops.gather_nd(x, i),),
            ({-1: 2, 2**31 - 1: 1},),
            others=(np.arange(3, dtype="uint8"),),
            dtype="int32",
            n_bytes=7,
        ),
        "corner of a matrix": Large(
            (side, side), {(-1, 0): 1}, band(side - 1, FAR), ({(0, -1): 3, (-1, 0): 1},)
        ),
        "other corner": Large((side, side), {}, band(-FAR, 2 - side), ({(-1, 0): 3},)),
        "corner of columns": Large(
            (side, side), {(0, -1): 1}, lambda x: band(side - 1, FAR)(x.T), ({(0, -1): 3, (-1, 0): 1},)
        ),
        "every other column": Large(
            (side, 2 * side),
            {(-1, 0): 1},
            lambda x: band(side - 1, FAR)(x[:, ::2]),
            ({(0, -1): 3, (-1, 0): 1},),
            dtype="uint8",
            n_bytes=5,
        ),
        "wide": Large((2, n // 2 + 1), {}, band(n // 2 - 1, n // 2), ({(0, -2): 3, (1, -1): 3},)),
        "high": Large((n // 2 + 1, 2), {}, band(1 - n // 2, 2 - n // 2), ({(-2, 0): 3, (-1, 1): 3},)),
        "many matrices": Large(
            (1,),
            {},
            lambda like: band(7, 8, shape=(n // 64 + 1, 8, 8), dtype=like.dtype, like=like)(None),
            ({(..., 0, 7): 3},),
        ),
    }


# By the page on GitHub, with what was wrong.
REPORTS = {
    # torch's CUDA nonzero asked for an exabyte of memory just below INT_MAX elements.
    "pytorch/pytorch/issues/51872": Large((2**31 - 2,), {}, dmlops.nonzero_coordinates, ([], 0)),
    # JAX's take_along_axis overflowed in the type of its unsigned indices.
    "jax-ml/jax/issues/5088": Large(
        (2**31 + 10,),
        {2**31 - 1: 1, 2**31: 2, 2**31 + 3: 3},
        gather("raise"),
        ([1, 2, 3, 0],),
        others=(np.array([[2**31 - 1], [2**31], [2**31 + 3], [2**31 + 4]], "uint32"),),
    ),
}
CALLS = {name: call._replace(n_bytes=call.n_bytes * GB) for name, call in REPORTS.items()} | {
    f"{name}, 2^{bits} + 1": call._replace(n_bytes=call.n_bytes * 2**bits)
    for bits in (31, 32)
    for name, call in _of(2**bits + 1).items()
}


def zeros(library, shape, dtype="uint8"):
    """Return zeros of a library, which NumPy takes no memory for."""
    if library.name == "numpy":
        return np.zeros(shape, dtype)
    if library.name == "cupy":
        return library.cupy.zeros(shape, dtype)
    return library.torch.zeros(shape, dtype=library.dtype(dtype), device=library.device)


def check(library, name):
    """Make a call on arrays of a library, and check its answers."""
    large = CALLS[name]
    x = zeros(library, large.shape, large.dtype)
    for index, value in large.placed.items():
        x[index] = value
    results = large.function(x, *(library.from_numpy(array) for array in large.others))
    for result, answer in zip(results, large.answers, strict=True):
        if not isinstance(answer, dict):
            assert library.to_numpy(result).tolist() == answer
            continue
        n_there = 0
        for index, value in answer.items():
            part = result[index]
            assert bool((part == value).all())
            n_there += int(np.prod(part.shape))
        flat = result.reshape(-1)
        found = (flat[first : first + CHUNK] != 0 for first in range(0, flat.shape[0], CHUNK))
        assert sum(int(part.sum()) for part in found) == n_there
