"""The launches of one problem, planned anew for each alignment of its operands."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kernels_cpu.plan_words import MAX_WORDS, Words
from kernels_cuda.device_words import ROOM, TOO_LONG
from kernels_cuda.kernel_keys import KernelFamily, variant_of
from kernels_cuda.runtime.variant import Target

if TYPE_CHECKING:
    from kernels_cuda.runtime.launch import Kernel, LaunchList


# With more words, there are so many launches that their operands take exabytes.
MOST_WORDS = 1 << 22


class Planner:
    """A problem, whose plan depends on some of its words, such as residues of addresses.

    Parameters
    ----------
    operator : str
        Its name, for errors.
    plan : callable
        The operator's plan: of the words of a problem and of a device, to words.
    problem : list of int
        The words of the problem.
    varied : sequence of int
        Which of these words vary.
    device : list of int
        The words of the device, and of the operator's policy.
    families : sequence of KernelFamily
        What the plan's kernels are.
    target : Target
        The device.
    """

    def __init__(
        self,
        operator: str,
        plan: Callable[[Words, Words, Words], int],
        problem: list[int],
        varied: Sequence[int],
        device: list[int],
        families: Sequence[KernelFamily],
        target: Target,
    ) -> None:
        self._operator, self._plan, self._problem, self._varied = operator, plan, problem, varied
        self._device, self._families, self._target = device, families, target
        self._lists: dict[tuple[int, ...], LaunchList] = {}

    def words(self, *values: int) -> list[int]:
        """Return the plan for these values of the words that vary."""
        problem, device = list(self._problem), list(self._device)
        for word, value in zip(self._varied, values, strict=True):
            problem[word] = value
        device[ROOM] = MAX_WORDS
        out = [0] * device[ROOM]
        while self._plan(problem, device, out) == TOO_LONG:
            device[ROOM] *= 4
            if device[ROOM] > MOST_WORDS:
                msg = f"{self._operator}: got too many elements; no GPU has memory for so many"
                raise MemoryError(msg)
            out = [0] * device[ROOM]
        return out

    def made(self, words: Words) -> "LaunchList":
        """Return the launches of a plan, with their kernels loaded."""
        # It imports the CUDA driver's bindings, which plans do without.
        from kernels_cuda.runtime.launch import launch_list  # noqa: PLC0415

        return launch_list(words, self._load)

    def prepare(self, *values: int) -> list[int]:
        """Return the plan for these values of the words that vary; its launches are kept."""
        words = self.words(*values)
        self._lists[values] = self.made(words)
        return words

    def launches(self, *values: int) -> "LaunchList":
        """Return the launches for these values of the words that vary, which are kept."""
        if values not in self._lists:
            self.prepare(*values)
        return self._lists[values]

    def _load(self, key: int) -> "Kernel":
        from kernels_cuda.runtime.launch import load  # noqa: PLC0415 - as well

        return load(variant_of(key, self._families), self._target)
