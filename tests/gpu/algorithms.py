"""The algorithms that CUDA plans choose between, and what has each of them taken.

`top_k` is forced by arguments of its plans: an algorithm, and a policy with other thresholds. The other
operators choose by plain numbers of their modules, which say something else inside `forced`. Calls that were
planned before are forgotten there.
"""

import functools
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import kernels_cuda.runtime.launch
from dmlops.call import CALLS
from dmlops.replay import REPLAYS
from kernels_cuda import diagonal_matrix, gather_nd, layout, nonzero_coordinates, top_k
from kernels_cuda.diagonal_matrix import plan_turned as diagonal_turned
from kernels_cuda.gather_nd import plan_plain, plan_strided, problem
from kernels_cuda.nonzero_coordinates import plan_turned
from kernels_cuda.runtime.variant import capability_of
from kernels_cuda.top_k.policy import BLOCK_THREADS, Policy, block_shape

ENDLESS = 1 << 62


class CannotServeError(Exception):
    """Raised where a forced algorithm does not serve a problem."""


class Choice(NamedTuple):
    """A name, and what forces this choice: values for attributes of modules, or arguments of `top_k.plan`."""

    name: str
    settings: tuple[tuple[Any, str, Any], ...] = ()
    arguments: Callable[[int, Any], dict[str, Any]] | None = None

    def __str__(self) -> str:
        return self.name


@contextmanager
def forced(choice):
    """Have CUDA problems solved by a choice; None for the one that plans make."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(CALLS._calls, clear=True))
        stack.enter_context(mock.patch.dict(REPLAYS._replays, clear=True))
        for module, attribute, value in choice.settings if choice else ():
            stack.enter_context(mock.patch.object(module, attribute, value))
        if choice and choice.arguments:
            stack.enter_context(mock.patch.object(top_k, "plan", _forced_plan(choice)))
        yield


def _forced_plan(choice):
    """Return `top_k.plan` with the arguments of a choice."""
    plan = top_k.plan

    def forced_plan(**problem):
        given = problem | choice.arguments(problem["element_size"], problem["target"])
        try:
            return plan(**given)
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

    return Choice(name, arguments=arguments)


def _patched(name: str, *settings: tuple[Any, str, Any]) -> Choice:
    return Choice(name, settings)


def _multiprocessors(number: int) -> tuple[Any, str, Callable[..., Any]]:
    real = kernels_cuda.runtime.launch.target

    @functools.cache
    def target(device_id):
        return real(device_id)._replace(multiprocessors=number)

    return kernels_cuda.runtime.launch, "target", target


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


_MASKS = (nonzero_coordinates, "SMALL_LIMIT", 0)
_UNITS = (plan_plain, "LARGEST_STRIDE", -1)
_NO_VECTORS = (
    (plan_strided, "LEAST_RUN_BYTES", ENDLESS),
    (plan_strided, "LEAST_SHIFTED_UNITS", ()),
)
_WIDE = (layout, "NARROW_LIMIT", 0)
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
        _top_k("columns-stacked", "columns", {"columns.longest_part": 1 << 12}),
        _top_k("sort-long_positions", "sort", {"sort.narrow_elements": 0}),
        _top_k("sort-few_rows_at_a_time", "sort", {"sort.batch_bytes": 1 << 20}),
        _top_k("one_multiprocessor", multiprocessors=1),
        _top_k("many_launches", changes=_FEW_BLOCKS),
    ),
    "nonzero_coordinates": (
        _patched("masks", _MASKS),
        _patched("masks-turned", _MASKS, (plan_turned, "LEAST_ROWS", 1)),
        _patched("masks-strided", _MASKS, (plan_turned, "LEAST_ROWS", ENDLESS)),
        _patched("masks-small_tiles", _MASKS, (nonzero_coordinates, "MAX_GRANULES_A_TILE", 1)),
        _patched("masks-large_tiles", _MASKS, _multiprocessors(0)),
        _patched("scan", _MASKS, (nonzero_coordinates, "DIRECT_LIMIT", 0)),
        _patched("scan-wide", _MASKS, (nonzero_coordinates, "DIRECT_LIMIT", 0), _WIDE),
        _patched("wide", _MASKS, _WIDE, (nonzero_coordinates, "NARROW_LIMIT", 0)),
    ),
    "gather_nd": (
        _patched("few", (plan_plain, "FEW_UNITS", ENDLESS), *_NO_VECTORS),
        _patched("plain", (plan_plain, "FEW_UNITS", 0), *_NO_VECTORS),
        _patched("strided", _UNITS, (plan_strided, "LEAST_RUN_BYTES", 1)),
        _patched(
            "shifted",
            (plan_strided, "LEAST_SHIFTED_UNITS", ((1, 1), (2, 1), (4, 1), (8, 1))),
            (plan_strided, "LEAST_SHIFTED_UNITS_ALL", 1),
        ),
        _patched("units", _UNITS, *_NO_VECTORS),
        _patched("wide", _UNITS, (layout, "NARROW_LIMIT", 64), (gather_nd, "NARROW_LIMIT", 64)),
        _patched("long_registers", _UNITS, (problem, "SHORT_BOUND", 0)),
        _patched("one_multiprocessor", _multiprocessors(1)),
    ),
    "diagonal_matrix": (
        _patched("elements", (diagonal_matrix, "_MIN_ROW_BYTES", ENDLESS)),
        _patched("elements-wide", (diagonal_matrix, "_MIN_ROW_BYTES", ENDLESS), _WIDE),
        _patched("short_rows", (diagonal_matrix, "_MIN_ROW_BYTES", 1)),
        _patched("turned", (diagonal_matrix, "_MIN_ROW_BYTES", 1), (diagonal_turned, "LEAST_ROWS", 1)),
        _patched("strided", (diagonal_matrix, "_MIN_ROW_BYTES", 1), (diagonal_turned, "LEAST_ROWS", ENDLESS)),
        _patched(
            "many_launches",
            (diagonal_matrix, "_MAX_VECTORS", 1 << 14),
            # A row must fit into a launch, one vector more than its bytes fill included.
            (diagonal_matrix, "_MAX_ROW_BYTES", ((1 << 14) - 1) * 16),
        ),
    ),
}
