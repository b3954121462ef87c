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
from dmlops.call_cache import CALLS
from kernels_cuda import diagonal_matrix, gather_nd, layout, nonzero_coordinates, top_k
from kernels_cuda.diagonal_matrix import plan_turned as diagonal_turned
from kernels_cuda.gather_nd import plan_plain, plan_strided, problem
from kernels_cuda.nonzero_coordinates import plan_turned
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
        stack.enter_context(mock.patch.dict(CALLS._entries, clear=True))
        for module, attribute, value in way.settings if way else ():
            stack.enter_context(mock.patch.object(module, attribute, value))
        yield


def _way(name: str, *settings: tuple[Any, str, Any]) -> Way:
    return Way(name, settings)


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


_MASKS = (nonzero_coordinates, "SMALL_LIMIT", 0)
_UNITS = (plan_plain, "LARGEST_STRIDE", -1)
_NO_VECTORS = (
    (plan_strided, "LEAST_RUN_BYTES", ENDLESS),
    (plan_strided, "LEAST_SHIFTED_UNITS", ()),
)
_WIDE = (layout, "NARROW_LIMIT", 0)
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
        _way("masks", _MASKS),
        _way("masks-turned", _MASKS, (plan_turned, "LEAST_ROWS", 1)),
        _way("masks-strided", _MASKS, (plan_turned, "LEAST_ROWS", ENDLESS)),
        _way("masks-small_tiles", _MASKS, (nonzero_coordinates, "MAX_GRANULES_A_TILE", 1)),
        _way("masks-large_tiles", _MASKS, _multiprocessors(0)),
        _way("scan", _MASKS, (nonzero_coordinates, "DIRECT_LIMIT", 0)),
        _way("scan-wide", _MASKS, (nonzero_coordinates, "DIRECT_LIMIT", 0), _WIDE),
        _way("wide", _MASKS, _WIDE, (nonzero_coordinates, "NARROW_LIMIT", 0)),
    ),
    "gather_nd": (
        _way("few", (plan_plain, "FEW_UNITS", ENDLESS), *_NO_VECTORS),
        _way("plain", (plan_plain, "FEW_UNITS", 0), *_NO_VECTORS),
        _way("strided", _UNITS, (plan_strided, "LEAST_RUN_BYTES", 1)),
        _way(
            "shifted",
            (plan_strided, "LEAST_SHIFTED_UNITS", ((1, 1), (2, 1), (4, 1), (8, 1))),
            (plan_strided, "LEAST_SHIFTED_UNITS_ALL", 1),
        ),
        _way("units", _UNITS, *_NO_VECTORS),
        _way("wide", _UNITS, (layout, "NARROW_LIMIT", 64), (gather_nd, "NARROW_LIMIT", 64)),
        _way("long_registers", _UNITS, (problem, "SHORT_BOUND", 0)),
        _way("one_multiprocessor", _multiprocessors(1)),
    ),
    "diagonal_matrix": (
        _way("elements", (diagonal_matrix, "_MIN_ROW_BYTES", ENDLESS)),
        _way("elements-wide", (diagonal_matrix, "_MIN_ROW_BYTES", ENDLESS), _WIDE),
        _way("short_rows", (diagonal_matrix, "_MIN_ROW_BYTES", 1)),
        _way("turned", (diagonal_matrix, "_MIN_ROW_BYTES", 1), (diagonal_turned, "LEAST_ROWS", 1)),
        _way("strided", (diagonal_matrix, "_MIN_ROW_BYTES", 1), (diagonal_turned, "LEAST_ROWS", ENDLESS)),
        _way(
            "many_launches",
            (diagonal_matrix, "_MAX_VECTORS", 1 << 14),
            # A row must fit into a launch, one vector more than its bytes fill included.
            (diagonal_matrix, "_MAX_ROW_BYTES", ((1 << 14) - 1) * 16),
        ),
    ),
}
