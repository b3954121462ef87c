"""`compile` and `execute`: what they accept, refuse and log, and that one plan serves many calls."""

import logging
import pickle

import numpy as np
import pytest

import dmlops
from dmlops import (
    AxisDirection,
    DeviceMismatchError,
    FeatureLevel,
    InvalidDescriptorError,
    NonzeroCoordinates,
    TensorDataType,
    TensorDesc,
    TopK1,
    UnsupportedFeatureError,
)
from dmlops.calls.dispatch import OPERATORS
from dmlops.operators import Options
from tests import reference
from tests.compiled import DESCRIPTORS, make_inputs, make_outputs, oracle
from tests.data import LAYOUTS, assert_same, sample, storage
from tests.libraries import execute
from tests.scripts import run_script

X = np.arange(12, dtype="float32").reshape(3, 4)
INDICES = np.array([[0], [2]])


def top_k1(sizes=(3, 4), strides=None, **changes):
    arguments = {"axis": 1, "k": 2, "axis_direction": AxisDirection.DECREASING} | changes
    return TopK1(input_tensor=TensorDesc(TensorDataType.FLOAT32, sizes, strides), **arguments)


def top_k_arrays(rows=3):
    return {
        "input_tensor": sample("float32", (rows, 4), "dispatch"),
        "output_value_tensor": np.full((rows, 2), 77, "float32"),
        "output_index_tensor": np.full((rows, 2), 77, "uint32"),
    }


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

    def test_not_a_descriptor(self):
        with pytest.raises(TypeError, match=r"compile.descriptor: got 3, but"):
            dmlops.compile(3)

    def test_missing_driver_or_extra(self):
        # With hidden GPUs, the machine seems to have none; without the extra, the error says what to install.
        script = """
            import sys, dmlops
            from dmlops import TopK1, TensorDesc, TensorDataType
            for module in {blocked}:
                sys.modules[module] = None
            desc = TopK1(input_tensor=TensorDesc(TensorDataType.FLOAT32, (4,)), axis=0, k=1, axis_direction=1)
            try:
                dmlops.compile(desc, device="cuda")
            except dmlops.UnsupportedFeatureError as error:
                print(error)
        """
        without_extra = run_script(script.format(blocked=["cuda", "cuda.core", "cuda.bindings"]))
        assert 'pip install ".[cuda-jit]"' in without_extra
        assert without_extra.startswith("TopK1.device: got a CUDA device, but ")

    def test_missing_driver(self):
        pytest.importorskip("cuda.core")
        script = """
            import dmlops
            from dmlops import TopK1, TensorDesc, TensorDataType
            desc = TopK1(input_tensor=TensorDesc(TensorDataType.FLOAT32, (4,)), axis=0, k=1, axis_direction=1)
            try:
                dmlops.compile(desc, device="cuda")
            except dmlops.UnsupportedFeatureError as error:
                print(error)
        """
        printed = run_script(script, CUDA_VISIBLE_DEVICES="-1")
        assert printed.startswith("TopK1.device: got cuda:0, but the CUDA driver does not give that device")
        assert "nvidia-smi" in printed


class TestBackendLevel:
    def test_both_levels_are_named(self, monkeypatch):
        levels = {"cpu": FeatureLevel.DML_3_0, "cuda": FeatureLevel.EXTENDED}
        monkeypatch.setattr("dmlops.devices.backend.HIGHEST_LEVELS", levels)
        dmlops.compile(top_k1((1, 1, 3, 4), axis=3))
        with pytest.raises(UnsupportedFeatureError) as error:
            dmlops.compile(top_k1((9, 8)))
        assert "DML_3_1" in str(error.value)
        assert "DML_3_0" in str(error.value)


