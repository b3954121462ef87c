"""Objects that are not plain arrays of numbers, and arguments that are not what they seem to be, are refused.

The error says so, in a first call and after good calls.
"""

import numpy as np
import pytest

import dmlops
from dmlops import DmlError, InvalidDescriptorError, TensorDataType, TensorDesc, TopK1
from tests import reference
from tests.data import assert_same
from tests.libraries import NUMPY

pytestmark = pytest.mark.quick

X = np.arange(12, dtype="float32").reshape(3, 4)
PICKS = np.array([[0], [2]])

# A call of each function with an array in each place, and what error texts call that.
PLACES = {
    "top_k.x": lambda array: dmlops.top_k(array, 1),
    "nonzero_coordinates.x": dmlops.nonzero_coordinates,
    "gather_nd.x": lambda array: dmlops.gather_nd(array, PICKS),
    "gather_nd.indices": lambda array: dmlops.gather_nd(X, array),
    "diagonal_matrix.x": dmlops.diagonal_matrix,
    "diagonal_matrix.like": lambda array: dmlops.diagonal_matrix(shape=(2, 2), like=array),
}
OUTPUTS = {
    "top_k.out[0]": lambda array: dmlops.top_k(X, 4, out=(array, np.empty((3, 4), int))),
    "nonzero_coordinates.out[0]": lambda array: dmlops.nonzero_coordinates(
        X, out=(array, np.empty((), array.dtype))
    ),
    "gather_nd.out": lambda array: dmlops.gather_nd(X, [[0], [1], [2]], out=array),
    "diagonal_matrix.out": lambda array: dmlops.diagonal_matrix(X, out=array),
}


def warm_up():
    """Make good calls of the kinds that follow."""
    for _ in range(3):
        for name, call in PLACES.items():
            call(PICKS if name == "gather_nd.indices" else X)


def assert_refused(call, array, where, *parts, error=TypeError):
    """Check the text of an error, before and after calls that are like it and good."""
    for _ in range(2):
        with pytest.raises(error) as caught:
            call(array)
        text = str(caught.value)
        assert text.startswith(f"{where}: got ")
        for part in parts:
            assert part in text
        warm_up()


@pytest.mark.parametrize("where", PLACES)
class TestMoreThanElements:
    """Masks, nulls and lazy arrays would be lost, or computed, in silence."""

    @pytest.mark.parametrize(
        "array",
        [
            np.ma.masked_array(X, X > 3),
            np.ma.masked_array(X),
            [np.ma.masked_array(row, row > 3) for row in X],
            (X[0].tolist(), [np.ma.masked] * 4),
        ],
        ids=["masked", "nothing_masked", "in_a_list", "constant"],
    )
    def test_masked(self, where, array):
        assert_refused(PLACES[where], array, where, "masked", "x.filled(value)")

    def test_polars(self, where):
        polars = pytest.importorskip("polars")
        series = polars.Series([1, None, 3])
        nested = polars.Series([[1, None], [2, 3]], dtype=polars.Array(polars.Int64, 2))
        frame = polars.DataFrame({"a": [1.0, None], "b": [3.0, 4.0]})
        for array in (series, nested, frame, [series, series]):
            assert_refused(PLACES[where], array, where, "with 1 null", "fill or drop")
        assert_refused(PLACES[where], frame.lazy(), where, "a lazy LazyFrame", "collect()")

    def test_arrow(self, where):
        arrow = pytest.importorskip("pyarrow")
        plain = arrow.array([1, None, 3])
        for array in (plain, arrow.chunked_array([[1], [None]]), arrow.table({"a": plain}), [plain]):
            assert_refused(PLACES[where], array, where, "with 1 null", "fill or drop")

    def test_dask(self, where):
        dask_array = pytest.importorskip("dask.array")
        computed = []
        lazy = dask_array.from_array(X).map_blocks(computed.append, dtype="float32", meta=X)
        for array in (lazy, [lazy, lazy]):
            assert_refused(PLACES[where], array, where, "a lazy Array", "x.compute()")
        assert computed == []


@pytest.mark.parametrize("where", OUTPUTS)
def test_masked_outputs(where):
    shape, dtype = ((12, 2), "int64") if where.startswith("nonzero") else (X.shape, "float32")
    out = np.ma.masked_array(np.full(shape, 77, dtype), False)
    assert_refused(OUTPUTS[where], out, where, "masked")
    assert (out.data == 77).all()


def test_objects_without_nulls_are_read():
    for name, make in (("polars", "Series"), ("pyarrow", "array")):
        module = pytest.importorskip(name)
        array = getattr(module, make)([3, 1, 2])
        assert_same(dmlops.top_k(array, 2).values, np.array([3, 2]))


