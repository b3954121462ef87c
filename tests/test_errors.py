"""Bad arguments of functions: all error texts have one form, and come before anything is written."""

import inspect
import itertools
import re
import time

import numpy as np
import pytest

import dmlops
from dmlops import DeviceMismatchError, IndexOutOfRangeError, InvalidDescriptorError, UnsupportedFeatureError

pytestmark = pytest.mark.quick

X = np.arange(12, dtype="float32").reshape(3, 4)
INDICES = np.array([[0], [2]])
MANY = np.broadcast_to(np.uint8(0), 2**31 + 1)  # one more element than int32 can count


REFUSED = {
    InvalidDescriptorError: {
        "top_k(X, 5)": "k: got 5, but axis 1 of x has 4 elements; k must be in [0, 4]",
        "top_k(X, 1, axis=2)": "axis: got 2, but x has 2 dimensions; axis must be in [-2, 1]",
        "top_k(np.float32(1), 2)": "k: got 2, but axis 0 of x has 1 element; k must be in",
        "top_k(X, 2, lengths=[1, 2])": "lengths: got shape (2,), but x without axis 1 has shape (3,); ",
        "top_k(X, -1, starts=0)": "k: got -1, but a number of elements is negative; k must be >= 0",
        "top_k(X, 2, starts=[[1], [2]], lengths=[1, 2])": "lengths: got shape (2,), but x without axis 1 has",
        "top_k(X, 2, starts=[[1, 2]], lengths=[[1, 2, 3]])": "starts: got shape (1, 2), but with lengths, ro",
        "top_k(X, 2, axis=0, starts=[[0] * 4])": "starts: got shape (1, 4), but x without axis 0 has shape (",
        "gather_nd(X, [[2**64]])": "indices: got 18446744073709551616, but no type of 64 bits holds all of ",
        "top_k(X, 2, max_length=2)": "max_length: got 2, but there are neither starts nor lengths; slice x",
        "top_k(X, 2, starts=1, max_length=-2)": "max_length: got -2, but a size is negative; max_length must",
        "top_k(X, 2, indices=[1, 2, 3])": "indices: got shape (3,), but axis 1 of x has 4 elements, and x ha",
        "top_k(X, 2, indices=np.zeros((2, 3, 4), int))": "indices: got shape (2, 3, 4), but axis 1 of x has",
        "top_k(X, 2, indices=INDICES[:1], index_dtype='int32')": "index_dtype: got int32, but indices are in",
        "top_k(X, 2, stream=1)": "stream: got 1, but the arrays live on cpu; stream must be None",
        "nonzero_coordinates(X, size=-1)": "size: got -1, but a result cannot have fewer than 0 rows; ",
        "nonzero_coordinates(X, size=3, fill_value=-1, index_dtype='uint32')": "fill_value: got -1, but ",
        "top_k(MANY, 1, index_dtype='int32')": "index_dtype: got int32, but an index reaches 2147483648; ",
        "nonzero_coordinates(MANY, size=1, index_dtype='int32')": "index_dtype: got int32, but the count ",
        "gather_nd(X, 3)": "indices: got 0 dimensions, but ",
        "gather_nd(np.float32(1), [0])": "x: got 0 dimensions, but ",
        "gather_nd(X, np.zeros((2, 3), int))": "indices: got shape (2, 3), but 2 dimensions of x ",
        "gather_nd(X, INDICES, batch_dims=2)": "batch_dims: got 2, but x has 2 dimensions and ",
        "gather_nd(X, INDICES, batch_dims=1)": "indices: got (2, 1), but x has batches ",
        'gather_nd(X, INDICES, mode="wrap")': "mode: got 'wrap', but there is no such mode; mode must be ",
        "gather_nd(X, INDICES, fill_value=2)": "fill_value: got 2, but mode is 'raise'; fill_value needs ",
        "gather_nd(X, INDICES, mode='clip', fill_value=0.5)": "fill_value: got 0.5, but mode is 'clip'; ",
        "gather_nd(X, INDICES, mode='fill', fill_value=1e39)": "fill_value: got 1e+39, but it fills ",
        "gather_nd(X > 0, INDICES, mode='fill', fill_value=-1)": (
            "fill_value: got -1, but it fills bool; fill_value must be an integer in [0, 1]"
        ),
        "nonzero_coordinates(X, size=3, fill_value=(1,))": "fill_value: got (1,), but the coordinates ",
        "nonzero_coordinates(X, fill_value=(1, 2))": "fill_value: got (1, 2), but size is left out; ",
        "nonzero_coordinates(X, size=3, index_dtype='int32', fill_value=(1, 2**31))": (
            "fill_value: got (1, 2147483648), but coordinates are int32; it must be in"
        ),
        "diagonal_matrix([1, 2])": "x: got 1 dimension, but a matrix has height and width; ",
        "diagonal_matrix(None, shape=(3,))": "shape: got 1 dimension, but ",
        "diagonal_matrix(None, shape=(3, -1))": "shape: got (3, -1), but a size is negative; ",
        "diagonal_matrix(X, shape=(3, 4))": "shape: got (3, 4), but x is given; ",
        "diagonal_matrix(X, like=X)": "like: got array([",
        'diagonal_matrix(X, dtype="int8")': "dtype: got 'int8', but x is given; ",
        "diagonal_matrix(X, value=1j)": "value: got 1j, but it fills float32; ",
        "diagonal_matrix(np.zeros((2, 2), 'uint8'), value=256)": "value: got 256, but it fills uint8; ",
        "diagonal_matrix(np.zeros((2, 2), 'int64'), value=2.5)": "value: got 2.5, but it fills int64; ",
        "diagonal_matrix(np.zeros((2, 2), bool), value=2)": "value: got 2, but it fills bool; ",
    },
    TypeError: {
        "top_k(X, 2.0)": "k: got 2.0, but it is not an integer; k must be an integer",
        'top_k(X, 2, sorted="no")': "sorted: got 'no', but it is not a truth value; ",
        "top_k(X, 2, lengths=[1.0, 2.0, 3.0])": "lengths: got float64, but it is not an index type; ",
        "top_k(X, 2, starts=np.float64(1.0))": "starts: got float64, but it is not an index type; starts ",
        "top_k(X, 2, indices=np.zeros(4, 'uint8'))": "indices: got uint8, but it is not an index type; ",
        "top_k(X, 2, starts=1, max_length=2.0)": "max_length: got 2.0, but it is not an integer; ",
        "top_k(X, 2, nan_last=3.5)": "nan_last: got 3.5, but it is not a truth value; nan_last must be True ",
        'top_k(X, 2, index_dtype="int16")': "index_dtype: got 'int16', but it is not an index type; ",
        "top_k(X, 2, out=X)": "out: got ndarray, but there are 2 results; out must be 2 arrays",
        "gather_nd(X, np.ones((1, 1), 'uint8'))": "indices: got uint8, but it is not an index type; ",
        "gather_nd(X, INDICES, mode='fill', fill_value=[1])": "fill_value: got [1], but it fills an array; ",
        "gather_nd(X, INDICES, wrap_negative='no')": "wrap_negative: got 'no', but it is not a truth value; ",
        "nonzero_coordinates(X, size=3, fill_value=(1, 2.5))": "fill_value: got 2.5, but it is ",
        "nonzero_coordinates(np.zeros(3, 'i4,O'))": "x: got [('f0', '<i4'), ('f1', 'O')], but no operator ",
        "gather_nd(X, [[0.5]])": "indices: got float64, but it is not an index type; indices must be",
        "diagonal_matrix(None, shape=(3, 1.5))": "shape: got 1.5, but it is not an integer; ",
        "diagonal_matrix(None, shape=3)": "shape: got 3, but ",
        "diagonal_matrix(None)": "shape: got None, but neither x nor shape is given; one of x, shape",
        'diagonal_matrix(None, shape=(2, 2), dtype="U2")': "dtype: got str64, but no operator takes ",
        'diagonal_matrix(X, value="1")': "value: got '1', but it fills an array; ",
    },
}
CALLS = [(call, error, text) for error, texts in REFUSED.items() for call, text in texts.items()]


