"""First calls of a process, in milliseconds: with an empty cache directory, and with the kernels in it.

Every figure is the median of several processes. `import` is what ``import dmlops`` takes after the array
library, `call` is the first call, and for a GPU both come after CUDA's own start. Run it as
``python bench/first_calls.py [--device cuda] [--library torch]``.
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
}
WAITS = {"torch": "torch.cuda.synchronize()", "cupy": "cupy.cuda.Device().synchronize()"}

PROCESS = """
import json, time
import numpy as np
{imports}
{arrays}
{wait}
times = [time.perf_counter()]
import dmlops
times.append(time.perf_counter())
result = {call}
{wait}
times.append(time.perf_counter())
print(json.dumps([1000 * (b - a) for a, b in zip(times, times[1:])]))
"""


def process(call: str, library: str, device: str) -> str:
    """Return the program of a process that makes one call."""
    imports, convert = LIBRARIES[library]
    arrays = [
        f"{name} = {convert.format(array, device=device)}" for name, array in ARRAYS.items() if name in call
    ]
    wait = WAITS.get(library, "") if device == "cuda" else ""
    return PROCESS.format(imports=imports, arrays="\n".join(arrays), wait=wait, call=call)


def milliseconds(program: str, cache: Path) -> list[float]:
    """Return what the import and the call of a new process take."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "DMLOPS_CACHE_DIR": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    times: list[float] = json.loads(result.stdout)
    return times


def figures(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each call's figures."""
    for number, (name, call) in enumerate(CALLS.items()):
        if not name.startswith(options.only):
            continue
        program = process(call, options.library, options.device)
        caches = [folder / f"{number}-{i}" for i in range(max(options.cold, 1))]
        cold = [milliseconds(program, cache) for cache in caches]
        warm = [milliseconds(program, caches[0]) for _ in range(options.warm)]
        found = {"kernels": sum(path.is_file() for path in caches[0].rglob("*"))}
        for state, times in ("cold", cold), ("warm", warm):
            for part, values in zip(("import", "call"), zip(*times, strict=True), strict=False):
                found[f"{state} {part}"] = round(statistics.median(values), 1)
        yield name, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--library", choices=list(LIBRARIES))
    parser.add_argument("--only", default="", help="how the names of calls begin")
    parser.add_argument("--cold", type=int, default=7, help="processes with an empty cache directory")
    parser.add_argument("--warm", type=int, default=12, help="processes that find their kernels")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    options.library = options.library or ("torch" if options.device == "cuda" else "numpy")
    columns = ("kernels", "cold import", "cold call", "warm import", "warm call")
    print(f"{f'{options.library} on {options.device}, ms':<22}" + "".join(f"{name:>13}" for name in columns))
    results = {}
    for package in ("dmlops", "kernels_cpu", "kernels_cuda"):  # installed packages come with their bytecode
        compileall.compile_dir(ROOT / package, quiet=1)
    with tempfile.TemporaryDirectory() as folder:
        for name, found in figures(options, Path(folder)):
            results[name] = found
            print(f"{name:<22}" + "".join(f"{found.get(column, ''):>13}" for column in columns), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
