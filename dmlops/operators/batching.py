"""Batching rules: how calls on all examples of a batch become one call of the operator.

A rule knows shapes and the arguments of a call, and neither arrays nor frameworks.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple

BATCH = -1
"""Stands for the dimension of the batch in a layout."""

Layout = Sequence[int | None]
"""For each dimension of an array: a dimension of an example, `BATCH`, or None for a new one of size 1."""


class Batched(NamedTuple):
    """The one call for a whole batch."""

    layouts: Mapping[str, Layout]
    """How arrays are laid out, by parameter; an array without a layout is passed as it is. One that has no
    batch is repeated along `BATCH`."""
    changes: Mapping[str, int] = MappingProxyType({})
    """The arguments that differ from those of an example."""
    batch_dim: int = 0
    """The dimension of the results that is the batch."""


BatchingRule = Callable[[Mapping[str, Sequence[int]], Set[str], Any], Batched]
"""Takes the shapes of an example's arrays by parameter, the names of batched ones, and the arguments."""


def batch_in_front(shapes: Mapping[str, Sequence[int]], batched: Set[str], arguments: object) -> Batched:
    """Return the call of an operator that treats its only array as a batch anyway."""
    return Batched({name: (BATCH, *range(len(shape))) for name, shape in shapes.items()})
