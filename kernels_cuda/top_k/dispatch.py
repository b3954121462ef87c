"""Plans of problems of dmlops, the choice of an algorithm, why, and how to force it.

Devices of an architecture that was measured choose by a table, ``tables/<architecture>.json``, which
``python -m bench choices --table`` makes; all others by a rule (`choice`). Where the best algorithm does not
serve a problem, the next one is tried. ``DMLOPS_TOP_K_ALGORITHM`` forces one; it is read when a call is
planned, and a call that the process has made before keeps its plan.
"""

import functools
import itertools
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kernels_cpu.kernel import plan_kernel
from kernels_cpu.plan_words import ALGORITHM, N_LAUNCHES, Words
from kernels_cpu.problems import TopKProblem
from kernels_cpu.top_k.problem_words import problem_words
from kernels_cuda.device_words import PLANNED, TOO_LONG
from kernels_cuda.runtime.plan import DevicePlan, planned_for
from kernels_cuda.runtime.variant import Target
from kernels_cuda.top_k import choice
from kernels_cuda.top_k.plan import is_candidate
from kernels_cuda.top_k.policy import NO_CHANGES, plan_device
from kernels_cuda.top_k.problem import select

# `kernels_cuda.top_k` tells what each of them is for.
ALGORITHMS = {name: number for number, name in enumerate(choice.NAMES, 1)}
VARIABLE = "DMLOPS_TOP_K_ALGORITHM"
TABLES = Path(__file__).with_name("tables")
PLAN = plan_kernel("top_k", n_inputs=3, device="cuda")
"""The compiled plan, which the CPU runs."""


class Kind(NamedTuple):
    """The key of a part of a table: bytes of an element, where rows lie, and the order of results."""

    element_size: int
    is_transposed: bool
    is_sorted: bool

    def __str__(self) -> str:
        where = "side by side" if self.is_transposed else "one after the other"
        return f"{self.element_size} bytes, rows {where}, by {'value' if self.is_sorted else 'index'}"


KINDS = [Kind(*kind) for kind in itertools.product((2, 4, 8), (False, True), (False, True))]


@functools.cache
def table_of(arch: str) -> list[int]:
    """Return the words of what was measured on an architecture."""
    path = TABLES / f"{arch}.json"
    return table_words(json.loads(path.read_text()) if path.exists() else {})


def table_words(table: Mapping[str, Any]) -> list[int]:
    """Return a table as words (`choice`)."""
    words = [table.get("multiprocessors", 0), *(0 for _ in range(choice.N_KINDS))]
    for kind in KINDS:
        by_k = table.get("fastest", {}).get(str(kind))
        if by_k:
            place = choice.KINDS_AT + choice.kind_of(*map(int, kind))
            words[place] = _put_lines(words, by_k)
    return words


def _put_lines(words: list[int], lines: Mapping[str, Any] | str) -> int:
    """Put the lines of a table, and those of the tables in it, after some words; return where they begin."""
    if isinstance(lines, str):
        *parts, last = (part.split() for part in lines.split(", "))
        # The last one has no limit.
        held = [(int(length), ALGORITHMS[name]) for length, name in parts] + [(0, ALGORITHMS[last[-1]])]
    else:
        held = [(int(limit), _put_lines(words, line)) for limit, line in lines.items()]
    begin = len(words)
    words += [len(held), *itertools.chain(*held)]
    return begin


class Planned(NamedTuple):
    """A problem as words, those of the device, and the words of its plan."""

    problem: list[int]
    device: list[int]
    words: Words

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return algorithm_name(self.words)


def algorithm_name(words: Words) -> str:
    """Return the name of the algorithm of a plan."""
    number = words[ALGORITHM]
    return choice.NAMES[number - 1] if number != choice.NO_ALGORITHM else "numbers"


class UnservedError(ValueError):
    """Raised where the algorithm that the user asks for cannot serve a problem."""

    def __init__(self, given: TopKProblem, algorithm: str) -> None:
        super().__init__(
            f"top_k: algorithm {algorithm!r} does not take k {given.k} of rows of {given.axis_size}, "
            f"by {'value' if given.is_sorted else 'index'}"
        )


def forced_algorithm() -> str | None:
    """Return the algorithm that the user asks for.

    Raises
    ------
    ValueError
        If there is no such algorithm.
    """
    name = os.environ.get(VARIABLE)
    if name and name not in ALGORITHMS:
        msg = f"{VARIABLE}: got {name!r}, which is no algorithm; it must be one of {', '.join(ALGORITHMS)}"
        raise ValueError(msg)
    return name or None


