"""Standard output and standard error: full, closed, or unable to encode a name; errors take one line."""

import errno
import io
import os
import sys

import numpy as np
import pytest

from tests.scripts import run_script

X = np.array([[3, 1, 3, 2], [0, 5, 5, 5]], np.int32)

needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")

# Runs the command line after `redirect` has changed standard output; the process ends as Python ends it.
COMMAND = """
    import os, sys
    {redirect}
    os.chdir({folder!r})
    sys.stderr = open("err.txt", "w")
    from tests.scripts import run_main
    code = run_main("dmlops", *{arguments!r})
    sys.stderr.close()
    open("code.txt", "w").write(str(code))
    # At its end, Python flushes the streams, and would report a failure on the real standard error.
"""
REDIRECTS = {
    "full": "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)",
    "broken": "reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1)",
    "closed": "os.close(1); sys.stdout = None",
}


def run_redirected(folder, redirect, *arguments):
    """Return the exit code of a command and what it printed on standard error."""
    run_script(COMMAND.format(redirect=REDIRECTS[redirect], arguments=arguments, folder=str(folder)))
    return int((folder / "code.txt").read_text()), (folder / "err.txt").read_text()


@needs_full
@pytest.mark.parametrize("redirect", REDIRECTS)
def test_what_cannot_be_printed_is_told_in_one_line(tmp_path, redirect):
    """The result file is written all the same. Text printed to a closed output (``>&-``) is dropped."""
    np.save(tmp_path / "x.npy", X)
    outcome = run_redirected(tmp_path, redirect, "top-k", "x.npy", "-k", "1", "-o", "best.npz")
    # A reader that stops early, such as `head`, needs no more.
    told = f"dmlops: standard output: {os.strerror(errno.ENOSPC)}\n" if redirect == "full" else ""
    assert outcome == (int(redirect == "full"), told)
    with np.load(tmp_path / "best.npz") as best:
        assert best["values"].tolist() == [[3], [5]]
    assert run_redirected(tmp_path, redirect, "info") == outcome
    reason = {
        "full": os.strerror(errno.ENOSPC),
        "closed": "standard output is closed; pipe it into a command",
    }
    code, told = run_redirected(tmp_path, redirect, "diagonal", "x.npy", "-o", "-")
    assert (code, told.startswith(f"dmlops: -o -: {reason.get(redirect)}")) == (redirect in reason,) * 2


@pytest.mark.parametrize("name", ["é.npy", "日本.npy", "\udcff.npy"], ids=["latin", "kanji", "not-utf-8"])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_names_that_an_encoding_lacks_are_printed_as_escapes(command, monkeypatch, name, encoding):
    np.save("x.npy", X)
    os.rename("x.npy", name)
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    errors = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", errors)
    assert command("top-k", name, "-k", 2)[0] == 0
    spelled = name.encode(encoding, "backslashreplace")
    assert b"top-k of " + spelled + b": the 2 largest" in stream.buffer.getvalue()
    assert command("top-k", name, "-k", 2, "-o", f"{name}.npz")[0] == 0
    assert os.path.exists(f"{name}.npz")
    assert command("top-k", f"no {name}", "-k", 2)[0] == 1
    assert errors.buffer.getvalue() == b"dmlops: no " + spelled + b": No such file or directory\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            OSError(errno.EIO, "two\nlines\tand\x1b[31m \x85 \u2028 \x00more"),
            r"two lines and\x1b[31m \x00more",
        ),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (MemoryError("Unable to allocate 7 TiB"), "Unable to allocate 7 TiB"),
        (MemoryError(), "MemoryError"),
    ],
    ids=["control", "system", "memory", "nothing"],
)
def test_an_error_is_one_line(command, monkeypatch, error, line):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr("importlib.metadata.version", fail)
    code, printed, told = command("info")
    assert (code, printed, told) == (1, "", f"dmlops: {line}\n")


def test_a_bug_is_told_by_its_traceback(command, monkeypatch):
    def fail(*arguments):
        message = "a bug"
        raise RuntimeError(message)

    monkeypatch.setattr("importlib.metadata.version", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        command("info")


ESCAPE = "\x1b]0;owned\x1b\\\x1b[31m"


def named_by_escapes(folder):
    """Return command lines with names of files, arrays, fields and options that a terminal would obey."""
    np.savez(folder / "one.npz", **{ESCAPE: X})
    np.savez(folder / "two.npz", **{ESCAPE: X, "b": X})
    np.save(folder / f"{ESCAPE.replace('/', '')}.npy", X)
    np.save(folder / "fields.npy", np.ones((2, 2), [(ESCAPE, "i4")]))
    return [
        *(["nonzero", "one.npz"], ["nonzero", "two.npz"], ["nonzero", f"two.npz:{ESCAPE}"]),
        *(["nonzero", f"{ESCAPE}.npy"], ["nonzero", f"{ESCAPE}.npy", "-o", f"{ESCAPE}.npz"]),
        *(
            ["nonzero", "two.npz:b", "-o", f"{ESCAPE}"],
            ["nonzero", f"no{ESCAPE}"],
            ["nonzero", f"one.npz:{ESCAPE}b"],
        ),
        *(["diagonal", "fields.npy"], ["top-k", "fields.npy", "-k", "1"], ["nonzero", "fields.npy"]),
        *([ESCAPE], ["diagonal", "one.npz", "--value", ESCAPE]),
        *(["warmup", "--arch", ESCAPE], ["info", "--arch", ESCAPE], ["top-k", "one.npz", "-k", ESCAPE]),
        *(["nonzero", "one.npz", f"--{ESCAPE}"], ["nonzero", "one.npz", "--device", ESCAPE], ["cache"]),
    ]


def test_names_tell_the_terminal_nothing(command, monkeypatch, tmp_path):
    monkeypatch.setenv("DMLOPS_CACHE_DIR", str(tmp_path / f"cache{ESCAPE}"))
    monkeypatch.setenv("DMLOPS_CACHE", "0")
    for line in named_by_escapes(tmp_path):
        _, printed, error = command(*line)
        told = printed + error
        assert told
        assert [letter for letter in told if not letter.isprintable() and letter != "\n"] == [], line
