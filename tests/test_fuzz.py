"""Arbitrary arguments of functions: the right answer, or an error that names the argument.

Each call is repeated, also after a good call of its kind, and must have the same outcome.
``DMLOPS_FUZZ_EXAMPLES`` sets the number of examples per test.
"""

import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16

import dmlops
from dmlops import DmlError, IndexOutOfRangeError, TensorDataType
from tests import reference
from tests.compiled import numpy_dtype
from tests.data import DTYPES, as_strided, bits
from tests.test_descriptor_fuzz import ANYTHING, EXAMPLES, LONGEST_TEXT

PARAMETERS = {
    "top_k": ("x", "k", "axis", "largest", "index_dtype", "out", "stream"),
    "nonzero_coordinates": ("x", "size", "fill_value", "index_dtype", "out", "stream"),
    "gather_nd": ("x", "indices", "batch_dims", "mode", "out", "stream"),
    "diagonal_matrix": ("x", "shape", "dtype", "value", "begin", "end", "like", "out", "stream"),
}
GOOD = {
    "top_k": ((np.ones((2, 3), "float32"), 1), {}),
    "nonzero_coordinates": ((np.ones((2, 3), "float32"),), {}),
    "gather_nd": ((np.ones((2, 3), "float32"), np.zeros((1, 1), int)), {}),
    "diagonal_matrix": ((np.ones((2, 3), "float32"),), {}),
}
# Another test has sizes that fit into no memory: a failed allocation is not a defect.
SMALL = st.integers(-4, 9)
EDGES = st.sampled_from([-(2**70), -(2**63), -(2**31), 2**63 - 1, 2**63, 2**64, 2**70])
DTYPE_ARGUMENTS = st.sampled_from(
    [
        *(None, "int64", "uint32", "int32", "uint64", np.int64, np.dtype("int32"), "float16", "uint8", ">i8"),
        *(TensorDataType.UINT32, TensorDataType.FLOAT32, bfloat16, "bfloat16", int, float, bool),
    ]
)
NO_ARRAYS = st.sampled_from(
    [
        *(np.ma.masked_array([1.0, 2.0], [0, 1]), np.ones(2, "complex64"), np.ones(2, ">f4")),
        *(np.ones(2, object), np.array("x"), np.zeros(2, "datetime64[s]"), range(3), {1: 2}),
        *("hello", b"x", [], [[]], [[1], [1, 2]], [1, 2, 3], [[True]], [2**70], [-1, 2**63]),
        *(3, 2.5, True, np.float16(1), np.array(7), memoryview(b"abc")),
        *(np.zeros((0, 3)), np.zeros((2, 0), int), np.zeros((1,) * 9), np.zeros((2, 2), "f4").T),
    ]
)
DATA_TYPES = st.sampled_from(DTYPES)


@st.composite
def arrays(draw):
    """Return an array of few elements, in any layout."""
    shape = draw(st.lists(st.integers(0, 4) | st.integers(1, 3), max_size=4))
    dtype = draw(DATA_TYPES)
    values = np.array(draw(st.lists(st.integers(0, 3), min_size=1, max_size=8)))
    x = np.resize(values, shape).astype(dtype)
    layout = draw(st.integers(0, 9))
    if layout == 1:
        x = x.T.copy().T
    elif layout == 2:
        x = np.repeat(x, 2, -1)[..., ::2] if x.ndim else x
    elif layout == 3:
        x = np.flip(x)
    elif layout == 4 and x.ndim:
        x = np.broadcast_to(x[..., :1], x.shape)
    elif layout == 5:
        x.flags.writeable = False
    elif layout == 6:
        memory = np.zeros(x.nbytes + 1, np.uint8)
        view = np.frombuffer(memory, x.dtype, x.size, 1) if x.size else x
        view = view.reshape(x.shape)
        view[...] = x
        x = view
    elif layout == 7:
        x = x.tolist() if x.dtype.kind in "biu" else x
    return x


