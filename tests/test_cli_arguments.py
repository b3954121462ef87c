"""Arbitrary arguments: every command ends with an answer or a one-line error."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.command_line import assert_one_line, fuzz

X = np.array([[3, 1, 3, 2], [0, 5, 5, 5]], np.int32)
FILES = st.sampled_from(["x.npy", "é.npy", "i.npy"])
WORDS = st.one_of(
    *(st.text(max_size=12), st.integers().map(str), st.floats().map(str)),
    st.sampled_from(
        [
            *["", "9" * 5000, "\udcff", "\0", "a\nb"],
            *["-1", "nan", "inf", "1e400", "0x10", "--", "-", "[red]", ":smile:"],
            *["no.npy", "text.npy", ".", "/"],
            *["float32", "bfloat16", "|V2", "O", "i4,f4", ">f4", "S5", "(2,)f4", "M8[s]", "uint32", "int64"],
            *["raise", "clip", "fill", "wrap", "cpu", "cuda", "auto", "tpu"],
        ]
    ),
)
# There are no sizes between these, because they would fill the memory instead of being refused.
NUMBERS = st.one_of(st.integers(-50, 50), st.integers(2**45, 2**70), st.integers(-(2**70), -(2**40))).map(str)
OUTPUTS = st.one_of(WORDS, st.sampled_from(["o.npy", "o.npz", "x.npy", "no/o.npz", "a" * 300 + ".npz"]))
COMMON = {"--device": st.sampled_from(["cpu", "tpu", ""]), "-o": OUTPUTS, "--no-such": WORDS}
COMMANDS = {
    "top-k": (2, {"-k": NUMBERS, "--axis": NUMBERS, "--index-dtype": WORDS, "--smallest": None}),
    "nonzero": (1, {"--index-dtype": WORDS}),
    "gather": (2, {"--batch-dims": NUMBERS, "--mode": WORDS}),
    "diagonal": (1, {"--begin": NUMBERS, "--end": NUMBERS, "--value": WORDS}),
    "warmup --arch sort": (0, {"--arch": WORDS, "--jobs": NUMBERS}),
}


@st.composite
def command_lines(draw):
    name = draw(st.sampled_from(sorted(COMMANDS)))
    n_files, own = COMMANDS[name]
    line = name.split()
    if name == "top-k":
        line += ["-k", draw(st.sampled_from(["0", "1", "2"]))]
    for _ in range(n_files - (name == "top-k")):
        line.append(draw(st.one_of(FILES, FILES, WORDS)))
    options = {**own, **COMMON}
    for option in draw(st.lists(st.sampled_from(sorted(options)), max_size=3)):
        line.append(option)
        if options[option] is not None and draw(st.integers(0, 9)):
            line.append(draw(options[option]))
    return line


@pytest.mark.exhaustive
@fuzz
@given(command_lines())
def test_any_arguments_end_in_an_answer_or_one_line(command, line):
    np.save("x.npy", X)
    np.save("é.npy", np.arange(6.0))
    np.save("i.npy", np.array([[0, 1], [1, 2]]))
    Path("text.npy").write_text("hello")
    code, _, error = command(*line)
    if code or error:
        assert_one_line(code, error)
    assert not [name for name in os.listdir() if name.startswith(".dmlops-")]
