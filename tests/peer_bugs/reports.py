"""Reports against other libraries: what was wrong, and calls that dmlops has to answer as NumPy does."""

import numpy as np

from tests.cases import Case
from tests.data import random

INT32_MAX = 2**31 - 1
# Farther from the main diagonal than any element of any matrix.
FAR = 2**100


def replaced(x, *pairs):
    """Return an array in which the elements at these indices have other values."""
    x = x.copy()
    for index, value in pairs:
        x[index] = value
    return x


def top_k(x, k, **options):
    """Return a case of top_k; its name says the type, which some libraries lack."""
    return Case("top_k", f"{x.dtype}", lambda: (x,), (k,), options)


def nonzero(x, **options):
    """Return a case of nonzero_coordinates."""
    return Case("nonzero_coordinates", f"{x.dtype}", lambda: (x,), (), options)


def gather(x, indices, **options):
    """Return a case of gather_nd."""
    return Case("gather_nd", f"{x.dtype}", lambda: (x, np.asarray(indices)), (), options)


def band(x, begin, end, value=0):
    """Return a case of diagonal_matrix."""
    return Case(
        "diagonal_matrix", f"{x.dtype}", lambda: (x,), (), {"value": value, "begin": begin, "end": end}
    )


def triangles(x, *ks):
    """Return cases of triu and tril."""
    return [case for k in ks for case in (band(x, -FAR, k), band(x, k + 1, FAR))]


def _ties(above, ties, n):
    x = replaced(
        np.zeros(n, "float32"), (slice(above), np.arange(above) + 2), (slice(above, above + ties), 1)
    )
    return top_k(random(n).permutation(x), 2048)


# By the page on GitHub: what was wrong, and a function that returns the calls.
TOP_K = {
    "sgl-project/sglang/pull/30512": (
        "SGLang's top-k of 2048 left output slots unwritten where more than 1024 values tied at the cut",
        lambda: [_ties(889, 1536, 7613), _ties(925, 1191, 5328)],
    ),
    "sgl-project/sglang/issues/36807": (
        "SGLang's top-k lost elements where more than 4096 shared the leading bits of the k-th value",
        lambda: [top_k(1 + random("bucket").random((2, 65_536), "float32") / 1024, 2048)],
    ),
}
NONZERO = {
    "cupy/cupy/issues/569": (
        "CuPy's nonzero returned wrong coordinates beyond 128 * 65536 elements, where its grid ended",
        lambda: [nonzero(replaced(np.zeros(128 * 65536 + 1), (np.s_[-2:], 1)))],
    ),
    "jax-ml/jax/issues/7129": (
        "JAX's nonzero of a fixed size returned the same for 'only element 0' and for 'nothing'",
        lambda: [
            nonzero(np.zeros(5), size=1, fill_value=0),
            nonzero(np.eye(1, 5)[0], size=1, fill_value=0),
            nonzero(np.zeros(5), size=1, fill_value=-1, index_dtype="int64"),
        ],
    ),
    "nv-legate/cupynumeric/pull/285": (
        "cuPyNumeric's nonzero made its result in the type of the input",
        lambda: [
            nonzero(replaced(np.zeros((300, 70_000), dtype), ((299, 69_999), 1), ((256, 65_536), 1)))
            for dtype in ("uint8", "int8", "bool")
        ],
    ),
}
GATHER = {
    "apache/tvm/issues/20297": (
        "TVM's gather_nd read other memory for negative indices and for those out of range",
        lambda: [
            gather(replaced(np.full((6, 9), 99), (np.s_[1:4, 2:7], 1))[1:4, 2:7], picks, mode=mode)
            for picks in [random("tvm").integers(-20, 20, (300, 2))]
            for mode in ("clip", "fill")
        ],
    ),
    "jax-ml/jax/issues/16557": (
        "JAX counted 256 batches in the int8 of the indices, and returned NaN for the second half",
        lambda: [gather(np.arange(70_000.0)[:, None], np.zeros((70_000, 1, 1), "int32"), batch_dims=1)],
    ),
    "ggml-org/ggml/issues/877": (
        "ggml's CUDA get_rows failed beyond 65535 rows, the limit of a grid's second dimension",
        lambda: [
            gather(np.arange(2 * rows).reshape(rows, 2), np.arange(rows)[::-1, None].copy())
            for rows in (65_535, 65_536, 200_000)
        ],
    ),
}
DIAGONAL = {
    "pytorch/pytorch/pull/21067": (
        "torch's CUDA triu failed for more than 65535 matrices, the limit of a grid's second dimension",
        lambda: [
            case
            for n in (65_535, 65_536, 70_000)
            for x in [np.arange(4 * n).reshape(n, 2, 2)]
            for case in (*triangles(x, 1), *triangles(x.swapaxes(1, 2), 0))
        ],
    ),
}
ANSWERED = TOP_K | NONZERO | GATHER | DIAGONAL
