"""Every CUDA kernel compiles for every architecture, without a GPU."""

import importlib

import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("cuda.core")
compiler = importlib.import_module("kernels_cuda.compiler")

CODE = {(7, 5): ("sm_75",), (8, 0): ("sm_80", "sm_90", "sm_100", "sm_120")}
ARCHITECTURES = tuple(arch for architectures in CODE.values() for arch in architectures)
ELF_MAGIC = b"\x7fELF"
OPERATORS = ("top_k", "nonzero_coordinates", "gather_nd", "diagonal_matrix")
# Operators share some kernels; a kernel's label stands for its code.
VARIANTS = {
    variant.label: variant
    for operator in OPERATORS
    for variant in importlib.import_module(f"kernels_cuda.{operator}").variants()
}


def test_a_label_stands_for_one_kernel():
    for operator in OPERATORS:
        for variant in importlib.import_module(f"kernels_cuda.{operator}").variants():
            assert VARIANTS[variant.label] == variant


def test_kernels_are_few():
    # All of them are compiled here, for every architecture: one an element width and layout, no more.
    assert 4 * len(OPERATORS) <= len(VARIANTS) <= 120


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_assembles_for_every_architecture(variant):
    # Kernels consult the capability at 8.0 only: two compilations make the code of all architectures.
    source = variant.source()
    for capability, architectures in CODE.items():
        ptx = compiler.compile_ptx(source, variant.label, capability)
        for arch in architectures:
            code = compiler.compile_cubin(ptx, arch, source.max_registers)
            assert code.startswith(ELF_MAGIC)
            assert variant.label.encode() in code


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_cubin_as_it_is_shipped(arch, tmp_path, monkeypatch):
    monkeypatch.setenv("DMLOPS_CACHE_DIR", str(tmp_path))
    variant = min(VARIANTS.values(), key=lambda variant: variant.label)
    code = variant.cubin(arch)
    assert code.startswith(ELF_MAGIC)
    (kept,) = tmp_path.rglob("*.cubin")
    assert kept.parent.name == arch
    assert kept.read_bytes() == code
    monkeypatch.setattr(compiler, "compile_ptx", pytest.fail)
    assert variant.cubin(arch) == code
    kept.write_bytes(b"cut off")
    monkeypatch.undo()
    monkeypatch.setenv("DMLOPS_CACHE_DIR", str(tmp_path))
    assert variant.cubin(arch) == code


def test_what_the_capability_decides():
    # The ground of the test above: from 8.0 on, the code differs in its header only.
    for operator in OPERATORS:
        variant = min(importlib.import_module(f"kernels_cuda.{operator}").variants(), key=lambda v: v.label)
        bodies = {
            compiler.compile_ptx(variant.source(), variant.label, capability).partition(".address_size")[2]
            for capability in ((8, 0), (9, 0), (12, 0))
        }
        assert len(bodies) == 1, operator
