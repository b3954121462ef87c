"""Launches of CUDA plans, without a GPU: they respect limits and do all the work exactly once."""

import math
from itertools import pairwise

import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("cuda.core")
from dmlops import DiagonalMatrix1, GatherND1, TensorDataType, TensorDesc
from tests import inside
from tests.cuda_plans import SHARED_BYTES, TOP_K, nonzero, planned, top_k

pytestmark = pytest.mark.quick

T = TensorDataType
LARGEST_GRID = (1 << 31) - 1
DEFAULT_SHARED_BYTES = 48 << 10
# Positions of more elements do not fit into 31 bits.
NARROW = 1 << 31


def gather(
    sizes,
    index_sizes,
    *,
    strides=None,
    output=None,
    index_type=T.INT64,
    index_strides=None,
    data_type=T.FLOAT32,
    batch=0,
):
    """Describe a gather."""
    rank = max(len(sizes), len(index_sizes))
    shape = (*index_sizes[:-1], *sizes[batch + index_sizes[-1] :])
    return GatherND1(
        input_tensor=TensorDesc(data_type, sizes, strides).with_leading_ones(max(rank, len(shape))),
        indices_tensor=TensorDesc(index_type, index_sizes, index_strides).with_leading_ones(
            max(rank, len(shape))
        ),
        output_tensor=TensorDesc(data_type, shape, output).with_leading_ones(max(rank, len(shape))),
        input_dimension_count=len(sizes),
        indices_dimension_count=len(index_sizes),
        batch_dimension_count=batch,
    )


def matrices(sizes, begin=0, end=1, *, strides=None, output=None, data_type=T.FLOAT32):
    """Describe a band."""
    return DiagonalMatrix1(
        input_tensor=TensorDesc(data_type, sizes, strides),
        output_tensor=TensorDesc(data_type, sizes, output),
        value=1,
        diagonal_fill_begin=begin,
        diagonal_fill_end=end,
    )


PROBLEMS = {
    **{f"top_k-{name}": lambda case=case: top_k(*case[:3]) for name, case in TOP_K.items()},
    "top_k-few_lanes_each": lambda: top_k((70_001, 70), 3),
    "nonzero": lambda: nonzero((100, 1000)),
    "nonzero-few": lambda: nonzero((10, 100)),
    "nonzero-2^33": lambda: nonzero(((1 << 33) + 3,)),
    "nonzero-transposed": lambda: nonzero((2000, 320), (1, 2000)),
    "nonzero-strided-2^32": lambda: nonzero((1 << 16, (1 << 16) + 1), (1 << 20, 3)),
    "gather": lambda: gather((5000, 64), (900, 1)),
    "gather-scalars": lambda: gather((5000, 64), (900, 2)),
    "gather-2^31": lambda: gather((5000, 3), ((1 << 31) + 1, 2), data_type=T.UINT8),
    "gather-2^32": lambda: gather((5000, 3), ((1 << 32) + 1, 2), data_type=T.UINT8),
    "gather-strides-of-31-bits": lambda: gather((5, 1 << 30, 3), (900, 2)),
    "gather-backwards": lambda: gather((5, 1 << 30, 3), (900, 2), strides=(-(3 << 30), -3, 1)),
    "gather-wide-bounds": lambda: gather(((1 << 32) + 5,), (900, 1), index_type=T.UINT32),
    "gather-slices": lambda: gather((40, 1 << 20), (9000, 1), strides=(1 << 22, 3)),
    "gather-unaligned": lambda: gather((50, 30_001), (9000, 1), data_type=T.UINT8),
    "gather-five-dimensions": lambda: gather(
        (3, 4, 5, 6, 7), (3, 9, 2), batch=1, strides=(9999, 2000, 300, 30, 2)
    ),
    "diagonal": lambda: matrices((7, 100, 1000)),
    "diagonal-2^33": lambda: matrices((1 << 10, 1 << 12, 1 << 11), -3, 9),
    "diagonal-one-of-2^36": lambda: matrices((1 << 18, 1 << 18), -3, 9),
    "diagonal-strided-2^33": lambda: matrices((1 << 10, 1 << 12, 1 << 11), strides=(1 << 25, 1 << 13, 2)),
    "diagonal-three-of-2^33": lambda: matrices((3, 1 << 18, 1 << 15), -3, 9),
    "diagonal-transposed": lambda: matrices((9, 500, 300), strides=(150_000, 1, 500)),
    "diagonal-narrow": lambda: matrices((1 << 28, 3, 3)),
}
METHODS = {
    "top_k": ("launch",),
    "nonzero": ("launch", "count", "expand"),
    "gather": ("launch", "check"),
    "diagonal": ("launch",),
}
KINDS = [(name, method) for name in PROBLEMS for method in METHODS[name.split("-")[0]]]