class OnDevice:
    """An array on a device that is read through `__array__`, if one lets that happen."""

    def __init__(self, device):
        self.device = device

    def __array__(self, dtype=None, copy=None):
        assert self.device == "cpu", "copied in silence"
        return X.copy()


class OfDLPack:
    """An array of DLPack on some device."""

    def __init__(self, device):
        self.device_type = device

    def __dlpack_device__(self):
        return self.device_type, 0

    def __dlpack__(self, **options):
        assert self.device_type == 1, "the memory was touched"
        return X.__dlpack__(**options)


class OfCuda:
    """An array that says it is on a GPU if it is one."""

    def __init__(self, device):
        if device != "cpu":
            interface = {"version": 3, "shape": X.shape, "typestr": "<f4", "data": (X.ctypes.data, False)}
            self.__cuda_array_interface__ = interface

    def __array__(self, dtype=None, copy=None):
        assert not hasattr(self, "__cuda_array_interface__"), "copied in silence"
        return X.copy()


class TestOtherDevices:
    """Where an array is depends on the object, not on its class: each class has objects on the CPU, too."""

    @pytest.mark.parametrize("device", ["cuda:0", "gpu", "mps"])
    def test_copies_in_silence(self, device):
        for where, call in PLACES.items():
            for array in (OnDevice(device), [OnDevice(device)]):
                assert_refused(call, array, where, f"an OnDevice on {device}", "copy it to the CPU")
        assert_same(dmlops.top_k(OnDevice("cpu"), 2).values, reference.top_k(X, 2)[0])

    @pytest.mark.parametrize(
        ("number", "name"),
        [(4, "OpenCL"), (7, "Vulkan"), (8, "Metal"), (10, "ROCm"), (14, "oneAPI"), (99, "DLPack device 99")],
    )
    def test_dlpack_devices_by_name(self, number, name):
        for where, call in PLACES.items():
            assert_refused(call, OfDLPack(number), where, f"an OfDLPack on {name}", "no back-end serves")
            assert_same(dmlops.top_k(OfDLPack(1), 2).values, reference.top_k(X, 2)[0])

    @pytest.mark.parametrize("array", [OfCuda("cuda"), OfDLPack(2)], ids=["interface", "dlpack"])
    def test_host_addresses_do_not_reach_the_cuda_path(self, array):
        if dmlops.devices.cuda_driver.device_count():
            pytest.skip("a GPU would be asked for what is not there")
        kind = type(array)
        for _ in range(2):
            assert_same(
                dmlops.top_k(kind("cpu" if kind is OfCuda else 1), 2).values, reference.top_k(X, 2)[0]
            )
            with pytest.raises((DmlError, TypeError), match=r"^top_k\.x: got .*, but .*; "):
                dmlops.top_k(array, 2)


FUNCTIONS = {
    "top_k": lambda **options: dmlops.top_k(X, 2, **options),
    "nonzero_coordinates": lambda **options: dmlops.nonzero_coordinates(X, **options),
    "gather_nd": lambda **options: dmlops.gather_nd(X, PICKS, **options),
    "diagonal_matrix": lambda **options: dmlops.diagonal_matrix(X, **options),
    "diagonal_matrix of a shape": lambda **options: dmlops.diagonal_matrix(shape=(2, 2), **options),
}


