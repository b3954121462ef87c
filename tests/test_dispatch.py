"""`compile` and `execute`: what they accept, refuse and log, and that one plan serves many calls."""

import logging
import pickle

import numpy as np
import pytest

import dmlops
from dmlops import (
    AxisDirection,
    DeviceMismatchError,
    Feature,
    FeatureLevel,
    InvalidDescriptorError,
    TensorDataType,
    TensorDesc,
    TopK1,
    UnsupportedFeatureError,
)
from tests import inside, reference
from tests.compiled import DESCRIPTORS, make_inputs, make_outputs, oracle
from tests.data import assert_same, sample
from tests.inside import cpu

X = np.arange(12, dtype="float32").reshape(3, 4)


def top_k1(sizes=(3, 4), strides=None, **changes):
    arguments = {"axis": 1, "k": 2, "axis_direction": AxisDirection.DECREASING} | changes
    return TopK1(input_tensor=TensorDesc(TensorDataType.FLOAT32, sizes, strides), **arguments)


class TestCompile:
    def test_what_it_tells(self):
        operator = dmlops.compile(top_k1())
        assert dict(operator.inputs) == {"input_tensor": TensorDesc(TensorDataType.FLOAT32, (3, 4))}
        assert list(operator.outputs) == ["output_value_tensor", "output_index_tensor"]
        assert operator.workspace_size >= 0
        assert operator.descriptor == top_k1()

    def test_it_is_immutable(self):
        operator = dmlops.compile(top_k1())
        for mapping in (operator.inputs, operator.outputs):
            with pytest.raises(TypeError):
                mapping["input_tensor"] = None
        with pytest.raises(AttributeError):
            operator.workspace_size = 0

    @pytest.mark.parametrize("descriptor", DESCRIPTORS.values(), ids=DESCRIPTORS)
    def test_pickles(self, descriptor):
        # Loaded outside of the block, in which a level of its own holds.
        with dmlops.feature_level(FeatureLevel.EXTENDED):
            pickled = pickle.dumps(dmlops.compile(descriptor))
        operator = pickle.loads(pickled)
        assert operator.descriptor == descriptor
        assert operator.device.kind == "cpu"
        inputs = make_inputs(descriptor, 1)
        outputs = make_outputs(descriptor)
        operator.execute(inputs | outputs)
        for name, answer in oracle(descriptor, inputs).items():
            np.testing.assert_array_equal(outputs[name].ravel()[: answer.size], answer.ravel())

    def test_devices(self):
        for device in ("tpu", "cuda:x", "cuda:-1", None):
            with pytest.raises(InvalidDescriptorError, match=r"compile.device: got .*, but .*cuda:N"):
                dmlops.compile(top_k1(), device=device)


def test_the_level_of_a_backend_is_named_beside_the_lowest(monkeypatch):
    levels = {"cpu": FeatureLevel.DML_3_0, "cuda": FeatureLevel.EXTENDED}
    monkeypatch.setattr(inside.backend, "HIGHEST_LEVELS", levels)
    dmlops.compile(top_k1((1, 1, 3, 4), axis=3))
    with pytest.raises(UnsupportedFeatureError) as error:
        dmlops.compile(top_k1((9, 8)))
    assert "DML_3_1" in str(error.value)
    assert "DML_3_0" in str(error.value)
    requested = [FeatureLevel.DML_2_0, FeatureLevel.DML_3_0, FeatureLevel.DML_6_4]
    assert dmlops.check_feature_support(Feature.FEATURE_LEVELS, requested) is FeatureLevel.DML_3_0
    with pytest.raises(
        UnsupportedFeatureError, match="cpu serves none of them; its highest level is DML_3_0"
    ):
        dmlops.check_feature_support(Feature.FEATURE_LEVELS, requested[2:])


