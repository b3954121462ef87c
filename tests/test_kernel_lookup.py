"""Kernels in the wheel: they are found before the cache is asked, and refused if they do not fit."""

import logging
import os

import pytest

from tests import inside
from tests.conftest import forget_archives
from tests.inside import Origin, find_in_wheel, kernel_store, once, write
from tests.test_kernel_cache import NO_KERNELS

CODE = b"code of the kernel" * 50


def bring(folder, target="sm_90", *, device="cuda", sources="sources", kernels=None, name=None):
    kernels = {"kernel": CODE} if kernels is None else kernels
    path = folder / f"{name or target}.kernels"
    write(path, Origin(device, target, sources, "numba 1"), kernels)
    return path


def find(kernel="kernel", *targets):
    with once.LOCK:
        return find_in_wheel("cuda", kernel, "sources", targets or ["sm_90"])


def test_found(wheel, caplog):
    bring(wheel)
    assert [find(), find(), find("other")] == [CODE, CODE, None]
    assert not caplog.records


def test_the_first_target_that_has_the_kernel_counts(wheel):
    bring(wheel, "sm_86", kernels={"kernel": b"86"})
    bring(wheel, "sm_80", kernels={"kernel": b"80", "other": b"80, too"})
    assert find("kernel", "sm_89", "sm_86", "sm_80") == b"86"
    assert find("kernel", "sm_80", "sm_86") == b"80"
    assert find("other", "sm_86", "sm_80") == b"80, too"


def test_no_wheel(wheel, caplog):
    assert find() is None
    forget_archives()
    wheel.rmdir()
    assert find() is None
    assert not caplog.records


REFUSED = {
    "sources": lambda folder: bring(folder, sources="others"),
    "device": lambda folder: bring(folder, device="cpu"),
    "target": lambda folder: bring(folder, "sm_80", name="sm_90"),
    "damaged": lambda folder: bring(folder).write_bytes(b"dmlops"),
    "folder": lambda folder: (folder / "sm_90.kernels").mkdir(),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_archive_that_does_not_fit_is_as_none_at_all(kind, wheel, caplog):
    REFUSED[kind](wheel)
    bring(wheel, "sm_80")
    assert [find(), find(), find()] == [None] * 3
    assert find("kernel", "sm_90", "sm_80") == CODE
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "sm_90.kernels" in record.getMessage()


def test_a_damaged_kernel_is_compiled_and_the_others_are_found(wheel, caplog):
    path = bring(wheel, kernels={"kernel": CODE, "other": os.urandom(1000)})
    content = bytearray(path.read_bytes())
    content[-500] ^= 1  # in the middle of the last kernel
    path.write_bytes(content)
    assert [find(), find("other"), find("other")] == [CODE, None, None]
    assert len(caplog.records) == 1
    assert "damaged" in caplog.text


def test_an_archive_that_has_gone_costs_a_compilation(wheel, caplog):
    """As when an installation is replaced while it is in use."""
    path = bring(wheel)
    assert kernel_store.wheel_targets() == ("sm_90",)
    path.unlink()
    assert find() is None
    assert len(caplog.records) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.parametrize("kind", ["pipe", "device", "huge"])
def test_what_is_no_archive_is_not_read(kind, wheel, caplog):
    NO_KERNELS[kind](wheel / "sm_90.kernels")
    assert find() is None
    assert "sm_90.kernels cannot be read" in caplog.text


TARGETS = ("compute_100", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "x86-64-v3")


@pytest.mark.parametrize(
    ("arch", "targets"),
    [
        ("sm_75", ["sm_75"]),
        ("sm_90", ["sm_90"]),
        ("sm_89", ["sm_89", "sm_86", "sm_80"]),
        ("sm_87", ["sm_86", "sm_80"]),
        ("sm_103", ["sm_100", "compute_100"]),
        ("sm_120", ["sm_120", "compute_100"]),
        ("sm_121", ["sm_120", "compute_100"]),
        ("sm_130", ["compute_100"]),
        ("sm_70", []),
        ("sm_72", []),
        ("sm_110", ["compute_100"]),
    ],
)
def test_which_targets_run_on_an_architecture(arch, targets):
    runnable = inside.variant.runnable
    assert runnable(arch, TARGETS) == targets
    assert runnable(arch, TARGETS[::-1]) == targets
