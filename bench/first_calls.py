"""The first calls of a process, in milliseconds: with an empty cache directory, and with the kernels in it.

Each figure is the median of several processes. The import of dmlops comes after that of the array library,
and on a GPU after CUDA has been started.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
COMPILED, FOUND = 3, 9  # processes
ARRAYS = {
    "x": "np.random.default_rng(0).standard_normal((4, 64), np.float32)",
    "rows": "np.random.default_rng(0).standard_normal((64, 5000), np.float32)",
    "row": "np.random.default_rng(0).standard_normal(2_000_000, np.float32)",
    "indices": "np.arange(4).reshape(4, 1)",
}
CALLS = {
    "top_k, short rows": "dmlops.top_k(x, 5)",
    "top_k, rows": "dmlops.top_k(rows, 100)",
    "top_k, one row": "dmlops.top_k(row, 100)",
    "top_k, sorted": "dmlops.top_k(x, 64)",
    "nonzero_coordinates": "dmlops.nonzero_coordinates(x)",
    "gather_nd": "dmlops.gather_nd(x, indices)",
    "gather_nd, clip": "dmlops.gather_nd(x, indices, mode='clip')",
    "diagonal_matrix": "dmlops.diagonal_matrix(x, value=3)",
}
# How a library is imported, takes NumPy's arrays, and waits for a device.
LIBRARIES = {
    "numpy": ("", "{}", ""),
    "torch": ("import torch", "torch.from_numpy({}).to('{device}')", "torch.{device}.synchronize()"),
}
PROCESS = """
import time
import numpy as np
{imports}
{arrays}
{wait}
times = [time.perf_counter()]
import dmlops
times.append(time.perf_counter())
{call}
{wait}
times.append(time.perf_counter())
print(*(1000 * (after - before) for before, after in zip(times, times[1:])))
"""


class Figures(NamedTuple):
    """Milliseconds of the import, and of the first call if its kernel is found and if it is compiled."""

    imported: float
    found: float
    compiled: float


def process(call: str, library: str, device: str) -> str:
    """Return the program of a process that makes one call."""
    imports, convert, wait = LIBRARIES[library]
    arrays = [
        f"{name} = {convert.format(text, device=device)}" for name, text in ARRAYS.items() if name in call
    ]
    return PROCESS.format(
        imports=imports, arrays="\n".join(arrays), wait=wait.format(device=device), call=call
    )


def milliseconds(program: str, cache: Path) -> list[float]:
    """Return the times of the import and of the call in a new process."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "DMLOPS_CACHE_DIR": str(cache)}
    printed = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    return [*map(float, printed.split())]


def first_calls(library: str, device: str) -> Iterator[tuple[str, Figures]]:
    """Yield each call and its figures."""
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, call) in enumerate(CALLS.items()):
            program = process(call, library, device)
            caches = [Path(folder, f"{number}-{i}") for i in range(COMPILED)]
            compiled = [milliseconds(program, cache)[1] for cache in caches]
            imported, found = zip(*(milliseconds(program, caches[0]) for _ in range(FOUND)), strict=True)
            yield name, Figures(*map(statistics.median, (imported, found, compiled)))
