"""The processor that kernels are compiled for: its features, its vectors, its largest cache."""

import functools
import os
from pathlib import Path

import llvmlite.binding as llvm

LINE_BYTES = 64


def _features() -> dict[str, bool]:
    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:  # LLVM does not know this processor's features
        return {}


def _register_width(features: dict[str, bool]) -> int:
    if os.environ.get("DMLOPS_SIMD", "1") == "0":
        return 0
    present = {name for name, is_present in features.items() if is_present}
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= present:
        return 512
    if "avx2" in present:
        return 256
    if "sse4.1" in present or "neon" in present:
        return 128
    return 0


_FEATURES = _features()
NAME = llvm.get_host_cpu_name()
FEATURES = ",".join(("+" if is_present else "-") + name for name, is_present in sorted(_FEATURES.items()))
"""The processor's features in LLVM's notation."""
WIDTH = _register_width(_FEATURES)
"""Bits of a vector register; 0 where kernels are to stay scalar."""
TARGET = f"{llvm.get_process_triple()} {NAME} {FEATURES} {WIDTH}"
"""Everything about the processor that object code depends on."""


def lanes(element_size: int) -> int:
    """Return how many elements of that many bytes a vector has: 1 on the scalar path."""
    return max(WIDTH // (8 * element_size), 1)


@functools.cache
def streaming_bytes() -> int:
    """Return how large an output must be to be written past the caches.

    A smaller one fits the largest cache together with its input, may stay there for whoever reads it next,
    and is written faster into it.
    """
    sizes = []
    try:
        folders = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")
        sizes = [int((folder / "size").read_text().strip().removesuffix("K")) << 10 for folder in folders]
    except (OSError, ValueError):  # no Linux, or one that does not tell
        pass
    return max(sizes, default=32 << 20) // 2
