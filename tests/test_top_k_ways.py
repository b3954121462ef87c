"""Which way CUDA plans choose for rows that a block may sort; no kernel is loaded."""

import importlib
from unittest import mock

import pytest

pytest.importorskip("cuda.core")
planning = importlib.import_module("kernels_cuda.top_k.planning")
tile_shape = importlib.import_module("kernels_cuda.top_k.tile_shape")
Target = importlib.import_module("kernels_cuda.variant").Target

# The least that a block may have on devices of compute capability 8.0 and more.
LARGE_BLOCK_BYTES = 99 << 10


def chosen(element_size, axis_size, k, arch, n_rows=256, variant=None):
    """Return the way, and the threads of the blocks of its last launch."""
    steps = []

    def remember(name, workspace_size, given, target):
        steps.extend(given)
        return name

    ones = (1 << 8 * element_size) - 1
    with mock.patch.object(planning, "Plan", remember):
        name = planning.plan(
            element_size=element_size,
            index_size=4,
            sign=0,
            flip=0,
            infinity=ones,
            largest=True,
            k=k,
            axis_size=axis_size,
            rows=[(n_rows, axis_size, k, k)],
            axis_strides=(1, 1, 1),
            target=Target(0, arch, 132),
            variant=variant,
        )
    return name.split()[0], steps[-1].block


@pytest.mark.parametrize(
    ("element_size", "axis_size", "k", "way"),
    [
        (4, 2048, 2048, ("tile", 256)),
        (4, 6144, 256, ("tile", 384)),
        (4, 6145, 6145, ("tile", 512)),
        (4, 8192, 2048, ("block", 512)),
        (4, 8192, 2049, ("tile", 512)),
        (4, 8193, 4096, ("block", 512)),
        (4, 8193, 4097, ("tile", 1024)),
        (4, 16384, 4096, ("block", 512)),
        (4, 16384, 16384, ("tile", 1024)),
        (2, 16384, 2049, ("tile", 1024)),
        (1, 16384, 1025, ("tile", 1024)),
        (4, 16385, 16385, ("sort", 384)),
        (8, 4096, 4096, ("tile", 512)),
        (8, 16384, 16384, ("sort", 512)),
    ],
)
@pytest.mark.parametrize("arch", ["sm_86", "sm_90"])
def test_long_rows_of_many_winners_are_sorted_by_a_block(element_size, axis_size, k, way, arch):
    assert chosen(element_size, axis_size, k, arch) == way


def test_tiles_that_a_device_has_no_room_for():
    assert chosen(4, 8192, 8192, "sm_75") == ("tile", 512)
    assert chosen(4, 16384, 16384, "sm_75") == ("sort", 384)
    with pytest.raises(ValueError, match="variant 'tile' does not take rows of 8193"):
        chosen(4, 8193, 8193, "sm_75", variant="tile")


def test_every_tile_fits_into_large_blocks():
    for element_size, shapes in tile_shape.TILE_SHAPES.items():
        for shape in shapes:
            assert tile_shape.shared_bytes(element_size, *shape) <= LARGE_BLOCK_BYTES
