"""Bad arguments of functions: all error texts have one form, and come before anything is written."""

import numpy as np
import pytest

import dmlops
from dmlops import DeviceMismatchError, IndexOutOfRangeError, InvalidDescriptorError, UnsupportedFeatureError

pytestmark = pytest.mark.quick

X = np.arange(12, dtype="float32").reshape(3, 4)
INDICES = np.array([[0], [2]])


def top_k(*arguments, **options):
    return dmlops.top_k(*(arguments or (X, 2)), **options)


def nonzero_coordinates(*arguments, **options):
    return dmlops.nonzero_coordinates(*(arguments or (X,)), **options)


def gather_nd(*arguments, **options):
    return dmlops.gather_nd(*(arguments or (X, INDICES)), **options)


def diagonal_matrix(*arguments, **options):
    return dmlops.diagonal_matrix(*(arguments or (X,)), **options)


def full(shape, dtype="float32"):
    return np.full(shape, 77, dtype)


INVALID, TYPE, RANGE = InvalidDescriptorError, TypeError, IndexOutOfRangeError
ERRORS = [
    (top_k, (X, 5), {}, INVALID, "top_k.k: got 5, but axis 1 of x has 4 elements; k must be in [0, 4]"),
    (
        top_k,
        (X, 4),
        {"axis": 0},
        INVALID,
        "top_k.k: got 4, but axis 0 of x has 3 elements; k must be in [0, 3]",
    ),
    (top_k, (X, -1), {}, INVALID, "top_k.k: got -1, but axis 1 of x has 4 elements; k must be in [0, 4]"),
    (top_k, (X, 2.0), {}, TYPE, "top_k.k: got 2.0, but it is not an integer; k must be an integer"),
    (top_k, (X, None), {}, TYPE, "top_k.k: got None, but it is not an integer; k must be an integer"),
    (
        top_k,
        (X, 1),
        {"axis": 2},
        INVALID,
        "top_k.axis: got 2, but x has 2 dimensions; axis must be in [-2, 1]",
    ),
    (
        top_k,
        (X, 1),
        {"axis": -3},
        INVALID,
        "top_k.axis: got -3, but x has 2 dimensions; axis must be in [-2, 1]",
    ),
    (
        top_k,
        (X, 1),
        {"axis": "0"},
        TYPE,
        "top_k.axis: got '0', but it is not an integer; axis must be an integer",
    ),
    (top_k, (np.float32(1), 2), {}, INVALID, "top_k.k: got 2, but axis 0 of x has 1 element; k must be in"),
    (top_k, (), {"sorted": "no"}, TYPE, "top_k.sorted: got 'no', but it is not a truth value; "),
    (top_k, (), {"sorted": None}, TYPE, "top_k.sorted: got None, but it is not a truth value; "),
    (
        top_k,
        (),
        {"lengths": [1, 2]},
        INVALID,
        "top_k.lengths: got shape (2,), but x without axis 1 has shape (3,); shapes must be equal",
    ),
    (
        top_k,
        (),
        {"lengths": [[1, 2, 3]], "axis": 0},
        INVALID,
        "top_k.lengths: got shape (1, 3), but x without axis 0 has shape (4,); shapes must be equal",
    ),
    (top_k, (np.arange(3), 0), {"lengths": [1]}, INVALID, "top_k.lengths: got shape (1,), but"),
    (top_k, (np.float32(1), 1), {"lengths": [1]}, INVALID, "top_k.lengths: got shape (1,), but x without"),
    (
        top_k,
        (),
        {"lengths": [1.0, 2.0, 3.0]},
        TYPE,
        "top_k.lengths: got float64, but it is not an index type; "
        "lengths must be uint32, uint64, int32 or int64",
    ),
    (top_k, (), {"lengths": np.zeros(3, np.int16)}, TYPE, "top_k.lengths: got int16, but it is"),
    (top_k, (), {"lengths": object()}, TYPE, "top_k.lengths: got an object, but it is not an array, but "),
    (
        top_k,
        (),
        {"index_dtype": "int16"},
        TYPE,
        "top_k.index_dtype: got 'int16', but it is not an index type; ",
    ),
    (
        top_k,
        (),
        {"index_dtype": "float32"},
        TYPE,
        "top_k.index_dtype: got 'float32', but it is not an index type; ",
    ),
    (top_k, (), {"index_dtype": object()}, TYPE, "top_k.index_dtype: got <object"),
    (top_k, (), {"index_dtype": ">i8"}, TYPE, "top_k.index_dtype: got '>i8', but it is not an index type; "),
    (
        top_k,
        (),
        {"out": full((3, 2))},
        TYPE,
        "top_k.out: got ndarray, but there are 2 results; out must be 2 arrays",
    ),
    (
        top_k,
        (),
        {"out": (full(1),)},
        TYPE,
        "top_k.out: got 1 array, but there are 2 results; out must be 2 arrays",
    ),
    (top_k, (), {"out": (full((3, 2)), [1])}, TYPE, "top_k.out[1]: got list, but it is written to; "),
    (
        top_k,
        (),
        {"stream": 1},
        INVALID,
        "top_k.stream: got 1, but the arrays live on cpu; stream must be None",
    ),
    (
        nonzero_coordinates,
        (X,),
        {"size": -1},
        INVALID,
        "nonzero_coordinates.size: got -1, but a result cannot have fewer than 0 rows; size must be >= 0",
    ),
    (
        nonzero_coordinates,
        (),
        {"size": 1.5},
        TYPE,
        "nonzero_coordinates.size: got 1.5, but it is not an integer; ",
    ),
    (
        nonzero_coordinates,
        (),
        {"size": 3, "fill_value": -1, "index_dtype": "uint32"},
        INVALID,
        "nonzero_coordinates.fill_value: got -1, but coordinates are UINT32; it must be in [0, 4294967295]",
    ),
    (
        nonzero_coordinates,
        (),
        {"size": 3, "fill_value": 2**31, "index_dtype": "int32"},
        INVALID,
        "nonzero_coordinates.fill_value: got 2147483648, but coordinates are INT32; it must be in ",
    ),
    (
        nonzero_coordinates,
        (),
        {"size": 3, "fill_value": 0.5},
        TYPE,
        "nonzero_coordinates.fill_value: got 0.5, but it is not an integer; ",
    ),
    (
        nonzero_coordinates,
        (),
        {"index_dtype": "int8"},
        TYPE,
        "nonzero_coordinates.index_dtype: got 'int8', but",
    ),
    (
        nonzero_coordinates,
        (),
        {"stream": 1},
        INVALID,
        "nonzero_coordinates.stream: got 1, but the arrays live on cpu",
    ),
    (
        gather_nd,
        (X, [[0.5]]),
        {},
        TYPE,
        "gather_nd.indices: got float64, but it is not an index type; indices must be",
    ),
    (gather_nd, (X, [[True]]), {}, TYPE, "gather_nd.indices: got bool, but it is not an index type; "),
    (gather_nd, (X, np.int8([[1]])), {}, TYPE, "gather_nd.indices: got int8, but it is not an index type; "),
    (gather_nd, (X, [[0], [1, 2]]), {}, TYPE, "gather_nd.indices: got list, but its rows differ in length; "),
    (gather_nd, (X, 3), {}, INVALID, "gather_nd.indices: got 0 dimensions, but "),
    (gather_nd, (np.float32(1), [0]), {}, INVALID, "gather_nd.x: got 0 dimensions, but "),
    (
        gather_nd,
        (X, np.zeros((2, 3), int)),
        {},
        INVALID,
        "gather_nd.indices: got shape (2, 3), but 2 dimensions of x can be indexed; their last",
    ),
    (gather_nd, (), {"batch_dims": 2}, INVALID, "gather_nd.batch_dims: got 2, but x has 2 dimensions and "),
    (gather_nd, (), {"batch_dims": -1}, INVALID, "gather_nd.batch_dims: got -1, but "),
    (gather_nd, (), {"batch_dims": 0.0}, TYPE, "gather_nd.batch_dims: got 0.0, but it is not an integer; "),
    (
        gather_nd,
        (),
        {"batch_dims": 1},
        INVALID,
        "gather_nd.indices: got (2, 1), but x has batches ",
    ),
    (
        gather_nd,
        (),
        {"mode": "wrap"},
        INVALID,
        "gather_nd.mode: got 'wrap', but there is no such mode; mode must be ",
    ),
    (gather_nd, (), {"mode": None}, INVALID, "gather_nd.mode: got None, but there is no such mode; "),
    (gather_nd, (), {"mode": ["clip"]}, (INVALID, TYPE), "gather_nd.mode: got ['clip'], but "),
    (
        gather_nd,
        (X, [[0, 1], [2, 4], [9, 9]]),
        {},
        RANGE,
        "gather_nd.indices: got tuple (2, 4) at position (1,), but coordinate 1 is 4, "
        "and dimension 1 of x has 4 elements; it must be in [-4, 3]",
    ),
    (
        gather_nd,
        (X, np.uint32([[0], [3]])),
        {},
        RANGE,
        "gather_nd.indices: got tuple (3,) at position (1,), but coordinate 0 is 3, "
        "and dimension 0 of x has 3 elements; it must be in [0, 2]",
    ),
    (
        gather_nd,
        (X, [9]),
        {},
        RANGE,
        "gather_nd.indices: got tuple (9,) at position (), but coordinate 0 is 9, ",
    ),
    (gather_nd, (), {"stream": 1}, INVALID, "gather_nd.stream: got 1, but the arrays live on cpu; "),
    (
        diagonal_matrix,
        ([1, 2],),
        {},
        INVALID,
        "diagonal_matrix.x: got 1 dimension, but a matrix has height and width; ",
    ),
    (
        diagonal_matrix,
        (3,),
        {},
        INVALID,
        "diagonal_matrix.x: got 0 dimensions, but a matrix has height and width; ",
    ),
    (diagonal_matrix, (None,), {"shape": (3,)}, INVALID, "diagonal_matrix.shape: got 1 dimension, but "),
    (
        diagonal_matrix,
        (None,),
        {"shape": (3, -1)},
        INVALID,
        "diagonal_matrix.shape: got (3, -1), but a size is negative; ",
    ),
    (
        diagonal_matrix,
        (None,),
        {"shape": (3, 1.5)},
        TYPE,
        "diagonal_matrix.shape: got 1.5, but it is not an integer; ",
    ),
    (diagonal_matrix, (None,), {"shape": 3}, TYPE, "diagonal_matrix.shape: got 3, but "),
    (
        diagonal_matrix,
        (None,),
        {},
        TYPE,
        "diagonal_matrix.shape: got None, but neither x nor shape is given; one of x, shape",
    ),
    (
        diagonal_matrix,
        (X,),
        {"shape": (3, 4)},
        INVALID,
        "diagonal_matrix.shape: got (3, 4), but x is given; ",
    ),
    (diagonal_matrix, (X,), {"like": X}, INVALID, "diagonal_matrix.like: got array(["),
    (diagonal_matrix, (X,), {"stream": 0}, INVALID, "diagonal_matrix.stream: got 0, but the arrays live on"),
    (
        diagonal_matrix,
        (X,),
        {"dtype": "int8"},
        INVALID,
        "diagonal_matrix.dtype: got 'int8', but x is given; ",
    ),
    (
        diagonal_matrix,
        (None,),
        {"shape": (2, 2), "dtype": "U2"},
        TYPE,
        "diagonal_matrix.dtype: got str64, but no operator takes that type; it must be one of ",
    ),
    (diagonal_matrix, (), {"value": "1"}, TYPE, "diagonal_matrix.value: got '1', but it fills a matrix; "),
    (diagonal_matrix, (X,), {"value": 1j}, INVALID, "diagonal_matrix.value: got 1j, but it fills FLOAT32; "),
    (diagonal_matrix, (), {"value": None}, TYPE, "diagonal_matrix.value: got None, but it fills a matrix; "),
    (
        diagonal_matrix,
        (),
        {"value": [1, 2]},
        TYPE,
        "diagonal_matrix.value: got [1, 2], but it fills a matrix; ",
    ),
    (
        diagonal_matrix,
        (np.zeros((2, 2), "uint8"),),
        {"value": 256},
        INVALID,
        "diagonal_matrix.value: got 256, but it fills UINT8; value must be an integer in [0, 255]",
    ),
    (
        diagonal_matrix,
        (np.zeros((2, 2), "int64"),),
        {"value": 2.5},
        INVALID,
        "diagonal_matrix.value: got 2.5, but it fills INT64; value must be an integer in [-9223372036854",
    ),
    (
        diagonal_matrix,
        (np.zeros((2, 2), "int8"),),
        {"value": np.nan},
        INVALID,
        "diagonal_matrix.value: got nan, but it fills INT8; value must be an integer",
    ),
    (
        diagonal_matrix,
        (np.zeros((2, 2), bool),),
        {"value": 2},
        INVALID,
        "diagonal_matrix.value: got 2, but it fills BOOL; ",
    ),
    (
        diagonal_matrix,
        (),
        {"begin": 0.5},
        TYPE,
        "diagonal_matrix.begin: got 0.5, but it is not an integer; begin must be an integer",
    ),
    (
        diagonal_matrix,
        (),
        {"end": None},
        TYPE,
        "diagonal_matrix.end: got None, but it is not an integer; end must be an integer",
    ),
    (diagonal_matrix, (), {"stream": object()}, TYPE, "diagonal_matrix.stream: got <object"),
]


