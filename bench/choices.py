"""The fastest algorithm of top_k on CUDA for each problem, as `python -m bench choices` finds it.

Every algorithm that can solve a problem is timed: rows that lie one after the other and side by side, in
order of value and of index. Of these times, the table is made that plans choose by.
"""

import itertools
import json
import math
import statistics
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bench.stopwatch import Problem, Stopwatch, microseconds, plain_problem
from kernels_cuda.runtime.variant import Target
from kernels_cuda.top_k import dispatch
from kernels_cuda.top_k.dispatch import ALGORITHMS, Kind

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
MOST_BYTES = 1 << 31
# Times of algorithms that take longer than this many times the best are not kept.
KEPT = 1.5
# This one orders many candidates at once, unless too many are equal.
SAMPLING = "sampled"
# Some algorithms take longer than the times here where elements are equal: of those within this of the
# fastest one, one that takes about the same time whatever the data goes before them.
STEADIER = 1.1
# Times within this of the fastest of the others are alike: the table has one algorithm for as many
# neighbouring problems as have one in common.
ALIKE = 1.05
# `rounds` takes the same time whatever the data, where there are so many rows and more.
STEADY_ROWS = 1024
# One of so many problems is held out to see what a table costs problems that it does not know.
HELD_OUT = 5
SHOWN = 60
# Less than this is noise.
MARGIN = 1.05
RESULTS = Path(__file__).parent / "results" / "top_k_policy"
# A problem: the rows, their length, and k.
Place = tuple[Kind, int, int, int]


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

    def to_json(self) -> list[Any]:
        """Return what the results file holds."""
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
) -> Iterator[Place]:
    """Yield the problems; those of the same input follow each other.

    One element is in any order. All elements of a row, by index, are a copy, which has no other algorithm.
    """
    for is_transposed, rows, length in itertools.product(layouts, row_counts, lengths):
        if rows * length * element_size > MOST_BYTES or (is_transposed and rows < FEWEST_COLUMNS):
            continue
        for k, is_sorted in itertools.product(ks, (True, False)):
            if k <= length and (is_sorted or 1 < k < length):
                yield Kind(element_size, is_transposed, is_sorted), rows, length, k


def measure(
    watch: Stopwatch,
    element_size: int,
    places: Iterable[Place],
    only: Sequence[str] = (),
    known: Mapping[Place, dict[str, float]] = MappingProxyType({}),
) -> list[Choice]:
    """Time all algorithms on problems, as far as there is time, or only those named.

    These are timed beside the fastest other one that is known, and what is known of the rest stays. A problem
    of which nothing is known is left out, because one of these would be the fastest whatever it takes.
    """
    choices = []
    for place in places:
        if watch.is_over:
            break
        problem = problem_of(*place)
        before = known.get(place, {})
        if only and not (before and any(watch.plan(problem, element_size, name) for name in only)):
            continue
        chosen = watch.plan(problem, element_size).variant.partition(" ")[0]
        others = {name: time for name, time in before.items() if name not in only}
        names = [*only, *sorted(others, key=others.__getitem__)[:1]] if only else [*ALGORITHMS]
        try:
            found = zip(names, watch.compare(problem, element_size, names), strict=True)
        except RuntimeError as error:
            print(f"FAILED: {problem}, {element_size} bytes: {error}", flush=True)
            continue
        kept = {name: time for name, time in others.items() if name not in names}
        times = kept | {algorithm: time for algorithm, time in found if time is not None}
        choices.append(Choice(*place, chosen, times))
    return choices


def load(path: Path) -> list[Choice]:
    """Return what a results file holds; nothing is known of what was chosen then."""
    rows = json.loads(path.read_text())["choices"]
    return [Choice(Kind(*row[:3]), row[3], row[4], row[5], "", row[6]) for row in rows]


def steadier_than(name: str, each: Choice) -> list[str]:
    """Return the algorithms that are less sensitive to data than the one named."""
    found = ["rounds"] if each.rows >= STEADY_ROWS and name != "rounds" else []
    return [*found, "block", "partition"] if name == SAMPLING and each.kind.is_sorted else found


def alike(each: Choice) -> set[str]:
    """Return the algorithms about as fast as the fastest one that no steadier one comes close to."""

    def within(factor: float, times: dict[str, float]) -> dict[str, float]:
        most = factor * min(times.values())
        return {name: time for name, time in times.items() if time <= most}

    close = within(STEADIER, each.times)
    steady = {name: time for name, time in close.items() if not {*close} & {*steadier_than(name, each)}}
    return {*within(ALIKE, steady)}


class Block(NamedTuple):
    """Neighbouring problems: choices of some k and numbers of rows, by length, and what these share."""

    choices: dict[int, list[Choice]]
    common: dict[int, set[str]]

    def joined(self, other: "Block") -> "Block | None":
        """Return both as one, or None if they have no algorithm in common for some length."""
        choices, common = dict(self.choices), dict(self.common)
        for length, names in other.common.items():
            choices[length] = choices.get(length, []) + other.choices[length]
            common[length] = common[length] & names if length in common else names
        return Block(choices, common) if all(common.values()) else None

    def line(self) -> str:
        """Return the algorithms as the table has them: each part holds up to a length, the last one beyond.

        As few as possible; of several, the one that takes the least time.
        """
        parts: list[tuple[int, set[str], list[Choice]]] = []
        for length in sorted(self.common):
            names, choices = self.common[length], self.choices[length]
            if parts and parts[-1][1] & names:
                _, before, earlier = parts.pop()
                names, choices = before & names, earlier + choices
            parts.append((length, names, choices))

        def loss_of(name: str, choices: list[Choice]) -> float:
            return math.fsum(math.log(each._replace(chosen=name).loss) for each in choices)

        fastest = [min(sorted(names), key=lambda name: loss_of(name, of)) for _, names, of in parts]
        words = [f"{length} {name}" for (length, *_), name in zip(parts, fastest, strict=True)]
        return ", ".join([*words[:-1], fastest[-1]])


