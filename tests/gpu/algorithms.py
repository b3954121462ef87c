"""The algorithms that CUDA plans choose between, and the settings that force each of them.

`DMLOPS_TOP_K_ALGORITHM` forces one of `top_k`; arguments of plans set other shapes or limits. Both are read
when a call is planned: inside `forced`, earlier plans are forgotten.
"""

import functools
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

from tests.inside import (
    block_launches,
    cuda_kernels,
    partition_launches,
    top_k_dispatch,
    top_k_policy,
)
from tests.kept_calls import nothing_known

__all__ = ["ALGORITHMS", "CannotServeError", "Choice", "forced"]

diagonal_matrix, gather_nd, nonzero_coordinates, top_k = map(
    cuda_kernels, ("diagonal_matrix", "gather_nd", "nonzero_coordinates", "top_k")
)
CannotServeError = top_k_dispatch.UnservedError
ENDLESS = 1 << 62


class Choice(NamedTuple):
    """A name, an operator, and what forces this choice: an algorithm's name, and shapes or limits.

    `limits` takes the target that a plan is made for, and returns arguments of the plan.
    """

    name: str
    operator: Any
    limits: Callable[[Any], dict[str, Any]] | None
    algorithm: str = ""

    def arguments(self, target):
        """Return all arguments of a plan that force this choice."""
        named = {"algorithm": self.algorithm} if self.algorithm else {}
        return named | (self.limits(target) if self.limits else {})

    def __str__(self) -> str:
        return self.name


@contextmanager
def forced(choice):
    """Have CUDA problems solved by a choice; None for the one that plans make."""
    with ExitStack() as stack:
        # Compiled plans have the usual limits.
        stack.enter_context(nothing_known(are_native=not (choice and choice.limits)))
        if choice:
            stack.enter_context(mock.patch.dict("os.environ", DMLOPS_TOP_K_ALGORITHM=choice.algorithm))
        if choice and choice.limits:
            plan = choice.operator.plan

            def plan_as_forced(problem, target):
                return plan(problem, **{"target": target} | choice.limits(target))

            stack.enter_context(mock.patch.object(choice.operator, "plan", plan_as_forced))
        yield


def _top_k(name, algorithm="", multiprocessors=None, **changes):
    def limits(target):
        if multiprocessors is not None:
            target = target._replace(multiprocessors=multiprocessors)
        return {"changes": changes, "target": target}

    return Choice(name, top_k, limits if changes or multiprocessors else None, algorithm)


def _choice(operator, name, *, multiprocessors=None, **thresholds):
    """Return a choice of an operator whose policy is the same for all problems."""

    def limits(target):
        if multiprocessors is not None:
            target = target._replace(multiprocessors=multiprocessors)
        return {"policy": operator.Policy(**thresholds), "target": target}

    return Choice(name, operator, limits)


# Masks are made, however small the input.
_nonzero = functools.partial(_choice, nonzero_coordinates, small_elements=0)
_gather = functools.partial(_choice, gather_nd)
_diagonal = functools.partial(_choice, diagonal_matrix)


def _blocks_of(n_threads: int) -> dict[str, Any]:
    """Give all rows blocks of one size."""
    return {"only_block_threads": n_threads}


def _partitions_of(number: int) -> dict[str, Any]:
    """Give all rows that a block holds blocks of one shape, by its number."""
    return dict.fromkeys(
        (name for name in top_k_policy.Policy._fields if name.startswith("partitions")), 1 << number
    )


def _unaligned_from(n_units: int) -> dict[str, int]:
    """Give the options that load unaligned runs of `n_units` units and more as vectors."""
    return {f"unaligned_units_of_{size}": n_units for size in (1, 2, 4, 8)}


_NO_VECTORS = {"strided_run_bytes": ENDLESS, **_unaligned_from(ENDLESS)}
# Parts from which one block can still take all selected elements, up to 4096 of each.
_PARTS = {"part_elements": 1 << 15}
# Rows of any layout, read as if they lay side by side.
_TRANSPOSED = {"transposed_rows": 1}
_FEW_BLOCKS = {"launch_blocks": 7}
# Rows of any length, with any k.
_FILTERED = {"filtered_bytes": 0, "kept_share": 1}

