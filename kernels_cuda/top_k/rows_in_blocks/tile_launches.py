"""The launches of `tile`, and what they and its kernel agree on."""

from collections.abc import Iterator
from dataclasses import dataclass

from kernels_cuda.runtime.variant import Variant
from kernels_cuda.top_k.problem import Problem
from kernels_cuda.top_k.shared.launches import (
    Algorithm,
    Launch,
    Policy,
    UnservedError,
    Workspace,
    launch_rows,
    row_parameters,
    variant,
)
from kernels_cuda.top_k.shared.shapes import N_DIGITS, TILE_SUMS, WARP_LANES, TileShape

# The first shape that holds a row serves it. Positions are counted in 16 bits.
TILE_SHAPES = {
    **dict.fromkeys(
        (1, 2, 4), (TileShape(256, 8), TileShape(384, 16), TileShape(512, 16), TileShape(1024, 16))
    ),
    8: (TileShape(256, 8), TileShape(512, 8), TileShape(1024, 8)),
}


@dataclass(frozen=True, kw_only=True)
class TilePolicy(Policy):
    """Limits of `tile`."""

    # Smaller blocks are left out where there are larger ones.
    fewest_threads: int = 0


def dynamic_bytes(shape: TileShape, element_size: int) -> int:
    """Return the dynamic shared memory in which a block exchanges keys, then positions."""
    return shape.n_elements * max(4, element_size)


def tile_bytes(shape: TileShape, element_size: int) -> int:
    """Return all shared memory of a block: it also counts digits per warp, in 16 bits, and adds them."""
    own_bytes = shape.n_threads // WARP_LANES * N_DIGITS * 2 + TILE_SUMS * 4
    return dynamic_bytes(shape, element_size) + own_bytes


def _variant(element_size: int, shape: TileShape) -> Variant:
    needed = dynamic_bytes(shape, element_size)
    factory = "rows_in_blocks.tile:tile_kernel"
    return variant("tile", factory, element_size, *shape, dynamic_shared_bytes=needed)


def tile_variants(element_size: int) -> Iterator[Variant]:
    """List the kernels for an element size."""
    for shape in TILE_SHAPES[element_size]:
        yield _variant(element_size, shape)


def tile_launches(problem: Problem, policy: TilePolicy, workspace: Workspace) -> list[Launch]:
    """Sort every row in a block."""
    element_size, room = problem.element_size, problem.target.block_shared_bytes
    shapes = [shape for shape in TILE_SHAPES[element_size] if tile_bytes(shape, element_size) <= room]
    large = [shape for shape in shapes if shape.n_threads >= policy.fewest_threads] or shapes[-1:]
    shape = next((shape for shape in large if problem.axis_size <= shape.n_elements), None)
    if shape is None:
        raise UnservedError(problem, "tile")
    launch = Launch(
        _variant(element_size, shape),
        problem.n_rows,
        shape.n_threads,
        (),
        row_parameters(problem),
        dynamic_bytes(shape, element_size),
    )
    return launch_rows(launch, problem, policy, workspace)


TILE = Algorithm(tile_launches, tile_variants, TilePolicy(), orders_by_index=False)
