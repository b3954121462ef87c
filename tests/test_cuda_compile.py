"""Every CUDA kernel compiles for every architecture, without a GPU."""

import importlib

import pytest

pytest.importorskip("numba.cuda")
pytest.importorskip("cuda.core")

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
OPERATORS = ("top_k", "nonzero_coordinates", "gather_nd", "diagonal_matrix")
VARIANTS = [
    variant
    for operator in OPERATORS
    for variant in importlib.import_module(f"kernels_cuda.{operator}").variants()
]


def test_variants_are_few_and_named_uniquely():
    labels = [variant.label for variant in VARIANTS]
    assert len(set(labels)) == len(labels)
    assert len(labels) <= 80


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.label)
def test_compiles(variant):
    for arch in ARCHITECTURES:
        code = variant.cubin(arch)
        assert code.startswith(b"\x7fELF")
        assert variant.label.encode() in code