ALGORITHMS = {
    "top_k": (
        *(_top_k(name, name) for name in top_k.ALGORITHMS),
        *(_top_k(f"block-{n}", "block", **_blocks_of(n)) for n in block_launches.BLOCK_THREADS),
        _top_k("grid-small_blocks", "grid", **_blocks_of(256)),
        _top_k("grid-large_blocks", "grid", **_blocks_of(1024)),
        _top_k("grid-no_unit_groups", "grid", unit_groups_per_thread=0),
        _top_k("grid-coarse_groups", "grid", unit_groups_per_thread=0, fine_bytes=0),
        _top_k("grid-parts", "grid", **_PARTS),
        _top_k("grid-parts-long_positions", "grid", narrow_axis_elements=0, **_PARTS),
        _top_k("grid-transposed", "grid", **_TRANSPOSED),
        _top_k("grid-transposed-parts", "grid", **_TRANSPOSED, **_PARTS),
        _top_k("grid-transposed-many_launches", "grid", **_TRANSPOSED, **_FEW_BLOCKS),
        _top_k("grid-strided", "grid", transposed_rows=ENDLESS),
        *(
            _top_k(f"partition-{n}", "partition", **_partitions_of(n))
            for n in range(len(partition_launches.PARTITION_THREADS))
        ),
        _top_k("partition-selected", "partition", sorted_share=0),
        _top_k("partition-whole_rows", "partition", sorted_share=1 << 20),
        _top_k("one_pass-1024", "one_pass", one_pass_small_threads=1024),
        *(_top_k(f"cluster-{n}", "cluster", cluster_blocks=n) for n in (4, 8)),
        _top_k("sort-long_positions", "sort", narrow_elements=0),
        _top_k("sort-few_rows_at_a_time", "sort", batch_bytes=1 << 20),
        _top_k("sort-filtered", "sort", **_FILTERED),
        _top_k("sort-selected", "sort", batch_bytes=1 << 16, **_FILTERED),
        _top_k("sort-in_results", "sort", batch_bytes=0, filtered_bytes=0),
        _top_k("sampled-few_rows_at_a_time", "sampled", batch_bytes=0),
        # Blocks that keep elements take several rounds of loads.
        _top_k(
            "sort-filtered-few_rows_at_a_time", "sort", multiprocessors=1, batch_bytes=1 << 20, **_FILTERED
        ),
        _top_k("one_multiprocessor", multiprocessors=1),
        _top_k("many_launches", **_FEW_BLOCKS),
    ),
    "nonzero_coordinates": (
        _nonzero("masks"),
        _nonzero("masks-transposed", transposed_rows=1),
        _nonzero("masks-strided", transposed_rows=ENDLESS),
        _nonzero("masks-small_tiles", most_granules_per_tile=1),
        _nonzero("masks-large_tiles", multiprocessors=0),
        _nonzero("scan", direct_granules=0),
        _nonzero("scan-wide", direct_granules=0, narrow_elements=0),
        _nonzero("wide", narrow_elements=0, narrow_rows=0),
    ),
    "gather_nd": (
        _gather("few", single_units=ENDLESS, **_NO_VECTORS),
        _gather("planar", single_units=0, **_NO_VECTORS),
        _gather("strided", planar_stride=-1, strided_run_bytes=1),
        _gather("unaligned", unaligned_units=1, **_unaligned_from(1)),
        _gather("units", planar_stride=-1, **_NO_VECTORS),
        _gather("wide", planar_stride=-1, narrow_elements=64),
        _gather("long_registers", planar_stride=-1, short_bound=0),
        _gather("one_multiprocessor", multiprocessors=1),
    ),
    "diagonal_matrix": (
        _diagonal("elements", vector_row_bytes=ENDLESS),
        _diagonal("elements-wide", vector_row_bytes=ENDLESS, narrow_elements=0),
        _diagonal("short_rows", vector_row_bytes=1),
        _diagonal("transposed", vector_row_bytes=1, transposed_rows=1),
        _diagonal("strided", vector_row_bytes=1, transposed_rows=ENDLESS),
        # A row must fit into a launch, one vector more than its bytes fill included.
        _diagonal("many_launches", launch_vectors=1 << 14, longest_row_bytes=((1 << 14) - 1) * 16),
    ),
}
EACH = [(operator, algorithm) for operator, algorithms in ALGORITHMS.items() for algorithm in algorithms]
