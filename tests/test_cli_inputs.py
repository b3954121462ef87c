"""The input files of commands: nothing is ever unpickled, and a bad file is a one-line error."""

import io
import os
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

import dmlops
from tests.command_line import assert_refused

X = np.array([[3, 1, 3, 2], [0, 5, 5, 5]], np.int32)

needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")


def write_pipe(path, content):
    """Write to a named pipe from another thread; the reader may stop early."""

    def write():
        try:
            with open(path, "wb") as stream:
                stream.write(content)
        except BrokenPipeError:
            pass

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def npy_bytes(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@needs_pipes
@pytest.mark.parametrize(
    "array",
    [X, np.asfortranarray(X), X.astype(">i2"), X[:, :0], X[0, 0], np.arange(100_000)],
    ids=["plain", "fortran", "big-endian", "empty", "0-d", "large"],
)
def test_a_pipe_is_read(command, array):
    os.mkfifo("pipe")
    writer = write_pipe("pipe", npy_bytes(array))
    code, _, error = command("nonzero", "pipe", "-o", "there.npz")
    writer.join(60)
    assert (code, error) == (0, "")
    with np.load("there.npz") as there:
        assert np.array_equal(there["coordinates"], np.argwhere(array))


@needs_pipes
def test_numbers_of_rows_are_read_from_a_pipe(command, tmp_path):
    """As the shell's `--seeds <(command)` passes them, by a path without a suffix."""
    np.save("x.npy", np.float32(X))
    os.mkfifo("numbers")
    writer = write_pipe("numbers", npy_bytes(np.array([7, 8])))
    code, _, error = command("sample", "x.npy", "--seeds", f"{tmp_path}/numbers", "-o", "tokens.npy")
    writer.join(60)
    assert (code, error) == (0, "")
    assert np.array_equal(np.load("tokens.npy"), dmlops.sample(np.float32(X), [7, 8]))


def header(text, version=(1, 0), length=None):
    content = text.encode() + b"\n"
    size = len(content) if length is None else length
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version == (1, 0) else "<I", size) + content


def descr(kind, shape="(2,)"):
    return f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}"


CODE = "__import__('os').mkdir('owned')"
PICKLE = b"cos\nmkdir\n(S'owned'\ntR."  # what a pickle that makes a folder looks like
HOSTILE = {
    # These would have to be unpickled.
    **{f"objects {kind}": header(descr(kind)) + PICKLE for kind in ("'O'", "'|O'", "object", "'>O'")},
    "objects in fields of fields": header(descr("[('a', [('b', '|O')])]")) + PICKLE,
    "objects in arrays": header(descr("('|O', (2,))")) + PICKLE,
    "no objects": header(descr("'|O'", "(0,)")) + PICKLE,
    "a pickle": PICKLE,
    "a pickle of NumPy's": b"\x80\x04\x95" + PICKLE,
    "an archive": b"PK\x03\x04" + PICKLE,
    # These would have to be evaluated.
    "code as descr": header(descr(CODE)),
    "code as shape": header(descr("'<i2'", CODE)),
    "code instead": header(CODE),
    "code in a format": header(descr(f"f'{{{CODE}}}'")),
    "code after it": header(descr("'<i2'") + f"; {CODE}"),
    # These are no headers.
    "an open bracket": header("{'descr': ("),
    "an open string": header("{'descr': '<i2"),
    "bad indentation": header("  {'descr': '<i2'}\n {"),
    "nothing": header(""),
    "a list": header("[1, 2]"),
    "an unknown key": header("{'descr': '<i2', 'fortran_order': False, 'shape': (2,), 'x': 1}"),
    "a missing key": header("{'descr': '<i2', 'fortran_order': False}"),
    "brackets": header("(" * 5000),
    "minus signs": header("-" * 9000 + "1"),
    "letters of no encoding": header("")[:8] + struct.pack("<H", 4) + b"\xff\xfe\xff\xfe",
    "a zero byte": header("{'descr': '<i2'\0}"),
    "a longer header than told": header(descr("'<i2'"), length=20),
    "a header of 4 GiB": header(descr("'<i2'"), (2, 0), 2**32 - 1),
    "a version to come": header(descr("'<i2'"), (9, 9)),
    "no length": b"\x93NUMPY\x01\x00",
    # These are no shapes, and no types that are supported.
    **{
        f"shape {shape[:30]}": header(descr("'<i2'", shape)) + bytes(16)
        for shape in (
            *("(-1,)", "(-2, -2)", "(2.0,)", "2", "[2]", "(9" + "9" * 6000 + ",)", f"({2**62}, 4)"),
            *("(9999999,)", "(" + "1, " * 65 + ")"),
        )
    },
    **{
        f"type {kind[:30]}": header(descr(kind)) + bytes(64)
        for kind in ("'floaty'", "''", "None", "'<i3'", "'V2'", "'<U3'", "'<c32'")
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(command, name):
    Path("x.npy").write_bytes(HOSTILE[name])
    outcome = command("nonzero", "x.npy", "-o", "there.npz")
    assert_refused(outcome, "x.npy: " if "type" not in name else "")
    assert os.listdir() == ["x.npy"]
