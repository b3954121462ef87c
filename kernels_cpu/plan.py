"""The plan of a problem, the host that it is made for, and how Python runs the words of a plan.

Every operator has a ``plan(problem, target)``, which takes its `Problem` of plain integers. The plan itself
is a function of words (`plan_words`).
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

from kernels_cpu import plan_words as words_of
from kernels_cpu import processor, threads
from kernels_cpu.kernel import WORD_MASK, Kernel, Load, LoadedKernel, Table, imported, packed, packer
from kernels_cpu.plan_words import Words
from kernels_cpu.problems import Problem

NO_CHANGES: Mapping[int, int] = MappingProxyType({})
# Alignments and steps of one problem whose launches are kept.
_MOST_KEPT = 64


class Target(NamedTuple):
    """The host as plans see it."""

    threads: int
    """How many threads the work may be spread over."""
    load: Load
    """Returns a kernel, ready to be called."""
    compiles_plans: bool = False
    """Whether plans are compiled, too, or run as Python."""


def planned(
    plan: Kernel, compiled: LoadedKernel | None, inputs: Sequence[Words], room: int
) -> tuple[int, Words]:
    """Run a plan; return its status and its words.

    Parameters
    ----------
    plan : Kernel
        The plan, whose source runs as Python if it is not compiled.
    compiled : LoadedKernel or None
        Its compiled form.
    inputs : sequence of words
        The words that the plan reads: the problem first.
    room : int
        The most words that the plan may write.
    """
    out = array("q", bytes(8 * room))
    if compiled is None:
        return imported(plan.source)(*inputs, out), out
    tables = [Table(words) for words in inputs]
    return compiled(0, *[table.address for table in tables], out.buffer_info()[0]), out


class ProblemPlan(ABC):
    """A problem of one operator on one device, ready to run any number of times from any thread.

    A problem may have several steps, which differ in words of the problem: `changes` maps the places of these
    words to their values.
    """

    algorithm: int
    """The number of the algorithm, which the operator defines."""
    workspace_size: int
    """Bytes of scratch that one run needs."""
    residues: Sequence[int] = ()
    """For each of the first operands, the word of the problem for its address modulo 16."""

    def __init__(self, kernels: ModuleType, problem: Problem) -> None:
        self._kernels, self._given = kernels, problem
        self._problem = kernels.words_of_problem(problem)
        self._runners: dict[tuple[Any, ...], Callable[..., int]] = {}

    def _describe(self) -> None:
        words = self.words(self._problem)
        self.algorithm, self.workspace_size = words[words_of.ALGORITHM], words[words_of.WORKSPACE]

    @property
    def variant(self) -> str:
        """The algorithm, and why it was chosen."""
        described: str = self._kernels.described(self._given, self.words(self._problem))
        return described

    @abstractmethod
    def words(self, problem: Words) -> Words:
        """Return the words of a plan."""

    @abstractmethod
    def runner(self, words: Words) -> Callable[..., int]:
        """Return what runs the words of a plan, with all kernels loaded."""

    def prepared(self, changes: Mapping[int, int] = NO_CHANGES, *addresses: int) -> Callable[..., int]:
        """Return what runs a step on operands that are aligned like these, with all kernels loaded."""
        aligned = [at & 15 for at in addresses[: len(self.residues)]] if self.residues else ()
        key = (*changes.items(), *zip(self.residues, aligned)) if changes or aligned else ()  # noqa: B905
        runner = self._runners.get(key)
        if runner is None:
            if len(self._runners) >= _MOST_KEPT:
                self._runners.clear()
            runner = self._runners[key] = self.runner(self.words(self.changed(dict(key))))
        return runner

    def changed(self, changes: Mapping[int, int]) -> list[int]:
        """Return the words of the problem with these changes."""
        problem = list(self._problem)
        for word, value in changes.items():
            problem[word] = value
        return problem

    def launch(self, *arguments: int) -> int:
        """Run the whole problem; see `step`."""
        return self.step(NO_CHANGES, *arguments)

    def step(self, changes: Mapping[int, int], *arguments: int) -> int:
        """Run a step, and return its result on the host, or -1.

        Parameters
        ----------
        changes : mapping of int to int
            The words of the problem that make the step.
        *arguments : int
            On a GPU the stream; the addresses of the operands, and of the workspace, which is aligned to 256
            bytes on a GPU, and to 64 on the host.
        """
        return self.prepared(changes, *arguments)(*arguments)


class HostPlan(ProblemPlan):
    """A plan for the host.

    Parameters
    ----------
    kernels : module
        The package of the operator's kernels.
    problem : Problem
        What is planned.
    target : Target
        The host.
    """

    def __init__(self, kernels: ModuleType, problem: Problem, target: Target) -> None:
        super().__init__(kernels, problem)
        self._target = target
        self._describe()

    def words(self, problem: Words) -> Words:
        """Return the words of a plan."""
        plan = self._kernels.PLAN
        compiled = self._target.load(plan) if self._target.compiles_plans else None
        host = [self._target.threads, processor.streaming_bytes()]
        return planned(plan, compiled, (problem, host), words_of.MAX_WORDS)[1]

    def runner(self, words: Words) -> Callable[..., int]:
        """Return what runs the words of a plan, with all kernels loaded."""
        launches = Launches(words, self._kernels.kernel_of, self._target)
        return launches.run_one if launches.is_one else launches.run

    def launch(self, *arguments: int) -> int:
        """Run the whole problem; see `ProblemPlan.step`."""
        return (self._runners.get(()) or self.prepared())(*arguments)


class Launch(NamedTuple):
    """One launch of a plan, with its kernel loaded."""

    kernel: LoadedKernel
    table: Table
    prefixes: list[bytes]
    """For each task, the kernel's arguments before its pointers: the address of the table, and integers."""
    pointers: list[tuple[int, int]]
    """For each pointer its slot and its offset in bytes."""
    pack: Callable[..., bytes]

    def blocks(self, addresses: Sequence[int]) -> list[bytes]:
        """Return the kernel's arguments for each task."""
        end = self.pack(*[0 if slot < 0 else addresses[slot] + offset for slot, offset in self.pointers])
        return [prefix + end for prefix in self.prefixes]


