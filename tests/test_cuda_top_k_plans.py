"""Which way of top-k on CUDA is chosen along an axis that is not the last; needs no GPU."""

import importlib

import pytest

pytest.importorskip("cuda.core")
planning = importlib.import_module("kernels_cuda.top_k.planning")
plan_blocks = importlib.import_module("kernels_cuda.top_k.plan_blocks")
rows_of = importlib.import_module("kernels_cuda.top_k.rows")
steps = importlib.import_module("kernels_cuda.top_k.steps")


def problem_of(outer, axis_size, inner, k, element_size=4):
    """Describe a selection along the middle axis of packed elements."""
    rows = [(outer, axis_size * inner, k * inner, k * inner), (inner, 1, 1, 1)]
    rows, n_neighbours = rows_of.columns_last([row for row in rows if row[0] > 1], inner)
    return steps.Problem(
        element_size=element_size,
        index_size=8,
        masks=(0,) * 6,
        numbers=(0,) * 8,
        k=k,
        axis_size=axis_size,
        n_rows=outer * inner,
        n_neighbours=n_neighbours,
        layout=rows_of.row_layout(rows),
        axis_strides=(inner, inner, inner),
        multiprocessors=132,
        block_shared_bytes=227 << 10,
    )


@pytest.mark.parametrize(
    ("shape", "k", "way"),
    [
        ((1, 50_257, 256), 50, "grid"),
        ((256, 50_257, 1), 50, "block"),
        ((64, 50_257, 4), 50, "block"),  # too few neighbours
        ((1, 50_257, 256), 1000, "block"),  # too few groups for each winner
        ((1, 4096, 32), 8, "block"),  # too little to read
        ((1, 65_536, 8192), 16, "columns"),
        ((1, 65_536, 8192), 100, "grid"),
        ((8, 10_000, 1000), 64, "grid"),
        ((1, 1024, 4096), 20, "warp"),
    ],
)
def test_way(shape, k, way):
    assert planning._choose(problem_of(*shape, k)) == way


@pytest.mark.parametrize("element_size", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("shape", "k"), [((1, 50_257, 256), 50), ((3, 5000, 700), 4), ((2, 4200, 999), 8), ((1, 1 << 33, 16), 50)]
)
def test_rows_side_by_side(shape, k, element_size):
    problem = problem_of(*shape, k, element_size)
    workspace = steps.Workspace()
    names = [step.variant.name for step in plan_blocks.grid_steps(problem, workspace)]
    assert names[0] == "top_k_maxima_turned"
    assert set(names) == {"top_k_maxima_turned", "top_k_block"}
    if plan_blocks.is_turned(problem):
        assert workspace.size <= problem.n_rows * problem.axis_size * element_size // 4
