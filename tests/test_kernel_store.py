"""Compiled kernels on disk: the next process finds them, verifies them, and never fails because of them."""

import gc
import logging
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from tests import inside
from tests.command_line import wait_for
from tests.conftest import forget_warnings
from tests.inside import (
    compile_kernel,
    compilers,
    cpu,
    dispatch,
    kernel_cache,
    kernel_store,
    native_call,
    once,
)
from tests.marks import exhaustive
from tests.scripts import run_script

# A call that needs one kernel, and what it prints.
CALL = """
    import sys, dmlops
    for _ in range(3):
        x = dmlops.diagonal_matrix(shape=(1, 3), dtype="uint8")
    print(x.tolist(), "numba" in sys.modules)
"""
ANSWER = "[[1, 0, 0]]"
FOUND, COMPILED = f"{ANSWER} False", f"{ANSWER} True"


def call(directory):
    """Make the call in a separate process; return its output."""
    return run_script(CALL, DMLOPS_CACHE_DIR=str(directory)).strip()


def artifacts(directory):
    return sorted(path for path in Path(directory).rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Return a directory in which a process has left the kernels of the call."""
    directory = tmp_path_factory.mktemp("kept")
    assert call(directory) == COMPILED
    assert artifacts(directory)
    return directory


@pytest.fixture
def own(kept, tmp_path):
    """Return a copy of that directory, and the file of the one kernel that is not every call's."""
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    (artifact,) = [path for path in artifacts(tmp_path) if path.name.startswith("diagonal_matrix_0")]
    return tmp_path, artifact


def test_calls_compile_their_kernel_and_what_all_calls_need(kept):
    names = [path.name.partition("_pi64")[0] for path in artifacts(kept)]
    assert sorted(names) == ["diagonal_matrix_0_True", "diagonal_matrix_plan", "native_call"]


def test_the_second_process_finds_what_the_first_compiled(own):
    assert call(own[0]) == FOUND


DAMAGE = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[:-1],
    "headless": lambda content: content[20:],
    "longer": lambda content: content + b"\0",
    "noise": lambda content: os.urandom(len(content)),
    "first_bit": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "bit_of_digest": lambda content: content[:20] + bytes([content[20] ^ 64]) + content[21:],
    "bit_of_code": lambda content: content[:-100] + bytes([content[-100] ^ 1]) + content[-99:],
    "text": lambda content: b"import os",
}


@pytest.mark.parametrize("kind", [*DAMAGE, "another kernel"])
def test_damaged_files_are_compiled_again(kind, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("DMLOPS_CACHE_DIR", str(tmp_path))
    forget_warnings(monkeypatch)
    caplog.set_level(logging.WARNING, "dmlops")
    keys = [kernel_cache.Key("cpu", name, "target", "sources", "compilers") for name in ("one", "two")]
    codes = {key: key.kernel.encode() * 100 for key in keys}
    compiled = []

    def find(key):
        def compile_kernel():
            compiled.append(key)
            return codes[key]

        with once.LOCK:
            return kernel_store.find_or_compile(key, compile_kernel)

    assert [find(key) for key in keys * 2] == list(codes.values()) * 2
    assert compiled == keys
    contents = [path.read_bytes() for path in artifacts(tmp_path)]
    damaged = contents[::-1] if kind == "another kernel" else map(DAMAGE[kind], contents)
    for path, content in zip(artifacts(tmp_path), damaged, strict=True):
        path.write_bytes(content)
    assert [find(key) for key in keys * 2] == list(codes.values()) * 2
    assert compiled == keys * 2
    assert len(caplog.records) == 1, "one warning for all that is damaged"
    assert "is damaged" in caplog.text


PLACES = ["file", "", *(["/proc/self/dmlops"] if sys.platform == "linux" else [])]


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_keeps_no_files(place, tmp_path, monkeypatch, caplog):
    """Neither a directory, nor one that can be made; the empty name stands for a user without a home."""
    (tmp_path / "file").touch()
    forget_warnings(monkeypatch)
    monkeypatch.setattr(Path, "home", mock.Mock(side_effect=RuntimeError("no home directory")))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which its specification says to ignore
    monkeypatch.setenv("DMLOPS_CACHE_DIR", place and str(tmp_path / place))
    key = kernel_cache.Key("cpu", "kernel", "target", "sources", "compilers")
    with once.LOCK:
        assert [kernel_store.find_or_compile(key, lambda: b"code") for _ in range(2)] == [b"code"] * 2
    (message,) = caplog.messages
    assert "compiles kernels again" in message


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="limits on files are asked of POSIX")
def test_a_full_disk(tmp_path):
    script = """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    """
    output, log = run_script(script, CALL, errors=True, DMLOPS_CACHE_DIR=str(tmp_path))
    assert output.strip() == COMPILED
    assert log.count("compiles kernels again") == 1
    assert not artifacts(tmp_path), "nothing half written stays"


