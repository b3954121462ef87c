"""Arbitrary arguments of functions: an answer, or an error that names the argument.

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
from dmlops import DmlError, TensorDataType
from tests import reference
from tests.data import as_strided, bits
from tests.test_descriptor_fuzz import ANYTHING, EXAMPLES, LONGEST_TEXT

X = np.arange(6, dtype="float32").reshape(2, 3)
# Arguments that every call needs, and all others.
GOOD = {
    "top_k": {"x": X, "k": 1},
    "nonzero_coordinates": {"x": X},
    "gather_nd": {"x": X, "indices": np.zeros((1, 1), int)},
    "diagonal_matrix": {"x": X},
}
OPTIONS = {
    "top_k": (
        "axis",
        "largest",
        "sorted",
        "starts",
        "lengths",
        "max_length",
        "indices",
        "nan_last",
        "index_dtype",
    ),
    "nonzero_coordinates": ("size", "fill_value", "index_dtype"),
    "gather_nd": ("batch_dims", "mode"),
    "diagonal_matrix": ("shape", "dtype", "value", "begin", "end", "like"),
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


def call(name, arguments):
    """Call a function; what every call needs is given by position."""
    options = {field: value for field, value in arguments.items() if field not in GOOD[name]}
    return getattr(dmlops, name)(*(arguments[field] for field in GOOD[name]), **options)


@st.composite
def outputs(draw, name):
    """Return what may be given as `out`: what fits the results, or something like it."""
    results = call(name, GOOD[name])
    made = []
    for result in results if isinstance(results, tuple) else [results]:
        shape = result.shape
        changed = (
            np.zeros((*shape, 1), result.dtype),
            result.astype(draw(st.sampled_from(["float64", "uint32", "int64"]))),
            as_strided(np.zeros(99, result.dtype), shape, [0] * len(shape)),
            np.zeros_like(result, order="F"),
            GOOD[name]["x"],
            draw(ANYTHING),
        )
        made.append(draw(st.sampled_from([np.zeros_like(result), *changed])))
    return draw(st.sampled_from([tuple(made), made, made[0], [*made, *made]]))


@st.composite
def calls(draw):
    """Return a function, and arguments of which some may be anything."""
    name = draw(st.sampled_from(sorted(GOOD)))
    arguments = dict(GOOD[name])
    for _ in range(draw(st.integers(1, 3))):
        field = draw(st.sampled_from([*GOOD[name], *OPTIONS[name], "out", "stream"]))
        # A result that does not fit into memory is not a defect.
        small = SMALL | NO_ARRAYS
        anything = small if field in ("size", "shape") else small | EDGES | DTYPE_ARGUMENTS | ANYTHING
        arguments[field] = draw(outputs(name) if field == "out" else anything)
    return name, arguments


def expected(name, arguments):
    """Return what plain NumPy answers to arguments that were accepted, without rows that are undefined."""
    options = {
        field: arguments[field] for field in arguments if field not in ("out", "stream", "index_dtype")
    }
    x = np.asarray(options.pop("x"))
    numbers = {"k", "axis", "size", "fill_value", "batch_dims", "begin", "end", "max_length"}
    for field in numbers & options.keys():
        options[field] = None if options[field] is None else int(options[field])
    if name == "top_k":
        for field in {"starts", "lengths", "indices"} & options.keys():
            options[field] = None if options[field] is None else np.asarray(options[field])
        return reference.top_k(x, **options)
    if name == "gather_nd":
        return (reference.gather_nd(x, np.asarray(options.pop("indices")), **options),)
    if name == "diagonal_matrix":
        given = {field: options[field] for field in ("value", "begin", "end") if field in options}
        return (reference.diagonal_matrix(x, **given),)
    if options.get("fill_value") is None:
        options = {}
    elif "out" in arguments:
        options["size"] = len(arguments["out"][0])
    return reference.nonzero_coordinates(x, **options)


def outcome(call):
    """Return the bits of the results, or the error and its text."""
    try:
        results = call()
    except (DmlError, TypeError) as error:
        return type(error), str(error)
    results = results if isinstance(results, tuple) else (results,)
    return [(array.shape, array.dtype, bits(array).tobytes()) for array in results]


@pytest.mark.exhaustive
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(calls())
def test_functions(asked):
    name, arguments = asked
    found = []
    for _ in range(3):
        found.append(outcome(lambda: call(name, arguments)))
        call(name, GOOD[name])
    first, again, third = found
    assert again == third == first
    if isinstance(first, tuple):
        assert re.match(rf"{name}\.({'|'.join(arguments)}|shape)(\[[01]\])?: got ", first[1]), first
        assert len(first[1]) < LONGEST_TEXT
    elif arguments["x"] is not None:
        for (shape, dtype, content), right in zip(first, expected(name, arguments), strict=True):
            answer = np.frombuffer(content, dtype).reshape(shape)
            n_defined = min(len(answer), len(right)) if name == "nonzero_coordinates" and shape else None
            defined = slice(n_defined) if shape else ...
            np.testing.assert_array_equal(answer[defined], right.astype(dtype)[defined])
