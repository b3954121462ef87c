"""`dmlops.integrations.onnx`: nodes that dmlops runs."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ml_dtypes = pytest.importorskip("ml_dtypes")

from onnx import TensorProto, helper  # noqa: E402
from onnx.inliner import inline_local_functions  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import dmlops  # noqa: E402
from dmlops import IndexOutOfRangeError, InvalidDescriptorError  # noqa: E402
from dmlops.integrations.onnx import OPERATORS  # noqa: E402
from tests import reference  # noqa: E402
from tests.data import assert_same, bits, sample  # noqa: E402
from tests.scripts import run_page  # noqa: E402

TYPES = tuple(np.dtype(name) for name in ("float32", "float16", "float64", "int32", "int64", "uint8"))


def evaluate(op_type, *arrays, outputs=1, opset=18, ours=True, **attributes):
    """Run a model of one node; None means an optional input that is left out."""
    names = ["" if array is None else f"x{place}" for place, array in enumerate(arrays)]
    given = {name: array for name, array in zip(names, arrays, strict=True) if name}
    node = helper.make_node(op_type, names, [f"y{i}" for i in range(outputs)], **attributes)
    infos = [
        helper.make_tensor_value_info(name, TensorProto.UNDEFINED, array.shape)
        for name, array in given.items()
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in node.output]
    graph = helper.make_graph([node], "one", infos, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model, new_ops=OPERATORS if ours else None).run(None, given)


def evaluate_both(op_type, *arrays, **attributes):
    """Yield pairs of a result of dmlops and the same result of ONNX."""
    ours, theirs = (evaluate(op_type, *arrays, ours=ours, **attributes) for ours in (True, False))
    return zip(ours, theirs, strict=True)


def assert_equals_onnx(op_type, *arrays, **attributes):
    """Check types and values, of types too whose bits cannot be compared."""
    for actual, expected in evaluate_both(op_type, *arrays, **attributes):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        assert actual.tolist() == expected.tolist()


def assert_like_onnx(op_type, *arrays, **attributes):
    for actual, expected in evaluate_both(op_type, *arrays, **attributes):
        assert_same(actual, expected)


class TestTopK:
    @pytest.mark.parametrize("dtype", TYPES, ids=str)
    @pytest.mark.parametrize(("largest", "is_sorted"), [(0, 1), (1, 0), (1, 1)])
    def test_matches_the_oracle(self, dtype, largest, is_sorted):
        x = sample(dtype, (4, 30), "onnx")
        values, indices = evaluate("TopK", x, np.array([7]), outputs=2, largest=largest, sorted=is_sorted)
        expected = reference.top_k(x, 7, largest=bool(largest), sorted=bool(is_sorted))
        np.testing.assert_array_equal(bits(values), bits(expected[0]))
        assert_same(indices, expected[1].astype(np.int64))

    @pytest.mark.parametrize("opset", [1, 9])
    def test_k_as_an_attribute(self, opset):
        x = sample("float32", (4, 30), "onnx")
        values, indices = evaluate("TopK", x, outputs=2, opset=opset, k=7)
        expected = reference.top_k(x, 7)
        np.testing.assert_array_equal(bits(values), bits(expected[0]))
        assert_same(indices, expected[1].astype(np.int64))

    @pytest.mark.parametrize("opset", [10, 11, 23])
    def test_defaults(self, opset):
        x = np.array([[3, 1, 3, 2]], np.float32)
        values, indices = evaluate("TopK", x, np.array([2]), outputs=2, opset=opset)
        assert values.tolist() == [[3, 3]]
        assert indices.tolist() == [[0, 2]]


class TestNonZero:
    @pytest.mark.parametrize("dtype", [*TYPES, np.dtype(bool)], ids=str)
    @pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4), (0, 3)])
    def test_like_onnx(self, dtype, shape):
        assert_like_onnx("NonZero", sample(dtype, shape, "nonzero"))

    @pytest.mark.parametrize("value", [0, 3])
    def test_scalar(self, value):
        (result,) = evaluate("NonZero", np.array(value))
        assert_same(result, np.empty((0, int(value != 0)), np.int64))


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
    @pytest.mark.parametrize("k", [None, -2, 9, 2**63 - 1, -(2**63)])
    def test_like_numpy(self, k, upper):
        x = sample("int64", (2, 4, 5), "trilu")
        attributes = {} if upper is None else {"upper": upper}
        (result,) = evaluate("Trilu", x, None if k is None else np.array(k), **attributes)
        near = min(max(k or 0, -9), 9)
        assert_same(result, np.tril(x, near) if upper == 0 else np.triu(x, near))


class TestEyeLike:
    @pytest.mark.parametrize("k", [0, 1, -2, 7])
    @pytest.mark.parametrize("dtype", [None, TensorProto.BFLOAT16, TensorProto.UINT64, TensorProto.BOOL])
    def test_like_numpy(self, k, dtype):
        x = np.ones((3, 4), np.int32)
        attributes = {} if dtype is None else {"dtype": dtype}
        (result,) = evaluate("EyeLike", x, k=k, **attributes)
        made = x.dtype if dtype is None else helper.tensor_dtype_to_np_dtype(dtype)
        assert_same(result, np.eye(3, 4, k, dtype=made))


# Models that onnx's own evaluator supports, and dmlops does not.
NOT_OURS = ("U4", object, "complex64", ml_dtypes.int4, ml_dtypes.float8_e4m3fn, ">f4")


class TestWhatIsLeftToOnnx:
    @pytest.mark.parametrize("dtype", NOT_OURS, ids=str)
    def test_types(self, dtype):
        x = np.array([[1, -3, 2], [2, 0, 1]]).astype("U4" if dtype is object else dtype).astype(dtype)
        for opset, arguments, attributes in ((1, (x,), {"k": 2}), (10, (x, np.array([2])), {})):
            assert_equals_onnx("TopK", *arguments, outputs=2, opset=opset, **attributes)
        assert_equals_onnx("NonZero", x)
        assert_equals_onnx("GatherND", x, np.array([[1, 0], [0, -1]]))
        for upper in (0, 1):
            assert_equals_onnx("Trilu", x, np.array(1), upper=upper)
        assert_equals_onnx("EyeLike", x, k=1)
        assert_equals_onnx("EyeLike", x, dtype=TensorProto.FLOAT)

    @pytest.mark.parametrize("dtype", ["int8", "uint16", ">i8"])
    def test_types_of_indices(self, dtype):
        x, one = np.array([[1.0, -3, 2], [2, 0, 1]]), np.array([1], dtype)
        assert_equals_onnx("GatherND", x, np.array([[1, 0], [0, -1]]).astype(dtype) % 2)
        assert_equals_onnx("TopK", x, one, outputs=2)
        assert_equals_onnx("Trilu", x, one[0])

    def test_masked_arrays(self):
        x = np.ma.masked_array(np.array([[1, 3], [2, 0]]), [[True, False], [False, False]])
        assert_equals_onnx("NonZero", x)
        assert_equals_onnx("Trilu", x)

    def test_forms(self):
        assert_equals_onnx("EyeLike", np.ones(3, np.float32))
        assert_equals_onnx("Trilu", np.arange(3.0))
        assert_equals_onnx("TopK", np.arange(6.0), np.array([2, 3]), outputs=2)  # it takes the first
        with pytest.raises(RuntimeError, match="EyeLike only accept 1D or 2D tensors"):
            evaluate("EyeLike", np.ones((2, 3, 3), np.float32))

    def test_attributes_of_a_function(self):
        text = """
            <ir_version: 8, opset_import: ["": 18, "local": 1]>
            agraph (float[N, M] x) => (y, z) {
                y = local.eye <type = 8, diagonal = 1>(x)
                z = local.eye <type = 1, diagonal = -1>(x)
            }
            <domain: "local", opset_import: ["": 18]>
            eye <type, diagonal> (x) => (y) { y = EyeLike <dtype: int = @type, k: int = @diagonal>(x) }
        """
        session = ReferenceEvaluator(onnx.parser.parse_model(text), new_ops=OPERATORS)
        strings, floats = session.run(None, {"x": np.zeros((2, 3), np.float32)})
        assert strings.tolist() == [["", "1", ""], ["", "", "1"]]
        assert_same(floats, np.eye(2, 3, -1, dtype=np.float32))

    def test_what_dmlops_refuses_is_told_in_its_words(self):
        x = np.zeros((3, 4), np.float32)
        with pytest.raises(InvalidDescriptorError, match=r"k: got 5, .* 4 elements"):
            evaluate("TopK", x, np.array([5]), outputs=2)
        with pytest.raises(InvalidDescriptorError, match=r"axis: got -5"):
            evaluate("TopK", x, np.array([1]), outputs=2, axis=-5)


class TestModels:
    """The recipe of the page: a model whose functions are inlined, in onnx's own evaluator."""

    TEXT = """
        <ir_version: 8, opset_import: ["": 18, "local": 1]>
        g (bool go, float[2, 3] x) => (z, v) {
            y = If (go) <
                then_branch = yes () => (a) { a = Trilu (x) },
                else_branch = no () => (b) { b = EyeLike (x) }
            >
            z = local.find (y)
            k = Constant <value = int64[1] {2}> ()
            v, i = TopK (x, k)
        }
        <domain: "local", opset_import: ["": 18]>
        find (t) => (r) { r = NonZero (t) }
    """

    @pytest.mark.parametrize("go", [True, False])
    def test_branches_and_functions_run_by_dmlops(self, go, monkeypatch):
        called = []

        def record(name):
            function = getattr(dmlops, name)

            def recorded(*arguments, **options):
                called.append(name)
                return function(*arguments, **options)

            monkeypatch.setattr(dmlops, name, recorded)

        matrix = "triu" if go else "diagonal_matrix"
        for name in ("top_k", "nonzero_coordinates", matrix):
            record(name)
        model = inline_local_functions(onnx.parser.parse_model(self.TEXT))
        x = np.array([[3, 1, 2], [9, 0, 9]], np.float32)
        z, v = ReferenceEvaluator(model, new_ops=OPERATORS).run(None, {"go": np.array(go), "x": x})
        expected = np.triu(x) if go else np.eye(2, 3)
        assert z.tolist() == np.array(expected.nonzero()).tolist()
        assert v.tolist() == [[3, 2], [9, 9]]
        assert sorted(called) == sorted([matrix, "nonzero_coordinates", "top_k"])


def test_page_examples():
    run_page("docs/integrations/onnx.md")
