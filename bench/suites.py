"""The suites that `python -m bench run --suite NAME` measures.

A new suite is a function that yields the workloads of a device, and one line in `SUITES`. A new operator has
a class in `workloads`, contenders in `peers`, and its answers checked in `answers`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench import sweeps
from bench.operators import operators
from bench.peers import OURS, contenders
from bench.records import SORTS, Record, least_of
from bench.rows import rows
from bench.runner import Pace
from bench.sampling import sampling
from bench.serving import serving
from bench.sweeps import Finding, Sweep
from bench.workloads import CPU, CUDA, Workload

# On the host, NumPy checks the answers of sweeps up to this size; a GPU checks all of them.
CHECKED_SIZE = 1 << 21
BRIEF = 0.02  # seconds for the samples of a contender where there are hundreds of problems


@dataclass(frozen=True)
class Suite:
    """Problems that are measured together."""

    make: Callable[[str], Iterable[Workload | Sweep]]
    """Returns the workloads of a device, or its sweeps."""
    seconds: dict[str, float]
    """How long it takes to measure all of them, by device."""
    has_peers: bool = False
    """Whether other libraries are timed as well."""
    has_contests: bool = False
    """Whether peers compete with those whose answers are like theirs."""
    is_brief: bool = True
    """Whether each problem is timed only briefly."""

    def workloads(self, device: str) -> list[Workload]:
        """Return the problems of a device, in the order in which they are measured."""
        found: list[Workload] = []
        for each in self.make(device):
            found += each.points if isinstance(each, Sweep) else [each]
        return found

    def pace(self, device: str) -> Pace:
        """Return how thoroughly each problem is measured."""
        if not self.is_brief:
            return Pace()
        return Pace(BRIEF, patience=0.25, checked_size=CHECKED_SIZE if device == CPU else float("inf"))

    def contenders(self, device: str) -> set[str]:
        """Return the names of those who are timed on a device."""
        names = {who.name for each in self.workloads(device) for who in contenders(each.operator, device)}
        left_out = SORTS if self.has_contests else ()
        return names - {*left_out} if self.has_peers else {OURS}

    def compared(self, device: str, rows: Iterable[Record]) -> list[Finding]:
        """Compare the points of the suite's sweeps; a suite of single problems has none."""
        found = [each for each in self.make(device) if isinstance(each, Sweep)]
        return sweeps.compared(found, {row["name"]: seconds for row in rows if (seconds := least_of(row))})


SUITES = {
    "operators": Suite(operators, {CPU: 420.0, CUDA: 200.0}, has_peers=True, is_brief=False),
    "serving": Suite(serving, {CPU: 1.0, CUDA: 900.0}, has_peers=True, has_contests=True),
    "sampling": Suite(sampling, {CPU: 60.0, CUDA: 60.0}, has_peers=True),
    "rows": Suite(rows, {CPU: 30.0, CUDA: 60.0}),
    "data": Suite(sweeps.kinds_of_data, {CPU: 240.0, CUDA: 150.0}),
    "layouts": Suite(sweeps.layouts, {CPU: 240.0, CUDA: 150.0}),
    "sizes": Suite(sweeps.sizes, {CPU: 240.0, CUDA: 150.0}),
}