@st.composite
def outputs(draw, operands, results):
    """Return what may be given as `out`: what fits the results, or something like it."""
    made = []
    for result in results:
        out = np.zeros_like(result)
        change = draw(st.integers(0, 11))
        if change == 1:
            out = np.zeros((*result.shape, 1), result.dtype)
        elif change == 2:
            out = out.astype(draw(DATA_TYPES))
        elif change == 3:
            out.flags.writeable = False
        elif change == 4:
            out = as_strided(np.zeros(99, result.dtype), result.shape, [0] * result.ndim)
        elif change == 5:
            out = np.zeros_like(result, order="F")
        elif change == 6:
            out = draw(st.sampled_from(operands))
        elif change == 7:
            out = draw(ANYTHING)
        made.append(out)
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.sampled_from([(), [], 0, "", {}, (None,), (None, None), made[:1], [*made, *made]]))
    if len(made) == 1:
        return made[0]
    return made if kind == 1 else tuple(made)


@st.composite
def good_calls(draw):
    """Return a function, and arguments that mostly fit it."""
    name = draw(st.sampled_from(sorted(PARAMETERS)))
    x = draw(arrays())
    array = np.asarray(x)
    rank = max(array.ndim, 1)
    if name == "top_k":
        axis = draw(st.integers(-rank, rank - 1))
        size = (array.shape or (1,))[axis]
        positional = x, draw(st.integers(0, size))
        options = {"axis": axis, "largest": draw(st.booleans())}
        options |= draw(st.fixed_dictionaries({}, optional={"index_dtype": DTYPE_ARGUMENTS}))
    elif name == "nonzero_coordinates":
        positional = (x,)
        extra = {"size": st.none() | st.integers(0, 9), "index_dtype": DTYPE_ARGUMENTS}
        options = draw(st.fixed_dictionaries({}, optional=extra))
        if options.get("size") is not None:
            options["fill_value"] = draw(st.integers(0, 9))
    elif name == "gather_nd":
        batch = draw(st.integers(0, rank - 1))
        width = draw(st.integers(1, max(rank - batch, 1)))
        shape = (*array.shape[:batch], *draw(st.lists(st.integers(0, 3), max_size=2)), width)
        picks = np.resize(draw(st.lists(st.integers(-2, 2), min_size=1, max_size=6)), shape)
        positional = x, picks.astype(draw(st.sampled_from(["int64", "int32", "uint32", "uint64"])))
        options = {"batch_dims": batch, "mode": draw(st.sampled_from(["raise", "clip", "fill"]))}
    else:
        positional = (x,)
        options = {"value": draw(st.integers(0, 1)), "begin": draw(SMALL), "end": draw(SMALL)}
        if draw(st.booleans()):
            shape = tuple(draw(st.lists(st.integers(0, 4), min_size=2, max_size=3)))
            positional, options = (), options | {"shape": shape, "dtype": draw(DTYPE_ARGUMENTS)}
    return name, positional, options


@st.composite
def calls(draw):
    """Return a function and arguments of which some may be anything."""
    name, positional, options = draw(good_calls())
    anything = st.one_of(SMALL, EDGES, NO_ARRAYS, DTYPE_ARGUMENTS, ANYTHING)
    if draw(st.integers(0, 2)) == 0:
        try:
            results = expected(name, positional, options)
        except Exception:
            results = (np.zeros((2, 2)),) * (2 if name in ("top_k", "nonzero_coordinates") else 1)
        operands = [np.asarray(array) for array in positional if isinstance(array, np.ndarray)]
        options["out"] = draw(outputs(operands or [np.zeros(3)], results))
        options.pop("size", None)
        options.pop("fill_value", None)
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        place = draw(st.integers(0, len(PARAMETERS[name]) - 1))
        # A result that does not fit into memory is not a defect.
        strategy = SMALL | NO_ARRAYS if PARAMETERS[name][place] in ("size", "shape") else anything
        if place < len(positional):
            changed = list(positional)
            changed[place] = draw(strategy)
            positional = tuple(changed)
        elif place >= len(GOOD[name][0]):
            options[PARAMETERS[name][place]] = draw(strategy)
    return name, positional, options