class Launches:
    """The launches of a plan.

    Parameters
    ----------
    words : sequence of int
        What the plan has written.
    kernel_of : callable
        Returns a kernel by its number.
    target : Target
        Where kernels come from, and how many threads may run tasks.
    """

    def __init__(self, words: Sequence[int], kernel_of: Callable[[int], Kernel], target: Target) -> None:
        self._threads = target.threads
        self._result = words[words_of.RESULT]
        self.workspace_size = words[words_of.WORKSPACE]
        self._launches: list[Launch] = []
        at = words_of.LAUNCHES
        for _ in range(words[words_of.N_LAUNCHES]):
            first_pointer = at + words_of.CONTENT
            first_value = first_pointer + 2 * words[at + words_of.N_POINTERS]
            end = first_value + words[at + words_of.N_VALUES]
            table = Table(words[first_value:end])
            launch = Launch(
                target.load(kernel_of(words[at + words_of.KERNEL])),
                table,
                [packed((table, *task)) for task in tasks_of(words[at:first_pointer])],
                [(words[i], words[i + 1]) for i in range(first_pointer, first_value, 2)],
                packer(words[at + words_of.N_POINTERS]),
            )
            self._launches.append(launch)
            at = end

    @property
    def is_one(self) -> bool:
        """Whether there is one launch of one task."""
        return len(self._launches) == 1 and len(self._launches[0].prefixes) == 1

    def run_one(self, *addresses: int) -> int:
        """Run the only task; return its result."""
        kernel, _, (prefix,), pointers, pack = self._launches[0]
        given = [0 if slot < 0 else addresses[slot] + offset for slot, offset in pointers]
        return kernel.call(prefix + pack(*given))

    def run(self, *addresses: int) -> int:
        """Run all launches on the operands and the workspace; return the result, or -1 if there is none."""
        result = -1
        for number, launch in enumerate(self._launches):
            blocks = launch.blocks(addresses)
            if number != self._result:
                threads.run(launch.kernel.call, blocks, self._threads)
            else:
                result = self._least(launch.kernel.call, blocks)
        return result

    def _least(self, call: Callable[[bytes], int], blocks: Sequence[bytes]) -> int:
        if len(blocks) == 1:
            return call(blocks[0])
        results: list[int] = []
        threads.run(lambda block: results.append(call(block)), blocks, self._threads)
        return min(results, key=lambda result: result & WORD_MASK)


def tasks_of(launch: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the leading integers of each task of a launch."""
    n_units, n_tasks = launch[words_of.BLOCK], launch[words_of.GRID]
    n_leading = launch[words_of.N_LEADING]
    tasks: list[tuple[int, ...]] = []
    for task, (first, last) in enumerate(threads.split(n_units, n_tasks)):
        tasks.append(((), (task,), (first, last), (first, last, task))[n_leading])
    return tasks
