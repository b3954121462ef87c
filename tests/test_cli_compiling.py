"""While a kernel is compiled, the commands show its name on a terminal, and nothing in a file."""

import io

import numpy as np
import pytest

import dmlops
from dmlops.cli import console
from dmlops.store import kernel_store
from dmlops.store.kernel_cache import Key

pytestmark = pytest.mark.quick

KEY = Key("cuda", "top_k_block_4", "sm_90", "sources", "compilers")


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("DMLOPS_CACHE", "0")


@pytest.fixture
def terminal(monkeypatch):
    """Make standard error a terminal, and return what is written there."""
    written = io.StringIO()
    options = {"file": written, "force_terminal": True, "width": 80, "_environ": {"TERM": "xterm"}}
    monkeypatch.setattr(console, "err", console.plain_console(**options))
    return written


def compile_one(key=KEY):
    with kernel_store.LOCK:
        return kernel_store.find_or_compile(key, lambda: b"code")


def settings():
    return kernel_store.log.level, list(kernel_store.log.handlers)


def test_the_spinner_tells_what_is_compiled(terminal):
    before = settings()
    with console.spinner():
        assert terminal.getvalue() == ""
        compile_one()
        compile_one(KEY._replace(kernel="gather_2"))
    assert "compiling top_k_block_4 for sm_90 ..." in terminal.getvalue()
    assert "compiling gather_2 for sm_90 ..." in terminal.getvalue()
    assert settings() == before
    compile_one(KEY._replace(kernel="later"))
    assert "later" not in terminal.getvalue()


def test_a_command_tells_what_it_compiles(command, terminal, monkeypatch):
    diagonal_matrix = dmlops.diagonal_matrix

    def compiling(*arguments, **options):
        compile_one(KEY._replace(kernel="diagonal_1"))
        return diagonal_matrix(*arguments, **options)

    monkeypatch.setattr(dmlops, "diagonal_matrix", compiling)
    np.save("x.npy", np.eye(2))
    code, printed, _ = command("diagonal", "x.npy", "--device", "cpu")
    assert code == 0
    assert "compiling" not in printed
    assert "compiling diagonal_1 for sm_90 ..." in terminal.getvalue()


def test_nothing_is_shown_in_a_file(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(console, "err", console.plain_console(file=written))
    with console.spinner("running ..."):
        compile_one()
    with console.spinner() as show:
        show("1 of 3")
    assert written.getvalue() == ""
