"""The fastest algorithm of top_k on CUDA for each problem, as `python -m bench choices` finds it.

Every algorithm that can solve a problem is timed: rows that lie one after the other and side by side, in
order of value and of index. Of these times, the table is made that plans choose by.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.stopwatch import Problem, Stopwatch, microseconds
from kernels_cuda.top_k.dispatch import Algorithm
from kernels_cuda.top_k.fastest import TABLE, Kind

# Each number of rows stands for those up to another one. Clusters of 16, 8 and 4 blocks serve 7, 14 and 28
# rows at a time; 132 and 264 are one and two rows for each multiprocessor of an H100 or H200.
ROWS = {
    1: 1,
    3: 4,
    7: 7,
    14: 14,
    16: 20,
    28: 28,
    44: 53,
    66: 79,
    96: 112,
    132: 132,
    190: 224,
    264: 264,
    512: 724,
    1024: 2896,
    8192: 23_170,
    65_536: 65_536,
}
FEWEST_COLUMNS = 28
# Powers of two, and about what the largest clusters hold.
LENGTHS = (
    *(1 << exponent for exponent in range(6, 20)),
    5 << 17,
    *(1 << exponent for exponent in range(20, 25)),
)
# Users ask for 20, 50, 100 and 1000; the others are powers of two, as most limits of algorithms are.
KS = (1, 2, 4, 8, 16, 20, 32, 50, 64, 100, 128, 256, 512, 1000, 1024, 2048, 4096, 8192)
ELEMENT_SIZES = (4, 2, 8)
MOST_BYTES = 1 << 29
# Times of algorithms that take longer than this many times the best are not kept.
KEPT = 1.5
# Serves all long rows: chosen where no time has been kept, because an algorithm that was faster is gone.
WITHOUT_TIMES = "grid"
# These need the hardware of some devices; the table names the fastest of the others, too.
SPECIAL = {"cluster", "sampled"}
# This one orders many candidates at once, unless too many are equal.
SAMPLING = "sampled"
# Some algorithms take longer than the times here where elements are equal. Another one, which takes about the
# same time whatever the data, is chosen unless they are further ahead than this.
STEADY_MARGIN = 1.1
# `rounds` is such an algorithm, where there are so many rows and more.
STEADY_ROWS = 1024
# Less than this is noise: the algorithm of shorter rows goes on.
TIED = 1.03
SHOWN = 60
# Less than this is noise.
MARGIN = 1.05
RESULTS = Path(__file__).parent / "results" / "top_k_policy"


class Choice(NamedTuple):
    """A problem with the microseconds of each algorithm that serves it, and the one that is chosen."""

    kind: Kind
    rows: int
    length: int
    k: int
    chosen: str
    times: dict[str, float]

    @property
    def problem(self) -> Problem:
        """The problem that was timed."""
        return problem_of(self.kind, self.rows, self.length, self.k)

    @property
    def ranking(self) -> list[str]:
        """The algorithms, the fastest first."""
        return sorted(self.times, key=self.times.__getitem__)

    @property
    def loss(self) -> float:
        """How many times as long as the fastest one the chosen algorithm takes."""
        return self.times.get(self.chosen, KEPT * self.times[self.ranking[0]]) / self.times[self.ranking[0]]

    @property
    def lead(self) -> float:
        """How many times as long as the fastest one the next one takes."""
        first, *others = self.ranking
        return self.times[others[0]] / self.times[first] if others else KEPT

    def to_json(self) -> list[Any]:
        """Return the entry of a results file."""
        most = KEPT * min(self.times.values(), default=0)
        times = {name: round(self.times[name], 2) for name in self.ranking if self.times[name] <= most}
        return [*self.kind, self.rows, self.length, self.k, times]


def problem_of(kind: Kind, rows: int, length: int, k: int) -> Problem:
    """Return rows of a length, one after the other or side by side."""
    if kind.is_transposed:
        return Problem((length, rows), 0, k, kind.is_sorted)
    return Problem((rows, length), 1, k, kind.is_sorted)


def problems(
    element_size: int,
    ks: Sequence[int] = KS,
    row_counts: Iterable[int] = ROWS,
    lengths: Sequence[int] = LENGTHS,
    layouts: Sequence[bool] = (False, True),
) -> Iterator[tuple[Kind, int, int, int]]:
    """Yield the problems; those of the same input follow each other. One element is in any order."""
    for is_transposed, rows, length in itertools.product(layouts, row_counts, lengths):
        if rows * length * element_size > MOST_BYTES or (is_transposed and rows < FEWEST_COLUMNS):
            continue
        for k, is_sorted in itertools.product(ks, (True, False)):
            if k <= length and (is_sorted or k > 1):
                yield Kind(element_size, is_transposed, is_sorted), rows, length, k


def measure(
    watch: Stopwatch, element_size: int, places: Iterable[tuple[Kind, int, int, int]]
) -> list[Choice]:
    """Time all algorithms on problems, as far as there is time."""
    choices = []
    for place in places:
        if watch.is_over:
            break
        problem = problem_of(*place)
        chosen = watch.plan(problem, element_size).variant.partition(" ")[0]
        try:
            found = zip(Algorithm, watch.compare(problem, element_size, Algorithm), strict=True)
        except RuntimeError as error:
            print(f"FAILED: {problem}, {element_size} bytes: {error}", flush=True)
            continue
        times = {str(algorithm): time for algorithm, time in found if time is not None}
        choices.append(Choice(*place, chosen, times))
    return choices


def load(path: Path) -> list[Choice]:
    """Return the choices of a results file, which does not say which algorithm plans chose then."""
    rows = json.loads(path.read_text())["choices"]
    return [Choice(Kind(*row[:3]), row[3], row[4], row[5], "", row[6]) for row in rows]


def steadier_than(name: str, each: Choice) -> list[str]:
    """Return the algorithms that are less sensitive to data than the one named."""
    found = ["rounds"] if each.rows >= STEADY_ROWS and name != "rounds" else []
    return [*found, "block", "partition"] if name == SAMPLING and each.kind.is_sorted else found


def names_of(each: Choice, before: Sequence[str]) -> tuple[str, ...]:
    """Return the algorithm for a problem, and one that any device has; `before` serve shorter rows."""
    if not each.times:
        return (WITHOUT_TIMES,)
    found = []
    for names in (each.times, {name: time for name, time in each.times.items() if name not in SPECIAL}):
        fastest = min(names, key=names.__getitem__, default=None)
        if fastest is None:
            continue
        limit = STEADY_MARGIN * names[fastest]
        steady = [name for name in steadier_than(fastest, each) if names.get(name, limit) < limit]
        best = min(steady or [fastest], key=names.__getitem__)
        # The algorithm of shorter rows goes on only if it is no less steady.
        allowed = steady or [name for name in names if best not in steadier_than(name, each)]
        tied = (name for name in before if name in allowed and names[name] < TIED * names[best])
        found.append(next(tied, best))
    return tuple(dict.fromkeys(found))


def line_of(group: Iterable[Choice]) -> str:
    """Return the algorithms for rows of the same number and k, as the table has them.

    Each part serves rows up to a length; the last one serves all longer rows.
    """
    parts: list[tuple[int, tuple[str, ...]]] = []
    for each in sorted(group, key=lambda each: each.length):
        names = names_of(each, parts[-1][1] if parts else ())
        if parts and parts[-1][1] == names:
            parts.pop()
        parts.append((each.length, names))
    words = [f"{length} {' '.join(names)}" for length, names in parts]
    words[-1] = " ".join(parts[-1][1])
    return ", ".join(words)


def table_of(choices: Iterable[Choice]) -> dict[str, dict[str, dict[str, str]]]:
    """Return the table: by kind, k and number of rows, each of which holds up to that number."""

    def place_of(each: Choice) -> tuple[Kind, int, int]:
        return each.kind, each.k, each.rows

    table: dict[str, dict[str, dict[str, str]]] = {}
    for (kind, k, rows), group in itertools.groupby(sorted(choices, key=place_of), key=place_of):
        lines = table.setdefault(str(kind), {}).setdefault(str(k), {})
        line = line_of(group)
        last = next(reversed(lines), "")
        if last and lines[last] == line:
            del lines[last]
        lines[str(ROWS[rows])] = line
    return table


def print_losses(choices: Sequence[Choice]) -> None:
    """Print the problems for which another algorithm than the chosen one is faster, the worst first."""
    losses = sorted((each for each in choices if each.loss >= MARGIN), key=lambda each: -each.loss)
    print(f"\n{len(losses)} of {len(choices)} problems lose {MARGIN - 1:.0%} or more by the choice")
    for each in losses[:SHOWN]:
        best = each.ranking[0]
        chosen = microseconds(each.times[each.chosen]) if each.chosen in each.times else "?"
        print(
            f"  {each.problem!s:>36} {each.kind.element_size} bytes: {each.chosen} {chosen}, "
            f"{best} {microseconds(each.times[best])}, {each.loss:.2f}"
        )


def print_leads(choices: Sequence[Choice]) -> None:
    """Print in how many problems each algorithm is the fastest, and how far ahead it gets."""
    print("\nfastest, ahead of the next one by the margin, furthest ahead")
    for algorithm in Algorithm:
        won = [each for each in choices if each.ranking[0] == algorithm]
        ahead = [each for each in won if each.lead >= MARGIN]
        furthest = max(won, key=lambda each: each.lead, default=None)
        where = ""
        if furthest:
            where = f"{furthest.problem}, {furthest.kind.element_size} bytes, {furthest.lead:.2f}"
        print(f"  {algorithm:>12} {len(won):>5} {len(ahead):>5}  {where}")


def write_results(
    choices: Sequence[Choice], device: str, multiprocessors: int, earlier: Path | None = None
) -> Path:
    """Write the times, a line for each problem.

    Those that were measured earlier that day stay, or those of the file `earlier`.
    """
    date = datetime.now(UTC).date().isoformat()
    path = RESULTS / f"choices-{date}.json"
    earlier = earlier or path
    measured, kept = {f"{device}, {date}"}, []
    if earlier.exists():
        measured, kept = measured | {*json.loads(earlier.read_text())["measured"]}, load(earlier)
    found = {each[:4]: each for each in (*kept, *choices)}
    lines = ",\n".join(json.dumps(found[place].to_json()) for place in sorted(found))
    about = {
        "measured": sorted(measured),
        "multiprocessors": multiprocessors,
        "fields": [*Kind._fields, "rows", "length", "k", "microseconds"],
    }
    path.write_text(f'{json.dumps(about)[:-1]}, "choices": [\n{lines}\n]}}\n')
    return path


def write_table(results: Path) -> None:
    """Write the table that plans choose by."""
    given: Mapping[str, Any] = json.loads(results.read_text())
    about = {
        "measured": given["measured"],
        "multiprocessors": given["multiprocessors"],
        "written_by": "python -m bench choices",
        "fastest": table_of(load(results)),
    }
    TABLE.write_text(json.dumps(about, indent=1) + "\n")