@pytest.mark.parametrize(("call", "error", "text"), CALLS)
def test_text(call, error, text):
    with pytest.raises(error) as caught:
        eval(f"dmlops.{call}")
    assert str(caught.value).startswith(f"{call.partition('(')[0]}.{text}")
    assert "; " in str(caught.value)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ({"k": 0}, "k: got 0, but DirectML selects at least 1; "),
        (
            {"k": 1, "lengths": [1, 2, 3]},
            "lengths: got an array, but DirectML selects among all elements of a row; ",
        ),
        (
            {"k": 1, "starts": 1},
            "starts: got an array, but DirectML selects among all elements of a row; ",
        ),
        ({"k": 1, "indices": np.arange(4)}, "indices: got an array, but DirectML returns positions; "),
        ({"k": 1, "nan_last": True}, "nan_last: got True, but DirectML does not say where NaN comes; "),
    ],
)
def test_what_has_no_directml_form(call, text):
    with dmlops.feature_level("DML_6_4"), pytest.raises(UnsupportedFeatureError) as error:
        dmlops.top_k(X, **call)
    assert str(error.value) == f"top_k.{text}the lowest level that supports it is EXTENDED"


ARGUMENTS = {"top_k": (X, 2), "nonzero_coordinates": (X,), "gather_nd": (X, INDICES), "diagonal_matrix": (X,)}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_each_parameter_is_named_and_its_value_shown_up_to_a_length(name):
    function = getattr(dmlops, name)
    for parameter in inspect.signature(function).parameters:
        for length, shown in ((200, "x" * 200), (201, "x" * 200 + "...")):
            call = inspect.signature(function).bind(*ARGUMENTS[name])
            call.arguments[parameter] = type("Shown", (), {"__repr__": lambda _, n=length: "x" * n})()
            with pytest.raises((dmlops.DmlError, TypeError)) as caught:
                function(*call.args, **call.kwargs)
            found = re.fullmatch(rf"{name}\.{parameter}: got (.+), but .+; .+", str(caught.value))
            assert found[1] in (shown, "Shown", "a Shown")


