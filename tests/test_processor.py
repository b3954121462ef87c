"""The processor that kernels are compiled for: the host, or the one that Numba's variables name."""

import platform

import pytest

from kernels_cpu import processor
from tests.scripts import run_script

SHOW = "from kernels_cpu import processor; print([processor.LEVEL, processor.WIDTH])"
WIDTHS = {"x86-64-v3": 256, "x86-64-v4": 512, "aarch64": 128}


@pytest.mark.parametrize(("level", "width"), WIDTHS.items())
def test_a_level_in_place_of_the_host(level, width):
    script = f"{SHOW}; print(processor.NAME)"
    name = "generic" if level == "aarch64" else level
    assert run_script(script, **processor.environment(level)).split("\n")[:2] == [
        f"['{level}', {width}]",
        name,
    ]


@pytest.mark.parametrize("triple", ["arm64-apple-darwin23.1.0", "aarch64-unknown-linux-gnu"])
def test_neon_where_llvm_knows_no_features(triple):
    script = f"""
        import os
        import llvmlite.binding as llvm

        os.environ.pop("NUMBA_CPU_FEATURES", None)

        def get_host_cpu_features():
            raise RuntimeError("unable to determine host cpu features")  # as on macOS

        llvm.get_host_cpu_features = get_host_cpu_features
        llvm.get_process_triple = lambda: {triple!r}
        {SHOW}
    """
    assert run_script(script).strip() == "['aarch64', 128]"
    assert run_script(script, DMLOPS_SIMD="0").strip() == "['', 0]"


@pytest.mark.skipif(platform.machine().lower() in {"arm64", "aarch64"}, reason="vectors of aarch64 are there")
@pytest.mark.parametrize(
    ("features", "shown"),
    [
        ("-avx512cd", "['x86-64-v3', 256]"),  # one that v4 has and kernels do not use
        ("-movbe", "['', 256]"),
        ("-avx2", "['', 128]"),
        ("-sse4.1,-avx2", "['', 0]"),
    ],
)
def test_a_processor_without_some_features(features, shown):
    environment = processor.environment("x86-64-v4")
    environment["NUMBA_CPU_FEATURES"] += f",{features}"
    assert run_script(SHOW, **environment).strip() == shown


def test_numba_compiles_for_the_same_processor():
    script = """
        from numba.core.registry import cpu_target
        from kernels_cpu import processor
        _, name, features = cpu_target.target_context.codegen().magic_tuple()
        print(name == processor.NAME, set(features.split(",")) == set(processor.FEATURES.split(",")))
    """
    assert run_script(script).strip() == "True True"
    assert run_script(script, NUMBA_CPU_NAME="generic").strip() == "True True"
    assert run_script(script, **processor.environment("x86-64-v3")).strip() == "True True"


def test_the_scalar_path_belongs_to_no_level():
    assert run_script(SHOW, DMLOPS_SIMD="0").strip() == "['', 0]"
