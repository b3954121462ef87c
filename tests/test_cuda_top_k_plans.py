"""Top-k plans on CUDA choose the right algorithm, and launch what fits the device; no kernel is loaded."""

import importlib

import pytest

pytestmark = pytest.mark.quick

pytest.importorskip("cuda.core")
dispatch = importlib.import_module("kernels_cuda.top_k.dispatch")
policies = importlib.import_module("kernels_cuda.top_k.policy")
problems = importlib.import_module("kernels_cuda.top_k.problem")
shapes = importlib.import_module("kernels_cuda.top_k.shapes")
algorithms = importlib.import_module("tests.gpu.algorithms")
Target = importlib.import_module("kernels_cuda.runtime.variant").Target

KIB = 1 << 10
# Devices, and what the CUDA programming guide says that their blocks may have of shared memory.
SHARED_BYTES = {
    "sm_75": 64 * KIB,
    "sm_80": 163 * KIB,
    "sm_86": 99 * KIB,
    "sm_89": 99 * KIB,
    "sm_90": 227 * KIB,
    "sm_100": 227 * KIB,
    "sm_120": 99 * KIB,
}
CAPABILITIES = {
    "sm_75": (7, 5),
    "sm_80": (8, 0),
    "sm_86": (8, 6),
    "sm_89": (8, 9),
    "sm_90": (9, 0),
    "sm_100": (10, 0),
    "sm_120": (12, 0),
}
# A block may have this without asking for more.
DEFAULT_BYTES = 48 * KIB
# All kernels but those of blocks and tiles have at most this of their own.
OWN_BYTES = 4 * KIB
LARGEST_PROBLEM = 1 << 30


def planned(
    shape,
    k,
    element_size=4,
    arch="sm_90",
    algorithm=None,
    policy=None,
    is_sorted=True,
    multiprocessors=132,
):
    """Return the algorithm, launches and workspace of a selection along the middle of three axes."""
    outer, axis_size, inner = shape
    rows = [(outer, axis_size * inner, k * inner, k * inner), (inner, 1, 1, 1)]
    problem = problems.Problem(
        element_size=element_size,
        index_size=4,
        key_format=problems.key_format(element_size, 0, 0, (1 << 8 * element_size) - 1, True),
        unfolded_format=problems.unfolded_format(element_size, 0, 0, (1 << 8 * element_size) - 1, True),
        k=k,
        axis_size=axis_size,
        rows=problems.describe_rows([problems.RowDimension(*row) for row in rows if row[0] > 1], inner),
        strides=problems.AxisStrides(inner, inner, inner),
        multiprocessors=multiprocessors,
        is_sorted=is_sorted,
    )
    if policy is None:
        policy = policies.Policy.auto(CAPABILITIES[arch], element_size)
    return dispatch.launches_of(problem, policy, algorithm)


@pytest.mark.parametrize(
    ("shape", "k", "algorithm"),
    [
        ((1, 50_257, 256), 50, "grid"),
        ((256, 50_257, 1), 50, "block"),
        ((64, 50_257, 4), 50, "block"),  # too few neighbours
        ((1, 50_257, 256), 1000, "grid"),
        ((1, 50_257, 256), 2000, "block"),  # too few groups for each winner
        ((1, 2048, 32), 8, "block"),  # too little to read
        ((1, 4096, 16_384), 16, "columns"),
        ((1, 65_536, 8192), 16, "grid"),  # too few columns for each selected element
        ((1, 65_536, 8192), 100, "grid"),
        ((8, 10_000, 1000), 64, "grid"),
        ((1, 1024, 4096), 20, "warp"),
    ],
)
def test_rows_side_by_side(shape, k, algorithm):
    assert planned(shape, k)[0] == algorithm


@pytest.mark.parametrize("element_size", [1, 2, 4, 8])
def test_rounds_for_a_small_k_of_short_rows(element_size):
    """Results by ascending index need no other launch, so that rounds are worth more of them."""
    longest = policies.Policy.auto((9, 0), element_size).rounds.shapes[-1].n_elements
    for axis_size in (1, 40, 64, 65, 128, 200, 256, 300, longest, longest + 1):
        rounds = [
            [
                planned((5000, axis_size, 1), k, element_size, is_sorted=is_sorted)[0] == "rounds"
                for k in range(1, min(axis_size, 9) + 1)
            ]
            for is_sorted in (True, False)
        ]
        assert rounds[0][0] == (axis_size <= longest)
        assert rounds[0] == sorted(rounds[0], reverse=True)
        assert rounds[1][:8] == [axis_size <= longest] * min(axis_size, 8)
        assert not any(rounds[0][8:] + rounds[1][8:])


