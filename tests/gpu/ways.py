"""The ways that CUDA plans choose between, and what has each of them taken.

Plans choose by the shape, with thresholds that are plain numbers of the planning modules. Inside `forced`,
these say something else, and calls that were planned before are forgotten.
"""

import functools
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import kernels_cuda.runtime.launch
from dmlops.call import CALLS
from dmlops.replay import REPLAYS
from kernels_cuda import diagonal_matrix, gather_nd, nonzero_coordinates, top_k
from kernels_cuda.top_k import plan_blocks, plan_columns, plan_grid, plan_sort, sort_shape, steps, tile_shape

ENDLESS = 1 << 62


class CannotServeError(Exception):
    """Raised where a forced way does not serve a problem."""


class Way(NamedTuple):
    """A name, and values for attributes of modules."""

    name: str
    settings: tuple[tuple[Any, str, Any], ...]

    def __str__(self) -> str:
        return self.name


@contextmanager
def forced(way):
    """Have CUDA problems solved this way; None for the one that is chosen."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(CALLS._calls, clear=True))
        stack.enter_context(mock.patch.dict(REPLAYS._replays, clear=True))
        for module, attribute, value in way.settings if way else ():
            stack.enter_context(mock.patch.object(module, attribute, value))
        yield


def _way(name: str, *settings: tuple[Any, str, Any]) -> Way:
    return Way(name, settings)


def _policy(operator: Any, **thresholds: Any) -> tuple[Any, str, Callable[..., Any]]:
    """Have an operator planned with other thresholds."""
    return operator, "plan", functools.partial(operator.plan, policy=operator.Policy(**thresholds))


def _nonzero(name: str, **thresholds: Any) -> Way:
    """Make masks, however small the input."""
    return _way(name, _policy(nonzero_coordinates, small_elements=0, **thresholds))


def _gather(name: str, **thresholds: Any) -> Way:
    return _way(name, _policy(gather_nd, **thresholds))


def _diagonal(name: str, **thresholds: Any) -> Way:
    return _way(name, _policy(diagonal_matrix, **thresholds))


def _variant(name: str) -> tuple[Any, str, Callable[..., Any]]:
    plan = top_k.plan

    def forced_plan(**problem):
        try:
            return plan(**problem, variant=name)
        except ValueError as error:
            raise CannotServeError(str(error)) from error

    return top_k, "plan", forced_plan


def _multiprocessors(number: int) -> tuple[Any, str, Callable[..., Any]]:
    real = kernels_cuda.runtime.launch.target

    @functools.cache
    def target(device_id):
        return real(device_id)._replace(multiprocessors=number)

    return kernels_cuda.runtime.launch, "target", target


def _blocks_of(n_threads: int) -> tuple[Any, str, tuple[int, ...]]:
    return plan_blocks, "BLOCK_THREADS", (n_threads,) * len(plan_blocks.BLOCK_THREADS)


def _tiles_from(n_threads: int) -> tuple[Any, str, dict[int, Any]]:
    """Leave out smaller tiles, but of elements that have none as large."""
    shapes = tile_shape.TILE_SHAPES.items()
    kept = {size: tuple(each for each in of_size if each[0] >= n_threads) for size, of_size in shapes}
    return tile_shape, "TILE_SHAPES", {size: kept[size] or of_size[-1:] for size, of_size in shapes}


_NO_VECTORS = {"strided_run_bytes": ENDLESS, "unaligned_run_units": ()}
_NO_SINGLE_KEYS = (plan_blocks, "SINGLE_KEYS_A_THREAD", 0), (plan_blocks, "LARGEST_SINGLE_FINE", 0)
# Rows of any length, begun with coarse groups.
_COARSE = (plan_blocks, "LARGEST_SINGLE_FINE", 0), (plan_blocks, "LARGEST_FINE_BYTES", 0)
# Parts whose winners, up to 4096 of each, a block still takes.
_PARTS = (plan_grid, "LARGEST_PART", 1 << 15)
# Rows of any layout, read as if they lay side by side.
_TURNED = (steps, "LEAST_NEIGHBOURS", 1)

WAYS = {
    "top_k": (
        *(_way(name, _variant(name)) for name in ("warp", "block", "grid", "columns", "tile", "sort")),
        *(_way(f"block-{n}", _variant("block"), _blocks_of(n)) for n in plan_blocks.BLOCK_THREADS),
        _way(
            "block-turns",
            _variant("block"),
            (plan_blocks, "LEAST_TURN_BYTES", 0),
            (plan_blocks, "LEAST_TURNS", 0),
        ),
        _way("grid-small_blocks", _variant("grid"), _blocks_of(256)),
        _way("grid-large_blocks", _variant("grid"), _blocks_of(1024)),
        _way("grid-no_single_keys", _variant("grid"), *_NO_SINGLE_KEYS),
        _way("grid-single_coarse_keys", _variant("grid"), (plan_blocks, "LARGEST_SINGLE_FINE", 0)),
        _way("grid-four_chunks", _variant("grid"), (plan_grid, "COARSE_CHUNKS", (4,)), *_COARSE),
        _way(
            "grid-two_chunks",
            _variant("grid"),
            (plan_grid, "COARSE_CHUNKS", (2,)),
            *_COARSE,
            (plan_blocks, "SINGLE_KEYS_A_THREAD", 0),
        ),
        _way("grid-parts", _variant("grid"), _PARTS),
        _way("grid-parts-long_positions", _variant("grid"), _PARTS, (plan_grid, "LARGEST_NARROW_AXIS", 0)),
        _way("grid-turned", _variant("grid"), _TURNED),
        _way("grid-turned-parts", _variant("grid"), _TURNED, _PARTS),
        _way("grid-turned-many_launches", _variant("grid"), _TURNED, (steps, "LARGEST_GRID", 7)),
        _way("grid-strided", _variant("grid"), (steps, "LEAST_NEIGHBOURS", ENDLESS)),
        *(_way(f"tile-{n}", _variant("tile"), _tiles_from(n)) for n in (384, 512, 1024)),
        _way("columns-stacked", _variant("columns"), (plan_columns, "LONGEST_PART", 1 << 12)),
        _way("sort-long_positions", _variant("sort"), (sort_shape, "LARGEST_NARROW_ROW", 0)),
        _way("sort-few_rows_at_a_time", _variant("sort"), (plan_sort, "SORT_BYTES", 1 << 20)),
        _way("one_multiprocessor", _multiprocessors(1)),
        _way("many_launches", (steps, "LARGEST_GRID", 7), (plan_sort, "LARGEST_GRID", 7)),
    ),
    "nonzero_coordinates": (
        _nonzero("masks"),
        _nonzero("masks-transposed", transposed_rows=1),
        _nonzero("masks-strided", transposed_rows=ENDLESS),
        _nonzero("masks-small_tiles", most_granules_per_tile=1),
        _way("masks-large_tiles", _policy(nonzero_coordinates, small_elements=0), _multiprocessors(0)),
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
        _way("one_multiprocessor", _multiprocessors(1)),
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