class TestExecute:
    def test_strides_count_in_dimensions_of_two_elements(self):
        operator = dmlops.compile(top_k1((1, 2), k=1))
        outputs = {
            "output_value_tensor": np.full((1, 1), 77, "float32"),
            "output_index_tensor": np.full((1, 1), 77, "uint32"),
        }
        x = np.arange(6, dtype="float32").reshape(2, 3)
        with pytest.raises(InvalidDescriptorError, match="strides in elements must be equal"):
            operator.execute({"input_tensor": x[:1, ::2]} | outputs)
        assert outputs["output_value_tensor"] == outputs["output_index_tensor"] == 77
        operator.execute({"input_tensor": x[::2, 1:]} | outputs)  # the strides of one element do not
        assert (outputs["output_value_tensor"], outputs["output_index_tensor"]) == (2, 1)

    def test_the_elements_of_a_workspace_may_be_of_any_type(self):
        operator = dmlops.compile(top_k1((3, 40), k=5))
        n = -(-operator.workspace_size // 8)
        arrays = {
            "input_tensor": sample("float32", (3, 40), "workspace"),
            "output_value_tensor": np.empty((3, 5), "float32"),
            "output_index_tensor": np.empty((3, 5), "uint32"),
        }
        for workspace in (np.empty(n, "float64"), np.empty((n, 2), "int32"), np.empty((2, n, 4), bool)):
            arrays["output_value_tensor"][...] = 77
            operator.execute(arrays, workspace)
            assert_same(arrays["output_value_tensor"], reference.top_k(arrays["input_tensor"], 5)[0])
        for workspace in (np.empty(n - 1, "float64"), np.empty((n - 1, 2), "int32")):
            with pytest.raises(InvalidDescriptorError, match=f"{8 * (n - 1)} bytes, .* more"):
                operator.execute(arrays, workspace)
        for workspace in (np.empty(n)[::-1], np.empty((n, 2))[:, 0]):
            with pytest.raises(InvalidDescriptorError, match=r"^TopK1\.workspace: got strides .* contiguous"):
                operator.execute(arrays, workspace)


class TestReuse:
    def test_results_are_new_arrays(self):
        first, second = (dmlops.top_k(X, 2) for _ in range(2))
        first.values[...] = 77
        first.indices[...] = 77
        assert_same(second.values, reference.top_k(X, 2)[0])
        assert second.indices.flags.owndata

    @pytest.mark.parametrize(
        "call",
        [
            lambda x: dmlops.top_k(x, 2),
            lambda x: dmlops.nonzero_coordinates(x[0, 0]),
            lambda x: dmlops.gather_nd(x, np.zeros((3, 1, 1), int)),
            dmlops.tril,
        ],
        ids=["top_k", "nonzero_coordinates", "gather_nd", "tril"],
    )
    def test_later_calls_load_no_other_kernels(self, call, monkeypatch):
        loaded, load = [], cpu.load
        monkeypatch.setattr(cpu, "load", lambda kernel: loaded.append(kernel.label) or load(kernel))
        x = np.ones((3, 2, 100), "uint16")
        call(x)
        by_first = {*loaded}
        for _ in range(3):
            call(x)
        assert {*loaded} == by_first


def test_debug_log_names_the_variant(caplog):
    with caplog.at_level(logging.DEBUG, "dmlops"):
        dmlops.top_k(X, 1)
    # Kernels that had to be compiled are logged, too.
    found = [record.getMessage() for record in caplog.records if record.name == "dmlops"]
    (message,) = [message for message in found if "top_k on cpu: " in message]
    assert len(message) > len("top_k on cpu: ")


def test_mixed_devices_are_named():
    class OnDevice:
        """An array that claims to be on a GPU; nothing may touch its memory."""

        __cuda_array_interface__ = {  # noqa: RUF012
            "version": 3,
            "shape": (0, 1),
            "typestr": "<i8",
            "data": (0, False),
        }

    pytest.importorskip("cuda.core")
    with pytest.raises(DeviceMismatchError) as error:
        dmlops.gather_nd(np.ones(2, "float32"), OnDevice())
    assert "cpu" in str(error.value)
    assert "cuda:0" in str(error.value)
