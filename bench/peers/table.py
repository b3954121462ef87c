"""The table of contenders, and what each of them is given."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bench.workloads import CPU, CUDA

OURS = "dmlops"
INDICES_ALONE = "indices alone"
BOTH = (CPU, CUDA)
Call = Callable[[], Any]


class Contract(StrEnum):
    """The kinds of answers of top_k, from the most that a user can rely on to the least."""

    STABLE = "sorted and stable"
    SORTED = "sorted"
    ANY = "any order"
    OPEN = "indices alone, or wrong"


@dataclass(frozen=True)
class Task:
    """A workload with its arrays: NumPy arrays on the CPU, torch tensors on a GPU."""

    workload: Any
    inputs: tuple[Any, ...]

    @property
    def x(self) -> Any:
        return self.inputs[0]


Preparation = Callable[[Task], Call]


@dataclass(frozen=True)
class Contender:
    name: str
    operator: str
    devices: tuple[str, ...]
    note: str
    """How its answer or its form differs from that of dmlops."""
    prepare: Preparation

    @property
    def library(self) -> str:
        return library_of(self.name)

    @property
    def is_ours(self) -> bool:
        return self.library == OURS

    @property
    def is_spared(self) -> bool:
        """Whether part of the work is left out. It is shown, but does not count as the best peer."""
        return INDICES_ALONE in self.note

    @property
    def has_own_stream(self) -> bool:
        """Whether events on the default stream do not see its GPU work."""
        return self.library == "jax"

    def contract(self, is_sorted: bool) -> Contract:
        """Return the kind of its answers, if it is asked for the order of values, or for any order."""
        if self.is_spared:
            return Contract.OPEN
        if not is_sorted:
            return Contract.ANY
        return Contract.SORTED if "ties in any order" in self.note else Contract.STABLE


def library_of(contender: str) -> str:
    """Return the library that a contender belongs to: the first word of its name."""
    return contender.partition(" ")[0].partition(".")[0]


TABLE: list[Contender] = []


def contender(
    name: str, operator: str, devices: tuple[str, ...], note: str = ""
) -> Callable[[Preparation], Preparation]:
    """Return a decorator that adds a contender; it decorates the function that prepares its calls."""

    def add(prepare: Preparation) -> Preparation:
        TABLE.append(Contender(name, operator, devices, note, prepare))
        return prepare

    return add


def contenders(operator: str, device: str) -> list[Contender]:
    """Return the contenders of one operator on one device: dmlops first, JAX, which compiles, last."""
    found = [who for who in TABLE if who.operator == operator and device in who.devices]
    return sorted(found, key=lambda who: (not who.is_ours, who.has_own_stream))
