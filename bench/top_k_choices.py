"""Find the fastest algorithm of top_k on CUDA for each problem: `python bench/top_k_choices.py`; needs a GPU.

Every algorithm that can solve a problem is timed, in order of value and of index. The output lists the
problems for which the policy does not choose the fastest, how far each algorithm is ahead of the next one,
and, for each k and number of rows, the row lengths from which on each algorithm is the fastest. Kernels are
compiled on first use: run ``dmlops warmup --device cuda --operator top_k`` first.
"""

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import torch
from top_k_policy import MARGIN, RESULTS, Problem, Side, Stopwatch, microseconds

from kernels_cuda.top_k.dispatch import Algorithm

ROWS = (1, 4, 16, 64, 256, 1024, 8192, 65_536)
LENGTHS = tuple(1 << exponent for exponent in range(6, 23))
KS = (1, 8, 50, 100, 256, 512, 1000, 2048, 4096)
MOST_ELEMENTS = 1 << 27
SHOWN = 60


class Choice(NamedTuple):
    """A problem with the microseconds of each algorithm that serves it, and the one that is chosen."""

    problem: Problem
    element_size: int
    chosen: str
    times: dict[str, float]

    @property
    def ranking(self) -> list[str]:
        """The algorithms, the fastest first."""
        return sorted(self.times, key=self.times.__getitem__)

    @property
    def loss(self) -> float:
        """How many times as long as the fastest one the chosen algorithm takes."""
        return self.times[self.chosen] / self.times[self.ranking[0]]

    @property
    def lead(self) -> float:
        """How many times as long as the fastest one the next one takes."""
        first, *others = self.ranking
        return self.times[others[0]] / self.times[first] if others else 1.0

    def to_json(self) -> dict[str, Any]:
        """Return what the results file holds."""
        rows, length = self.problem.sizes
        return {
            "rows": rows,
            "length": length,
            "k": self.problem.k,
            "is_sorted": self.problem.is_sorted,
            "element_size": self.element_size,
            "chosen": self.chosen,
            "microseconds": {name: round(time, 2) for name, time in self.times.items()},
        }


def problems(rows: Sequence[int] = ROWS) -> Iterator[Problem]:
    """Yield the problems; those of the same input follow each other."""
    for n_rows, length in itertools.product(rows, LENGTHS):
        if n_rows * length <= MOST_ELEMENTS:
            for k, is_sorted in itertools.product(KS, (True, False)):
                if k <= length:
                    yield Problem((n_rows, length), 1, k, is_sorted)


def measure(watch: Stopwatch, element_size: int, rows: Sequence[int]) -> list[Choice]:
    """Time all algorithms on all problems, as far as there is time."""
    choices = []
    sides = [Side(algorithm) for algorithm in Algorithm]
    for problem in problems(rows):
        if watch.is_over:
            break
        chosen = watch.plan(problem, element_size, Side(None)).variant.partition(" ")[0]
        try:
            found = zip(Algorithm, watch.compare(problem, element_size, sides), strict=True)
        except RuntimeError as error:
            print(f"FAILED: {problem}, {element_size} bytes: {error}", flush=True)
            continue
        times = {str(algorithm): time for algorithm, time in found if time is not None}
        choices.append(Choice(problem, element_size, chosen, times))
    return choices


def print_losses(choices: Sequence[Choice]) -> None:
    """Print the problems for which another algorithm than the chosen one is faster, the worst first."""
    losses = sorted((each for each in choices if each.loss >= MARGIN), key=lambda each: -each.loss)
    print(f"\n{len(losses)} of {len(choices)} problems lose {MARGIN - 1:.0%} or more by the choice")
    for each in losses[:SHOWN]:
        best = each.ranking[0]
        print(
            f"  {each.problem!s:>36} {each.element_size} bytes: {each.chosen} "
            f"{microseconds(each.times[each.chosen])}, {best} {microseconds(each.times[best])}, "
            f"{each.loss:.2f}"
        )


def print_leads(choices: Sequence[Choice]) -> None:
    """Print in how many problems each algorithm is the fastest, and how far ahead it gets."""
    print("\nfastest, ahead of the next one by the margin, furthest ahead")
    for algorithm in Algorithm:
        won = [each for each in choices if each.ranking[0] == algorithm]
        ahead = [each for each in won if each.lead >= MARGIN]
        furthest = max(won, key=lambda each: each.lead, default=None)
        where = f"{furthest.problem}, {furthest.element_size} bytes, {furthest.lead:.2f}" if furthest else ""
        print(f"  {algorithm:>12} {len(won):>5} {len(ahead):>5}  {where}")


def print_map(choices: Sequence[Choice]) -> None:
    """Print from which row length on which algorithm is the fastest; with `*` where the policy differs."""
    print("\nthe fastest, from which row length on; * where another one is chosen and loses the margin")

    def line_of(each: Choice) -> tuple[Any, ...]:
        return each.element_size, each.problem.is_sorted, each.problem.k, each.problem.sizes[0]

    for line, group in itertools.groupby(sorted(choices, key=line_of), key=line_of):
        element_size, is_sorted, k, rows = line
        parts, last = [], ""
        for each in sorted(group, key=lambda each: each.problem.sizes[1]):
            # A lead within the noise changes nothing.
            is_tied = last in each.times and each.times[last] < MARGIN * each.times[each.ranking[0]]
            name = last if is_tied else each.ranking[0]
            mark = "*" if each.loss >= MARGIN else ""
            if name != last or mark:
                parts.append(f"{each.problem.sizes[1]} {name}{mark}")
            last = name
        order = "sorted" if is_sorted else "by index"
        print(f"  {element_size} bytes, {order}, k {k}, {rows} rows: {', '.join(parts)}")


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description="Time all algorithms of top_k on problems of all sizes.")
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS, help="numbers of rows")
    parser.add_argument("--element-sizes", type=int, nargs="*", default=[4, 2], help="bytes of an element")
    parser.add_argument("--seconds", type=float, default=120, help="nothing new is begun after these")
    given = parser.parse_args()
    watch = Stopwatch(given.seconds)
    device = torch.cuda.get_device_name()
    choices = [each for size in given.element_sizes for each in measure(watch, size, given.rows)]
    print_map(choices)
    print_leads(choices)
    print_losses(choices)
    date = datetime.now(UTC).date().isoformat()
    path = RESULTS / f"choices-{device.rsplit(maxsplit=1)[-1].lower()}-{date}.json"
    lines = ",\n".join(json.dumps(each.to_json()) for each in choices)
    path.write_text(f'{{"device": "{device}", "choices": [\n{lines}\n]}}\n')
    print(f"\nwritten: {path}")


if __name__ == "__main__":
    main()