def planned(
    given: TopKProblem, target: Target, algorithm: str | None = None, changes: Mapping[str, int] | None = None
) -> Planned | None:
    """Return the words of the plan of a problem, with the best algorithm or the given one.

    Where this does not serve the problem, return None.
    """
    problem = problem_words(given)
    forced = ALGORITHMS[algorithm] if algorithm else choice.NO_ALGORITHM
    device = plan_device(target, forced, changes or NO_CHANGES)
    status, words = planned_for(target, PLAN, problem, device, table_of(target.arch))
    if status == TOO_LONG:
        n_rows = select(problem, device).n_rows
        msg = f"top_k: got {n_rows} rows of {given.axis_size}, k {given.k}; no GPU has memory for so many"
        raise MemoryError(msg)
    return Planned(problem, device, words) if status == PLANNED else None


def serves(given: TopKProblem, target: Target, name: str) -> bool:
    """Tell whether an algorithm serves a problem."""
    return planned(given, target, name) is not None


def rule(given: TopKProblem, target: Target) -> Iterator[str]:
    """Yield algorithms as for a device that was not measured, best first; the last one serves any problem."""
    device = plan_device(target, choice.NO_ALGORITHM)
    order = choice.rule(device, select(problem_words(given), device))
    numbers = (choice.candidate(order, place) for place in itertools.count())
    for number in itertools.takewhile(bool, numbers):
        yield choice.NAMES[number - 1]


def measured(given: TopKProblem, target: Target) -> str | None:
    """Return the algorithm that a table names; None if there is none for the device."""
    device = plan_device(target, choice.NO_ALGORITHM)
    found = choice.measured(table_of(target.arch), device, select(problem_words(given), device))
    return choice.NAMES[found - 1] if found else None


def candidates(given: TopKProblem, target: Target) -> Iterator[str]:
    """Yield the algorithms that `plan` tries, best first."""
    selection = select(problem_words(given), plan_device(target, choice.NO_ALGORITHM))
    best = "copy" if serves(given, target, "copy") else measured(given, target)
    for name in dict.fromkeys(itertools.chain((best,) if best else (), rule(given, target))):
        if is_candidate(ALGORITHMS[name], selection):
            yield name


def explain(given: TopKProblem, target: Target) -> tuple[str, list[str]]:
    """Return why an algorithm is chosen, and all that serve what `plan` is given, the chosen one first."""
    forced = forced_algorithm()
    if forced is not None:
        if not serves(given, target, forced):
            raise UnservedError(given, forced)
        return f"because {VARIABLE} asks for it", [forced]
    names = [name for name in candidates(given, target) if serves(given, target, name)]
    if names[0] == "copy":
        return "because all elements are selected, in the order that they have", names
    if measured(given, target) == names[0]:
        return f"the fastest, or about as fast, by the times measured on {target.arch}", names
    return f"by a rule, because nothing like it was measured on {target.arch}", names


def plan(
    given: TopKProblem, target: Target, algorithm: str | None = None, changes: Mapping[str, int] | None = None
) -> DevicePlan:
    """Plan the k first elements of every row, in order, ties by ascending position.

    Parameters
    ----------
    given : TopKProblem
        In `kernels_cpu.problems`.
    target : Target
        The device.
    algorithm : str, optional
        Take this one, if it can serve the problem; by default ``DMLOPS_TOP_K_ALGORITHM``.
    changes : mapping, optional
        Other values of the policy, by name.

    Returns
    -------
    DevicePlan
        To be launched any number of times.

    Raises
    ------
    ValueError
        If there is no such algorithm, or it cannot serve the problem.

    Notes
    -----
    Kernels that neither the wheel nor the cache has are compiled here.
    """
    algorithm = algorithm or forced_algorithm()
    found = planned(given, target, algorithm, changes)
    if found is None:
        raise UnservedError(given, str(algorithm))
    return DevicePlan(sys.modules[__package__], given, target, lambda _: found.words)


def described(given: TopKProblem, words: Words) -> str:
    """Return the text about a plan: the algorithm, and why it was chosen."""
    n_launches = words[N_LAUNCHES]
    if n_launches == 0:
        return "nothing to do"
    n_rows = math.prod(row[0] for row in given.rows)
    shape = f"{n_rows} rows of {given.axis_size}, k {given.k}, {given.element_size}-byte elements"
    return f"{algorithm_name(words)} ({shape}, launches: {n_launches})"
