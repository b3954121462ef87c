"""`dmlops.integrations.onnx`: nodes run by dmlops, and turned into descriptors."""

import re

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("ml_dtypes")

from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import dmlops  # noqa: E402
from dmlops import (  # noqa: E402
    AxisDirection,
    DiagonalMatrix,
    DiagonalMatrix1,
    FeatureLevel,
    GatherND1,
    IndexOutOfRangeError,
    InvalidDescriptorError,
    NonzeroCoordinates,
    TensorDataType,
    TensorDesc,
    TopK1,
)
from dmlops.integrations.onnx import OPERATORS, descriptor_from_node  # noqa: E402
from tests import reference  # noqa: E402
from tests.data import assert_same, bits, sample  # noqa: E402
from tests.libraries import execute  # noqa: E402
from tests.scripts import ROOT  # noqa: E402

TYPES = tuple(np.dtype(name) for name in ("float32", "float16", "float64", "int32", "int64", "uint8"))


def evaluate(op_type, *arrays, outputs=1, opset=18, ours=True, **attributes):
    """Run a model of one node; None stands for an optional input that is left out."""
    names = ["" if array is None else f"x{place}" for place, array in enumerate(arrays)]
    given = {name: array for name, array in zip(names, arrays, strict=True) if name}
    node = helper.make_node(op_type, names, [f"y{i}" for i in range(outputs)], **attributes)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in node.output]
    graph = helper.make_graph([node], "one", infos, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model, new_ops=OPERATORS if ours else None).run(None, given)


def assert_like_onnx(op_type, *arrays, **attributes):
    for actual, expected in zip(
        evaluate(op_type, *arrays, **attributes),
        evaluate(op_type, *arrays, ours=False, **attributes),
        strict=True,
    ):
        assert_same(actual, expected)


class TestTopK:
    @pytest.mark.parametrize("dtype", TYPES, ids=str)
    @pytest.mark.parametrize("largest", [0, 1])
    def test_matches_the_oracle(self, dtype, largest):
        x = sample(dtype, (4, 30), "onnx")
        values, indices = evaluate("TopK", x, np.array([7]), outputs=2, largest=largest)
        expected = reference.top_k(x, 7, largest=bool(largest))
        np.testing.assert_array_equal(bits(values), bits(expected[0]))
        assert_same(indices, expected[1].astype(np.int64))

    @pytest.mark.parametrize("opset", [10, 11, 24])
    def test_defaults(self, opset):
        x = np.array([[3, 1, 3, 2]], np.float32)
        values, indices = evaluate("TopK", x, np.array([2]), outputs=2, opset=opset)
        assert values.tolist() == [[3, 3]]
        assert indices.tolist() == [[0, 2]]

    def test_axis(self):
        assert_like_onnx("TopK", sample("int32", (5, 6), "axis"), np.array([3]), outputs=2, axis=0)

    def test_none(self):
        values, indices = evaluate("TopK", np.zeros((3, 4), np.float32), np.array([0]), outputs=2)
        assert values.shape == indices.shape == (3, 0)


class TestNonZero:
    @pytest.mark.parametrize("dtype", [*TYPES, np.dtype(bool)], ids=str)
    @pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4), (0, 3), ()])
    def test_like_onnx(self, dtype, shape):
        assert_like_onnx("NonZero", np.asarray(sample(dtype, shape, "nonzero")))

    def test_is_transposed(self):
        (result,) = evaluate("NonZero", np.array([[1, 0], [1, 1]], bool))
        assert_same(result, np.array([[0, 1, 1], [0, 0, 1]]))
        assert result.flags.c_contiguous


class TestGatherND:
    @pytest.mark.parametrize(
        ("indices", "batch_dims"),
        [
            ([[0, 0], [1, -1]], 0),
            ([[1], [0]], 0),
            ([[[0, 1]], [[1, 0]]], 0),
            ([[1], [0]], 1),
            ([[[1]], [[-1]]], 1),
        ],
    )
    def test_like_onnx(self, indices, batch_dims):
        x = sample("float32", (2, 2, 3), "gather")
        assert_like_onnx("GatherND", x, np.array(indices), batch_dims=batch_dims)

    def test_out_of_range(self):
        with pytest.raises(IndexOutOfRangeError, match="coordinate 0 is 2"):
            evaluate("GatherND", np.zeros((2, 2)), np.array([[2]]))


class TestTrilu:
    @pytest.mark.parametrize("upper", [None, 0, 1])
    @pytest.mark.parametrize("k", [None, 0, 2, -2, 9, -9, 2**63 - 1, -(2**63)])
    def test_like_numpy(self, k, upper):
        x = sample("int64", (2, 4, 5), "trilu")
        attributes = {} if upper is None else {"upper": upper}
        (result,) = evaluate("Trilu", x, None if k is None else np.array(k), **attributes)
        near = min(max(k or 0, -9), 9)
        assert_same(result, np.tril(x, near) if upper == 0 else np.triu(x, near))

    def test_clears_nan(self):
        (result,) = evaluate("Trilu", np.full((2, 2), np.nan, np.float32), upper=0)
        assert_same(result[:1], np.array([[np.nan, 0]], np.float32))


