"""Measure the first calls of a process, in milliseconds: with an empty cache directory and with a full one.

Every figure is the median of several processes. `import` is the time of ``import dmlops`` after the array
library, and `call` that of the first call; on a GPU, both come after CUDA has been started. `packages` are
those that the two import beyond NumPy's, and `later` counts the modules that later calls import; it must be
0. Run it as ``python bench/first_calls.py [--device cuda] [--library torch]``; the library `driver` stands
for arrays that are known by ``__cuda_array_interface__`` alone.
"""

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

# Each call by its name, with the arrays that it takes.
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
LIBRARIES = {
    "numpy": ("pass", "{}"),
    "torch": ("import torch", "torch.from_numpy({}).to('{device}')"),
    "cupy": ("import cupy", "cupy.asarray({})"),
    "jax": ("import jax", "jax.numpy.asarray({}).block_until_ready()"),
    "driver": (
        """
from cuda.bindings import driver

driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])

class Array:
    def __init__(self, host):
        pointer = int(driver.cuMemAlloc(host.nbytes)[1])
        driver.cuMemcpyHtoD(pointer, host.ctypes.data, host.nbytes)
        self.__cuda_array_interface__ = {
            "version": 3, "shape": host.shape, "typestr": host.dtype.str, "data": (pointer, False)
        }
""",
        "Array({})",
    ),
}
WAITS = {
    "torch": "torch.cuda.synchronize()",
    "cupy": "cupy.cuda.Device().synchronize()",
    "driver": "driver.cuCtxSynchronize()",
}

PROCESS = """
import json, sys, time
import numpy as np
{imports}
{arrays}
{wait}
before = set(sys.modules)
times = [time.perf_counter()]
import dmlops
times.append(time.perf_counter())
result = {call}
{wait}
times.append(time.perf_counter())
first = set(sys.modules)
packages = {{name.partition(".")[0] for name in first - before}}
for _ in range({n_later}):
    result = {call}
print(json.dumps({{
    "times": [1000 * (b - a) for a, b in zip(times, times[1:])],
    "packages": sorted(packages - sys.stdlib_module_names - {{"numpy"}}),
    "later": sorted(set(sys.modules) - first),
}}))
"""


def process(call: str, library: str, device: str, n_later: int) -> str:
    """Return the program of a process that makes one call, and then others like it."""
    imports, convert = LIBRARIES[library]
    arrays = [
        f"{name} = {convert.format(array, device=device)}" for name, array in ARRAYS.items() if name in call
    ]
    wait = WAITS.get(library, "") if device == "cuda" else ""
    return PROCESS.format(imports=imports, arrays="\n".join(arrays), wait=wait, call=call, n_later=n_later)


def run(program: str, cache: Path) -> dict[str, Any]:
    """Return the milliseconds of the import and of the call in a new process, and the modules they import."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "DMLOPS_CACHE_DIR": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def figures(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each call's figures."""
    for number, (name, call) in enumerate(CALLS.items()):
        if not name.startswith(options.only):
            continue
        program = process(call, options.library, options.device, options.later)
        caches = [folder / f"{number}-{i}" for i in range(max(options.cold, 1))]
        cold = [run(program, cache) for cache in caches]
        warm = [run(program, caches[0]) for _ in range(options.warm)]
        found: dict[str, Any] = {"kernels": sum(path.is_file() for path in caches[0].rglob("*"))}
        for state, processes in ("cold", cold), ("warm", warm):
            times = [process["times"] for process in processes]
            for part, values in zip(("import", "call"), zip(*times, strict=True), strict=False):
                found[f"{state} {part}"] = round(statistics.median(values), 1)
        found["packages"] = " ".join(warm[-1]["packages"])
        found["later"] = len(warm[-1]["later"])
        found["later modules"] = warm[-1]["later"]
        yield name, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--library", choices=list(LIBRARIES))
    parser.add_argument("--only", default="", help="how the names of calls begin")
    parser.add_argument("--cold", type=int, default=7, help="processes with an empty cache directory")
    parser.add_argument("--warm", type=int, default=12, help="processes that find their kernels")
    parser.add_argument("--later", type=int, default=100, help="calls after the first one")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    options.library = options.library or ("torch" if options.device == "cuda" else "numpy")
    columns = ("kernels", "cold import", "cold call", "warm import", "warm call", "later")
    print(f"{f'{options.library} on {options.device}, ms':<22}" + "".join(f"{name:>13}" for name in columns))
    results = {}
    for package in ("dmlops", "kernels_cpu", "kernels_cuda"):  # installed packages come with their bytecode
        compileall.compile_dir(ROOT / package, quiet=1)
    with tempfile.TemporaryDirectory() as folder:
        for name, found in figures(options, Path(folder)):
            results[name] = found
            print(f"{name:<22}" + "".join(f"{found.get(column, ''):>13}" for column in columns))
            print(f"{'':<22}  {found['packages']}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