@pytest.mark.parametrize("element_size", [1, 2, 4, 8])
def test_lanes_of_a_row_have_room_for_it(element_size):
    for axis_size in (1, 3, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512):
        _, (launch,), _ = planned((5001, axis_size, 1), 1, element_size, algorithm="rounds")
        _, n_lanes, n_keys = launch.variant.parameters
        assert axis_size <= n_lanes * n_keys
        assert 32 % n_lanes == 0
        # Keys come by whole vectors, and a mask has a bit for each.
        assert n_keys * element_size % 16 == 0
        assert n_keys <= 32
    for axis_size, k in ((513, 1), (100, 9)):
        with pytest.raises(ValueError, match="'rounds' does not take"):
            planned((5000, axis_size, 1), k, element_size, algorithm="rounds")


@pytest.mark.parametrize("element_size", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("shape", "k"), [((1, 50_257, 256), 50), ((3, 5000, 700), 4), ((2, 4200, 999), 8), ((1, 1 << 33, 16), 50)]
)
def test_maxima_of_rows_side_by_side(shape, k, element_size):
    _, launches, workspace_size = planned(shape, k, element_size, algorithm="grid")
    names = [launch.variant.name for launch in launches]
    assert names[0] == "top_k_transposed_maxima"
    assert set(names) == {"top_k_transposed_maxima", "top_k_block"}
    if planned(shape, k, element_size)[0] == "grid":
        assert workspace_size <= shape[0] * shape[1] * shape[2] * element_size // 4


@pytest.mark.parametrize(
    ("element_size", "axis_size", "k", "algorithm"),
    [
        (4, 2048, 2048, ("tile", 256)),
        (4, 2048, 511, ("block", 128)),
        (4, 2048, 512, ("tile", 256)),
        (4, 2049, 767, ("tile", 384)),
        (4, 2049, 768, ("partition", 256)),
        (4, 6144, 767, ("block", 512)),
        (4, 6144, 768, ("partition", 512)),
        (4, 6144, 4096, ("partition", 512)),
        (4, 6144, 4097, ("tile", 384)),
        (4, 8193, 4096, ("partition", 512)),
        (4, 8193, 4097, ("tile", 1024)),
        (4, 16384, 16384, ("tile", 1024)),
        (4, 16385, 2048, ("block", 512)),
        (4, 16385, 2049, ("partition", 1024)),
        (2, 16384, 767, ("block", 512)),
        (2, 16384, 768, ("partition", 512)),
        (1, 4096, 768, ("tile", 384)),
        (1, 16384, 768, ("partition", 512)),
        (4, 16385, 16385, ("sort", 256)),
        (8, 4096, 4096, ("tile", 512)),
        (8, 8192, 2560, ("block", 512)),
        (8, 8192, 2561, ("tile", 1024)),
        (8, 8193, 8193, ("sort", 384)),
    ],
)
@pytest.mark.parametrize("arch", ["sm_86", "sm_90"])
def test_long_rows_of_many_winners_are_sorted_by_a_block(element_size, axis_size, k, algorithm, arch):
    name, launches, _ = planned((256, axis_size, 1), k, element_size, arch)
    assert (name, launches[-1].block) == algorithm


@pytest.mark.parametrize(
    ("n_rows", "axis_size", "k", "served"),
    [
        (132, 10, 9, ("partition", 512, 16)),  # few rows
        (923, 10, 9, ("partition", 256, 16)),
        (924, 10, 9, ("warp",)),
        (132, 8193, 65, ("partition", 1024, 16)),
        (132, 16_385, 50, ("partition", 1024, 32)),
        (133, 16_384, 50, ("partition", 512, 32)),
        (133, 16_385, 400, ("partition", 1024, 32)),
        (133, 16_385, 300, ("block",)),
        (4096, 128, 33, ("warp",)),
        (4096, 129, 33, ("partition", 256, 16)),
        (4096, 1024, 32, ("warp",)),
        (4096, 1025, 1, ("partition", 256, 16)),
        (4096, 4097, 4097, ("partition", 512, 16)),
        (4096, 8193, 100, ("block",)),
        (4096, 8193, 200, ("partition", 512, 32)),
        (4096, 32_768, 1000, ("partition", 1024, 32)),
        (4096, 32_769, 100, ("block",)),
        (4096, 32_768, 32_768, ("sort",)),  # no room for all of them
    ],
)
def test_rows_whose_results_come_by_index(n_rows, axis_size, k, served):
    name, launches, _ = planned((n_rows, axis_size, 1), k, is_sorted=False)
    assert name == served[0]
    if name == "partition":
        (launch,) = launches
        assert launch.variant.parameters[1:] == served[1:]
        assert launch.grid == n_rows


