"""Wheels with compiled kernels: how they are built, and how they run without a compiler."""

import os
import re
import site
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import dmlops
from tests.inside import Archive, cpu_kernels, cuda, native_call, nopython_call, processor
from tests.marks import exhaustive, nightly
from tests.scripts import ROOT, run_script

needs_level = pytest.mark.skipif(not processor.LEVEL, reason="wheels bring no kernels for this processor")


def build_wheel(folder, **environment):
    """Build a wheel in a folder; return its path, or what was printed if it cannot be built."""
    pytest.importorskip("build")
    isolation = ["--no-isolation"] if find_spec("hatchling") else []
    command = [sys.executable, "-m", "build", "--wheel", *isolation, "--outdir", str(folder), str(ROOT)]
    environment = {**os.environ, **environment}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        return result.stdout + result.stderr
    (path,) = Path(folder).glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build a wheel with the kernels of one operator for the level of this processor."""
    path = build_wheel(
        tmp_path_factory.mktemp("wheel"),
        DMLOPS_BUILD_KERNELS=processor.LEVEL,
        DMLOPS_BUILD_OPERATOR="diagonal_matrix",
        DMLOPS_SIMD="0",  # a setting of the user's, which is not the wheel's
    )
    assert isinstance(path, Path), path
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Unpack the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.exhaustive
def test_metadata(installed):
    (info,) = installed.glob("*.dist-info")
    lines = (info / "METADATA").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    required = [
        line.split()[1] for line in lines if line.startswith("Requires-Dist") and "extra ==" not in line
    ]
    assert sorted(re.match(r"[\w-]+", name)[0] for name in required) == ["llvmlite", "numba", "numpy"]
    extras = {line.split()[1] for line in lines if line.startswith("Provides-Extra")}
    assert {"cuda", "cuda12", "cuda-jit", "cuda12-jit", "cli", "test", "bench", "docs"} <= extras
    # Kernels of the wheel run without a compiler.
    assert not [line for line in lines if "numba-cuda" in line and not line.endswith("-jit'")]
    assert "Requires-Python: >=3.11" in lines
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (script,) = project["scripts"].items()
    assert " = ".join(script) in (info / "entry_points.txt").read_text(encoding="utf-8")


@pytest.mark.exhaustive
@needs_level
def test_a_wheel_with_kernels_for_the_cpu_is_for_a_platform(wheel):
    version, python, abi, platform = wheel.stem.split("-")[1:]
    assert (version, python, abi) == (dmlops.__version__, "py3", "none")
    assert platform.startswith(("manylinux_", "macosx_", "win_"))
    with zipfile.ZipFile(wheel) as archive:
        (kernels,) = {name for name in archive.namelist() if name.startswith("dmlops/kernels/")}
        (info,) = {name for name in archive.namelist() if name.endswith("/WHEEL")}
        assert f"Tag: py3-none-{platform}\n" in archive.read(info).decode()
    assert kernels == f"dmlops/kernels/{processor.LEVEL}.kernels"


@pytest.mark.exhaustive
@needs_level
def test_a_wheel_brings_all_kernels_of_the_operator(installed):
    archive = Archive(installed / "dmlops" / "kernels" / f"{processor.LEVEL}.kernels")
    called = (
        native_call.CALL,
        native_call.LAUNCH,
        nopython_call.CALL,
        cuda.plan_kernel(cuda.kernels_of("diagonal_matrix").PLAN),
    )
    kernels = (*called, *cpu_kernels("diagonal_matrix").all_kernels())
    assert archive.labels == {kernel.label for kernel in kernels}
    assert all(archive.read(label) for label in archive.labels)


USE = """
    import sys
    import numpy as np
    sys.modules["numba"] = None
    sys.path.insert(0, {folder!r})
    import dmlops
    assert dmlops.__file__.startswith({folder!r})
    print(dmlops.diagonal_matrix(np.arange(1, 10, dtype=np.int16).reshape(3, 3), begin=0, end=1).tolist())
"""


@pytest.mark.exhaustive
@needs_level
def test_the_kernels_of_a_wheel_need_neither_a_compiler_nor_a_cache(installed, tmp_path):
    script = USE.format(folder=str(installed))
    expected = np.arange(1, 10).reshape(3, 3)
    np.fill_diagonal(expected, 1)
    for settings in ({"DMLOPS_CACHE": "0"}, {"DMLOPS_CACHE_DIR": str(tmp_path / "cache")}):
        printed = run_script(script, "print('importlib.metadata' in sys.modules)", **settings)
        assert printed == f"{expected.tolist()}\nFalse\n"
    assert not (tmp_path / "cache").exists()


def test_what_cannot_be_built(tmp_path):
    told = "DMLOPS_BUILD_KERNELS: sm_91: no such target; it must be all, or some of "
    assert told in build_wheel(tmp_path, DMLOPS_BUILD_KERNELS="sm_90 sm_91")
    command = [sys.executable, f"{ROOT}/build_kernels.py", "sm_90", "--jobs", "0", "--folder", str(tmp_path)]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert result.stderr.endswith("--jobs 0: it must be at least 1\n")


CPU = """
    from tests.inside import compile_kernel as compiled, cpu_kernels
    kernels = cpu_kernels("nonzero_coordinates").all_kernels
"""
CUDA = """
    from tests.inside import compiler, cuda_kernels
    kernels = cuda_kernels("top_k").variants
    compiled = lambda variant: compiler.compile_variant(variant, "sm_80")
"""


@pytest.mark.parametrize(
    ("begin", "first", "common"),
    [
        # They call functions that are compiled on their own, whose names count what was compiled before.
        exhaustive(
            CPU,
            "nonzero_mark_pi64_i64_pu8_pu8",
            ["nonzero_total_pi64_pu32_pu8", "nonzero_mark_pi64_i64_pu16_pu8"],
        ),
        # They share functions that are compiled once, and have shared memory.
        nightly(CUDA, "dmlops_top_k_rounds_1_4_16", ["dmlops_top_k_keep_1", "dmlops_top_k_by_index_1_512"]),
    ],
)
def test_the_order_of_compilation_does_not_matter(begin, first, common):
    """Wheels that are built twice are the same."""
    script = """
        import hashlib
        by_label = {{kernel.label: kernel for kernel in kernels()}}
        code = {{label: compiled(by_label[label]) for label in {labels}}}
        print(sorted((label, hashlib.sha256(code[label]).hexdigest()) for label in {common}))
    """
    orders = ([first, *common], common[::-1])
    printed = {run_script(begin, script.format(labels=labels, common=common)) for labels in orders}
    assert len(printed) == 1


def test_the_build_environment_of_pip_is_searched_for_compilers(tmp_path):
    """It is only in sys.path, and NVIDIA's packages look for their libraries elsewhere."""
    folder = site.getsitepackages([str(tmp_path)])[0]
    script = f"""
        import site, sys
        sys.path.append({folder!r})
        import build_kernels
        print({folder!r} in site.getsitepackages())
    """
    assert run_script(script) == "True\n"
