"""Measure both sides of thresholds of CUDA's top_k: `python bench/top_k_policy.py`; needs a GPU.

A threshold divides problems between two block shapes. Both are timed along a range of problems around it. If
the one that the policy chooses is slower, the threshold is in the wrong place. Each table begins with the
policy's value and the measured crossing. `top_k_choices.py` times the algorithms.

Inputs are cold: see `bench.timing.CudaClock`.
"""

import argparse
import functools
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from bench.timing import MIN_SPIN, CudaClock
from dmlops import cuda
from kernels_cuda import top_k
from kernels_cuda.runtime.variant import capability_of
from kernels_cuda.top_k.policy import Policy, block_shape

RESULTS = Path(__file__).parent / "results" / "top_k_policy"
# Of the two floats of 16 bits most models compute in bfloat16. More of its elements are equal.
DTYPES = {1: torch.int8, 2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
# The sign bit, the bits that it inverts, and infinity, as plans take them.
FORMATS = {
    1: (0x80, 0, 0xFF),
    2: (0x8000, 0x7FFF, 0x7F80),
    4: (1 << 31, (1 << 31) - 1, 0x7F800000),
    8: (1 << 63, (1 << 63) - 1, 0x7FF << 52),
}
SAMPLES = 9
# A sample is taken again if the host was too slow, with twice the time for it.
MOST_TRIES = 5
# A side that takes this many times as long as the best one is given up after a few samples.
HOPELESS, HOPELESS_AFTER = 3, 1
# Less than this is noise.
MARGIN = 1.05
NEVER = 1 << 62


class Side(NamedTuple):
    """An algorithm, or None for the one that the policy chooses, and other values of the policy for it."""

    algorithm: str | None
    changes: Mapping[str, Any] = MappingProxyType({})

    def __str__(self) -> str:
        changes = (f"{name}={_short(value)}" for name, value in self.changes.items())
        return " ".join([self.algorithm or "chosen", *changes])


class Problem(NamedTuple):
    """A selection of k elements along an axis, in order of value or of index."""

    sizes: tuple[int, ...]
    axis: int
    k: int
    is_sorted: bool = True

    def __str__(self) -> str:
        sizes = "x".join(str(size) for size in self.sizes)
        return f"{sizes} axis {self.axis} k {self.k}{'' if self.is_sorted else ' by index'}"


class Threshold(NamedTuple):
    """A value of the policy, and the problems on both sides of it.

    Attributes
    ----------
    name : str
        What the value is called in the policy.
    values : iterable of int
        What it is compared with, ascending.
    problem : callable
        Makes the problem of a value.
    below, above : Side
        What serves values up to the threshold, and larger ones.
    """

    name: str
    values: Iterable[int]
    problem: Callable[[int], Problem]
    below: Side
    above: Side


class Stopwatch:
    """Times launches of plans on the current device."""

    def __init__(self, seconds: float) -> None:
        self.target = cuda.target(0, "top_k_policy")
        self.end = time.monotonic() + seconds
        self._clock = CudaClock()

    @property
    def is_over(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() > self.end

    def policy(self, element_size: int) -> Policy:
        """Return the policy of the device."""
        return Policy.auto(capability_of(self.target.arch), element_size)

    def compare(self, problem: Problem, element_size: int, sides: Iterable[Side]) -> list[float | None]:
        """Return the microseconds that each side takes, or None where it does not serve the problem.

        That is the lower quartile: a quarter of all launches take longer, whatever they do.
        """
        x = random_input(problem.sizes, element_size)
        runs = [self._run(problem, element_size, side, x) for side in sides]
        self._check([run for run in runs if run], problem)
        times: list[list[float]] = [[] for _ in runs]
        for sample in range(SAMPLES):
            for run, found in zip(runs, times, strict=True):
                if run:
                    found.append(self._time(run))
            if sample == HOPELESS_AFTER:
                least = min((min(found) for found in times if found), default=0.0)
                runs = [
                    run if found and min(found) < HOPELESS * least else None
                    for run, found in zip(runs, times, strict=True)
                ]
        return [sorted(found)[len(found) // 4] if found else None for found in times]

    def _run(self, problem: Problem, element_size: int, side: Side, x: Any) -> Any:
        sizes = list(problem.sizes)
        sizes[problem.axis] = problem.k
        values = torch.empty(sizes, dtype=x.dtype, device="cuda")
        indices = torch.empty(sizes, dtype=torch.int64, device="cuda")
        plan = self.plan(problem, element_size, side)
        if plan is None:
            return None
        workspace = torch.empty(max(plan.workspace_size, 1), dtype=torch.int8, device="cuda")
        addresses = [tensor.data_ptr() for tensor in (x, values, indices, workspace)]

        def run() -> Any:
            plan.launch(torch.cuda.current_stream().cuda_stream, *addresses)
            return values, indices, workspace

        return run

    def plan(self, problem: Problem, element_size: int, side: Side) -> Any:
        """Return the plan of a side, or None if it does not serve the problem."""
        policy = self.policy(element_size).changed(side.changes)
        try:
            return top_k.plan(
                **keywords(problem, element_size),
                target=self.target,
                policy=policy,
                algorithm=side.algorithm,
            )
        except ValueError:
            return None

    def _time(self, run: Callable[[], Any]) -> float:
        for attempt in range(MOST_TRIES):
            seconds, of_host = self._clock.cold(run, MIN_SPIN * 2**attempt)
            if of_host is not None:
                return seconds * 1e6
        msg = f"the host took longer than {MIN_SPIN * 2**attempt * 1e6:.0f} us to queue a call"
        raise RuntimeError(msg)

    @staticmethod
    def _check(runs: list[Any], problem: Problem) -> None:
        """Have each side run once, which loads its kernels, and give the same answer."""
        answers = [run()[1].clone() for run in runs]
        if not all(torch.equal(answers[0], answer) for answer in answers[1:]):
            msg = f"the two sides differ: {problem}"
            raise RuntimeError(msg)


@functools.lru_cache(maxsize=1)
def random_input(sizes: tuple[int, ...], element_size: int) -> Any:
    """Return random elements; the last ones are kept for the next problem."""
    torch.manual_seed(15)
    if element_size == 1:
        return torch.randint(-128, 128, sizes, dtype=torch.int8, device="cuda")
    return torch.randn(sizes, dtype=torch.float32, device="cuda").to(DTYPES[element_size])


def keywords(problem: Problem, element_size: int) -> dict[str, Any]:
    """Return what `top_k.plan` takes for a selection of packed elements."""
    sizes, axis, k, is_sorted = problem
    sign, flip, infinity = FORMATS[element_size]
    outer, inner = math.prod(sizes[:axis]), math.prod(sizes[axis + 1 :])
    rows = [(outer, sizes[axis] * inner, k * inner, k * inner), (inner, 1, 1, 1)]
    return {
        "element_size": element_size,
        "index_size": 8,
        "sign": sign,
        "flip": flip,
        "infinity": infinity,
        "largest": True,
        "k": k,
        "axis_size": sizes[axis],
        "rows": [row for row in rows if row[0] > 1],
        "axis_strides": (inner, inner, inner),
        "is_sorted": is_sorted,
    }


def powers(first: int, last: int, steps: int = 1) -> list[int]:
    """Return powers of 2 from `first` to `last`, with `steps` values to each."""
    count = round(math.log2(last / first) * steps)
    return [round(first * 2 ** (step / steps)) for step in range(count + 1)]


def thresholds(policy: Policy) -> list[Threshold]:
    """Return the thresholds of a policy that lie between two block shapes."""
    size = policy.element_size

    def block(n_threads: int) -> Side:
        shapes = (block_shape(size, n_threads, policy.block_bytes),) * 4
        return Side("block", {"block.shapes": shapes})

    return [
        Threshold(
            "block.small_elements",
            powers(1024, 16_384),
            lambda n: Problem((8192, n), 1, 50),
            block(128),
            block(256),
        ),
        Threshold(
            "block.middle_k_of_many_rows",
            powers(256, 2048),
            lambda k: Problem((2048, 20_000), 1, k),
            block(256),
            block(512),
        ),
        Threshold(
            "block.middle_k",
            powers(128, 2048),
            lambda k: Problem((512, 20_000), 1, k),
            block(256),
            block(512),
        ),
    ]


def crossing(values: list[int], below: list[float | None], above: list[float | None]) -> str:
    """Tell from which value on `above` is faster."""
    served = [
        (value, second < first)
        for value, first, second in zip(values, below, above, strict=True)
        if first is not None and second is not None
    ]
    if not served:
        return "not measured: no problem is served by both"
    slower = [value for value, is_faster in served if not is_faster]
    if not slower:
        return f"below {served[0][0]}"
    later = [value for value, _ in served if value > slower[-1]]
    return f"from {slower[-1]} to {later[0]}" if later else f"above {slower[-1]}"


def value_of(policy: Policy, name: str) -> Any:
    """Return a value of a policy by its name, and what may follow that."""
    found: Any = policy
    for part in name.partition(" ")[0].split("."):
        found = getattr(found, part)
    return found


def measure_thresholds(watch: Stopwatch, element_size: int) -> list[dict[str, Any]]:
    """Time both sides of each threshold that is listed."""
    rows, policy = [], watch.policy(element_size)
    for threshold in thresholds(policy):
        values, below, above = [], [], []
        for value in threshold.values:
            if watch.is_over:
                break
            times = watch.compare(threshold.problem(value), element_size, (threshold.below, threshold.above))
            values.append(value)
            below.append(times[0])
            above.append(times[1])
        found = crossing(values, below, above)
        is_known = value_of(policy, threshold.name)
        print(f"\n{threshold.name}: policy {is_known}, crossing {found}; {element_size}-byte elements")
        print(f"  {'':>10} {threshold.below!s:>24.24} {threshold.above!s:>24.24}")
        for value, first, second in zip(values, below, above, strict=True):
            print(f"  {value:>10} {microseconds(first):>24} {microseconds(second):>24}")
        rows.append(
            {
                "threshold": threshold.name,
                "element_size": element_size,
                "policy": is_known,
                "crossing": found,
                "values": values,
                str(threshold.below): below,
                str(threshold.above)
                + (" (above)" if str(threshold.above) == str(threshold.below) else ""): above,
            }
        )
    return rows


COLUMNS = [
    Problem((100, 1 << 20), 0, 5),
    Problem((1024, 1 << 16), 0, 8),
    Problem((2000, 50_000), 0, 1),
    Problem((4096, 1 << 15), 0, 32),
    Problem((8192, 1 << 15), 0, 64),
    Problem((65_536, 8192), 0, 16),
    Problem((1 << 20, 512), 0, 1),
    Problem((16, 4096, 4096), 1, 4),
    Problem((256, 1000, 1024), 1, 10),
]
STAGGERED = [
    Problem((100_000, 8192), 1, 64),
    Problem((50_000, 10_000), 1, 100),
    Problem((16_384, 16_384), 1, 50),
    Problem((16_384, 32_768), 1, 100),
    Problem((8192, 65_536), 1, 64),
    Problem((2048, 50_257), 1, 50),
    Problem((4096, 20_000), 1, 1000),
    Problem((2048, 128_256), 1, 20),
]


def measure_question(
    watch: Stopwatch, element_size: int, problems: list[Problem], sides: list[Side]
) -> list[dict[str, Any]]:
    """Time the first side against the others; tell by how much it is ahead of the best of them."""
    rows = []
    print(f"\n{'':>28} " + " ".join(f"{side!s:>20.20}" for side in sides) + f" {'ahead by':>10}")
    for problem in problems:
        if watch.is_over:
            break
        times = watch.compare(problem, element_size, sides)
        others = [each for each in times[1:] if each is not None]
        ahead = min(others) / times[0] if times[0] and others else None
        shown = f"{ahead:.2f}" if ahead else ""
        print(
            f"{problem!s:>28} "
            + " ".join(f"{microseconds(each):>20}" for each in times)
            + f" {shown:>10}{' *' if ahead and ahead >= MARGIN else ''}"
        )
        rows.append(
            {
                "problem": str(problem),
                "element_size": element_size,
                "microseconds": {str(side): each for side, each in zip(sides, times, strict=True)},
                "ahead": ahead,
            }
        )
    return rows


QUESTIONS = {
    "columns": (COLUMNS, [Side("columns"), Side("warp"), Side("block"), Side("grid")]),
    "staggered": (STAGGERED, [Side("block"), Side("block", {"block.staggered_bytes": NEVER})]),
}


def microseconds(each: float | None) -> str:
    """Return a time as text."""
    return "not served" if each is None else f"{each:.1f} us"


def _short(value: Any) -> str:
    if isinstance(value, tuple) and hasattr(value[0], "n_threads"):
        return f"{value[0].n_threads} threads"
    return "never" if value == NEVER else str(value)


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description="Time both sides of many thresholds of the policy of top_k.")
    parser.add_argument("--question", choices=QUESTIONS, action="append", help="only this; may be repeated")
    parser.add_argument("--element-sizes", type=int, nargs="*", default=[4, 2], help="bytes of an element")
    parser.add_argument("--seconds", type=float, default=120, help="nothing new is begun after these")
    given = parser.parse_args()
    watch = Stopwatch(given.seconds)
    device = torch.cuda.get_device_name()
    print(f"{device}, {watch.target.arch}, {watch.target.multiprocessors} multiprocessors")
    results: dict[str, Any] = {"device": device, "arch": watch.target.arch}
    for name, size in itertools.product(given.question or QUESTIONS, given.element_sizes):
        results.setdefault(name, []).extend(measure_question(watch, size, *QUESTIONS[name]))
    if not given.question:
        for size in given.element_sizes:
            results.setdefault("thresholds", []).extend(measure_thresholds(watch, size))
    date = datetime.now(UTC).date().isoformat()
    path = RESULTS / f"{device.rsplit(maxsplit=1)[-1].lower()}-{date}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwritten: {path}")


if __name__ == "__main__":
    main()