def test_hierarchy():
    for error, plain in (
        (InvalidDescriptorError, ValueError),
        (IndexOutOfRangeError, IndexError),
        (DeviceMismatchError, ValueError),
        (UnsupportedFeatureError, NotImplementedError),
    ):
        assert issubclass(error, dmlops.DmlError)
        assert issubclass(error, plain)


MANY_SIZES = {
    "tuple": (1,) * 65,
    "range": range(10**12),
    "list": [1] * 10**6,
    "generator": itertools.repeat(1),
    "array": np.ones(10**6, int),
    "large": (2**62,) * 10**6,
}


@pytest.mark.parametrize("sizes", MANY_SIZES.values(), ids=MANY_SIZES)
def test_the_number_of_dimensions_is_looked_at_first(sizes):
    """However long a shape is, it takes no time to refuse it."""
    start = time.process_time()
    told = r": got \d+ dimensions, but no array of NumPy has as many; there must be at most 64$"
    for _ in range(2):
        with pytest.raises(InvalidDescriptorError, match=rf"^diagonal_matrix\.shape{told}"):
            dmlops.diagonal_matrix(shape=sizes)
    with pytest.raises(InvalidDescriptorError, match=rf"^TensorDesc\.sizes{told}"):
        dmlops.TensorDesc("FLOAT32", sizes)
    with pytest.raises(InvalidDescriptorError, match=rf"^TensorDesc\.strides{told}"):
        dmlops.TensorDesc("FLOAT32", (1, 2), sizes)
    assert time.process_time() - start < 0.2