@pytest.mark.parametrize("algorithm", ["tile", "sort", "columns", "warp", "block", "grid"])
def test_launches_that_order_by_index(algorithm):
    """One element is in order too; a warp orders what it selects, and a block does if that is little."""
    shape = (
        (1, 4096, 4096) if algorithm == "columns" else (4, 1000 if algorithm in ("warp", "tile") else 9000, 1)
    )
    orders_few = algorithm in ("warp", "block", "grid")
    ks = ((1, False), (2, not orders_few))
    if algorithm in ("block", "grid"):
        ks += ((32, False), (500, True))
    for k, is_more in ks:
        by_value, by_index = (
            planned(shape, k, algorithm=algorithm, is_sorted=is_sorted) for is_sorted in (True, False)
        )
        assert (len(by_index.launches) > len(by_value.launches)) == is_more
        if not is_more:
            assert by_index.workspace_size == by_value.workspace_size


@pytest.mark.parametrize("is_sorted", [True, False])
def test_partitions_have_room_on_every_device(is_sorted):
    for arch, shared_bytes in SHARED_BYTES.items():
        for element_size in (1, 2, 4, 8):
            for axis_size, k in ((4096, 1000), (8192, 4096), (16_384, 4096), (32_768, 100)):
                try:
                    found = planned((500, axis_size, 1), k, element_size, arch, "partition", None, is_sorted)
                except ValueError:
                    continue
                (launch,) = found.launches
                assert launch.shared_bytes + shapes.PARTITION_STATIC_BYTES <= shared_bytes


@pytest.mark.parametrize(
    ("n_rows", "k", "n_threads"), [(2048, 1024, 256), (2048, 1025, 512), (256, 1000, 512), (100, 1000, 1024)]
)
def test_many_rows_have_smaller_blocks(n_rows, k, n_threads):
    name, launches, _ = planned((n_rows, 20_000, 1), k)
    assert (name, launches[-1].block) == ("block", n_threads)


