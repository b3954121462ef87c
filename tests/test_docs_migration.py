"""The tables of docs/migration.md: each line of dmlops gives what the line that it replaces gives."""

import re

import numpy as np
import pytest

from tests.scripts import ROOT

PAGE = (ROOT / "docs/migration.md").read_text(encoding="utf-8")
SECTIONS = {text.partition("\n")[0]: text for text in PAGE.split("\n## ")[1:]}
ROWS = {
    section: re.findall(r"^\| `(.+?)` \| `(.+?)` \| .*\|$", text, flags=re.MULTILINE)
    for section, text in SECTIONS.items()
}
LIBRARIES = {"torch": "torch", "JAX": "jax", "FlashInfer": "torch", "ONNX": "onnx"}
# The same elements, in another order.
REORDERED = {"torch.topk(x, 2, sorted=False)", "values, indices = TopK <sorted = 0> (x, k)"}
# Several answers are right for data with ties, and for draws.
NOT_COMPARED = {
    "torch.multinomial(torch.softmax(x, -1), 1)",
    "np.argpartition(x, -2)[:, -2:]",
    "np.top_k(x, 2)",
    'np.top_k(x, 2, mode="smallest")',
}


def _names(section):
    """Return the variables of the section's block of Python."""
    pytest.importorskip(LIBRARIES.get(section, "numpy"))
    names = {}
    exec(re.search(r"```python\n(.*?)```", SECTIONS[section], re.DOTALL)[1], names)
    return names


def _run_theirs(section, line, names):
    if section != "ONNX":
        return eval(line, names)
    onnx = pytest.importorskip("onnx")
    node = onnx.parser.parse_node(line)
    evaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator(node)
    return evaluator.run(None, {name: names[name] for name in node.input})


def _arrays(answer):
    parts = answer if isinstance(answer, (tuple, list)) else [answer]
    return [np.asarray(part) for part in parts]


@pytest.mark.parametrize(
    ("section", "theirs", "ours"),
    [
        (section, *row)
        for section in ("torch", "NumPy and CuPy", "JAX", "FlashInfer", "ONNX")
        for row in ROWS[section]
    ],
)
def test_lines(section, theirs, ours):
    names = _names(section)
    answer = [part.copy() for part in _arrays(eval(ours, names))]
    if section == "FlashInfer" or theirs in NOT_COMPARED:
        return
    expected = _arrays(_run_theirs(section, theirs, names))
    if theirs in REORDERED:
        answer, expected = ([np.sort(part) for part in parts] for parts in (answer, expected))
    assert len(answer) == len(expected)
    assert all(map(np.array_equal, answer, expected))


def test_lines_of_directml():
    names = _names("DirectML")
    for _, ours in ROWS["DirectML"]:
        exec(ours, names)
    assert names["indices"].tolist() == [[[[1, 3], [0, 3]]]]


def test_each_line_has_a_replacement():
    for section, text in SECTIONS.items():
        lines = [line for line in text.splitlines() if line.startswith("| ")]
        assert len(ROWS[section]) == len(lines) - 2, section  # the head of the table, and the rule below it
    assert {*REORDERED, *NOT_COMPARED} <= {theirs for rows in ROWS.values() for theirs, _ in rows}
