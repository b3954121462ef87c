"""The algorithms that CUDA plans choose between, and the settings that force each of them.

They are forced by arguments of plans: a policy with other shapes or limits and, for `top_k`, an algorithm.
Inside `forced`, earlier plans are forgotten.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

from dmlops.calls.call_cache import CALLS
from kernels_cuda import diagonal_matrix, gather_nd, nonzero_coordinates, top_k
from kernels_cuda.runtime.variant import capability_of
from kernels_cuda.top_k.shared.policy import BLOCK_THREADS, PARTITION_SHAPES, Policy, block_shape
from kernels_cuda.top_k.shared.shapes import PartitionShape

ENDLESS = 1 << 62


class CannotServeError(Exception):
    """Raised where a forced algorithm does not serve a problem."""


class Choice(NamedTuple):
    """A name, an operator, and the arguments of its plans that force this choice.

    `arguments` takes the element size and the target that a plan is made for.
    """

    name: str
    operator: Any
    arguments: Callable[[int, Any], dict[str, Any]]

    def __str__(self) -> str:
        return self.name


@contextmanager
def forced(choice):
    """Have CUDA problems solved by a choice; None for the one that plans make."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(CALLS, _calls=OrderedDict(), _latest=OrderedDict()))
        if choice:
            stack.enter_context(mock.patch.object(choice.operator, "plan", _forced_plan(choice)))
        yield


def _forced_plan(choice):
    """Return an operator's `plan` with the arguments of a choice."""
    plan = choice.operator.plan

    def forced_plan(problem, target):
        try:
            return plan(problem, target, **choice.arguments(problem.element_size, target))
        except ValueError as error:
            raise CannotServeError(str(error)) from error

    return forced_plan


def _top_k(name, algorithm=None, changes=None, multiprocessors=None):
    def arguments(element_size, target):
        policy = Policy.auto(capability_of(target.arch), element_size)
        # Block shapes are made from the policy that they replace.
        values = {
            name: value(policy) if callable(value) else value for name, value in (changes or {}).items()
        }
        policy = policy.changed(values)
        if multiprocessors is not None:
            target = target._replace(multiprocessors=multiprocessors)
        return {"algorithm": algorithm, "policy": policy, "target": target}

    return Choice(name, top_k, arguments)


def _choice(operator, name, *, multiprocessors=None, **thresholds):
    """Return a choice of an operator whose policy is the same for all problems."""

    def arguments(element_size, target):
        if multiprocessors is not None:
            target = target._replace(multiprocessors=multiprocessors)
        return {"policy": operator.Policy(**thresholds), "target": target}

    return Choice(name, operator, arguments)


# Masks are made, however small the input.
_nonzero = functools.partial(_choice, nonzero_coordinates, small_elements=0)
_gather = functools.partial(_choice, gather_nd)
_diagonal = functools.partial(_choice, diagonal_matrix)


def _blocks_of(n_threads: int) -> dict[str, Any]:
    """Give all rows blocks of one size."""

    def shapes(policy):
        return (block_shape(policy.element_size, n_threads, policy.block_bytes),) * len(BLOCK_THREADS)

    return {"block.shapes": shapes}


def _tiles_from(n_threads: int) -> dict[str, Any]:
    """Leave out smaller tiles, but of elements that have none as large."""

    def shapes(policy):
        tiles = policy.tile.shapes
        return tuple(tile for tile in tiles if tile.n_threads >= n_threads) or tiles[-1:]

    return {"tile.shapes": shapes}


def _partitions_of(number: int) -> dict[str, Any]:
    """Give all rows that a block holds blocks of one shape, by its number."""

    def shapes(policy):
        return (PartitionShape(*PARTITION_SHAPES[policy.element_size][number]),)

    names = ("shapes", "shapes_of_few_rows", "shapes_of_few_sorted_rows")
    return {f"partition.{name}": shapes for name in names}


_NO_VECTORS = {"strided_run_bytes": ENDLESS, "unaligned_run_units": ()}
_NO_UNIT_GROUPS = {"block.unit_groups_per_thread": 0, "block.unit_fine_groups": 0}
# Rows of any length, begun with coarse groups.
_COARSE = {"block.unit_fine_groups": 0, "block.fine_bytes": 0}
# Parts of which a block still takes what is selected, up to 4096 elements of each.
_PARTS = {"grid.part_elements": 1 << 15}
# Rows of any layout, read as if they lay side by side.
_TRANSPOSED = {"transposed_rows": 1}
_FEW_BLOCKS = {"launch_blocks": 7}

ALGORITHMS = {
    "top_k": (
        *(_top_k(str(algorithm), algorithm) for algorithm in top_k.Algorithm),
        *(_top_k(f"block-{n}", "block", _blocks_of(n)) for n in BLOCK_THREADS),
        _top_k("block-staggered", "block", {"block.staggered_bytes": 0, "block.staggered_waves": 0}),
        _top_k("grid-small_blocks", "grid", _blocks_of(256)),
        _top_k("grid-large_blocks", "grid", _blocks_of(1024)),
        _top_k("grid-no_unit_groups", "grid", _NO_UNIT_GROUPS),
        _top_k("grid-unit_coarse_groups", "grid", {"block.unit_fine_groups": 0}),
        _top_k("grid-four_chunks", "grid", {"grid.coarse_chunks": (4,), **_COARSE}),
        _top_k(
            "grid-two_chunks",
            "grid",
            {"grid.coarse_chunks": (2,), **_COARSE, "block.unit_groups_per_thread": 0},
        ),
        _top_k("grid-parts", "grid", _PARTS),
        _top_k("grid-parts-long_positions", "grid", {**_PARTS, "narrow_axis_elements": 0}),
        _top_k("grid-transposed", "grid", _TRANSPOSED),
        _top_k("grid-transposed-parts", "grid", _TRANSPOSED | _PARTS),
        _top_k("grid-transposed-many_launches", "grid", _TRANSPOSED | _FEW_BLOCKS),
        _top_k("grid-strided", "grid", {"transposed_rows": ENDLESS}),
        *(_top_k(f"tile-{n}", "tile", _tiles_from(n)) for n in (384, 512, 1024)),
        *(_top_k(f"partition-{n}", "partition", _partitions_of(n)) for n in range(len(PARTITION_SHAPES[4]))),
        _top_k("one_pass-1024", "one_pass", {"one_pass.n_threads": 1024}),
        *(_top_k(f"cluster-{n}", "cluster", {"cluster.blocks": (n,)}) for n in (4, 8)),
        _top_k("columns-stacked", "columns", {"columns.longest_part": 1 << 12}),
        _top_k("sort-long_positions", "sort", {"sort.narrow_elements": 0}),
        _top_k("sort-few_rows_at_a_time", "sort", {"sort.batch_bytes": 1 << 20}),
        _top_k("one_multiprocessor", multiprocessors=1),
        _top_k("many_launches", changes=_FEW_BLOCKS),
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
        _gather("unaligned", unaligned_run_units=((1, 1), (2, 1), (4, 1), (8, 1)), unaligned_units=1),
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