@pytest.mark.parametrize(("name", "call"), KINDS)
@pytest.mark.parametrize("arch", SHARED_BYTES)
def test_launches_are_within_the_limits(name, call, arch):
    asked = planned(PROBLEMS[name](), arch=arch, call=call).asked
    assert asked
    for launch in asked:
        assert 1 <= launch.grid <= LARGEST_GRID, launch
        assert launch.block <= 1024
        # Kernels of one thread write what others read.
        assert launch.block % 32 == 0 or (launch.grid, launch.block) == (1, 1)
        assert launch.shared_bytes <= SHARED_BYTES[arch]
        assert launch.shared_bytes <= max(DEFAULT_SHARED_BYTES, launch.variant.dynamic_shared_bytes)


@pytest.mark.parametrize(("name", "call"), KINDS)
def test_the_first_launch_of_a_call_does_not_begin_early(name, call):
    """Earlier work on the stream may write the operands, and does not let launches begin early."""
    first, *others = planned(PROBLEMS[name](), call=call).asked
    assert not first.is_early
    # Launches outside one list, such as the launches of wide tables, all wait for earlier work.
    in_lists = [
        launch for launch in others if launch.name not in ("write_table", "gather_units", "diagonal_elements")
    ]
    assert all(launch.is_early for launch in in_lists if first.name.startswith("top_k"))
    assert not any(launch.is_early for launch in planned(PROBLEMS[name](), call=call, arch="sm_86").asked)


@pytest.mark.parametrize(("name", "call"), KINDS)
def test_positions_fit_the_registers_that_count_them(name, call):
    for launch in planned(PROBLEMS[name](), call=call).asked:
        arguments = launch.arguments
        is_wide = launch.name in (
            "gather_units",
            "diagonal_elements",
            "nonzero_mask_strided",
            "nonzero_expand",
        ) and (launch.variant.parameters[-1] is True)
        for count in ("n_units", "n_vectors", "n_tuples", "n_elements"):
            if count in arguments and launch.name not in ("top_k_clear", "nonzero_mask_transposed"):
                assert is_wide or arguments[count] <= NARROW, (launch.name, count)
        if launch.name in ("nonzero_mask_strided", "nonzero_small"):
            assert is_wide or launch.end <= NARROW
        if launch.name == "nonzero_expand":
            assert is_wide or launch.n_granules <= NARROW // 16384 + 1
        if launch.name == "gather_planar":
            strides = (
                *launch.x_strides,
                *launch.index_strides,
                *launch.output_strides,
                *launch.coordinate_strides,
            )
            assert max(map(abs, strides)) < NARROW
            assert max(launch.bounds) <= NARROW
        if (
            launch.name.startswith("gather")
            and launch.name not in ("gather_clear", "gather_strided")
            and not is_wide
        ):
            has_long_registers = launch.name == "gather_check" and launch.variant.parameters[1]
            bounds = launch.bounds
            index_size = launch.variant.parameters[
                0 if launch.name in ("gather_check", "gather_unaligned") else 1
            ]
            assert index_size == 8 or has_long_registers or max(bounds) < 1 << 32
        if launch.name in ("top_k_maxima", "top_k_transposed_maxima", "top_k_block"):
            assert launch.part_size <= NARROW
        if launch.name == "top_k_columns":
            assert launch.axis_size <= 1 << 16
        if launch.name == "top_k_sort":
            assert launch.variant.parameters[1] == 8 or launch.axis_size < 1 << 30


