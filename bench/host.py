"""Host time of small calls: on several kinds of arrays, of sizes not seen before, and of the first calls.

On a GPU, it is the time until the call returns. First calls are timed in processes of their own, with an
empty cache directory and with the kernels in it; the import of dmlops comes after that of the array library,
and on a GPU after CUDA has been started.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import dmlops
from bench.timing import HostClock, Lane, warm_up
from bench.workloads import CPU, CUDA
from dmlops.cli.console import out

Figures = Mapping[str, float | None]

ROOT = Path(__file__).parent.parent
ROUNDS = 200  # of which the shortest mean counts
N_SIZES = 400
LENGTHS = range(1000, 9000)  # of the loop that is compiled
COMPILED, FOUND = 3, 9  # processes
CLOCK = HostClock(threads=1)
RNG = np.random.default_rng(0)
# The first function makes the arrays of the n-th size, the second, which takes `out`, is timed, and the third
# is the one that the library itself has.
SMALL_CALLS: dict[str, tuple[Callable[[int], Any], Callable[..., Any], Callable[..., Any]]] = {
    "top_k": (
        lambda n: (RNG.standard_normal((3, 70 + n)).astype("float32"),),
        partial(dmlops.top_k, k=5),
        lambda library, x: (library.topk if hasattr(library, "topk") else library.argpartition)(x, 5),
    ),
    "nonzero_coordinates": (
        lambda n: (RNG.random(200 + n) < 0.2,),
        dmlops.nonzero_coordinates,
        lambda library, x: x.nonzero(),
    ),
    "gather_nd": (
        lambda n: (RNG.standard_normal((5, 20)).astype("float32"), RNG.integers(0, 5, (7 + n, 1))),
        dmlops.gather_nd,
        lambda library, x, indices: x[indices[:, 0]],
    ),
    "tril": (
        lambda n: (RNG.standard_normal((4, 10 + n)).astype("float32"),),
        dmlops.tril,
        lambda library, x: library.tril(x),
    ),
}
# The first calls of processes.
CALLS = {
    "top_k": "dmlops.top_k(x, 5)",
    "nonzero_coordinates": "dmlops.nonzero_coordinates(x)",
    "gather_nd": "dmlops.gather_nd(x, indices)",
    "gather_nd, clip": "dmlops.gather_nd(x, indices, mode='clip')",
    "diagonal_matrix": "dmlops.diagonal_matrix(x, value=3)",
}
# How their arrays come to a device, and how they wait for it.
ON_DEVICE = {
    CPU: ("", ""),
    CUDA: (
        "import torch; x, indices = torch.from_numpy(x).cuda(), torch.from_numpy(indices).cuda()",
        "torch.cuda.synchronize()",
    ),
}
PROCESS = """
import time
import numpy as np
x, indices = np.random.default_rng(0).standard_normal((4, 64), np.float32), np.arange(4).reshape(4, 1)
{moved}
{wait}
times = [time.perf_counter()]
import dmlops
times.append(time.perf_counter())
{call}
{wait}
times.append(time.perf_counter())
print(*(1000 * (after - before) for before, after in zip(times, times[1:])))
"""


def _libraries(device: str) -> Iterator[tuple[str, Any, Callable[[Any], Any], Callable[[], None]]]:
    """Yield each library of arrays on a device, how it takes NumPy's arrays, and how to wait for it."""
    if device == CPU:
        yield "numpy", np, np.asarray, lambda: None
    try:
        import torch  # noqa: PLC0415
    except ImportError:
        out.print("torch is not installed")
        return
    torch.set_num_threads(1)
    wait = torch.cuda.synchronize if device == CUDA else lambda: None
    yield "torch", torch, lambda array: torch.from_numpy(array).to(device), wait