CALL_TWICE = """
    import dmlops
    for _ in range(2):
        try:
            print(dmlops.diagonal_matrix(shape=(1, 3), dtype="uint8").tolist())
        except dmlops.UnsupportedFeatureError as error:
            print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits on files are asked of POSIX")
def test_no_file_can_be_opened(own):
    """The call is refused by dmlops, and is done when files can be opened again."""
    script = """
        import dmlops, errno, os, resource
        held = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            assert error.errno == errno.EMFILE
    """
    end = "for handle in held: os.close(handle)\n"
    output, log = run_script(script, CALL_TWICE, end, CALL, errors=True, DMLOPS_CACHE_DIR=str(own[0]))
    *refused, answer = output.splitlines()
    assert len(refused) == 2
    for line in refused:
        assert line.startswith("dmlops: the kernels of diagonal_matrix cannot be loaded: [Errno")
        assert line.endswith("; call again when files can be opened")
    assert (answer, log) == (FOUND, "")


@pytest.mark.parametrize(
    ("begin", "environment", "reason"),
    [
        exhaustive("", {"NUMBA_DISABLE_JIT": "1"}, "NUMBA_DISABLE_JIT is set; unset it"),
        ("import sys; sys.modules['numba'] = None\n", {}, "numba is not installed; type: pip install numba"),
    ],
)
def test_numba_that_does_not_compile(kept, tmp_path, begin, environment, reason):
    """Kernels that are kept run all the same."""
    told = rf"dmlops: the kernel \w+ must be compiled for [\w.-]+, but {reason}"
    for folder, expected in ((tmp_path, told), (kept, re.escape(ANSWER))):
        printed = run_script(begin, CALL_TWICE, DMLOPS_CACHE_DIR=str(folder), **environment)
        assert re.fullmatch(f"({expected}\n){{2}}", printed)


def package(folder, **files):
    """Write a package with files of these contents; return its folder."""
    for name, content in {"__init__.py": "", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def test_the_digest_follows_contents(tmp_path):
    packages = [
        package(tmp_path / "a", **{"a.py": "x = 1"}),
        package(tmp_path / "b", **{"a.py": "x = 2"}),
        package(tmp_path / "c", **{"a.py": "x = 2", "inner/b.py": "y = 1"}),
        package(tmp_path / "d", **{"a.py": "x = 2", "inner/c.py": "y = 1"}),
    ]
    digests = [kernel_store.source_digest(folder) for folder in packages]
    assert len(set(digests)) == 4, "of contents and of names"
    # Neither times nor bytecode beside a source matter.
    same = package(tmp_path / "e", **{"a.py": "x = 1", "a.pyc": "code", "__pycache__/b.pyc": "code"})
    os.utime(same / "a.py", (1, 1))
    assert kernel_store.source_digest(same) == digests[0]


UNKNOWN = {
    "no folder": shutil.rmtree,
    "no files": lambda folder: [path.unlink() for path in folder.glob("*.py")],
    "bytecode": lambda folder: [path.rename(path.with_suffix(".pyc")) for path in folder.glob("*.py")],
    "bytecode of one": lambda folder: (folder / "a.py").rename(folder / "a.pyc"),
    "bytecode of an inner one": lambda folder: package(folder / "inner", **{"b.pyc": "code"}),
    "native": lambda folder: (folder / "a.cpython-311-x86_64-linux-gnu.so").touch(),
    "a source that cannot be read": lambda folder: (folder / "b.py").symlink_to("nowhere"),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_without_all_sources_nothing_is_kept_or_found(kind, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("DMLOPS_CACHE_DIR", str(tmp_path / "cache"))
    forget_warnings(monkeypatch)
    folder = package(tmp_path / "package", **{"a.py": "x = 1"})
    UNKNOWN[kind](folder)
    sources = kernel_store.source_digest(folder)
    codes = [b"of one version", b"of the next"]
    key = kernel_cache.Key("cpu", "kernel", "target", sources, "compilers")
    with once.LOCK:
        found = [kernel_store.find_or_compile(key, lambda code=code: code) for code in codes]
    assert found == codes
    assert not artifacts(tmp_path / "cache")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"the sources in {folder} cannot be read" in record.getMessage()


def test_each_part_of_a_key_makes_another_file():
    key = kernel_cache.Key("cpu", "kernel_1", "target", "sources", "compilers")
    others = [key._replace(**{field: f"{getattr(key, field)}x"}) for field in key._fields]
    # Two keys must differ even if the concatenation of their parts is equal.
    others += [
        key._replace(target="targets", sources="ources"),
        key._replace(kernel="kernel_", target="1target"),
    ]
    assert len({found.path for found in (key, *others)}) == 1 + len(others)


@pytest.fixture
def other_packages():
    """Forget the installed versions at the end, as the test replaces them."""
    yield
    compilers.installed.cache_clear()


@pytest.mark.parametrize("compiler", ["numba", "llvmlite"])
def test_each_compiler_is_part_of_a_cpu_key(compiler, monkeypatch, tmp_path, other_packages):
    before = cpu.key(native_call.CALL)
    (tmp_path / f"{compiler}-0.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    compilers.installed.cache_clear()
    assert cpu.key(native_call.CALL).path != before.path


def test_python_is_part_of_a_cpu_key(monkeypatch):
    """Numba translates bytecode, which differs from one minor version of Python to the next."""
    before = cpu.key(native_call.CALL)
    monkeypatch.setattr(compilers.sys, "version_info", SimpleNamespace(major=3, minor=99))
    assert cpu.key(native_call.CALL).path != before.path


@pytest.mark.parametrize("was_enabled", [False, True])
def test_collection_of_garbage_is_as_it_was_after_a_compilation(was_enabled):
    def fail():
        raise KeyboardInterrupt

    before = gc.isenabled()
    try:
        (gc.enable if was_enabled else gc.disable)()
        with pytest.raises(KeyboardInterrupt):
            once.apart(fail)
        assert once.apart(gc.isenabled) is False
        wait_for(lambda: gc.isenabled() is was_enabled)  # the last that the thread does
    finally:
        (gc.enable if before else gc.disable)()


def test_the_default_directory(monkeypatch):
    monkeypatch.delenv("DMLOPS_CACHE_DIR", raising=False)
    monkeypatch.delenv("DMLOPS_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    for platform, folder in (("win32", "AppData/Local"), ("darwin", "Library/Caches"), ("linux", ".cache")):
        monkeypatch.setattr("sys.platform", platform)
        assert kernel_cache.directory() == Path("/home/me", folder, "dmlops")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert kernel_cache.directory() == Path("/somewhere/dmlops")
    monkeypatch.setenv("DMLOPS_CACHE_DIR", "/else/where")
    assert kernel_cache.directory() == Path("/else/where")
    monkeypatch.setenv("DMLOPS_CACHE", "0")
    assert kernel_cache.directory() is None


@pytest.mark.exhaustive
def test_output_of_python_is_not_needed():
    """The first call works where there is no standard error to log to."""
    script = "import sys; sys.stderr.close(); import dmlops; print(dmlops.diagonal_matrix(shape=(1, 3)))"
    assert run_script(script, DMLOPS_CACHE_DIR="/proc/self/dmlops") == "[[1. 0. 0.]]\n"


@pytest.mark.parametrize(("is_terminal", "level", "lines"), [(True, 30, 1), (True, 20, 0), (False, 30, 0)])
def test_who_waits_at_a_terminal_is_told_once(is_terminal, level, lines, tmp_path):
    """Standard error gets no line if the log shows compilations, or if nobody reads it."""
    terminal, end = pty.openpty() if is_terminal else os.pipe()
    code = f"""
        import logging
        from tests.inside import kernel_cache, kernel_store, once
        logging.getLogger("dmlops").setLevel({level})
        for name in ("one", "two"):
            key = kernel_cache.Key("cpu", name, "target", "sources", "compilers")
            once.apart(kernel_store.find_or_compile, key, lambda: b"code")
        sys.stderr.write("end")
    """
    environment = {**os.environ, "DMLOPS_CACHE_DIR": str(tmp_path)}
    program = [sys.executable, "-c", "import sys\n" + textwrap.dedent(code)]
    subprocess.run(program, stderr=end, check=True, env=environment, timeout=300)
    os.close(end)
    told = os.read(terminal, 1 << 16)
    os.close(terminal)
    assert told.endswith(b"end")
    assert told.count(b"\n") == told.count(b"dmlops: compiling kernels") == lines


def test_no_two_kernels_of_the_host_share_a_label():
    modules = [inside.cpu_kernels(each.name) for each in dispatch.OPERATORS.values()]
    kernels = [native_call.CALL, *(kernel for module in modules for kernel in module.all_kernels())]
    labels = {kernel.label for kernel in kernels}
    assert len(labels) == len(set(kernels)) == len(kernels) > 150


def test_code_that_needs_more_than_c_is_refused():
    """Of the kernels, native calls alone may call Python's interface; object code must not hide that."""
    assert compile_kernel(native_call.CALL)
    with pytest.raises(RuntimeError, match=r"must not depend on .*PyTuple_GetItem"):
        compile_kernel(native_call.CALL._replace(uses_python=False))


def test_plans_and_native_calls_are_compiled_without_numba():
    """A first call must not spend seconds on anything but its kernel."""
    code = """
        import sys
        from tests.inside import compile_kernel, cpu_kernels, native_call, nopython_call
        for kernel in (native_call.CALL, native_call.LAUNCH, nopython_call.CALL, cpu_kernels("top_k").PLAN):
            assert compile_kernel(kernel)
        print("numba" in sys.modules)
    """
    printed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, timeout=300
    )
    assert printed.stdout == "False\n"
