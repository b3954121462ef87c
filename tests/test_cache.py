"""Compiled CPU kernels stay on disk: where, and that the next process compiles none."""

from pathlib import Path

import pytest

from kernels_cpu import jit
from tests.scripts import run_script

COUNT_COMPILATIONS = """
    from numba.core import event
    from tests import cases
    from tests.libraries import NUMPY, check

    with event.install_recorder("numba:compile") as recorder:
        for case in [c for c in cases.ALL if c.name.startswith(("float32", "uint8", "empty", "window"))]:
            check(NUMPY, case)
    print(len(recorder.buffer))
"""


def test_second_process_compiles_nothing():
    run_script(COUNT_COMPILATIONS)
    assert run_script(COUNT_COMPILATIONS).strip() == "0"


def test_folder_and_switch(tmp_path):
    script = """
        import sys, dmlops
        print(dmlops.diagonal_matrix(shape=(2, 2), dtype="uint8").tolist())
    """
    expected = "[[1, 0], [0, 1]]"
    assert run_script(script, DMLOPS_CACHE_DIR=str(tmp_path / "off"), DMLOPS_CACHE="0").strip() == expected
    assert not (tmp_path / "off").exists()
    assert run_script(script, DMLOPS_CACHE_DIR=str(tmp_path / "on")).strip() == expected
    assert list((tmp_path / "on").rglob("*.nbi"))


def test_unwritable_folder_does_not_stop_a_call(tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    script = """
        import dmlops
        print(dmlops.diagonal_matrix(shape=(1, 2), dtype="uint8").tolist())
    """
    assert run_script(script, DMLOPS_CACHE_DIR=str(blocked)).strip() == "[[1, 0]]"


def test_default_folder(monkeypatch):
    monkeypatch.delenv("DMLOPS_CACHE_DIR", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert jit.cache_root() == Path("/somewhere/dmlops")
    monkeypatch.setenv("DMLOPS_CACHE_DIR", "/else/where")
    assert jit.cache_root() == Path("/else/where")


@pytest.mark.parametrize(("value", "enabled"), [("0", False), ("1", True)])
def test_switch(monkeypatch, value, enabled):
    monkeypatch.setenv("DMLOPS_CACHE", value)
    assert jit.cache_enabled() is enabled


def test_digest_follows_every_source_file(tmp_path):
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "inner").mkdir()
    before = jit.source_digest(tmp_path)
    assert jit.source_digest(tmp_path) == before
    (tmp_path / "b.py").write_text("y = 1")
    with_neighbour = jit.source_digest(tmp_path)
    assert with_neighbour != before
    (tmp_path / "inner" / "c.py").write_text("z = 1")
    assert jit.source_digest(tmp_path) != with_neighbour
