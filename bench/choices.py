"""The times of all algorithms of top_k on CUDA, as `python -m bench choices` finds them.

Every algorithm that can solve a problem is timed: rows that lie one after the other and side by side, in
order of value and of index. Of these times, `bench.choice_table` makes the table by which plans choose.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench import records
from bench.timing import CudaClock, Lane, take_turns, warm_up
from dmlops.devices import cuda
from dmlops.operators.problem import key_masks
from dmlops.types.data_types import named_data_type
from kernels_cpu.problems import TopKProblem
from kernels_cuda import top_k
from kernels_cuda.runtime.variant import Target
from kernels_cuda.top_k.dispatch import ALGORITHMS, Kind

# Each number of rows stands for those up to another one. Clusters of 16, 8 and 4 blocks serve 7, 14 and 28
# rows at a time; 132 and 264 are one and two rows for each multiprocessor of an H100 or H200.
_ROWS = (1, 3, 7, 14, 16, 28, 44, 66, 96, 132, 190, 264, 512, 1024, 8192, 65_536)
_UP_TO = (1, 4, 7, 14, 20, 28, 53, 79, 112, 132, 224, 264, 724, 2896, 23_170, 65_536)
ROWS = dict(zip(_ROWS, _UP_TO, strict=True))
FEWEST_COLUMNS = 28
# Powers of two, and about what the largest clusters hold.
LENGTHS = (*(1 << each for each in range(6, 20)), 5 << 17, *(1 << each for each in range(20, 25)))
# Users ask for 20, 50, 100 and 1000; the others are powers of two, as most limits of algorithms are.
KS = (1, 2, 4, 8, 16, 20, 32, 50, 64, 100, 128, 256, 512, 1000, 1024, 2048, 4096, 8192)
# Of the floats of 16 bits, bfloat16, which most models use. More of its elements are equal.
DTYPES = {4: torch.float32, 2: torch.bfloat16, 8: torch.float64}
MOST_BYTES = 1 << 31
# Times of algorithms that take longer than this many times the best are not kept.
KEPT = 1.5
# The shortest launches get a dozen samples in this time.
SECONDS_OF_EACH = 0.004
SHOWN = 60
# Less than this is noise.
MARGIN = 1.05
RESULTS = Path(__file__).parent / "results" / "top_k_policy"


class TimedProblem(NamedTuple):
    """A problem: the kind, the rows, their length, and k."""

    kind: Kind
    rows: int
    length: int
    k: int

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.sizes))
        order = "" if self.kind.is_sorted else " by index"
        return f"{sizes} axis {self.axis} k {self.k}{order}, {self.kind.element_size} bytes"

    @property
    def axis(self) -> int:
        return 0 if self.kind.is_transposed else 1

    @property
    def sizes(self) -> tuple[int, int]:
        return (self.length, self.rows) if self.kind.is_transposed else (self.rows, self.length)

    def to_plan(self) -> TopKProblem:
        """Return the problem of packed elements, as `top_k.plan` takes it."""
        inner = self.rows if self.kind.is_transposed else 1
        rows = (self.rows, 1, 1, 1) if inner > 1 else (self.rows, self.length, self.k, self.k)
        data_type = str(DTYPES[self.kind.element_size]).removeprefix("torch.")
        return TopKProblem(
            element_size=self.kind.element_size,
            index_size=8,
            masks=key_masks(named_data_type(data_type, "")),
            largest=True,
            k=self.k,
            axis_size=self.length,
            rows=(rows,) if self.rows > 1 else (),
            axis_strides=(inner, inner, inner),
            is_sorted=self.kind.is_sorted,
        )


class Choice(NamedTuple):
    """A problem with the microseconds of each algorithm that serves it, and the one that is chosen."""

    problem: TimedProblem
    chosen: str
    times: Mapping[str, float]

    @property
    def loss(self) -> float:
        """How many times as long as the fastest one the chosen algorithm takes."""
        least = min(self.times.values())
        return self.times.get(self.chosen, KEPT * least) / least

    def to_json(self) -> list[Any]:
        most = KEPT * min(self.times.values(), default=0)
        ranking = sorted(self.times.items(), key=lambda each: each[1])
        times = {name: round(time, 2) for name, time in ranking if time <= most}
        return [*self.problem.kind, *self.problem[1:], times]


def problems(
    element_sizes: Iterable[int] | None = None,
    ks: Sequence[int] | None = None,
    row_counts: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
) -> Iterator[TimedProblem]:
    """Yield all problems, or those of some sizes; those of the same input follow each other.

    One element is in any order. All elements of a row, by index, are a copy, which has no other algorithm.
    """
    inputs = product(element_sizes or DTYPES, (False, True), row_counts or ROWS, lengths or LENGTHS)
    for element_size, is_transposed, rows, length in inputs:
        if rows * length * element_size > MOST_BYTES or (is_transposed and rows < FEWEST_COLUMNS):
            continue
        for k, is_sorted in product(ks or KS, (True, False)):
            if k <= length and (is_sorted or 1 < k < length):
                yield TimedProblem(Kind(element_size, is_transposed, is_sorted), rows, length, k)


class Stopwatch:
    """Times plans of any algorithm on the current device, for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.target = cuda.target(0, "top_k")
        self.clock = CudaClock()

    def plan(self, problem: TimedProblem, algorithm: str | None = None) -> Any:
        """Return the plan of an algorithm, or of the chosen one; None if it does not serve the problem."""
        try:
            return top_k.plan(problem.to_plan(), self.target, algorithm=algorithm)
        except ValueError:
            return None

    def compare(self, problem: TimedProblem, algorithms: Iterable[str]) -> dict[str, float]:
        """Return the microseconds that each algorithm takes that serves the problem.

        That is the lower quartile: a quarter of all launches take longer, whatever they do.
        """
        torch.manual_seed(15)
        dtype = DTYPES[problem.kind.element_size]
        x = torch.randn(problem.sizes, dtype=torch.float32, device="cuda").to(dtype)
        plans = {name: plan for name in algorithms if (plan := self.plan(problem, name))}
        runs = {name: self._run(problem, plan, x) for name, plan in plans.items()}
        # Each algorithm runs once beforehand, which loads its kernels, and must give the same answer.
        first, *others = (run()[1].clone() for run in runs.values())
        if not all(torch.equal(first, answer) for answer in others):
            msg = f"the algorithms differ: {problem}"
            raise RuntimeError(msg)
        lanes = {name: Lane(run) for name, run in runs.items()}
        for lane in lanes.values():
            warm_up(lane, self.clock)
        take_turns([*lanes.values()], self.clock, SECONDS_OF_EACH * len(lanes))
        for name, lane in lanes.items():
            if lane.error or not any(sample.is_clean for sample in lane.samples):
                msg = f"{name} has no times: {lane.error or 'the host took too long to queue a call'}"
                raise RuntimeError(msg)
        return {name: 1e6 * lane.quartiles()[0] for name, lane in lanes.items()}

    def _run(self, problem: TimedProblem, plan: Any, x: Any) -> Callable[[], Any]:
        sizes = list(problem.sizes)
        sizes[problem.axis] = problem.k
        values = torch.empty(sizes, dtype=x.dtype, device="cuda")
        indices = torch.empty(sizes, dtype=torch.int64, device="cuda")
        workspace = torch.empty(max(plan.workspace_size, 1), dtype=torch.int8, device="cuda")
        addresses = [tensor.data_ptr() for tensor in (x, values, indices, workspace)]

        def run() -> Any:
            plan.launch(torch.cuda.current_stream().cuda_stream, *addresses)
            return values, indices, workspace

        return run


