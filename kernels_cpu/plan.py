"""The plan of a problem, the host that it is made for, and how Python runs the words of a plan.

Every operator has a ``plan(problem, target)``, which takes its `Problem` of plain integers. The plan itself
is a function of words (`plan_words`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kernels_cpu import plan_words as words_of
from kernels_cpu import processor, threads
from kernels_cpu.cached import cached_property
from kernels_cpu.kernel import WORD_MASK, BoundKernel, Kernel, Load, LoadedKernel, Table, packed, packer


class Target(NamedTuple):
    """The host as plans see it.

    Attributes
    ----------
    threads : int
        How many threads the work may be spread over.
    load : callable
        Gives a plan its kernels, ready to be called.
    """

    threads: int
    load: Load


@dataclass(frozen=True)
class Plan:
    """A problem of one operator, ready to run any number of times from any thread.

    Every function takes addresses: of inputs, outputs and the workspace, which is aligned to 64 bytes.
    """

    variant: str
    """The algorithm, and why it was chosen."""
    workspace_size: int
    """Bytes of scratch that one run needs."""
    loaders: Mapping[str, Callable[[], Callable[..., Any]]]
    """Loads the kernels of each function that the operator has; called when it is first asked for."""
    in_one_pass: bool = False
    """Of nonzero: whether `launch` reads the input once, and needs no workspace."""

    @cached_property
    def launch(self) -> Callable[..., int]:
        """Write all outputs; return what the only kernel returns, or for nonzero the full count.

        For gather this is 0 only if all tuples were in range; for others a slice is written none the less.
        """
        return self.loaders["launch"]()

    @cached_property
    def check(self) -> Callable[[int], int]:
        """Return the position of a gather's first tuple that is out of range, or -1: ``check(indices)``."""
        return self.loaders["check"]()

    @cached_property
    def count(self) -> Callable[[int, int, int], int]:
        """Write and return the full count, and leave in the workspace the words that `expand` reads.

        Called as ``count(x, count, workspace)``.
        """
        return self.loaders["count"]()

    @cached_property
    def expand(self) -> Callable[[int, int, int, int], None]:
        """Write the first rows, packed, after `count` with the same workspace.

        Called as ``expand(x, coordinates, n_rows, workspace)``.
        """
        return self.loaders["expand"]()


def planned(
    plan: Callable[[words_of.Words, words_of.Words, words_of.Words], int], problem: list[int], n_threads: int
) -> list[int]:
    """Return the words of a plan for this host, made in Python."""
    out = [0] * words_of.MAX_WORDS
    plan(problem, [n_threads, processor.streaming_bytes()], out)
    return out


class Launch(NamedTuple):
    """One launch of a plan, with its kernel loaded."""

    kernel: LoadedKernel
    table: Table
    tasks: list[tuple[int, ...]]
    """The integers that the kernel takes between the address of the table and its pointers."""
    pointers: list[tuple[int, int]]
    """Slots and offsets."""

    def blocks(self, addresses: Sequence[int]) -> list[bytes]:
        """Return the kernel's arguments for each task."""
        given = [0 if slot < 0 else addresses[slot] + offset for slot, offset in self.pointers]
        end = packer(len(given))(*given)
        return [packed((self.table, *task)) + end for task in self.tasks]


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
        self.launches: list[Launch] = []
        at = words_of.LAUNCHES
        for _ in range(words[words_of.N_LAUNCHES]):
            first_pointer = at + words_of.CONTENT
            first_value = first_pointer + 2 * words[at + words_of.N_POINTERS]
            end = first_value + words[at + words_of.N_VALUES]
            launch = Launch(
                target.load(kernel_of(words[at + words_of.KERNEL])),
                Table(words[first_value:end]),
                tasks_of(words[at:first_pointer]),
                [(words[i], words[i + 1]) for i in range(first_pointer, first_value, 2)],
            )
            self.launches.append(launch)
            at = end

    def run(self, *addresses: int) -> int:
        """Run all launches on the operands and the workspace; return the result, or -1 if there is none."""
        result = -1
        for number, launch in enumerate(self.launches):
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

    def bound(self) -> BoundKernel | None:
        """Return the kernel of a plan's only task, which takes the addresses in the kernel's own order.

        None where there are more tasks.
        """
        if len(self.launches) != 1 or len(self.launches[0].tasks) != 1:
            return None
        kernel, table, tasks, pointers = self.launches[0]
        n_null = sum(slot < 0 for slot, _ in pointers)  # these come first
        return kernel.bind((table, *tasks[0], *[0] * n_null), len(pointers) - n_null)


def tasks_of(launch: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the leading integers of each task of a launch."""
    n_units, n_tasks = launch[words_of.BLOCK], launch[words_of.GRID]
    n_leading = launch[words_of.N_LEADING]
    tasks: list[tuple[int, ...]] = []
    for task, (first, last) in enumerate(threads.split(n_units, n_tasks)):
        tasks.append(((), (task,), (first, last), (first, last, task))[n_leading])
    return tasks
