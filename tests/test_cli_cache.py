"""`dmlops cache` and its part of `dmlops info`: what lies where, and an empty cache on request."""

import re
import sys

import pytest

from tests.command_line import assert_refused
from tests.inside import Key, backend, kernel_archive, kernel_cache

pytestmark = pytest.mark.quick


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Return a cache directory with 2 kernels of now for the CPU, 1 for a GPU, and 2 of older versions."""
    root = tmp_path / "cache"
    monkeypatch.setenv("DMLOPS_CACHE_DIR", str(root))
    now = Key("cpu", "native_call_pi64_i64_i64", "znver3 +avx2", "s", "numba 1")
    kernel_cache.keep(now, b"c" * 1000)
    kernel_cache.keep(now._replace(kernel="other"), b"c" * 1000)
    gpu = Key("cuda", "kernel", "sm_90", "s", "old")
    monkeypatch.setattr(backend, "keys", lambda: {"cpu": now, "cuda": gpu})
    kernel_cache.keep(gpu, b"c" * 3000)
    kernel_cache.keep(now._replace(sources="old"), b"c" * 4000)
    kernel_cache.keep(gpu._replace(compilers="older"), b"c" * 5000)
    return root


def lines(printed):
    """Return the facts by name."""
    return {
        found[1].strip(): found[2]
        for line in printed.splitlines()
        if (found := re.match(r" (.{18}) (.*)", line))
    }


@pytest.mark.parametrize("name", ["cache", "info"])
def test_what_lies_in_the_cache(command, root, name):
    code, printed, error = command(name)
    assert (code, error) == (0, "")
    found = lines(printed)
    assert found["folder"] == str(root)
    assert found["new kernels"] == "kept"
    assert found["znver3"] == "2 kernels, 2.4 kB"
    assert found["sm_90"] == "1 kernel, 3.2 kB"
    assert found["older versions"] == "2 kernels, 9.4 kB"
    assert [*found].index("older versions") > max(map([*found].index, ("znver3", "sm_90")))


@pytest.mark.parametrize("name", ["cache", "info"])
def test_what_lies_in_the_wheel(command, root, wheel, name):
    digests = {device: key.sources for device, key in backend.keys().items()}
    for device, target, sources in (
        ("cuda", "sm_75", digests["cuda"]),
        ("cuda", "sm_80", "others"),
        ("cpu", "x86-64-v3", digests["cpu"]),
    ):
        kernels = {"one": b"1" * 100, "two": b"2" * 100}
        path = wheel / f"{target}.kernels"
        kernel_archive.write(path, kernel_archive.Origin(device, target, sources, ""), kernels)
    (wheel / "sm_100.kernels").write_bytes(b"none")
    found = lines(command(name)[1])
    size = (wheel / "sm_75.kernels").stat().st_size
    assert found["sm_75"] == f"2 kernels, {size} bytes"
    assert found["sm_80"].endswith("not used: made from other sources than are installed")
    assert re.fullmatch(r"2 kernels, [\d.]+ (bytes|kB)", found["x86-64-v3"])
    assert re.match(r"not used: .*sm_100\.kernels is damaged", found["sm_100"])


def test_no_wheel(command, root, wheel):
    assert "Kernels in the wheel\n none               kernels are compiled when" in command("cache")[1]


def test_clear(command, root):
    (root / "cpu" / "mine.txt").write_text("mine")
    assert command("cache", "--clear") == (0, f"Removed 5 files, 14.9 kB from {root}\n", "")
    assert [path for path in root.rglob("*") if path.is_file()] == [root / "cpu" / "mine.txt"]
    assert command("cache", "--clear") == (0, f"Removed 0 files, 0 bytes from {root}\n", "")


def test_clear_where_there_is_no_cache(command, monkeypatch):
    monkeypatch.setenv("DMLOPS_CACHE", "0")
    assert_refused(command("cache", "--clear"), "cache: there is no cache directory: DMLOPS_CACHE=0")
    code, printed, _ = command("cache")
    assert code == 0
    assert "not kept: DMLOPS_CACHE=0 turns the cache off" in printed


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of folders are asked of POSIX")
def test_what_cannot_be_removed_is_told(command, root, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    code, printed, error = command("cache", "--clear")
    assert code == 1
    assert printed == f"Removed 0 files, 0 bytes from {root}\n"
    assert error.startswith(f"dmlops: cache: {root}")
    assert error.endswith(": Permission denied (4 more)\n")