@pytest.mark.parametrize(
    ("element_size", "axis_size", "k", "coarse_chunks"),
    [
        (4, 1 << 20, 100, 1),
        (4, 1 << 24, 1000, 1),
        (4, 1 << 26, 1000, 1),
        (4, 100_000_000, 100, 4),
        (4, 1 << 26, 2048, 1),
        (8, 1 << 24, 300, 1),
        (8, 1 << 24, 1000, 1),
        (8, 1 << 26, 100, 4),
    ],
)
def test_coarse_groups_are_larger_where_few_are_listed(element_size, axis_size, k, coarse_chunks):
    _, (maxima, _), _ = planned((1, axis_size, 1), k, element_size, algorithm="grid")
    n_chunks = -(-axis_size * element_size // (256 * 16))
    chunks = maxima.parameters.coarse_chunks
    assert chunks == coarse_chunks
    assert 0 <= maxima.parameters.blocks_per_part * 8 * chunks - n_chunks < 8 * chunks


CLUSTERS = {"sm_89": (), "sm_90": (4, 8, 16), "sm_100": (4, 8, 16), "sm_120": (4, 8)}


@pytest.mark.parametrize("arch", CLUSTERS)
@pytest.mark.parametrize("element_size", [1, 2, 4, 8])
def test_clusters_of_few_long_rows(arch, element_size):
    """All clusters run at a time, hold their rows, and are of sizes that the device has."""
    served = set()
    for n_rows in (1, 3, 7, 8, 14, 15, 28, 29):
        for axis_size in (40_000, 131_072, 200_000, 700_000):
            for is_sorted in (True, False):
                name, launches, _ = planned(
                    (n_rows, axis_size, 1), 2048, element_size, arch, is_sorted=is_sorted
                )
                if name != "cluster":
                    continue
                (launch,) = launches
                assert launch.cluster in CLUSTERS[arch]
                assert launch.grid == n_rows * launch.cluster <= 132 * 7 / 8
                assert launch.cluster * launch.shared_bytes >= axis_size * element_size
                if axis_size == 700_000:
                    served.add((n_rows, launch.cluster))
                assert launch.cluster == 4 or axis_size * element_size >= launch.cluster * 1024 * 16
    largest = max(CLUSTERS[arch], default=0)
    assert all(cluster == largest for n_rows, cluster in served if n_rows == 1)
    assert all(n_rows < 29 for n_rows, _ in served)
    # Wider elements need more shared memory than there is.
    assert bool(served) == (arch in ("sm_90", "sm_100") and element_size <= 4)


def test_clusters_that_a_device_may_have_no_room_for():
    """Only of large devices it is certain that 16 multiprocessors belong together."""
    sizes = [
        planned((1, 131_072, 1), 2000, multiprocessors=multiprocessors).launches[0].cluster
        for multiprocessors in (128, 127)
    ]
    assert sizes == [16, 8]


def test_tiles_that_a_device_has_no_room_for():
    name, launches, _ = planned((256, 8192, 1), 8192, arch="sm_75")
    assert (name, launches[-1].block) == ("tile", 512)
    assert planned((256, 16_384, 1), 16_384, arch="sm_75")[0] == "sort"
    with pytest.raises(ValueError, match="algorithm 'tile' does not take k 8193 of rows of 8193"):
        planned((256, 8193, 1), 8193, arch="sm_75", algorithm="tile")


ALGORITHMS = {choice.name: choice for choice in algorithms.ALGORITHMS["top_k"]}


def forced(name, shape, k):
    """Return the launches of a problem that is solved by a forced algorithm of the GPU's tests."""
    target = Target(0, "sm_90", 132, SHARED_BYTES["sm_90"])
    given = ALGORITHMS[name].arguments(4, target)
    return planned(shape, k, algorithm=given["algorithm"], policy=given["policy"]).launches


@pytest.mark.parametrize(
    ("name", "n_threads"),
    [
        ("grid-small_blocks", 256),
        ("grid-large_blocks", 1024),
        *((f"block-{n}", n) for n in (128, 256, 512, 1024)),
        *((f"tile-{n}", n) for n in (384, 512, 1024)),
    ],
)
@pytest.mark.parametrize("shape", [(1, 5000, 1), (3000, 5000, 1)])
def test_forced_blocks(name, n_threads, shape):
    assert forced(name, shape, 20)[-1].block == n_threads


@pytest.mark.parametrize(("name", "coarse_chunks"), [("grid-four_chunks", 4), ("grid-two_chunks", 2)])
def test_forced_chunks(name, coarse_chunks):
    maxima, block = forced(name, (3, 1 << 18, 1), 2)
    assert maxima.parameters.coarse_chunks == coarse_chunks
    assert block.parameters.top_stage == shapes.COARSE


@pytest.mark.parametrize(
    ("name", "shape", "k", "variant"),
    [
        ("many_launches", (3000, 200, 1), 1, "top_k_rounds"),
        ("many_launches", (3000, 200, 1), 9, "top_k_warp"),
        ("many_launches", (3000, 5000, 1), 5, "top_k_block"),
        ("many_launches", (3000, 5000, 1), 5000, "top_k_tile"),
        ("many_launches", (30, 70_000, 1), 300, "top_k_maxima"),
        ("grid-transposed-many_launches", (30, 70_000, 1), 5, "top_k_transposed_maxima"),
    ],
)
def test_forced_launches(name, shape, k, variant):
    grids = [launch.grid for launch in forced(name, shape, k) if launch.variant.name == variant]
    assert len(grids) > 1
    assert max(grids) == 7


FORCED = ("block", "grid", "tile", "columns", "warp", "rounds", "cluster")


def all_launches(arch, element_size):
    """Yield the launches of many problems, solved by every algorithm that serves them."""
    for n_rows in (1, 100, 100_000):
        for axis_size in (100, 2000, 5000, 16_384, 70_000, 1 << 20, 1 << 25):
            for k in {1, 8, 32, 400, 1000, 2048, 4096, 5000, axis_size}:
                if k > axis_size or n_rows * axis_size > LARGEST_PROBLEM:
                    continue
                for algorithm in (None, *FORCED):
                    try:
                        yield from planned((n_rows, axis_size, 1), k, element_size, arch, algorithm).launches
                    except ValueError:
                        continue


def shared_bytes(launch, element_size):
    """Return the shared memory of a block, with what the kernel has of its own."""
    if launch.variant.name == "top_k_tile":
        return shapes.TileShape(*launch.variant.parameters[1:]).shared_bytes(element_size)
    own_bytes = {
        "top_k_block": shapes.block_static_bytes(launch.block),
        # Digits are counted by each warp.
        "top_k_sort": launch.block // 32 * shapes.N_DIGITS * 4 + OWN_BYTES,
        "top_k_cluster": shapes.cluster_static_bytes(element_size),
    }
    return launch.shared_bytes + own_bytes.get(launch.variant.name, OWN_BYTES)


@pytest.mark.parametrize("element_size", [1, 2, 4, 8])
@pytest.mark.parametrize("arch", SHARED_BYTES)
def test_blocks_have_the_shared_memory_that_they_need(arch, element_size):
    seen = set()
    for launch in all_launches(arch, element_size):
        assert shared_bytes(launch, element_size) <= SHARED_BYTES[arch], launch.variant.label
        assert launch.shared_bytes <= max(launch.variant.dynamic_shared_bytes, DEFAULT_BYTES), (
            launch.variant.label
        )
        seen.add((launch.variant.name, launch.block))
    assert ("top_k_block", 256 if arch == "sm_75" else 1024) in seen
    assert {name for name, _ in seen} >= {"top_k_maxima", "top_k_tile", "top_k_columns", "top_k_warp"}
