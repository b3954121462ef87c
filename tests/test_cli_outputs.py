"""The output files of commands: none is lost or partly written, and bad names are refused before the work."""

import errno
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dmlops
from tests.command_line import assert_refused

X = np.array([[3, 1, 3, 2], [0, 5, 5, 5]], np.int32)

on_posix = pytest.mark.skipif(
    os.name == "nt", reason="links, pipes, signals and permissions are others there"
)


@pytest.fixture
def no_work(monkeypatch):
    """Fail where an operator runs."""

    def work(*arguments, **options):
        pytest.fail("the work was done before it was found to be in vain")

    for operator in ("top_k", "nonzero_coordinates", "gather_nd", "diagonal_matrix"):
        monkeypatch.setattr(dmlops, operator, work)


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@on_posix
@pytest.mark.parametrize("mode", [0o600, 0o755])
def test_a_replaced_file_keeps_its_permissions(command, mode):
    np.save("x.npy", X)
    Path("best.npz").touch()
    os.chmod("best.npz", mode)
    assert command("top-k", "x.npy", "-k", 1, "-o", "best.npz")[0] == 0
    assert mode_of("best.npz") == mode
    previous = os.umask(0o027)
    try:
        assert command("top-k", "x.npy", "-k", 1, "-o", "new.npz")[0] == 0
    finally:
        os.umask(previous)
    assert mode_of("new.npz") == 0o640


@on_posix
@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_a_link(command, tmp_path, is_there):
    np.save("x.npy", X)
    (tmp_path / "folder").mkdir()
    if is_there:
        Path("folder/real.npz").write_text("old")
    os.symlink("folder/real.npz", "second.npz")
    os.symlink("second.npz", "first.npz")
    assert command("top-k", "x.npy", "-k", 1, "-o", "first.npz")[0] == 0
    assert [os.readlink(name) for name in ("first.npz", "second.npz")] == ["second.npz", "folder/real.npz"]
    with np.load("folder/real.npz") as best:
        assert best["values"].tolist() == [[3], [5]]
    assert os.listdir("folder") == ["real.npz"]


def test_places_that_cannot_be_written_are_refused_before_the_work(command, no_work, monkeypatch):
    np.save("x.npy", X)
    os.mkdir("folder.npz")
    before = sorted(os.listdir())

    def outcome(output):
        return command("top-k", "x.npy", "-k", 1, "-o", output)

    assert_refused(outcome("folder.npz"), "-o folder.npz: it is a folder; name a file")
    assert_refused(outcome("no/best.npz"), "-o no/best.npz: there is no folder ")
    assert_refused(outcome("x.npy/best.npz"), "-o x.npy/best.npz: Not a directory")
    # Root may write anywhere, so the refusal is simulated.
    Path("old.npz").touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
        assert_refused(outcome("old.npz"), "-o old.npz: the file may not be written")
    os.remove("old.npz")

    def create(*arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", create)
        assert_refused(outcome("best.npz"), "-o best.npz: Read-only file system")
    assert sorted(os.listdir()) == before


@on_posix
@pytest.mark.parametrize("line", ["diagonal x.npy", "gather x.npy i.npy", "gather i.npy x.npy"])
def test_an_input_is_no_target_by_whatever_name(command, no_work, line):
    np.save("x.npy", X)
    np.save("i.npy", np.array([[0, 1]]))
    os.symlink("x.npy", "link.npy")
    os.link("x.npy", "same.npy")
    content = Path("x.npy").read_bytes()
    for name in ("x.npy", "./x.npy", os.path.abspath("x.npy"), "link.npy", "same.npy"):
        outcome = command(*line.split(), "-o", name)
        assert_refused(outcome, "-o ", "it is the file that x.npy is read from")
    assert Path("x.npy").read_bytes() == content
    # The same by a link as the input.
    assert_refused(
        command(*line.replace("x.npy", "link.npy").split(), "-o", "x.npy"), "link.npy is read from"
    )


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_what_was_there_survives_a_failed_write(command, monkeypatch, error):
    np.save("x.npy", X)
    Path("best.npz").write_text("old")
    before = sorted(os.listdir())

    def write_array(stream, array, **options):
        stream.write(b"half of it")
        raise error

    monkeypatch.setattr(np.lib.format, "write_array", write_array)
    code, _, told = command("top-k", "x.npy", "-k", 1, "-o", "best.npz")
    is_interrupt = isinstance(error, KeyboardInterrupt)
    assert code == (130 if is_interrupt else 1)
    assert told == f"dmlops: {'interrupted' if is_interrupt else '-o best.npz: No space left on device'}\n"
    assert Path("best.npz").read_text() == "old"
    assert sorted(os.listdir()) == before


def test_bfloat16_has_no_file(command, no_work, monkeypatch):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    # NumPy would write a type that says only that elements have two bytes.
    np.save("b.npy", np.ones(4, ml_dtypes.bfloat16))
    for name, about in (("b.npy", "b.npy"), ("-", "standard input")):
        with open("b.npy", "rb") as file:
            monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=file, isatty=lambda: False))
            assert_refused(command("top-k", name, "-k", 1), f"dmlops: {about}: its type is ", "bfloat16")