def measure(
    watch: Any,
    asked: Iterable[TimedProblem],
    only: Sequence[str],
    known: Mapping[TimedProblem, Mapping[str, float]],
) -> Iterator[Choice]:
    """Time all algorithms on problems, as far as there is time, or only those named.

    These are timed beside the fastest other one that is known, and what is known of the rest stays. A problem
    of which nothing is known is left out, because one of these would be the fastest whatever it takes.
    """
    for problem in asked:
        if time.monotonic() > watch.end:
            break
        before = known.get(problem, {})
        if only and not (before and any(watch.plan(problem, name) for name in only)):
            continue
        chosen = watch.plan(problem).variant.partition(" ")[0]
        others = {name: each for name, each in before.items() if name not in only}
        names = [*only, *sorted(others, key=others.__getitem__)[:1]] if only else [*ALGORITHMS]
        try:
            times = watch.compare(problem, names)
        except RuntimeError as error:
            print(f"FAILED: {problem}: {error}", flush=True)
        else:
            yield Choice(problem, chosen, others | times)


def search(seconds: float, asked: Iterable[TimedProblem], only: Sequence[str], add_to: Path | None) -> Path:
    """Measure problems for so many seconds, and return the file with the times.

    `add_to` has times of an earlier run; the problems that it lacks come first.
    """
    watch = Stopwatch(seconds)
    known = {each.problem: each.times for each in load(add_to) if each.times} if add_to else {}
    found: list[Choice] = []
    try:
        found.extend(measure(watch, sorted(asked, key=known.__contains__), only, known))
    finally:  # an interrupted run keeps what it measured
        print_losses(found)
        path = write_results(found, torch.cuda.get_device_name(), watch.target, add_to)
    return path


def load(path: Path) -> list[Choice]:
    """Return what a results file holds; nothing is known of what was chosen then."""
    rows = json.loads(path.read_text())["choices"]
    return [Choice(TimedProblem(Kind(*problem[:3]), *problem[3:]), "", times) for *problem, times in rows]


def print_losses(choices: Sequence[Choice]) -> None:
    """Print the problems for which another algorithm than the chosen one is faster, the worst first."""
    losses = sorted((each for each in choices if each.loss >= MARGIN), key=lambda each: -each.loss)
    print(f"\n{len(losses)} of {len(choices)} problems lose {MARGIN - 1:.0%} or more by the choice")
    for each in losses[:SHOWN]:
        fastest = min(each.times, key=each.times.__getitem__)
        told = [f"{name} {each.times.get(name, math.inf):.1f} us" for name in (each.chosen, fastest)]
        print(f"  {each.problem!s:>46}: {', '.join(told)}, {each.loss:.2f}")


def write_results(choices: Sequence[Choice], device: str, target: Target, earlier: Path | None) -> Path:
    """Write the times; those that were measured earlier that day stay, or those of the file `earlier`."""
    date = datetime.now(UTC).date().isoformat()
    path = RESULTS / f"choices-{date}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    earlier = earlier or path
    measured, kept = {f"{device}, {date}"}, []
    if earlier.exists():
        measured |= {*json.loads(earlier.read_text())["measured"]}
        kept = load(earlier)
    found = {each.problem: each for each in (*kept, *choices)}
    about = {
        "measured": sorted(measured),
        "arch": target.arch,
        "multiprocessors": target.multiprocessors,
        "block_shared_bytes": target.block_shared_bytes,
        "fields": [*Kind._fields, "rows", "length", "k", "microseconds"],
    }
    records.write(path, {**about, "choices": [found[problem].to_json() for problem in sorted(found)]})
    return path
