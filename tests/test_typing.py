"""Type checkers accept users' programs and infer the right types."""

import doctest
import inspect
import subprocess
import sys
import typing

import pytest

import dmlops
from tests.scripts import ROOT

pytest.importorskip("mypy")

PROGRAM = """
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import dmlops


class Tensor:
    \"\"\"An array of another library.\"\"\"


scores: NDArray[np.float32] = np.zeros((3, 4), np.float32)
tuples = np.zeros((3, 1), np.int64)
assert_type(dmlops.top_k(scores, 2).values, NDArray[np.float32])
assert_type(dmlops.top_k(scores, 2, axis=0, index_dtype="uint32").indices, NDArray[Any])
assert_type(dmlops.top_k(scores, 2, sorted=False, lengths=[1, 2, 3]).values, NDArray[np.float32])
assert_type(dmlops.top_k([1, 2], 1).values, NDArray[Any])
assert_type(dmlops.top_k(Tensor(), 1).values, Tensor)
values, indices = dmlops.top_k(Tensor(), k=1, index_dtype=np.int32)
assert_type(indices, Tensor)
assert_type(dmlops.nonzero_coordinates(scores).coordinates, NDArray[Any])
assert_type(dmlops.nonzero_coordinates(Tensor(), size=3, fill_value=0).count, Tensor)
assert_type(dmlops.gather_nd(scores, tuples), NDArray[np.float32])
assert_type(dmlops.gather_nd(scores, [[0]], mode="clip"), NDArray[np.float32])
assert_type(dmlops.gather_nd(Tensor(), Tensor()), Tensor)
assert_type(dmlops.diagonal_matrix(scores, value=2, begin=-1), NDArray[np.float32])
assert_type(dmlops.diagonal_matrix(shape=(2, 3), dtype=np.dtype("int8")), NDArray[Any])
assert_type(dmlops.diagonal_matrix(shape=(2, 3), dtype="bfloat16", like=Tensor()), Tensor)
assert_type(dmlops.diagonal_matrix(Tensor(), begin=1, end=np.inf), Tensor)
assert_type(dmlops.diagonal_matrix(scores, value=np.datetime64("NaT")), NDArray[np.float32])
assert_type(dmlops.tril(scores), NDArray[np.float32])
assert_type(dmlops.triu(m=[[1, 2]], k=1, out=None), NDArray[Any])
assert_type(dmlops.tril(Tensor(), -1, stream=5), Tensor)
assert_type(dmlops.eye(3, None, 1, np.complex64), NDArray[Any])
assert_type(dmlops.eye(3, dtype=bool, like=Tensor()), Tensor)
number, flag = np.int64(1), np.bool_(True)
assert_type(dmlops.top_k(scores, number, axis=number, largest=flag, index_dtype="i8").indices, NDArray[Any])
assert_type(dmlops.nonzero_coordinates(scores, size=number, fill_value=number).count, NDArray[Any])
assert_type(dmlops.gather_nd(scores, tuples, batch_dims=np.int64(0)), NDArray[np.float32])
assert_type(dmlops.diagonal_matrix(shape=np.array([2, 3]), dtype=np.float32), NDArray[Any])
assert_type(dmlops.triu(scores, number), NDArray[np.float32])
assert_type(dmlops.eye(number, number, number), NDArray[Any])
assert [dmlops.TensorDesc(type, [1, 3]).data_type for type in ("float32", np.float32, np.dtype("f4"))]
x = dmlops.TensorDesc("DML_TENSOR_DATA_TYPE_FLOAT32", [1, 3])
dmlops.TopK1(input_tensor=x, axis=1, k=2, axis_direction="DECREASING")
dmlops.DiagonalMatrix1(output_tensor=x, value_data_type="FLOAT32", value=np.float32(1), diagonal_fill_begin=0,
                       diagonal_fill_end=1).validate("DML_FEATURE_LEVEL_6_4")
"""

OPERATORS = "diagonal_matrix", "gather_nd", "nonzero_coordinates", "sample", "top_k"
MISTAKES = {
    'dmlops.gather_nd(np.zeros(3), [[0]], mode="wrap")': "gather_nd",
    'dmlops.top_k(np.zeros(3), 1, index_dtype="int8")': "top_k",
    'dmlops.top_k(np.zeros(3), "1")': "top_k",
    'dmlops.top_k(np.zeros(3), 1, sorted="no")': "top_k",
    'dmlops.nonzero_coordinates(np.zeros(3), size="all")': "nonzero_coordinates",
    'dmlops.sample(np.zeros(3), 1, index_dtype="int8")': "sample",
    "dmlops.diagonal_matrix(np.zeros((3, 3)), shape=(3, 3))": "diagonal_matrix",
    "dmlops.tril(np.zeros((3, 3)), value=1)": "tril",
    'dmlops.eye("3")': "eye",
}


@pytest.mark.parametrize("name", [*OPERATORS, "tril", "triu", "eye"])
def test_type_checkers_know_each_parameter(name):
    """The forms that a type checker sees have, together, the parameters of the function that runs."""
    function = getattr(dmlops, name)
    known = set()
    for form in typing.get_overloads(function):
        for parameter in inspect.signature(form).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                (options,) = typing.get_args(parameter.annotation)
                known |= typing.get_type_hints(options).keys()
            else:
                known.add(parameter.name)
    assert known == inspect.signature(function).parameters.keys()


def check(program, folder):
    """Return the exit code and the output of mypy for a program that is not a part of dmlops."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent"]
    result = subprocess.run(
        [*command, f"--cache-dir={folder.parent / 'mypy'}", "program.py"],
        cwd=folder,
        env={"PATH": "", "MYPYPATH": str(ROOT), "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout


@pytest.mark.exhaustive  # mypy reads NumPy first, for a quarter of a minute
class TestPrograms:
    def test_a_program_of_right_calls(self, tmp_path):
        assert check(PROGRAM, tmp_path)[0] == 0, check(PROGRAM, tmp_path)[1]

    def test_mistakes(self, tmp_path):
        lines = ["import numpy as np", "import dmlops", *MISTAKES]
        code, output = check("\n".join(lines), tmp_path)
        assert code == 1
        for number, (mistake, function) in enumerate(MISTAKES.items(), start=3):
            assert any(
                line.startswith(f"program.py:{number}: error:") and function in line
                for line in output.splitlines()
            ), f"{mistake} is not told in {output}"

    @pytest.mark.parametrize(
        "page", ["README", "docs/descriptors", *(f"docs/operators/{name}" for name in OPERATORS)]
    )
    def test_the_examples_of_pages(self, tmp_path, page):
        examples = doctest.DocTestParser().get_examples((ROOT / f"{page}.md").read_text(encoding="utf-8"))
        assert len(examples) > 5
        code, output = check("".join(example.source for example in examples), tmp_path)
        assert code == 0, output