class TestExecute:
    @pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "rotated"])
    def test_strides_of_a_descriptor(self, layout):
        x = LAYOUTS[layout](sample("float32", (5, 6, 7), "strides"))
        _, strides, _ = storage(x)
        descriptor = top_k1(x.shape, tuple(strides))
        level = FeatureLevel.EXTENDED if min(strides) < 0 else FeatureLevel.DML_6_4
        results = execute(descriptor, level, input_tensor=x)
        values, indices = reference.top_k(x, 2, axis=1)
        assert_same(results["output_value_tensor"], values)
        assert_same(results["output_index_tensor"], indices.astype("uint32"))

    def test_padded_output(self):
        outputs = {
            "output_value_tensor": TensorDesc(TensorDataType.FLOAT32, (3, 2), (5, 2)),
            "output_index_tensor": TensorDesc(TensorDataType.UINT32, (3, 2), (1, 4)),
        }
        descriptor = top_k1(**outputs)
        arrays = top_k_arrays()
        padded, transposed = np.full((3, 5), 77, "float32"), np.full((2, 4), 77, "uint32")
        arrays["output_value_tensor"] = padded[:, 0:4:2]
        arrays["output_index_tensor"] = transposed[:, :3].T
        dmlops.compile(descriptor).execute(arrays)
        values, indices = reference.top_k(arrays["input_tensor"], 2)
        np.testing.assert_array_equal(padded[:, [0, 2]], values)
        np.testing.assert_array_equal(transposed[:, :3], indices.T)
        assert (padded[:, [1, 3, 4]] == 77).all()
        assert (transposed[:, 3] == 77).all()

    def test_runs_again_on_other_arrays(self):
        operator = dmlops.compile(top_k1())
        workspace = np.empty(operator.workspace_size, np.uint8)
        for place in range(3):
            arrays = top_k_arrays()
            arrays["input_tensor"] = sample("float32", (3, 4), place)
            operator.execute(arrays, workspace=workspace)
            expected = reference.top_k(arrays["input_tensor"], 2)
            assert_same(arrays["output_value_tensor"], expected[0])

    @pytest.mark.parametrize("name", DESCRIPTORS)
    def test_every_operator_with_a_dirty_workspace(self, name):
        # The workspace's contents are undefined; a larger one will do.
        descriptor = DESCRIPTORS[name]
        operator = dmlops.compile(descriptor, feature_level=FeatureLevel.EXTENDED)
        for seed, dirt in ((1, 0), (2, 0xFF), (5, 0xA5)):
            inputs, outputs = make_inputs(descriptor, seed), make_outputs(descriptor)
            workspace = np.full(operator.workspace_size + 100, dirt, np.uint8)
            operator.execute(inputs | outputs, workspace=workspace)
            for field, expected in oracle(descriptor, inputs).items():
                actual = outputs[field]
                if field.startswith(("output_count", "output_coordinates")):
                    np.testing.assert_array_equal(actual.ravel()[: expected.size], expected.ravel())
                else:
                    assert_same(actual, expected)

    def test_unaligned_workspace(self):
        x = sample("float32", (2, 30_000), "unaligned")
        descriptor = top_k1(x.shape, k=2000)
        operator = dmlops.compile(descriptor)
        for offset in (1, 2, 8):
            outputs = {
                "output_value_tensor": np.zeros((2, 2000), "float32"),
                "output_index_tensor": np.zeros((2, 2000), "uint32"),
            }
            workspace = np.empty(operator.workspace_size + 64 + offset, np.uint8)[offset:]
            operator.execute({"input_tensor": x, **outputs}, workspace=workspace)
            assert_same(outputs["output_value_tensor"], reference.top_k(x, 2000)[0])

    def test_0d_and_empty_tensors_at_the_extended_level(self):
        descriptor = NonzeroCoordinates(input_tensor=TensorDesc(TensorDataType.FLOAT32, ()))
        results = execute(descriptor, FeatureLevel.EXTENDED, input_tensor=np.array(3, "float32"))
        assert results["output_count_tensor"].item() == 1
        assert results["output_coordinates_tensor"].shape == (1, 0)
        empty = NonzeroCoordinates(input_tensor=TensorDesc(TensorDataType.FLOAT32, (0, 3)))
        results = execute(empty, FeatureLevel.EXTENDED, input_tensor=np.zeros((0, 3), "float32"))
        assert results["output_count_tensor"].item() == 0


