"""The processor that kernels are compiled for: the host, or the one that Numba's variables name."""

import importlib.util
import platform

import llvmlite.binding as llvm
import pytest

from tests.inside import processor
from tests.scripts import run_script

WIDTHS = {"x86-64-v3": 256, "x86-64-v4": 512, "aarch64": 128}
IS_ARM = platform.machine().lower() in {"arm64", "aarch64"}


@pytest.fixture
def read(monkeypatch):
    """Return the level and the width that a process with some variables finds, and the processor's name."""

    def read(**environment):
        for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "DMLOPS_SIMD"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        spec = importlib.util.spec_from_file_location("processor_read_anew", processor.__file__)
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        return found.LEVEL, found.WIDTH, found.NAME

    return read


@pytest.mark.parametrize(("level", "width"), WIDTHS.items())
def test_a_level_in_place_of_the_host(level, width, read):
    name = "generic" if level == "aarch64" else level
    assert read(**processor.environment(level)) == (level, width, name)


@pytest.mark.parametrize("triple", ["arm64-apple-darwin23.1.0", "aarch64-unknown-linux-gnu"])
def test_neon_where_llvm_knows_no_features(triple, read, monkeypatch):
    def fail():
        raise RuntimeError("unable to determine host cpu features")  # as on macOS

    monkeypatch.setattr(llvm, "get_host_cpu_features", fail)
    monkeypatch.setattr(llvm, "get_process_triple", lambda: triple)
    assert read()[:2] == ("aarch64", 128)
    assert read(DMLOPS_SIMD="0")[:2] == ("", 0)


@pytest.mark.skipif(IS_ARM, reason="vectors of aarch64 are there")
@pytest.mark.parametrize(
    ("features", "found"),
    [
        ("-avx512cd", ("x86-64-v3", 256)),  # one that v4 has and kernels do not use
        ("-movbe", ("", 256)),
        ("-avx2", ("", 128)),
        ("-sse4.1,-avx2", ("", 0)),
    ],
)
def test_a_processor_without_some_features(features, found, read):
    environment = processor.environment("x86-64-v4")
    environment["NUMBA_CPU_FEATURES"] += f",{features}"
    assert read(**environment)[:2] == found


@pytest.mark.parametrize(
    "environment", [{}, {"NUMBA_CPU_NAME": "generic"}, processor.environment("x86-64-v3")]
)
def test_numba_compiles_for_the_same_processor(environment):
    script = """
        from numba.core.registry import cpu_target
        from tests.inside import processor
        _, name, features = cpu_target.target_context.codegen().magic_tuple()
        print(name == processor.NAME, set(features.split(",")) == set(processor.FEATURES.split(",")))
    """
    assert run_script(script, **environment).strip() == "True True"
