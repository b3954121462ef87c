"""Kernels of an installed wheel on a GPU: cubins, PTX, and code that the driver refuses."""

import pytest

from tests.kernel_sources import NO_COMPILER
from tests.scripts import run_script

pytest.importorskip("torch")

BEGIN = """
    import os, sys
    import warnings
    warnings.simplefilter("default")  # other libraries' are not our errors
    from pathlib import Path

    import numpy as np
    import torch

    import dmlops
    from tests.inside import cpu, cuda, kernel_archive, kernel_store, native_call, processor
    from tests import reference

    kernel_store.WHEEL = Path(os.environ["WHEEL"])
    MAJOR, MINOR = torch.cuda.get_device_capability(0)
    ARCH, PTX = f"sm_{MAJOR}{MINOR}", f"compute_{MAJOR}{MINOR}"
    FOREIGN = "sm_75" if MAJOR > 7 else "sm_90"

    X = (np.arange(30_000) * 7919 % 251 - 125).astype("float32").reshape(60, 500)
    PICKS = np.arange(0, 60, 7).reshape(-1, 1)

    def call():
        x = torch.from_numpy(X).cuda()
        values, indices = dmlops.top_k(x, 7)
        wanted = reference.top_k(X, 7)
        np.testing.assert_array_equal(values.cpu(), wanted[0])
        np.testing.assert_array_equal(indices.cpu(), wanted[1])
        gathered = dmlops.gather_nd(x, torch.from_numpy(PICKS).cuda(), mode="clip")
        np.testing.assert_array_equal(gathered.cpu(), X[PICKS[:, 0]])
"""
BUILD = """
    needed = []
    compiled = cuda.compiled

    def recording(variant, arch):
        needed.append(variant)
        return compiled(variant, arch)

    cuda.compiled = recording
    call()
    codes = {
        name: {variant.label: compiled(variant, target) for variant in needed}
        for name, target in (("cubin", ARCH), ("ptx", PTX), ("foreign", FOREIGN))
    }
    for name, target in (("cubin", ARCH), ("ptx", PTX), ("foreign", ARCH)):
        folder = kernel_store.WHEEL / name
        folder.mkdir()
        kernel_archive.write(
            folder / f"{target}.kernels",
            kernel_archive.Origin("cuda", target, cuda.sources(), ""),
            codes[name],
        )
        # Calls with torch's tensors look at these on the host.
        kernel_archive.write(
            folder / f"{processor.LEVEL}.kernels",
            kernel_archive.Origin("cpu", processor.LEVEL, cpu.sources(), ""),
            {kernel.label: cpu.compiled(kernel) for kernel in [native_call.CALL]},
        )
"""
WITHOUT_COMPILER = """
    sys.modules["numba"] = sys.modules["numba_cuda"] = None
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Return a folder with the archives of three wheels."""
    pytest.importorskip("numba_cuda", reason=NO_COMPILER)
    folder = tmp_path_factory.mktemp("wheels")
    run_script(BEGIN, BUILD, WHEEL=str(folder))
    return folder


@pytest.mark.parametrize("kind", ["cubin", "ptx"])
def test_without_compiler_and_cache(kind, wheels):
    script = """
    call()
    print("called")
    """
    output, log = run_script(
        BEGIN, WITHOUT_COMPILER, script, errors=True, WHEEL=str(wheels / kind), DMLOPS_CACHE="0"
    )
    assert output == "called\n"
    assert "compiles kernels again" not in log


def test_what_the_driver_refuses_is_compiled(wheels):
    script = """
    call()
    print("called")
    """
    output, log = run_script(BEGIN, script, errors=True, WHEEL=str(wheels / "foreign"))
    assert output == "called\n"
    assert log.count("compiles kernels again") == 1
    assert "the driver refuses what the wheel has for sm_" in log