class TestExecuteErrors:
    """Nothing is written when an error is raised."""

    @pytest.mark.parametrize("change", ["missing", "unknown"])
    def test_fields(self, change):
        arrays = top_k_arrays()
        if change == "missing":
            del arrays["output_index_tensor"]
        else:
            arrays["indices_tensor"] = arrays["input_tensor"]
        with pytest.raises(
            InvalidDescriptorError, match=r"TopK1.execute: got arrays for .*output_index_tensor"
        ):
            dmlops.compile(top_k1()).execute(arrays)
        assert (arrays["output_value_tensor"] == 77).all()

    def test_neighbours_do_not_overlap(self):
        memory = np.zeros((3, 10), "float32")
        arrays = top_k_arrays()
        memory[:, 1:5] = arrays["input_tensor"]
        arrays["input_tensor"], arrays["output_value_tensor"] = memory[:, 1:5], memory[:, 7:9]
        outputs = {"output_value_tensor": TensorDesc(TensorDataType.FLOAT32, (3, 2), (10, 1))}
        dmlops.compile(top_k1(strides=(10, 1), **outputs)).execute(arrays)
        assert_same(memory[:, 7:9].copy(), reference.top_k(memory[:, 1:5], 2)[0])

    def test_stream_on_the_cpu(self):
        arrays = top_k_arrays()
        with pytest.raises(
            InvalidDescriptorError, match=r"TopK1.stream: got 1, but .*cpu; stream must be None"
        ):
            dmlops.compile(top_k1()).execute(arrays, stream=1)
        assert (arrays["output_value_tensor"] == 77).all()


class TestReuse:
    @pytest.mark.parametrize("values", [(1, 1.0, True), (0.0, -0.0), (0, False, -0.0), (2**53, 2**53 + 1)])
    def test_values_that_compare_equal_or_round(self, values):
        for dtype in ("float64", "int64"):
            for value in values * 2:
                expected = np.array([[value]]).astype(dtype)
                assert_same(dmlops.diagonal_matrix(shape=(1, 1), dtype=dtype, value=value), expected)
                assert_same(dmlops.diagonal_matrix(np.ones((1, 1), dtype), value=value), expected)

    def test_indices_are_checked_in_every_call(self):
        for index in (2, 3, 2, -4, -3):
            indices = np.array([[index]])
            if -3 <= index < 3:
                assert_same(dmlops.gather_nd(X, indices), X[[index]])
            else:
                with pytest.raises(dmlops.IndexOutOfRangeError, match=f"coordinate 0 is {index}, and"):
                    dmlops.gather_nd(X, indices)

    def test_results_are_new_arrays(self):
        first, second = (dmlops.top_k(X, 2) for _ in range(2))
        first.values[...] = 77
        first.indices[...] = 77
        assert_same(second.values, reference.top_k(X, 2)[0])
        assert second.indices.flags.owndata


def test_debug_log_names_the_variant(caplog):
    with caplog.at_level(logging.DEBUG, "dmlops"):
        dmlops.top_k([3.0, 1.0], 1)
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


class TestTopKProblem:
    """What kernels are told of the order of results, and of rows that end early."""

    @staticmethod
    def problem(data_type, sizes, axis=-1, direction=AxisDirection.DECREASING, **options):
        x = TensorDesc(data_type, sizes)
        desc = TopK1(input_tensor=x, axis=axis % len(sizes), k=1, axis_direction=direction)
        return OPERATORS[TopK1].problem(desc, Options(**options))

    def test_lengths_stop_dimensions_from_merging(self):
        def rows(strides):
            lengths = TensorDesc(TensorDataType.INT32, (2, 3), strides)
            problem = self.problem(TensorDataType.FLOAT32, (2, 3, 4), is_sorted=False, lengths=lengths)
            assert not problem.is_sorted
            assert (problem.length_size, problem.length_signed) == (4, True)
            return problem.rows, problem.length_strides

        assert rows((3, 1)) == (((6, 4, 1, 1),), (1,))
        assert rows((1, 2)) == (((2, 12, 3, 3), (3, 4, 1, 1)), (1, 2))
        assert rows((0, 0)) == (((6, 4, 1, 1),), (0,))

    @pytest.mark.parametrize("name", ["bool", "int8", "uint8", "int64", "uint64", "float16", "float64"])
    def test_padding_loses_to_every_element(self, name):
        data_type, dtype = TensorDataType[name.upper()], np.dtype(name)
        if dtype.kind == "f":
            lowest, highest = -np.inf, np.inf
        else:
            limits = np.iinfo(dtype) if dtype.kind in "iu" else None
            lowest, highest = (limits.min, limits.max) if limits else (False, True)
        lengths = TensorDesc(TensorDataType.UINT64, ())
        for direction, value in (("DECREASING", lowest), ("INCREASING", highest)):
            problem = self.problem(data_type, (4,), direction=AxisDirection[direction], lengths=lengths)
            bits = np.array(value, dtype).view(f"u{dtype.itemsize}")
            assert problem.padding == int(bits)
            assert (problem.length_size, problem.length_signed) == (8, False)
            assert problem.length_strides == ()
