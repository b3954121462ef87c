"""The table by which plans of top_k on CUDA choose an algorithm, made of the times of all algorithms.

The table has one algorithm for as many neighbouring problems as have one in common.
"""

import json
import math
import statistics
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.choices import ROWS, Choice, load, problems
from kernels_cuda.runtime.variant import Target
from kernels_cuda.top_k import dispatch
from kernels_cuda.top_k.dispatch import Kind

# Some algorithms slow down if many elements are equal. Among those within this factor of the fastest one, an
# algorithm whose time does not depend on the data is preferred.
STEADIER = 1.1
# Times within this of the fastest of the others are alike.
ALIKE = 1.05
# With so many rows and more, the time of `rounds` does not depend on the data.
STEADY_ROWS = 1024
# Slows down if too many candidates are equal.
SAMPLING = "sampled"
# One of so many problems is held out to see what a table costs problems that it does not know.
HELD_OUT = 5


def steadier_than(name: str, each: Choice) -> list[str]:
    """Return the algorithms that are less sensitive to data than the one named."""
    found = ["rounds"] if each.problem.rows >= STEADY_ROWS and name != "rounds" else []
    return [*found, "block", "partition"] if name == SAMPLING and each.problem.kind.is_sorted else found


def alike(each: Choice) -> set[str]:
    """Return the algorithms about as fast as the fastest one that no steadier one comes close to."""

    def within(factor: float, times: Mapping[str, float]) -> dict[str, float]:
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
    for each in sorted(choices, key=lambda each: (each.problem.kind, each.problem.k, each.problem.rows)):
        block = (
            blocks.setdefault(each.problem.kind, {})
            .setdefault(each.problem.k, {})
            .setdefault(each.problem.rows, Block({}, {}))
        )
        if each.times:
            block.choices[each.problem.length], block.common[each.problem.length] = [each], alike(each)
    return {
        str(kind): {
            str(k): {str(ROWS[rows]): block.line() for rows, block in groups.items()}
            for k, groups in k_blocks(by_k).items()
        }
        for kind, by_k in blocks.items()
    }


def write_table(results: Path) -> None:
    """Write the table that plans choose by, and print what it costs, and what the rule would.

    It is made of all problems. A table made without a fifth of them tells what problems lose that were not
    measured.
    """
    given: Mapping[str, Any] = json.loads(results.read_text())
    target = Target(0, given["arch"], given["multiprocessors"], given["block_shared_bytes"])
    choices = [each for each in load(results) if each.times]
    held_out = [each for each in choices if _is_held_out(each)]
    path = dispatch.TABLES / f"{target.arch}.json"
    about = {
        "measured": given["measured"],
        "multiprocessors": target.multiprocessors,
        "written_by": "python -m bench choices --table",
    }

    def loss(source: Callable[[Any, Target], Iterable[str]], tried: Iterable[Choice]) -> float:
        losses = [_with_choice(source, each, target).loss for each in tried]
        return math.exp(statistics.fmean(map(math.log, losses)))

    print(f"{len(choices)} of {sum(1 for _ in problems())} problems were timed")
    print(f"{path.name}: geometric mean of the losses")
    known = [each for each in choices if not _is_held_out(each)]
    for name, made_of, tried in (
        ("a table made without a fifth, of that fifth", known, held_out),
        ("the table", choices, choices),
    ):
        path.write_text(json.dumps({**about, "fastest": table_of(made_of)}, indent=1) + "\n")
        dispatch.table_of.cache_clear()
        print(f"  {name}: {loss(dispatch.candidates, tried):.4f}")
    print(f"  the rule: {loss(dispatch.rule, choices):.4f}")


def _is_held_out(each: Choice) -> bool:
    """Tell whether a problem tests a table made without it: as good as random, but always the same."""
    return zlib.crc32(repr((*each.problem.kind, *each.problem[1:])).encode()) % HELD_OUT == 0


def _with_choice(names: Callable[[Any, Target], Iterable[str]], each: Choice, target: Target) -> Choice:
    """Return a problem with the first of the algorithms that are named for it and serve it."""
    given = each.problem.to_plan()
    chosen = next(name for name in names(given, target) if dispatch.serves(given, target, name))
    return each._replace(chosen=chosen)
