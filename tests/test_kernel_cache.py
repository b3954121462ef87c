"""The cache directory: old generations of kernels go, current ones stay, and other files are left alone."""

import functools
import os
import subprocess
import sys
import textwrap
import time
from contextlib import nullcontext

import pytest

from tests.conftest import forget_warnings
from tests.inside import Key, clear, keep, kernel_cache, read
from tests.scripts import ROOT

CODE = b"code" * 100


@pytest.fixture
def root(tmp_path, monkeypatch):
    root = tmp_path / "cache"
    monkeypatch.setenv("DMLOPS_CACHE_DIR", str(root))
    monkeypatch.setattr(kernel_cache, "_mark_as_used", kernel_cache._mark_as_used.__wrapped__)
    return root


def key(sources, *, device="cpu", kernel="kernel", target="znver3 +avx2"):
    return Key(device, kernel, target, str(sources), "numba 1")


def age(root, of, seconds):
    """Make a generation as if it had been used that long ago."""
    then = time.time() - seconds
    os.utime(root / of.device / of.generation, (then, then))


def is_there(root, of):
    return (root / of.path).is_file()


def test_the_generations_used_last_stay(root):
    keys = [key(number, kernel=300 * "long") for number in range(6)]  # longer than names of files can be
    for number, each in enumerate(keys[:4]):
        keep(each, CODE)
        age(root, each, 1000 - number)
    assert read(keys[0]) == CODE  # now it is the last one used
    keep(keys[4], CODE)
    assert [is_there(root, each) for each in keys[:5]] == [True, False, True, True, True]
    assert not (root / "cpu" / keys[1].generation).exists()
    age(root, keys[4], -3600)  # by a clock that is an hour ahead
    keep(keys[5], CODE)
    assert [is_there(root, each) for each in keys] == [True, False, False, True, True, True]


@pytest.mark.parametrize("ahead", [-(10**9), 10**7, 10**9])
def test_a_clock_that_was_wrong_removes_nothing_that_is_used(root, ahead):
    """Files kept while the clock was wrong do not outlive files that are kept and used now."""
    earlier, now = [key(f"earlier {number}") for number in range(4)], [key(number) for number in range(4)]
    for number, each in enumerate(earlier):
        keep(each, CODE)
        age(root, each, -ahead - number)
    for each in now:
        keep(each, CODE)
        assert read(each) == CODE
    assert [is_there(root, each) for each in now] == [True] * 4
    assert not any(is_there(root, each) for each in earlier)


@pytest.fixture
def foreign(root):
    """Put files where kernels are that dmlops has not written, and return them."""
    old = key("old")
    keep(old, CODE)
    folder = (root / old.path).parent
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / ("kernel-" + "0" * 32)).write_bytes(CODE)
    (root / "cpu" / ("1" * 16)).symlink_to(outside, target_is_directory=True)
    (folder.parent / "elsewhere").symlink_to(outside, target_is_directory=True)
    files = [
        root / "notes.txt",
        root / "cpu" / "notes.txt",
        root / "cpu" / "results" / "data",
        root / "cpu" / old.generation / "notes.txt",
        folder / "kernel.txt",
        folder / "deeper" / ("kernel-" + "0" * 32),
        outside / ("kernel-" + "0" * 32),
    ]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    age(root, old, 10_000)
    return old, files


def test_what_dmlops_has_not_written_stays(root, foreign):
    old, files = foreign
    for number in range(5):
        keep(key(number), CODE)
    assert not is_there(root, old)
    assert all(file.read_text() == "mine" for file in files)


def test_clear_removes_kernels_and_nothing_else(root, foreign):
    old, files = foreign
    keep(key("new"), CODE)
    keep(key("new", device="cuda", target="sm_90"), CODE)
    sizes, problems = clear(root)
    assert len(sizes) == 3
    assert sum(sizes) > 3 * len(CODE)
    assert problems == []
    assert not is_there(root, old)
    assert not (root / "cuda").exists()
    assert all(file.read_text() == "mine" for file in files)
    assert clear(root) == ([], [])


@pytest.mark.skipif(os.name == "nt", reason="links need a permission there")
@pytest.mark.parametrize("level", ["device", "generation", "target"])
def test_nothing_behind_a_link_is_removed(root, level):
    """Whichever folder of the cache directory is a link to another one that looks the same."""
    keep(key("s"), CODE)
    target = (root / key("s").path).parent
    linked = {"device": target.parent.parent, "generation": target.parent, "target": target}[level]
    outside = root.parent / "outside"
    linked.rename(outside)
    linked.symlink_to(outside, target_is_directory=True)
    before = sorted(outside.rglob("*"))
    assert read(key("s")) == CODE, "what is behind a link is found"
    assert clear(root) == ([], [])
    for number in range(6):
        keep(key(number), CODE)
    assert clear(root)[1] == []
    assert set(before) <= set(outside.rglob("*"))
    assert read(key("s")) == CODE