class TestArgumentsAfterEqualOnes:
    """The key of a call contains types: an argument refused at first is refused after an equal one, too."""

    def outcomes(self, name, good, bad):
        """Return what a bad call does, before and after good ones."""
        found = []
        for _ in range(3):
            with pytest.raises((TypeError, DmlError)) as caught:
                FUNCTIONS[name](**bad)
            found.append((type(caught.value), str(caught.value)))
            for _ in range(3):
                FUNCTIONS[name](**good)
        return found

    @pytest.mark.parametrize("out", [(), [], (None, None), {}, 0, False, ""])
    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_out_that_is_empty(self, name, out):
        first, *others = self.outcomes(name, {}, {"out": out})
        assert others == [first] * 2
        assert first[0] is TypeError
        assert first[1].startswith(f"{name.partition(' ')[0]}.out")

    @pytest.mark.parametrize("number", [3, True, 3.0, ">i4" if np.little_endian else "<i4"])
    @pytest.mark.parametrize("name", ["top_k", "nonzero_coordinates"])
    def test_index_types_are_no_numbers(self, name, number):
        good = {"index_dtype": TensorDataType.UINT32}
        assert TensorDataType.UINT32 == 3
        first, *others = self.outcomes(name, good, {"index_dtype": number})
        assert others == [first] * 2
        assert first[1].startswith(f"{name}.index_dtype: got ")

    @pytest.mark.parametrize("number", [1, True, 1.0, ">f4" if np.little_endian else "<f4"])
    def test_types_are_no_numbers(self, number):
        assert TensorDataType.FLOAT32 == 1
        name = "diagonal_matrix of a shape"
        first, *others = self.outcomes(name, {"dtype": TensorDataType.FLOAT32}, {"dtype": number})
        assert others == [first] * 2
        assert first[1].startswith("diagonal_matrix.dtype: got ")

    def test_true_is_one(self):
        # As everywhere in Python; NumPy's own booleans are no integers.
        for one in (1, True, np.array(1), np.int8(1), 1, True):
            for got, expected in zip(dmlops.top_k(X, one), reference.top_k(X, 1), strict=True):
                assert_same(got, expected)
            assert dmlops.nonzero_coordinates(X, size=one).coordinates.shape == (1, 2)
            assert_same(
                dmlops.diagonal_matrix(X, begin=one, end=2), reference.diagonal_matrix(X, begin=1, end=2)
            )
            assert_same(dmlops.gather_nd(X[None], [[[2]]], batch_dims=one), X[None, [2]])
            with pytest.raises(TypeError, match=r"^top_k\.k: got np\.True_, but it is not an integer"):
                dmlops.top_k(X, np.True_)
            with pytest.raises(TypeError, match=r"^top_k\.k: got array\(\[1\]\), but it is not an integer"):
                dmlops.top_k(X, np.array([1]))


def nested(depth):
    array = [1]
    for _ in range(depth - 1):
        array = [array]
    return array


class TestNoArrays:
    @pytest.mark.parametrize("where", PLACES)
    def test_lists_nested_too_deep_and_text(self, where):
        assert_refused(PLACES[where], nested(70), where, "list", "must be an array")
        endless = []
        endless.append(endless)
        assert_refused(PLACES[where], endless, where, "list", "must be an array")
        for text in ("hello", b"hello", ["hello"]):
            assert_refused(PLACES[where], text, where, "no operator takes that type")

    def test_sizes_beyond_64_bits(self):
        for size in (2**70, 2**62):
            with pytest.raises(InvalidDescriptorError, match=r"^nonzero_coordinates\.size: got "):
                dmlops.nonzero_coordinates(X, size=size)
        for shape in ((2**40, 2**40), (2**70, 1)):
            with pytest.raises(InvalidDescriptorError, match=r"^diagonal_matrix\.shape: got "):
                dmlops.diagonal_matrix(shape=shape)


class TestExecute:
    @staticmethod
    def operator():
        tensor = TensorDesc(TensorDataType.FLOAT32, X.shape)
        return dmlops.compile(TopK1(input_tensor=tensor, axis=1, k=1, axis_direction=1))

    @staticmethod
    def tensors():
        outputs = np.full((3, 1), 77, "float32"), np.full((3, 1), 77, "uint32")
        return {"input_tensor": X, "output_value_tensor": outputs[0], "output_index_tensor": outputs[1]}

    @pytest.mark.parametrize("tensors", [None, 3, "hello", [X], (), nested(70), {X.shape}, NUMPY])
    def test_no_mapping(self, tensors):
        operator = self.operator()
        for _ in range(2):
            with pytest.raises(TypeError, match=r"(?s)^TopK1\.execute: got .*, but it is not a mapping; "):
                operator.execute(tensors)
            for _ in range(3):
                operator.execute(self.tensors())

    @pytest.mark.parametrize("key", [1, None, b"input_tensor", ("input_tensor",), ""])
    def test_keys_that_are_no_fields(self, key):
        operator, tensors = self.operator(), self.tensors()
        without = {name: array for name, array in tensors.items() if name != "input_tensor"}
        for _ in range(2):
            for wrong in (tensors | {key: X}, without | {key: X}, {key: X}, {}):
                with pytest.raises(InvalidDescriptorError, match=r"^TopK1\.execute: got arrays for "):
                    operator.execute(wrong)
            assert (tensors["output_value_tensor"] == 77).all()
            for _ in range(3):
                operator.execute(self.tensors())

    def test_arrays_that_are_none(self):
        operator = self.operator()
        for _ in range(2):
            for field in self.tensors():
                for wrong in ("hello", nested(70), np.ma.masked_array(self.tensors()[field]), None):
                    tensors = self.tensors() | {field: wrong}
                    with pytest.raises(TypeError, match=rf"^TopK1\.{field}: got "):
                        operator.execute(tensors)
            for workspace in ("hello", 3, [1], True):
                with pytest.raises(TypeError, match=r"^TopK1\.workspace: got "):
                    operator.execute(self.tensors(), workspace)
            for _ in range(3):
                operator.execute(self.tensors())