@pytest.mark.parametrize(
    ("function", "arguments", "options", "error", "text"),
    ERRORS,
    ids=[f"{row[0].__name__}-{place}" for place, row in enumerate(ERRORS)],
)
def test_text(function, arguments, options, error, text):
    with pytest.raises(error) as caught:
        function(*arguments, **options)
    assert str(caught.value).startswith(text)
    assert "; " in str(caught.value)


def test_k_of_zero_has_no_directml_form():
    with dmlops.feature_level(dmlops.FeatureLevel.DML_6_4), pytest.raises(UnsupportedFeatureError) as error:
        dmlops.top_k(X, 0)
    assert str(error.value) == (
        "top_k.k: got 0, but DirectML selects at least 1; the lowest level that supports it is EXTENDED"
    )


def test_lengths_have_no_directml_form():
    with dmlops.feature_level("DML_6_4"), pytest.raises(UnsupportedFeatureError) as error:
        dmlops.top_k(X, 1, lengths=[1, 2, 3])
    assert str(error.value) == (
        "top_k.lengths: got an array, but DirectML selects among all elements of a row; "
        "the lowest level that supports it is EXTENDED"
    )


def test_texts_show_the_first_200_characters():
    mode = "x" * 300
    with pytest.raises(InvalidDescriptorError) as error:
        dmlops.gather_nd(X, INDICES, mode=mode)
    assert str(error.value).startswith(
        f"gather_nd.mode: got {repr(mode)[:200]}..., but there is no such mode; "
    )


