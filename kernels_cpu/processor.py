"""The processor that kernels are compiled for: its features, its vectors, its largest cache.

It is the host, unless Numba's own variables name another one (`environment`). Numba then compiles for that
processor, and the store looks for its kernels.
"""

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

LINE_BYTES = 64
MAX_STREAMING_BYTES = 1 << 24
_V3 = {
    *("sse3", "ssse3", "sse4.1", "sse4.2", "cx16", "sahf", "popcnt"),  # x86-64-v2
    *("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"),
}
_V4 = {*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS: Mapping[str, tuple[int, frozenset[str]]] = {
    "x86-64-v4": (512, frozenset(_V4)),
    "x86-64-v3": (256, frozenset(_V3)),
    "aarch64": (128, frozenset({"neon"})),
}
"""The levels that wheels have kernels for, best first: bits of a vector, and features of all processors."""


def environment(level: str) -> dict[str, str]:
    """Return the variables with which a process compiles for a level instead of its host."""
    _, features = LEVELS[level]
    name = "generic" if level == "aarch64" else level  # LLVM's name
    return {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": ",".join(f"+{name}" for name in sorted(features))}


def _features(llvm: ModuleType) -> dict[str, bool]:
    # Read as Numba reads them.
    no_features = "" if os.environ.get("NUMBA_CPU_NAME", "").lower() == "generic" else None
    given = os.environ.get("NUMBA_CPU_FEATURES", no_features)
    if given is not None:
        return {name[1:]: name[0] == "+" for name in given.split(",") if name}
    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:  # LLVM does not know this processor's features
        return {}


def _level(present: set[str]) -> str:
    return next((level for level, (_, features) in LEVELS.items() if features <= present), "")


def _register_width(present: set[str], level: str) -> int:
    if level:
        return LEVELS[level][0]
    if "avx2" in present:
        return 256
    if "sse4.1" in present or "neon" in present:
        return 128
    return 0


NAME: str
FEATURES: str
"""The processor's features in LLVM's notation."""
LEVEL: str
"""The best of `LEVELS` that the processor belongs to; empty where there is none."""
WIDTH: int
"""Bits of a vector register; 0 where kernels are to stay scalar."""
TARGET: str
"""Everything about the processor that object code depends on; its name comes first."""


def __getattr__(name: str) -> Any:
    """Return what LLVM knows of the processor; it is asked once, because its import takes long."""
    if name not in ("NAME", "FEATURES", "LEVEL", "WIDTH", "TARGET"):
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    globals().update(described())
    return globals()[name]


@functools.cache
def described() -> dict[str, Any]:
    """Return all that LLVM knows of the processor, by name; the first call imports LLVM."""
    import llvmlite.binding as llvm  # noqa: PLC0415 - plans for GPUs do without it

    features, triple = _features(llvm), llvm.get_process_triple()
    present = {name for name, is_present in features.items() if is_present}
    if triple.startswith(("aarch64-", "arm64-")):
        present.add("neon")  # every such processor has it, and LLVM knows no features on macOS
    has_vectors = os.environ.get("DMLOPS_SIMD", "1") != "0"
    level = _level(present) if has_vectors else ""
    width = _register_width(present, level) if has_vectors else 0
    processor = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    notation = ",".join(("+" if is_present else "-") + name for name, is_present in sorted(features.items()))
    return {
        "NAME": processor,
        "FEATURES": notation,
        "LEVEL": level,
        "WIDTH": width,
        "TARGET": f"{processor} {triple} {notation} {width}",
    }


def lanes(element_size: int) -> int:
    """Return the number of elements of this size in a vector: 1 on the scalar path."""
    width: int = described()["WIDTH"]
    return max(width // (8 * element_size), 1)


@functools.cache
def streaming_bytes() -> int:
    """Return the size from which on outputs are written past the caches.

    A smaller one fits the largest cache together with its input, may stay there for whoever reads it next,
    and is written faster into it. The largest cache of a server is far from each of its many cores, and no
    faster to write to than memory.
    """
    sizes = []
    try:
        folders = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")
        sizes = [int((folder / "size").read_text().strip().removesuffix("K")) << 10 for folder in folders]
    except (OSError, ValueError):  # not Linux, or the size is unknown
        pass
    return min(max(sizes, default=32 << 20) // 2, MAX_STREAMING_BYTES)
