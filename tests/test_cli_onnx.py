"""`dmlops onnx`: models, their inputs and outputs, and what is told of the nodes."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.command_line import assert_refused

onnx = pytest.importorskip("onnx")

X = np.array([[3, 1, 3, 2], [0, 5, 5, 5]], np.float32)
MODEL = """
    <ir_version: 8, opset_import: ["": 18]>
    best (float[N, 4] x, int64[1] k) => (float[N, K] values, int64[N, K] indices, string[N, 4] names) {
        y = Relu (x)
        z = Relu (y)
        values, indices = TopK <sorted = 0> (z, k)
        text = Cast <to = 8> (x)
        names = Trilu (text)
    }
"""
ONE_OUTPUT = (
    '<ir_version: 8, opset_import: ["": 18]> one (float[N, M] x) => (int64[2, C] y) { y = NonZero (x) }'
)


@pytest.fixture
def model(command):
    """Give the command, in a folder with models and files of inputs."""
    onnx.save(onnx.parser.parse_model(MODEL), "m.onnx")
    onnx.save(onnx.parser.parse_model(ONE_OUTPUT), "one.onnx")
    np.save("x.npy", X)
    np.save("k.npy", np.array([2]))
    np.savez("both.npz", k=np.array([2]), x=X)
    return command


def check_file(path):
    with np.load(path) as results:
        assert sorted(results.files) == ["indices", "names", "values"]
        assert results["values"].tolist() == [[3, 3], [5, 5]]
        # sorted=0: in order of index.
        assert results["indices"].tolist() == [[0, 2], [1, 2]]
        assert results["names"].tolist() == [["3.0", "1.0", "3.0", "2.0"], ["", "5.0", "5.0", "5.0"]]


@pytest.mark.parametrize(
    "inputs",
    [
        ("--input", "x.npy", "--input", "k.npy"),
        ("-i", "k=k.npy", "-i", "x.npy"),
        ("-i", "k=both.npz:k", "-i", "x=both.npz:x"),
        ("-i", "both.npz"),
    ],
    ids=str,
)
def test_runs_a_model(model, inputs):
    code, printed, error = model("onnx", "m.onnx", *inputs, "-o", "out.npz")
    assert (code, error) == (0, "")
    check_file("out.npz")
    title, *lines = printed.splitlines()
    assert title.startswith("m.onnx: dmlops ran 1 of 5 nodes (CPU, ")
    assert lines == [
        " dmlops   TopK values",
        " onnx     Trilu names: its input has type str",
        " onnx     Relu, 2 nodes: dmlops has no such operator",
        " onnx     Cast, 1 node: dmlops has no such operator",
        "values float32 (2, 2)",
        "indices int64 (2, 2)",
        "names <U32 (2, 4)",
        "written to out.npz",
    ]


def test_prints_the_outputs_without_a_file(model):
    code, printed, _ = model("onnx", "m.onnx", "-i", "both.npz")
    assert code == 0
    assert "values float32 (2, 2)\n[[3. 3.]\n [5. 5.]]\n" in printed
    assert sorted(os.listdir()) == ["both.npz", "k.npy", "m.onnx", "one.onnx", "x.npy"]


def test_one_output_in_a_file_of_one_array(model):
    assert model("onnx", "one.onnx", "-i", "x.npy", "-o", "y.npy")[0] == 0
    assert np.load("y.npy").tolist() == [[0, 0, 0, 0, 1, 1, 1], [0, 1, 2, 3, 1, 2, 3]]


def test_results_of_other_commands_are_inputs(model):
    assert model("top-k", "x.npy", "-k", 2, "--device", "cpu", "-o", "best.npz")[0] == 0
    code, printed, _ = model("onnx", "one.onnx", "-i", "best.npz")
    assert code == 0
    assert "y int64 (2, 4)" in printed


def test_refusals(model):
    Path("empty.onnx").touch()
    Path("folder").mkdir()
    np.save("double.npy", X.astype(float))
    np.save("narrow.npy", X[:, :3])
    np.save("nine.npy", np.array([9]))
    before = sorted(os.listdir())
    both = ("-i", "both.npz")
    for arguments, *parts in (
        (("m.onnx", "-i", "x.npy"), "m.onnx: input k: got no value", "its inputs are x, k"),
        (
            ("m.onnx", "-i", "y=x.npy"),
            "m.onnx: input y: got a value, but the model has no input of that name",
        ),
        (
            ("m.onnx", *both, "-i", "k.npy"),
            "--input k.npy: the model has no further input; its inputs are x, k",
        ),
        (("m.onnx", *both, "-i", "k=k.npy"), "--input k.npy: input k has a value already"),
        (
            ("m.onnx", "-i", "double.npy", "-i", "k.npy"),
            "input x: got float64, but the model declares float32",
        ),
        (("m.onnx", "-i", "narrow.npy", "-i", "k.npy"), "got shape (2, 3), but the model declares (any, 4)"),
        (
            ("m.onnx", "-i", "x.npy", "-i", "nine.npy"),
            "m.onnx: top_k.k: got 9, but axis 1 of x has 4 elements",
        ),
        (("m.onnx", "-i", "no.npy"), "no.npy: No such file or directory"),
        (("no.onnx",), "no.onnx: No such file or directory"),
        (("folder",), "folder: Is a directory"),
        (("empty.onnx",), "empty.onnx: not an ONNX model: it has no outputs"),
        (("x.npy",), "x.npy: not an ONNX model: "),
        (("m.onnx", *both, "-o", "out.npy"), "-o out.npy: the name of the file must end with .npz"),
        (("m.onnx", *both, "-o", "no/out.npz"), "-o no/out.npz: there is no folder"),
        (("m.onnx", *both, "-o", "both.npz"), "-o both.npz: it is the file that both.npz is read from"),
    ):
        assert_refused(model("onnx", *arguments), *parts)
    assert sorted(os.listdir()) == before


def test_strings_are_not_pickled(model):
    """The evaluator has constant strings as objects."""
    text = """
        <ir_version: 8, opset_import: ["": 18]>
        words () => (string[2] y) { y = Constant <value = string[2] {"one", "two"}> () }
    """
    onnx.save(onnx.parser.parse_model(text), "words.onnx")
    assert model("onnx", "words.onnx", "-o", "y.npy")[0] == 0
    assert np.load("y.npy").tolist() == ["one", "two"]


def test_outputs_of_any_name(model):
    text = """
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N, M] x) => (float[A, B] file, float[C, D] allow_pickle)
        { file = Relu (x)  allow_pickle = Neg (x) }
    """
    onnx.save(onnx.parser.parse_model(text), "names.onnx")
    assert model("onnx", "names.onnx", "-i", "x.npy", "-o", "out.npz")[0] == 0
    with np.load("out.npz") as results:
        assert results["file"].tolist() == X.tolist()
        assert results["allow_pickle"].tolist() == (-X).tolist()


def test_what_the_evaluator_cannot_run(model):
    nodes = {"y = com.acme.Do (x)": "", "y = Reshape (x, k)": "", "y = SequenceConstruct (x)": "-o"}
    for node, option in nodes.items():
        text = f"""
            <ir_version: 8, opset_import: ["": 18, "com.acme": 1]>
            g (float[N, 4] x, int64[1] k) => (y) {{ {node} }}
        """
        onnx.save(onnx.parser.parse_model(text), "odd.onnx")
        outcome = model("onnx", "odd.onnx", "-i", "both.npz", "-o", "out.npz")
        if option:
            assert_refused(outcome, "-o out.npz: output y is a list, and not an array; leave -o out")
            assert "y a list\n" in model("onnx", "odd.onnx", "-i", "both.npz")[1]
        else:
            assert_refused(outcome, "odd.onnx: ONNX's reference evaluator cannot run it: ")
        assert not Path("out.npz").exists()


def test_without_the_extra(model, monkeypatch):
    for name in list(sys.modules):
        if name.startswith("dmlops.integrations.onnx"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert_refused(model("onnx", "m.onnx"), 'onnx: this needs onnx: pip install "dmlops[onnx]"')