def test_hierarchy():
    assert issubclass(InvalidDescriptorError, (dmlops.DmlError, ValueError))
    assert issubclass(InvalidDescriptorError, ValueError)
    assert issubclass(IndexOutOfRangeError, dmlops.DmlError)
    assert issubclass(IndexOutOfRangeError, IndexError)
    assert issubclass(DeviceMismatchError, dmlops.DmlError)
    assert issubclass(DeviceMismatchError, ValueError)


def test_too_large_for_the_index_type():
    # Broadcast: 2^31 + 2 elements in one byte of memory; the index type cannot hold the last position.
    x = np.broadcast_to(np.uint8(0), (2**31 + 2,))
    for call, where in (
        (
            lambda: dmlops.top_k(x, 1, index_dtype="int32"),
            "top_k.index_dtype: got INT32, but",
        ),
        (
            lambda: dmlops.nonzero_coordinates(x, size=1, index_dtype="int32"),
            "nonzero_coordinates.index_dtype: got INT32, but",
        ),
    ):
        with pytest.raises(InvalidDescriptorError) as error:
            call()
        assert str(error.value).startswith(where)
        assert "2147483649" in str(error.value) or "2147483650" in str(error.value)


def test_more_dimensions_than_numpy_has():
    assert dmlops.diagonal_matrix(shape=(1,) * 64).ndim == 64
    for _ in range(2):
        with pytest.raises(ValueError, match=r"maximum supported dimension .* 64, found 65"):
            dmlops.diagonal_matrix(shape=(1,) * 65)
        with pytest.raises(ValueError, match=r"maximum supported dimension .* 64, found 78"):
            dmlops.gather_nd(np.zeros((1,) * 40), np.zeros((1,) * 40, int), mode="clip")