def expected(name, positional, options):
    """Return what NumPy answers to a call that was good."""
    options = dict(options)
    out = options.pop("out", None)
    index_dtype = options.pop("index_dtype", None)
    options.pop("stream", None)
    operands = [np.asarray(array) for array in positional[: 2 if name == "gather_nd" else 1]]
    if name in ("top_k", "nonzero_coordinates"):
        data_type = isinstance(index_dtype, TensorDataType)
        dtype = np.dtype(numpy_dtype(index_dtype) if data_type else index_dtype or "int64")
        dtype = out[1].dtype if out is not None and index_dtype is None else dtype
    if name == "top_k":
        (x,) = operands
        axis = int(options.get("axis", -1))
        chosen = {"axis": axis, "largest": bool(options.get("largest", True))}
        values, indices = reference.top_k(np.atleast_1d(x), int(positional[1]), **chosen)
        return values, indices.astype(dtype)
    if name == "nonzero_coordinates":
        (x,) = operands
        size, fill = options.get("size"), options.get("fill_value")
        if out is not None:
            size = len(out[0])
        size = None if size is None else int(size)
        found, count = reference.nonzero_coordinates(
            x, size=size, fill_value=0 if fill is None else int(fill)
        )
        return found.astype(dtype), count.astype(dtype)
    if name == "gather_nd":
        x, picks = operands
        batch, mode = int(options.get("batch_dims", 0)), options.get("mode", "raise")
        return (reference.gather_nd(x, picks, batch_dims=batch, mode=mode),)
    band = {key: options[key] for key in ("begin", "end") if key in options}
    band = {key: int(value) for key, value in band.items()}
    if operands and positional[0] is not None:
        return (reference.diagonal_matrix(operands[0], value=options.get("value", 1), **band),)
    shape, dtype, like = options.get("shape"), options.get("dtype"), options.get("like")
    given = out if like is None else like
    if shape is None:
        shape = out.shape
    if dtype is None:
        dtype = float if given is None else np.asarray(given).dtype
    dtype = numpy_dtype(dtype) if isinstance(dtype, TensorDataType) else np.dtype(dtype)
    shape = tuple(int(size) for size in shape)
    return (reference.diagonal_matrix(shape=shape, dtype=dtype, value=options.get("value", 1), **band),)


def outcome(call):
    """Return the bits of the results, or the error and its text."""
    try:
        results = call()
    except (DmlError, TypeError) as error:
        return type(error), str(error)
    results = results if isinstance(results, tuple) else (results,)
    return [(array.shape, array.dtype, bits(array).tobytes()) for array in results]


def is_error(found):
    return isinstance(found, tuple)


@pytest.mark.exhaustive
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(calls())
def test_functions(call):
    name, positional, options = call
    function = getattr(dmlops, name)

    def run():
        return function(*positional, **options)

    first = outcome(run)
    again = outcome(run)
    positional_good, options_good = GOOD[name]
    function(*positional_good, **options_good)
    third = outcome(run)
    if is_error(first):
        assert again == third == first
        assert re.match(rf"{name}\.({'|'.join(PARAMETERS[name])})(\[[01]\])?: got ", first[1]), first
        assert len(first[1]) < LONGEST_TEXT
        if first[0] is IndexOutOfRangeError:
            with pytest.raises(IndexError):
                expected(name, positional, options)
        return
    right = expected(name, positional, options)
    rows = None
    if name == "nonzero_coordinates" and options.get("fill_value") is None:
        rows = int(right[1])  # the others are undefined
    for found in (first, again, third):
        for (shape, dtype, data), array in zip(found, right, strict=True):
            if name == "nonzero_coordinates" and array.ndim == 0:
                assert int(np.frombuffer(data, dtype)[0]) == int(array)
                continue
            assert (shape, dtype) == (array.shape, array.dtype)
            answer = np.frombuffer(data, bits(array).dtype).reshape(shape)
            defined = ... if rows is None else slice(rows)
            np.testing.assert_array_equal(answer[defined], bits(array)[defined])
