"""The benchmark's view of the libraries that it compares with dmlops."""

import pytest

import dmlops
from bench import libraries
from bench.workloads import CPU


def test_every_library_gets_the_threads(monkeypatch, restore_num_threads):
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    for name in ("NPROC", "JAX_PLATFORMS", "XLA_PYTHON_CLIENT_PREALLOCATE"):
        monkeypatch.setenv(name, "")
    try:
        for count in (2, 1):
            libraries.set_threads(count, CPU)
            assert (dmlops.get_num_threads(), torch.get_num_threads()) == (count, count)
            assert libraries.os.environ["NPROC"] == str(count)
    finally:
        torch.set_num_threads(before)


def test_libraries_that_are_absent_or_broken_are_not_served(tmp_path, monkeypatch):
    (tmp_path / "broken_kernels.py").write_text("raise OSError('no libcuda.so.1')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(libraries.NotServedError, match="broken_kernels cannot be imported: OSError: no lib"):
        libraries.module("broken_kernels")
    assert libraries.missing("broken_kernels", CPU) is None
    assert libraries.missing("absent_package.kernels", CPU) == "absent_package.kernels is not installed"
