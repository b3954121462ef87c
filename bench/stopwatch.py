"""Times plans of top_k on CUDA for `python -m bench choices`: any algorithm, on any problem; needs a GPU.

Inputs are cold: see `bench.timing.CudaClock`.
"""

import functools
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from bench.timing import MIN_SPIN, CudaClock
from dmlops.devices import cuda
from dmlops.operators.problem import key_masks
from dmlops.operators.top_k import Problem as PlainProblem
from dmlops.types.data_types import named_data_type
from kernels_cuda import top_k

# Of the two floats of 16 bits most models compute in bfloat16. More of its elements are equal.
DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
SAMPLES = 9
# A sample is taken again if the host was too slow, with twice the time for it: at last 13 ms, enough for the
# hundreds of launches that sort a gigabyte.
MOST_TRIES = 8
# An algorithm that takes this many times as long as the best one is given up after a few samples.
HOPELESS, HOPELESS_AFTER = 3, 1


class Problem(NamedTuple):
    """A selection of k elements along an axis, in order of value or of index."""

    sizes: tuple[int, ...]
    axis: int
    k: int
    is_sorted: bool = True

    def __str__(self) -> str:
        sizes = "x".join(str(size) for size in self.sizes)
        return f"{sizes} axis {self.axis} k {self.k}{'' if self.is_sorted else ' by index'}"


class Stopwatch:
    """Times launches of plans on the current device."""

    def __init__(self, seconds: float) -> None:
        self.target = cuda.target(0, "top_k")
        self.end = time.monotonic() + seconds
        self._clock = CudaClock()

    @property
    def is_over(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() > self.end

    def compare(self, problem: Problem, element_size: int, algorithms: Iterable[str]) -> list[float | None]:
        """Return the microseconds that each algorithm takes, or None where it does not serve the problem.

        That is the lower quartile: a quarter of all launches take longer, whatever they do.
        """
        x = random_input(problem.sizes, element_size)
        runs = [self._run(problem, element_size, each, x) for each in algorithms]
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

    def _run(self, problem: Problem, element_size: int, algorithm: str, x: Any) -> Any:
        sizes = list(problem.sizes)
        sizes[problem.axis] = problem.k
        values = torch.empty(sizes, dtype=x.dtype, device="cuda")
        indices = torch.empty(sizes, dtype=torch.int64, device="cuda")
        plan = self.plan(problem, element_size, algorithm)
        if plan is None:
            return None
        workspace = torch.empty(max(plan.workspace_size, 1), dtype=torch.int8, device="cuda")
        addresses = [tensor.data_ptr() for tensor in (x, values, indices, workspace)]

        def run() -> Any:
            plan.launch(torch.cuda.current_stream().cuda_stream, *addresses)
            return values, indices, workspace

        return run

    def plan(self, problem: Problem, element_size: int, algorithm: str | None = None) -> Any:
        """Return the plan of an algorithm, or of the chosen one; None if it does not serve the problem."""
        try:
            return top_k.plan(plain_problem(problem, element_size), self.target, algorithm=algorithm)
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
        """Have each algorithm run once, which loads its kernels, and give the same answer."""
        answers = [run()[1].clone() for run in runs]
        if not all(torch.equal(answers[0], answer) for answer in answers[1:]):
            msg = f"the algorithms differ: {problem}"
            raise RuntimeError(msg)


@functools.lru_cache(maxsize=1)
def random_input(sizes: tuple[int, ...], element_size: int) -> Any:
    """Return random elements; the last ones are kept for the next problem."""
    torch.manual_seed(15)
    return torch.randn(sizes, dtype=torch.float32, device="cuda").to(DTYPES[element_size])


def plain_problem(problem: Problem, element_size: int) -> PlainProblem:
    """Return the problem of a selection of packed elements, as `top_k.plan` takes it."""
    sizes, axis, k, is_sorted = problem
    outer, inner = math.prod(sizes[:axis]), math.prod(sizes[axis + 1 :])
    rows = [(outer, sizes[axis] * inner, k * inner, k * inner), (inner, 1, 1, 1)]
    return PlainProblem(
        element_size=element_size,
        index_size=8,
        masks=key_masks(named_data_type(str(DTYPES[element_size]).removeprefix("torch."), "")),
        largest=True,
        k=k,
        axis_size=sizes[axis],
        rows=tuple(row for row in rows if row[0] > 1),
        axis_strides=(inner, inner, inner),
        is_sorted=is_sorted,
    )


def microseconds(each: float | None) -> str:
    """Return a time as text."""
    return "not served" if each is None else f"{each:.1f} us"
