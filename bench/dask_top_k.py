"""Time top-k of Dask arrays beside Dask's own `topk` and `argtopk`, as ratios in one run.

Dask's functions return either values or indices, so `top_k` is compared with both together. Each time is the
best of several. Run it as ``python bench/dask_top_k.py``; it takes a minute.
"""

import time
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np

from dmlops.integrations.dask import top_k

ROUNDS = 7
# Shape, chunks and k.
CASES = (
    ((50_000_000,), (5_000_000,), 10),
    ((50_000_000,), (5_000_000,), 10_000),
    ((1_000, 50_000), (250, 10_000), 10),
    ((1_000, 50_000), (250, 10_000), 1_000),
    ((200_000, 256), (20_000, 256), 8),
)


def best(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the shortest time of each call; they take turns, so that the machine's load meets all."""
    times = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name] = min(times[name], time.perf_counter() - start)
    return times


def main() -> None:
    """Print a line for each case."""
    print(f"dask {dask.__version__}, NumPy {np.__version__}; times of dask over those of dmlops")
    print(f"{'shape':>16} {'chunks':>14} {'k':>6} {'top_k':>9} {'topk':>8} {'argtopk':>8} {'both':>8}")
    for shape, chunks, k in CASES:
        x = np.random.default_rng(0).standard_normal(shape, np.float32)
        lazy = da.from_array(x, chunks=chunks)
        ours, values, indices = top_k(lazy, k), da.topk(lazy, k), da.argtopk(lazy, k)
        got = dask.compute(*ours, values)
        np.testing.assert_array_equal(got[0], got[2])
        times = best(
            {
                "top_k": lambda ours=ours: dask.compute(*ours),
                "topk": lambda values=values: values.compute(),
                "argtopk": lambda indices=indices: indices.compute(),
                "both": lambda values=values, indices=indices: dask.compute(values, indices),
            }
        )
        ratios = " ".join(f"{times[name] / times['top_k']:7.2f}x" for name in ("topk", "argtopk", "both"))
        print(f"{shape!s:>16} {chunks!s:>14} {k:>6} {times['top_k'] * 1e3:6.0f} ms {ratios}", flush=True)


if __name__ == "__main__":
    main()