@pytest.mark.parametrize(
    ("algorithm", "kernel", "sizes", "k", "n_units"),
    [
        ("block", "top_k_block", (3000, 5000), 20, 3000),
        ("block", "top_k_block", (7, 5000), 20, 7),
        ("partition", "top_k_partition", (300, 700), 700, 300),
        ("rounds", "top_k_rounds", (3001, 64), 3, 94),
        ("rounds", "top_k_rounds", (3001, 65), 3, 94),
        ("rounds", "top_k_rounds", (301, 512), 8, 38),
        ("rounds", "top_k_shared_rounds", (301, 512), 9, 38),
        ("rounds", "top_k_shared_rounds", (301, 1024), 8, 76),
        ("grid", "top_k_block", (30, 70_000), 5, 30),
    ],
)
def test_launches_share_the_rows(algorithm, kernel, sizes, k, n_units):
    asked = planned(top_k(sizes, k), algorithm=algorithm, changes={"launch_blocks": 7}).asked
    found = sorted((each.first, each.first + each.grid) for each in asked if each.name == kernel)
    assert len(found) == -(-n_units // 7)
    assert found[0][0] == 0
    assert all(end == following for (_, end), (following, _) in pairwise(found))
    assert found[-1][1] == n_units


@pytest.mark.parametrize(
    ("index_sizes", "strides", "n_launches"),
    [
        (((1 << 33) + 5, 1), (1, 1), 5),
        ((3, (1 << 31) + 1, 1), ((1 << 32), 1, 1), 6),
        ((2, 3, 2, 3, 5, 1), (1 << 20, 1 << 16, 1 << 12, 1 << 8, 7, 1), 2),
        ((70, 50, 2), None, 1),
    ],
)
def test_checks_go_through_every_tuple_once(index_sizes, strides, n_launches):
    """Dimensions that narrow kernels cannot count are walked."""
    found = planned(gather((5, 6), index_sizes, index_strides=strides), call="check")
    clear, *checks = found.asked
    assert clear.name == "gather_clear"
    assert len(checks) == n_launches
    sizes, at = index_sizes[:-1], 0
    steps = strides or [math.prod(index_sizes[i + 1 :]) for i in range(len(index_sizes))]
    for launch in sorted(checks, key=lambda launch: launch.first_position):
        assert launch.first_position == at
        place, rest = 0, at
        for size, step in zip(reversed(sizes), reversed(steps[:-1]), strict=True):
            rest, coordinate = divmod(rest, size)
            place += coordinate * step
        assert launch.indices - found.addresses[1] == 8 * place
        at += launch.n_tuples
    assert at == math.prod(sizes)


def test_checks_of_tuples_of_many_coordinates():
    sizes = (2, 3, 4, 5, 6, 7)
    _, *checks = planned(gather(sizes, (100, 6)), call="check").asked
    assert [(launch.n_coordinates, launch.bounds[: launch.n_coordinates]) for launch in checks] == [
        (4, sizes[:4]),
        (2, sizes[4:]),
    ]
    assert checks[1].indices - checks[0].indices == 4 * 8


@pytest.mark.parametrize(
    "name", ["diagonal-2^33", "diagonal-one-of-2^36", "diagonal-three-of-2^33", "diagonal-strided-2^33"]
)
@pytest.mark.parametrize("lead", [0, 4])
def test_parts_of_matrices_cover_all_rows_once(name, lead):
    descriptor = PROBLEMS[name]()
    sizes, strides = descriptor.output_tensor.sizes, descriptor.input_tensor.effective_strides
    found = planned(descriptor, leads=(0, lead, 0))
    n_rows, height, width = math.prod(sizes[:-1]), sizes[-2], sizes[-1]
    at = 0
    for launch in sorted(found.asked, key=lambda launch: launch.output):
        assert launch.output - found.addresses[1] == at * width * 4
        batch, y = divmod(at, height)
        x_at = y * strides[-2] + (batch * strides[0] if len(sizes) == 3 else 0)
        assert launch.x - found.addresses[0] == x_at * 4
        # Rows that begin between two boundaries need a vector more.
        assert launch.vectors_per_row.size == -(-(width * 4 + (12 if lead else 0)) // 16)
        # The band of a part is counted from its first row.
        assert (launch.begin, launch.end) == tuple(
            max(-launch.height.size, min(bound + y, width))
            for bound in (descriptor.diagonal_fill_begin, descriptor.diagonal_fill_end)
        )
        assert launch.grid * launch.block >= launch.n_vectors > (launch.grid - 1) * launch.block
        at += launch.n_vectors // launch.vectors_per_row.size
    assert at == n_rows


@pytest.mark.parametrize("operator", ["diagonal_matrix", "gather_nd"])
def test_more_launches_than_any_gpu_has_memory_for(operator):
    """Nothing is planned for minutes, launch after launch."""
    matrix = matrices((1 << 31, 1 << 30), data_type=T.UINT8)
    tuples = gather((5,), (1 << 60, 1), index_strides=(0, 1), data_type=T.UINT8)
    with pytest.raises(MemoryError, match=f"{operator}: .* no GPU has memory for"):
        planned({"diagonal_matrix": matrix, "gather_nd": tuples}[operator], load_plan=inside.cpu.load)


@pytest.mark.parametrize("algorithm", ["sort", "block", "grid", "columns", "partition"])
def test_tables_of_rows_are_filled_first(algorithm):
    """Rows of three dimensions have a table of their offsets, to which a launch adds one dimension."""
    x = top_k((3, 2, 4, 500), 5, strides=(2000, 6000, 500, 1))
    names = [launch.name for launch in planned(x, algorithm=algorithm).asked]
    assert names[:3] == ["top_k_offsets"] * 3
