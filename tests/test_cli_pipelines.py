"""One command's output is another's input: files by their names, parts of archives, standard streams."""

import io
import os
import shlex
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from tests.command_line import assert_refused
from tests.marks import exhaustive
from tests.scripts import ROOT, blocks, run_page

X = np.array([[3, 1, 3, 2], [0, 5, 5, 5]], np.int32)


def run(command, *arguments):
    """Run a command that has to end well; return what it printed."""
    code, printed, error = command(*arguments)
    assert (code, error) == (0, "")
    return printed


def test_what_nonzero_writes_is_what_gather_reads(command):
    np.save("m.npy", X)
    run(command, "nonzero", "m.npy", "-o", "v.npz")
    printed = run(command, "gather", "m.npy", "v.npz", "-o", "y.npy")
    assert np.load("y.npy").tolist() == X[X != 0].tolist()
    assert printed.startswith("gather from m.npy by v.npz:coordinates ")
    run(command, "gather", "m.npy", "v.npz:coordinates", "-o", "z.npy")
    assert np.load("z.npy").tolist() == X[X != 0].tolist()


def test_what_top_k_writes_is_data_or_indices(command):
    np.save("x.npy", X)
    run(command, "top-k", "x.npy", "-k", 2, "-o", "best.npz")
    assert "top-k of best.npz:values" in run(command, "top-k", "best.npz", "-k", 1, "-o", "first.npz")
    with np.load("first.npz") as first:
        assert first["values"].tolist() == [[3], [5]]
    with zipfile.ZipFile("best.npz") as archive:  # of the format that arrays of more than 4 GiB need
        assert {each.extract_version for each in archive.infolist()} == {45}
    # They are positions along an axis.
    assert_refused(
        command("gather", "x.npy", "best.npz"), "best.npz: the indices of top-k", "--along-axis -1"
    )
    printed = run(command, "gather", "x.npy", "best.npz", "--along-axis", -1, "-o", "y.npy")
    assert printed.startswith("gather from x.npy by best.npz:indices along axis -1 ")
    assert np.load("y.npy").tolist() == [[3, 3], [5, 5]]
    # As tuples, where the user says so: [[0, 2], [1, 2]].
    run(command, "gather", "x.npy", "best.npz:indices", "-o", "y.npy")
    assert np.load("y.npy").tolist() == [3, 5]
    # The indices are the numbers of the values in the next selection.
    run(command, "top-k", "best.npz", "-k", 1, "--indices", "best.npz", "--device", "cpu", "-o", "first.npz")
    with np.load("first.npz") as first:
        assert first["indices"].tolist() == [[0], [1]]
    # Neither is a window, unless the user says so.
    for option in ("--lengths", "--starts"):
        outcome = command("top-k", "x.npy", "-k", 1, option, "best.npz")
        assert_refused(outcome, "best.npz: it has the arrays values, indices; name one")
    run(command, "top-k", "x.npy", "-k", 1, "--lengths", "first.npz:indices", "-o", "second.npz")
    # Both again, for an axis that is not the last.
    run(command, "top-k", "x.npy", "-k", 1, "--axis", 0, "-o", "best.npz")
    run(command, "gather", "x.npy", "best.npz", "--along-axis", 0, "-o", "y.npy")
    assert np.load("y.npy").tolist() == X.max(axis=0, keepdims=True).tolist()


def test_what_nonzero_writes_is_no_position_along_an_axis(command):
    np.save("x.npy", X)
    run(command, "nonzero", "x.npy", "-o", "v.npz")
    outcome = command("gather", "x.npy", "v.npz", "--along-axis", 0)
    assert_refused(outcome, "v.npz: coordinates are index tuples", "leave out --along-axis")


class Stream(io.StringIO):
    """A standard stream with bytes below its text."""

    def __init__(self, content=b"", is_terminal=False):
        super().__init__()
        self.buffer = io.BytesIO(content)
        self.isatty = lambda: is_terminal


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.quick
def test_standard_input_and_output(command, monkeypatch):
    source, target = Stream(npy(X)), Stream()
    monkeypatch.setattr(sys, "stdin", source)
    monkeypatch.setattr(sys, "stdout", target)
    code, _, told = command("top-k", "-", "-k", 2, "-o", "-")
    assert code == 0
    target.buffer.seek(0)
    assert np.load(target.buffer).tolist() == [[3, 3], [5, 5]]
    assert target.buffer.read() == target.getvalue().encode() == b""
    # The summary goes to the other stream.
    assert told.startswith("top-k of standard input: the 2 largest along axis -1 (")
    assert told.endswith("written to standard output: values\n")
    assert len(told.splitlines()) == 4  # however narrow a terminal is
    for stream, reason in ((None, "Bad file descriptor"), (Stream(is_terminal=True), "it is a terminal; - ")):
        monkeypatch.setattr(sys, "stdin", stream)
        assert_refused(command("nonzero", "-", "-o", "x.npz"), f"standard input: {reason}")


PIPES = [
    "dmlops nonzero mask.npy -o - | dmlops gather mask.npy - -o ones.npy",
    # A reader that stops early is told nothing, neither by the command nor by Python at its end.
    exhaustive("dmlops diagonal wide.npy -o - | true; exit ${PIPESTATUS[0]}"),
]


@pytest.mark.skipif(os.name == "nt", reason="there is no such shell")
@pytest.mark.parametrize("line", PIPES)
def test_pipes(tmp_path, line):
    x = np.random.default_rng(1).integers(0, 3, (40, 30), np.int32)
    np.save(tmp_path / "mask.npy", x)
    np.save(tmp_path / "wide.npy", np.zeros((2000, 2000)))
    assert "true" in line or line in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    line = line.replace("dmlops", f"{shlex.quote(sys.executable)} -m dmlops")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "true" in line:
        assert (done.returncode, done.stderr) == (0, "")
        return
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "ones.npy").tolist() == x[x != 0].tolist()


def test_the_examples_of_the_page(command):
    run_page("docs/cli.md")
    n_run = 0
    for language, code in blocks("docs/cli.md"):
        for line in code.splitlines() if language == "bash" else ():
            name, *arguments = shlex.split(line, comments=True)
            if name == "dmlops" and "--explain" in arguments:
                if "--arch" in arguments:  # without it, a GPU is needed
                    assert "sm_90" in run(command, *arguments)
            elif name == "dmlops" and "|" not in arguments and "demo" not in arguments:
                run(command, *arguments, "--device", "cpu")
                n_run += 1
    assert n_run >= 8
    mask, ones = np.load("mask.npy"), np.load("ones.npy")
    assert ones.all()
    assert ones.size == mask.sum()
    scores = np.load("scores.npy")
    with np.load("best.npz") as best:
        assert best["values"].tolist() == np.sort(scores, axis=1)[:, :10].tolist()
