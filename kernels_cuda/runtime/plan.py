"""Plans of problems on a device, for each alignment of their operands, with their kernels loaded."""

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

from kernels_cpu.kernel import Kernel
from kernels_cpu.plan import NO_CHANGES, ProblemPlan, planned
from kernels_cpu.plan_words import MAX_WORDS, Words
from kernels_cpu.problems import Problem
from kernels_cuda.device_words import ROOM, TOO_LONG
from kernels_cuda.runtime.variant import Target

# A plan of so many words has 100,000 launches and more: its arrays take hundreds of gigabytes.
_MOST_WORDS = 1 << 24


def planned_for(
    target: Target, plan: Kernel, problem: Words, device: Words, *measured: Words
) -> tuple[int, Words]:
    """Return what a plan says of a problem, and its words; `TOO_LONG` if no GPU has memory for so many.

    Parameters
    ----------
    target : Target
        The device.
    plan : Kernel
        The plan of the operator.
    problem, device, *measured : words
        What the plan reads. `ROOM` of the device is set.
    """
    compiled = None if target.load_plan is None else target.load_plan(plan)
    device[ROOM] = MAX_WORDS
    while True:
        status, words = planned(plan, compiled, (problem, device, *measured), device[ROOM])
        if status != TOO_LONG or device[ROOM] >= _MOST_WORDS:
            return status, words
        device[ROOM] *= 4


class DevicePlan(ProblemPlan):
    """A plan for a device.

    Parameters
    ----------
    kernels : module
        The package of the operator's kernels, which names and describes them.
    problem : Problem
        What is planned.
    target : Target
        The device.
    make : callable
        Returns the words of a plan for those of a problem.
    steps : sequence of mappings
        Steps whose kernels are loaded at once, as those of the whole problem are, for aligned operands.
    """

    def __init__(
        self,
        kernels: ModuleType,
        problem: Problem,
        target: Target,
        make: Callable[[Words], Words],
        steps: Sequence[Mapping[int, int]] = (),
    ) -> None:
        super().__init__(kernels, problem)
        self.residues, self._target, self._make = kernels.RESIDUES, target, make
        self._describe()
        for changes in (NO_CHANGES, *steps):
            self.prepared(changes, *[0] * len(self.residues))

    def words(self, problem: Words) -> Words:
        """Return the words of a plan."""
        return self._make(problem)

    def runner(self, words: Words) -> Callable[..., int]:
        """Return what runs the words of a plan, with all kernels loaded."""
        # It imports the CUDA driver's bindings, which plans do without.
        from kernels_cuda.runtime.launch import Launches, load  # noqa: PLC0415

        return Launches(words, lambda key: load(self._kernels.variant_of(key), self._target))

    def step(self, changes: Mapping[int, int], *arguments: int) -> int:
        """Put a step on a stream, the first of the arguments; see `ProblemPlan.step`."""
        return self.prepared(changes, *arguments[1:])(*arguments)


def device_plan(
    kernels: ModuleType,
    problem: Problem,
    target: Target,
    policy: Sequence[int] | None = None,
    steps: Sequence[Mapping[int, int]] = (),
) -> DevicePlan:
    """Return the plan of an operator that has a plan for every problem whose operands fit into memory.

    Parameters
    ----------
    kernels, problem, target, steps
        See `DevicePlan`.
    policy : sequence of int, optional
        Other thresholds than the usual ones.
    """
    measured = [kernels.measured_on(target)] if hasattr(kernels, "measured_on") else []

    def make(words: Words) -> Words:
        device = kernels.plan_device(target)
        if policy is not None:
            device[-len(policy) :] = policy
        status, out = planned_for(target, kernels.PLAN, words, device, *measured)
        if status == TOO_LONG:
            operator = kernels.__name__.rpartition(".")[2]
            msg = f"{operator}: got too many elements; no GPU has memory for so many"
            raise MemoryError(msg)
        return out

    return DevicePlan(kernels, problem, target, make, steps)
