"""A planned problem, ready to be launched."""

from typing import TYPE_CHECKING

from kernels_cpu.plan_words import ALGORITHM, MAX_WORDS, N_LAUNCHES, WORKSPACE
from kernels_cpu.problems import SampleProblem
from kernels_cpu.sample.problem_words import problem_words
from kernels_cuda.device_words import device_words
from kernels_cuda.runtime.variant import Target
from kernels_cuda.sample.parameters import sample_variant
from kernels_cuda.sample.plan import Policy
from kernels_cuda.sample.plan import plan as plan_of_words

if TYPE_CHECKING:
    from kernels_cuda.runtime.launch import LaunchList

_NAMES = ("nothing to write", "one block per row", "one cluster of blocks per row")


class Plan:
    """A problem with its kernel; see `plan`."""

    def __init__(self, name: str, words: list[int], launches: "LaunchList") -> None:
        self.variant, self.workspace_size = name, words[WORKSPACE]
        self._launches = launches

    def launches(self, *_: int) -> "LaunchList":
        """Return what `launch` launches, for any addresses."""
        return self._launches

    def launch(self, stream: int, *addresses: int) -> None:
        """Write the tokens."""
        self._launches(stream, *addresses)


def plan(problem: SampleProblem, target: Target, policy: Policy | None = None) -> Plan:
    """Choose and load the kernel that draws the tokens.

    Parameters
    ----------
    problem : SampleProblem
        In `kernels_cpu.problems`.
    target : Target
        The device.
    policy : Policy, optional
        Other thresholds than the usual ones.
    """
    # It imports the CUDA driver's bindings, which plans do without.
    from kernels_cuda.runtime.launch import launch_list, load  # noqa: PLC0415

    words = [0] * (2 * MAX_WORDS)
    plan_of_words(problem_words(problem), [*device_words(target, len(words)), *(policy or Policy())], words)
    launches = launch_list(words, lambda key: load(sample_variant(key), target))
    algorithm = _NAMES[words[ALGORITHM]]
    name = (
        f"sample {8 * problem.element_size}-bit {algorithm}" if words[N_LAUNCHES] else f"sample: {algorithm}"
    )
    return Plan(name, words, launches)