def _microseconds(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Return the shortest mean time of a call over many short rounds, which other work seldom disturbs."""
    lane = Lane(call)
    warm_up(lane, CLOCK)
    best = float("inf")
    for _ in range(ROUNDS):
        wait()
        best = min(best, CLOCK.sample(lane).work)
    return best * 1e6


def small_calls(device: str) -> Iterator[tuple[str, Figures]]:
    """Yield each call's microseconds by what it is made on."""
    for library, _, convert, wait in _libraries(device):
        for name, (make, function, _) in SMALL_CALLS.items():
            inputs = make(0)
            first, *rest = map(convert, inputs)
            view = convert(np.stack([inputs[0]] * 2))[1]
            strided = convert(np.repeat(inputs[0], 2, -1))[..., ::2]
            # Given outputs need room for the coordinates of every element.
            size = {"size": inputs[0].size} if name == "nonzero_coordinates" else {}
            calls = {
                "owner": partial(function, first, *rest),
                "view": partial(function, view, *rest),
                "strided": partial(function, strided, *rest),
                "out given": partial(function, first, *rest, out=function(first, *rest, **size)),
            }
            yield f"{library}, {name}", {what: _microseconds(call, wait) for what, call in calls.items()}


def new_sizes(device: str) -> Iterator[tuple[str, Figures]]:
    """Yield each call's microseconds: of a new size, repeated, and of the library's own on a new size.

    A repeated call comes after each new one, so that both see the machine in the same state. Figures are
    medians. The last call is one in compiled code, over thousands of lengths and over one length.
    """
    for library, module, convert, wait in _libraries(device):
        for name, (make, function, peer) in SMALL_CALLS.items():
            arrays = [[convert(array) for array in make(n)] for n in range(N_SIZES)]
            known = arrays[N_SIZES // 2]
            for _ in range(20):
                function(*known)
                peer(module, *known)
            samples: dict[str, list[float]] = {"new": [], "repeated": [], "peer": []}
            for given in arrays:
                calls = (partial(function, *given), partial(function, *known), partial(peer, module, *given))
                for times, call in zip(samples.values(), calls, strict=True):
                    wait()
                    times.append(CLOCK.sample(Lane(call)).work)
            figures = {what: 1e6 * statistics.median(times) for what, times in samples.items()}
            yield f"{library}, {name}", figures
    if device == CPU:
        yield "njit, top_k", _nopython_figures()


def _nopython_figures() -> Figures:
    import numba  # noqa: PLC0415

    def loop(x, lengths):  # type: ignore[no-untyped-def]
        total = 0.0
        for n in lengths:
            total += dmlops.top_k(x[:n], 5).values[0]
        return total

    many: Any = numba.njit(loop)
    x, lengths = RNG.random(LENGTHS.stop), np.arange(LENGTHS.start, LENGTHS.stop)
    same = np.full_like(lengths, int(lengths.mean()))
    many(x, lengths[[0, -1]])  # compiles the loop, and loads the kernels
    new, repeated = (
        1e6 * CLOCK.sample(Lane(partial(many, x, given))).work / len(LENGTHS) for given in (lengths, same)
    )
    return {"new": new, "repeated": repeated, "peer": None}


def _milliseconds(program: str, cache: Path) -> list[float]:
    """Return the times of the import and of the call in a new process."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "DMLOPS_CACHE_DIR": str(cache)}
    printed = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    return [*map(float, printed.split())]


def first_calls(device: str) -> Iterator[tuple[str, Figures]]:
    """Yield milliseconds of the import, and of each call if its kernel is found and if it is compiled.

    Figures are medians of several processes.
    """
    moved, wait = ON_DEVICE[device]
    for name, call in CALLS.items():
        with tempfile.TemporaryDirectory() as folder:
            program = PROCESS.format(moved=moved, wait=wait, call=call)
            caches = [Path(folder, str(number)) for number in range(COMPILED)]
            compiled = [_milliseconds(program, cache)[1] for cache in caches]
            imported, found = zip(*(_milliseconds(program, caches[0]) for _ in range(FOUND)), strict=True)
            samples = {"imported": imported, "found": found, "compiled": compiled}
            yield name, {what: statistics.median(times) for what, times in samples.items()}
