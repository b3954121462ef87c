"""One plan for each part of wide elements, run as a single plan."""

from collections.abc import Sequence
from typing import Any


class PartPlans:
    """Several plans, each of which writes one part of all elements.

    Parameters
    ----------
    plans : sequence of plan
        In the order of the parts.
    part_bytes : int
        How far the parts of an element are from each other.
    """

    def __init__(self, plans: Sequence[Any], part_bytes: int) -> None:
        self._plans, self._part_bytes = plans, part_bytes
        self.workspace_size = max(plan.workspace_size for plan in plans)
        self.variant = f"{len(plans)} parts of {part_bytes} bytes: {plans[0].variant}"

    def launch(self, *arguments: int) -> None:
        """Run all plans: ``launch([stream,] x, output, workspace)`` by address."""
        *stream, x, output, workspace = arguments
        for number, plan in enumerate(self._plans):
            at = number * self._part_bytes
            plan.launch(*stream, x + at if x else 0, output + at, workspace)

    def launches(self, *_: int) -> None:
        """Return None: there is no single list of launches."""