class TestEyeLike:
    @pytest.mark.parametrize("k", [0, 1, -2, 7])
    @pytest.mark.parametrize("dtype", [None, TensorProto.FLOAT16, TensorProto.UINT64, TensorProto.BOOL])
    def test_like_numpy(self, k, dtype):
        x = np.ones((3, 4), np.int32)
        attributes = {} if dtype is None else {"dtype": dtype}
        (result,) = evaluate("EyeLike", x, k=k, **attributes)
        made = x.dtype if dtype is None else helper.tensor_dtype_to_np_dtype(dtype)
        assert_same(result, np.eye(3, 4, k, dtype=made))

    def test_bfloat16(self):
        (result,) = evaluate("EyeLike", np.ones((2, 2), np.float32), dtype=TensorProto.BFLOAT16)
        assert result.dtype == helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
        assert result.astype(np.float32).tolist() == [[1, 0], [0, 1]]


def node(op_type, inputs=2, **attributes):
    return helper.make_node(op_type, [f"x{i}" for i in range(inputs)], ["y"], **attributes)


def tensor(*sizes, data_type=TensorDataType.FLOAT32):
    return TensorDesc(data_type, sizes)


class TestDescriptors:
    def test_top_k(self):
        desc = descriptor_from_node(node("TopK", axis=-2, largest=0), [tensor(3, 4)], {"x1": np.array([2])})
        assert desc == TopK1(input_tensor=tensor(3, 4), axis=0, k=2, axis_direction=AxisDirection.INCREASING)
        assert descriptor_from_node(node("TopK"), [tensor(4)], {"x1": [2]}).axis_direction == 1

    def test_nonzero(self):
        assert descriptor_from_node(node("NonZero", 1), [tensor(3, 4)]) == NonzeroCoordinates(
            input_tensor=tensor(3, 4)
        )

    @pytest.mark.parametrize(
        ("data", "indices", "batch_dims", "output"),
        [
            ((3, 4, 5), (2, 2), 0, (1, 2, 5)),
            ((6,), (2, 3, 1), 0, (1, 2, 3)),
            ((3, 4), (3, 2, 1), 1, (1, 3, 2)),
            ((3, 4), (7, 8, 1), 0, (7, 8, 4)),
        ],
    )
    def test_gather_nd_pads_ranks(self, data, indices, batch_dims, output):
        picks = tensor(*indices, data_type=TensorDataType.INT64)
        desc = descriptor_from_node(node("GatherND", batch_dims=batch_dims), [tensor(*data), picks])
        assert isinstance(desc, GatherND1)
        assert desc.output_tensor.sizes == output
        assert desc.minimum_feature_level() == FeatureLevel.DML_3_0

    @pytest.mark.parametrize("upper", [None, 0, 1])
    @pytest.mark.parametrize("k", [None, 0, 2, -2, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)])
    def test_trilu_runs_as_onnx_says(self, k, upper):
        attributes = {} if upper is None else {"upper": upper}
        constants = None if k is None else {"x1": np.array(k)}
        desc = descriptor_from_node(
            node("Trilu", 1 if k is None else 2, **attributes), [tensor(4, 5)], constants
        )
        assert isinstance(desc, DiagonalMatrix1)
        x = sample("float32", (4, 5), "trilu")
        (result,) = execute(desc, input_tensor=x).values()
        near = min(max(k or 0, -9), 9)
        assert_same(result, np.tril(x, near) if upper == 0 else np.triu(x, near))

    def test_eye_like(self):
        desc = descriptor_from_node(node("EyeLike", 1, k=-1, dtype=TensorProto.INT8), [tensor(3, 4)])
        assert desc == DiagonalMatrix(
            output_tensor=tensor(3, 4, data_type=TensorDataType.INT8), offset=-1, value=1
        )

    def test_what_cannot_be_one(self):
        with pytest.raises(InvalidDescriptorError, match=r"TopK\.x1: got no value"):
            descriptor_from_node(node("TopK"), [tensor(4)])
        with pytest.raises(InvalidDescriptorError, match="one of TopK, NonZero"):
            descriptor_from_node(node("Relu", 1), [tensor(4)])
        with pytest.raises(dmlops.InvalidDescriptorError, match=r"TopK1\.k"):
            descriptor_from_node(node("TopK"), [tensor(4)], {"x1": 5})


def test_page_examples():
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    section = page.partition("## ONNX")[2].partition("\n## ")[0]
    examples = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert examples
    exec("\n".join(examples), {})