def test_what_a_killed_process_was_writing_goes_too(root):
    keep(key("s"), CODE)
    temporary = (root / key("s").path).with_name(".abc12_x9.tmp")
    temporary.write_bytes(b"half")
    assert len(clear(root)[0]) == 2
    assert not temporary.exists()


@pytest.mark.parametrize("error", [OSError("the disk is full"), KeyboardInterrupt()], ids=repr)
def test_what_could_not_be_kept_leaves_no_file(root, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with nullcontext() if isinstance(error, OSError) else pytest.raises(type(error)):
        keep(key("s"), CODE)
    assert [path for path in root.rglob("*") if path.is_file()] == []
    assert read(key("s")) is None


def test_a_folder_that_another_process_is_removing(root, monkeypatch, caplog):
    """It is there when it is made, and not when that is looked up; or it is made, and gone at once."""
    errors = [FileExistsError(), FileNotFoundError(), FileExistsError()]
    make = kernel_cache.Path.mkdir

    def fail(*arguments, **options):
        if errors:
            raise errors.pop()
        make(*arguments, **options)

    monkeypatch.setattr("pathlib.Path.mkdir", fail)
    keep(key("s"), CODE)
    assert (read(key("s")), caplog.records) == (CODE, [])


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="users are told apart on POSIX")
def test_files_of_another_user_stay(root, monkeypatch):
    keep(key("s"), CODE)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert clear(root)[0] == []
    for number in range(6):
        keep(key(number), CODE)
    monkeypatch.undo()
    assert is_there(root, key("s"))


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions are asked of POSIX")
def test_every_user_can_read_what_root_has_kept(root, monkeypatch):
    """As in a container that is built by root and run by somebody else."""
    before = os.umask(0o022)
    try:
        keep(key("s"), CODE)
    finally:
        os.umask(before)
    path = root / key("s").path
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o755
    monkeypatch.setattr(os, "fstat", lambda handle, real=os.fstat: _of_user(real(handle), 0))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert read(key("s")) == CODE
    monkeypatch.setattr(os, "fstat", lambda handle: _of_user(path.stat(), 54321))
    assert read(key("s")) is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions are asked of POSIX")
@pytest.mark.parametrize("mode", [0o602, 0o620])
def test_files_that_others_may_write_to_are_not_read(mode, root):
    keep(key("s"), CODE)
    (root / key("s").path).chmod(mode)
    assert read(key("s")) is None


def _of_user(status, user):
    return os.stat_result((*status[:4], user, *status[5:]))


def test_a_directory_that_cannot_be_written_to_is_read(root, monkeypatch):
    """As one in a container image, whose times cannot be set."""
    keep(key("s"), CODE)
    refuse = functools.partial(os.utime, root / "nowhere")
    monkeypatch.setattr(os, "utime", lambda *_: refuse())
    assert read(key("s")) == CODE


def test_many_processes_begin_generations_at_once(root):
    """Each finds what it has kept, whoever removes old generations meanwhile, and none warns."""
    script = """
        import logging, sys
        from tests.inside import Key, keep, read

        logging.basicConfig()
        for number in range(60):
            key = Key("cpu", f"kernel_{number}", "znver3", f"{sys.argv[1]} {number // 15}", "numba 1")
            keep(key, b"code" * number)
            if number % 5 == 0:
                assert read(key) in (b"code" * number, None)
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen([*command, str(n % 2)], env=environment, stderr=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, errors
    assert errors == [""] * 4
    assert len(list((root / "cpu").iterdir())) <= 8
    assert not list(root.rglob("*.tmp"))


def huge(path):
    with path.open("wb") as file:
        file.truncate(1 << 42)


NO_KERNELS = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "loop": lambda path: path.symlink_to(path.name),
    "folder": lambda path: path.mkdir(),
    "huge": huge,
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.parametrize("kind", NO_KERNELS)
def test_what_is_no_kernel_is_not_read(kind, root, monkeypatch, caplog):
    """Neither waited for, nor read for as long as it lasts."""
    forget_warnings(monkeypatch)
    keep(key(1), CODE)
    path = root / key(1).path
    path.unlink()
    NO_KERNELS[kind](path)
    assert read(key(1)) is None
    assert f"{path} cannot be read" in caplog.text
    forget_warnings(monkeypatch)
    kernel_cache.warn_once("/tmp/\x1b[2J\n\udcffé")
    assert caplog.messages[-1].endswith("/tmp/\\x1b[2J\\n\\udcffé")
    keep(key(1), CODE)
    assert read(key(1)) == (None if kind == "folder" else CODE)