def test_descriptors_of_many_dimensions():
    descriptor = dmlops.NonzeroCoordinates(input_tensor=dmlops.TensorDesc("FLOAT32", (1, 2)))
    start = time.process_time()
    for number in (65, 10**12):
        with pytest.raises(InvalidDescriptorError, match=r"^NonzeroCoordinates\.padded: got \d+ dimensions"):
            descriptor.padded(number)
    text = descriptor.to_json().replace("[1, 2]", str([2**62] * 50_000), 1)
    told = r"^NonzeroCoordinates\.input_tensor\.sizes: got 50000 dimensions"
    with pytest.raises(InvalidDescriptorError, match=told):
        dmlops.Descriptor.from_json(text)
    assert time.process_time() - start < 1


def test_as_many_dimensions_as_numpy_has():
    assert dmlops.diagonal_matrix(shape=(1,) * 64).ndim == 64
    told = r"^gather_nd\.indices: got 78 dimensions, but no array of NumPy has as many; there must be"
    for _ in range(2):
        with pytest.raises(InvalidDescriptorError, match=told):
            dmlops.gather_nd(np.zeros((1,) * 40), np.zeros((1,) * 40, int), mode="clip")


def test_a_shape_that_is_one_number():
    for shape in (3, np.array(3), "33"):
        with pytest.raises(TypeError, match=r"^diagonal_matrix\.shape: got .*, but it is not a sequence; "):
            dmlops.diagonal_matrix(shape=shape)


def test_tensors_of_more_dimensions():
    torch = pytest.importorskip("torch")
    x = torch.zeros((1,) * 65)
    told = r": got 65 dimensions, but no array of NumPy has as many"
    with pytest.raises(InvalidDescriptorError, match=rf"^top_k\.x{told}"):
        dmlops.top_k(x, 1)
    with pytest.raises(InvalidDescriptorError, match=rf"^top_k\.x{told}"):
        dmlops.top_k(x.to("meta"), 1)
    with pytest.raises(InvalidDescriptorError, match=r"^diagonal_matrix\.shape: got 1000000000000 dim"):
        dmlops.diagonal_matrix(shape=range(10**12), like=x.to("meta"))


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("topk", "top_k"),
        ("nonzero", "nonzero_coordinates"),
        ("gather", "gather_nd"),
        ("diag", "diagonal_matrix"),
    ],
)
def test_names_of_other_libraries(name, ours):
    with pytest.raises(
        AttributeError, match=rf"module 'dmlops' has no attribute '{name}'; did you mean {ours}\?"
    ):
        getattr(dmlops, name)
    with pytest.raises(AttributeError, match=r"module 'dmlops' has no attribute 'median'$"):
        dmlops.median  # noqa: B018
    assert not hasattr(dmlops, name)
    with pytest.raises(ImportError):
        exec(f"from dmlops import {name}")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("top_k(X, 1, dim=0)", "'dim'; did you mean axis?"),
        ("top_k(X, 1, descending=True)", "'descending'; did you mean largest?"),
        ("top_k(X, 1, median=True)", "'median'"),
        ("gather_nd(X, INDICES, batch_dimensions=1)", "'batch_dimensions'; did you mean batch_dims?"),
        ("nonzero_coordinates(X, dtype='int32')", "'dtype'; did you mean index_dtype?"),
        ("diagonal_matrix(X, offset=1)", "'offset'; did you mean begin?"),
        ("tril(X, diagonal=1)", "'diagonal'; did you mean k?"),
        ("triu(X, diagonal=1)", "'diagonal'; did you mean k?"),
        ("sample(X, 1, top_k=5)", "'top_k'; did you mean k?"),
    ],
)
def test_parameters_of_other_libraries(call, text):
    function = call.partition("(")[0]
    expected = f"{function}() got an unexpected keyword argument {text}"
    with pytest.raises(TypeError, match=f"^{re.escape(expected)}$"):
        eval(f"dmlops.{call}")