def row_blocks(blocks: Mapping[int, Block]) -> dict[int, Block] | None:
    """Join the blocks of neighbouring numbers of rows, under the last; None if one has no algorithm."""
    found: dict[int, Block] = {}
    for rows, block in blocks.items():
        if not all(block.common.values()):
            return None
        last = next(reversed(found), None)
        joined = None if last is None else found[last].joined(block)
        if joined is not None:
            del found[last]  # type: ignore[arg-type]
        found[rows] = joined or block
    return found


def k_blocks(by_k: Mapping[int, Mapping[int, Block]]) -> dict[int, dict[int, Block]]:
    """Join the blocks of neighbouring k, under the last of these, so that there are few blocks."""
    ks = list(by_k)
    # For the first so many k: how many blocks and headings there are, and the last k of each group.
    best: list[tuple[int, dict[int, dict[int, Block]]]] = [(0, {})]
    for end in range(1, len(ks) + 1):
        tried = []
        together: dict[int, Block] = {}
        for start in reversed(range(end)):
            for rows, block in by_k[ks[start]].items():
                joined = block.joined(together[rows]) if rows in together else block
                together[rows] = joined or Block({}, {0: set()})
            groups = row_blocks({rows: together[rows] for rows in sorted(together)})
            if groups is None:
                break
            count, before = best[start]
            tried.append((count + len(groups) + 1, {**before, ks[end - 1]: groups}))
        best.append(min(tried, key=lambda each: each[0]))
    return best[-1][1]


def table_of(choices: Iterable[Choice]) -> dict[str, dict[str, dict[str, str]]]:
    """Return the table: by kind, k and number of rows, each of which holds up to that number."""
    blocks: dict[Kind, dict[int, dict[int, Block]]] = {}
    for each in sorted(choices, key=lambda each: (each.kind, each.k, each.rows)):
        block = blocks.setdefault(each.kind, {}).setdefault(each.k, {}).setdefault(each.rows, Block({}, {}))
        if each.times:
            block.choices[each.length], block.common[each.length] = [each], alike(each)
    return {
        str(kind): {
            str(k): {str(ROWS[rows]): block.line() for rows, block in groups.items()}
            for k, groups in k_blocks(by_k).items()
        }
        for kind, by_k in blocks.items()
    }


def is_held_out(each: Choice) -> bool:
    """Tell whether a problem tests a table made without it: as good as random, but always the same."""
    return zlib.crc32(repr((*each.kind, *each[1:4])).encode()) % HELD_OUT == 0


def mean_loss(choices: Iterable[Choice]) -> float:
    """Return the geometric mean of the losses."""
    return math.exp(statistics.fmean(math.log(each.loss) for each in choices))


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


def write_results(
    choices: Sequence[Choice], device: str, target: Target, earlier: Path | None = None
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
        "arch": target.arch,
        "multiprocessors": target.multiprocessors,
        "block_shared_bytes": target.block_shared_bytes,
        "fields": [*Kind._fields, "rows", "length", "k", "microseconds"],
    }
    path.write_text(f'{json.dumps(about)[:-1]}, "choices": [\n{lines}\n]}}\n')
    return path


def write_table(results: Path) -> None:
    """Write the table that plans choose by, and print what it costs, and what the rule would.

    It is made of all problems. A table made without a fifth of them tells what problems lose that were not
    measured.
    """
    given: Mapping[str, Any] = json.loads(results.read_text())
    target = Target(0, given["arch"], given["multiprocessors"], given["block_shared_bytes"])
    choices = [each for each in load(results) if each.times]
    held_out = [each for each in choices if is_held_out(each)]
    known = [each for each in choices if not is_held_out(each)]
    path = dispatch.TABLES / f"{target.arch}.json"

    def loss(source: Callable[[Any, Target], Iterable[str]], tried: Iterable[Choice]) -> float:
        return mean_loss(with_choice(source, each, target) for each in tried)

    n_problems = sum(1 for size in ELEMENT_SIZES for _ in problems(size))
    print(f"{len(choices)} of {n_problems} problems were timed")
    print(f"{path.name}: geometric mean of the losses")
    for name, made_of, tried in (
        ("a table made without a fifth, of that fifth", known, held_out),
        ("the table", choices, choices),
    ):
        about = {
            "measured": given["measured"],
            "multiprocessors": target.multiprocessors,
            "written_by": "python -m bench choices --table",
            "fastest": table_of(made_of),
        }
        path.write_text(json.dumps(about, indent=1) + "\n")
        dispatch.table_of.cache_clear()
        print(f"  {name}: {loss(dispatch.candidates, tried):.4f}")
    print(
        f"  the rule: {loss(dispatch.rule, choices):.4f}, of that fifth {loss(dispatch.rule, held_out):.4f}"
    )
    print(f"{len(path.read_text().splitlines())} lines")


def with_choice(names: Callable[[Any, Target], Iterable[str]], each: Choice, target: Target) -> Choice:
    """Return a problem with the first of the algorithms that are named for it and serve it."""
    problem = plain_problem(each.problem, each.kind.element_size)
    chosen = next(name for name in names(problem, target) if dispatch.serves(problem, target, name))
    return each._replace(chosen=chosen)
