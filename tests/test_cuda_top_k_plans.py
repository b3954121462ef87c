"""Top-k plans on CUDA choose the right algorithm, and launch what fits the device; no kernel is loaded."""

import importlib
import itertools
from typing import Any, NamedTuple

import pytest

from tests import inside
from tests.cuda_plans import launches_of
from tests.inside import KeyMasks, TopKProblem, plan_words

pytestmark = pytest.mark.quick

pytest.importorskip("cuda.core")
dispatch = inside.top_k_dispatch
block_launches, sampled, shapes = inside.block_launches, inside.sampled_launches, inside.shapes
cluster, partition, rounds = inside.cluster_launches, inside.partition_launches, inside.rounds_launches
algorithms = importlib.import_module("tests.gpu.algorithms")
variant = inside.variant
Target = variant.Target
variant_of = inside.top_k_variants.variant_of

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
CAPABILITIES = {arch: variant.capability_of(arch) for arch in SHARED_BYTES}
# A block may have this without asking for more.
DEFAULT_BYTES = 48 * KIB
# Static shared memory of a kernel is at most this, except in the kernels of blocks.
OWN_BYTES = 4 * KIB
LARGEST_PROBLEM = 1 << 30


def planned(
    shape, k, element_size=4, arch="sm_90", algorithm=None, changes=None, is_sorted=True, multiprocessors=132
):
    """Return the algorithm, launches and workspace of a selection along the middle of three axes."""
    outer, axis_size, inner = shape
    rows = [(outer, axis_size * inner, k * inner, k * inner), (inner, 1, 1, 1)]
    problem = TopKProblem(
        element_size=element_size,
        index_size=4,
        masks=KeyMasks(0, 0, (1 << 8 * element_size) - 1),
        largest=True,
        k=k,
        axis_size=axis_size,
        rows=tuple(row for row in rows if row[0] > 1),
        axis_strides=(inner, inner, inner),
        is_sorted=is_sorted,
    )
    target = Target(0, arch, multiprocessors, SHARED_BYTES[arch])
    algorithm = algorithm or dispatch.forced_algorithm()
    found = dispatch.planned(problem, target, algorithm, changes)
    if found is None:
        raise dispatch.UnservedError(problem, algorithm)
    return Found(found.algorithm, launches_of(found.words, variant_of), found.words[plan_words.WORKSPACE])


class Found(NamedTuple):
    """An algorithm, what it launches, and bytes of the workspace."""

    algorithm: str
    launches: list[Any]
    workspace_size: int


@pytest.mark.parametrize("arch", SHARED_BYTES)
@pytest.mark.parametrize("element_size", [1, 2, 4, 8])
@pytest.mark.parametrize("n_neighbours", [1, 4, 256])
def test_every_problem_is_served(n_neighbours, element_size, arch):
    """A table of one device may name algorithms that another device lacks, or has no room for."""
    seen = set()
    for n_rows, axis_size in itertools.product((1, 20, 200, 5000), (1, 60, 1000, 9000, 100_003, 1 << 22)):
        for k, is_sorted in itertools.product((1, 7, 15, 30, 400, 3000, 50_000), (True, False)):
            if k <= axis_size and n_rows * n_neighbours * axis_size <= LARGEST_PROBLEM:
                shape = (n_rows, axis_size, n_neighbours)
                found = planned(shape, k, element_size, arch, is_sorted=is_sorted)
                assert found.launches
                seen.add(found.algorithm)
    assert {"grid", "sort"} <= seen
    if n_neighbours == 1:
        assert {"rounds", "block", "partition"} <= seen
    capability = CAPABILITIES[arch]
    assert capability >= (9, 0) or not seen & {"cluster", "sampled"}
    assert (element_size > 1 and n_neighbours == 1) or "sampled" not in seen
    assert ("one_pass" in seen) == (element_size in (2, 4) and n_neighbours == 1)


def test_more_rows_than_any_gpu_has_memory_for():
    """Nothing is planned for minutes, launch after launch."""
    found = planned((1 << 40, 1, 1), 1)
    assert sum(launch.grid for launch in found.launches) * 32 == 1 << 40
    with pytest.raises(MemoryError, match=rf"top_k: got {1 << 61} rows of 1, k 1; no GPU has memory"):
        planned((1 << 61, 1, 1), 1)


def test_long_rows_without_a_measured_algorithm_are_filtered():
    """Without the fastest algorithm, a device takes the next one and does not sort whole rows."""
    for n_rows, axis_size in itertools.product((1, 3, 100), (20_000, 100_000, 1 << 24)):
        assert planned((n_rows, axis_size, 1), 50, 8, "sm_75").algorithm in ("block", "grid")


@pytest.mark.parametrize("element_size", [1, 2, 4, 8])
def test_lanes_of_a_row_have_room_for_it(element_size):
    longest = rounds.longest_row(element_size)
    for axis_size in (1, 3, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, longest):
        _, (launch,), _ = planned((5001, axis_size, 1), 1, element_size, algorithm="rounds")
        _, n_lanes, n_keys = launch.variant.parameters
        assert axis_size <= n_lanes * n_keys
        assert 32 % n_lanes == 0
        # Keys come by whole vectors, and a mask has a bit for each.
        assert n_keys * element_size % 16 == 0
        assert n_keys <= 32
        # Those of 4 and 8 bytes come by whole groups, too.
        assert element_size < 4 or n_keys % 8 == 0
    for axis_size, k in ((longest + 1, 1), (100, 65)):
        with pytest.raises(ValueError, match="'rounds' does not take"):
            planned((5000, axis_size, 1), k, element_size, algorithm="rounds")


def test_most_elements_are_dropped_before_the_others_are_sorted():
    """If at most a quarter is selected, of enough bytes in all and in each row."""
    shapes = {
        (1, 1 << 20): (1 << 18, True),
        (1, (1 << 20) - 1): (100, False),
        (1, 1 << 21): ((1 << 19) + 1, False),
        (16, 1 << 16): (9000, True),
        (1000, 1 << 15): (5000, False),
        (1, 1 << 30): (9000, True),
        (1, 1 << 31): (9000, False),
    }
    for (n_rows, axis_size), (k, is_filtered) in shapes.items():
        launches = planned((n_rows, axis_size, 1), k, algorithm="sort").launches
        assert is_filtered == any(
            launch.variant.name in ("top_k_keep", "top_k_selected") for launch in launches
        )


def test_columns_are_transposed_before_they_are_sorted():
    """Not few of them, and not more than a batch of the sort would take."""
    names = {
        (n, inner): planned((1, n, inner), 10_000, algorithm="sort").launches[0].variant.name
        for n, inner in ((20_000, 16), (20_000, 15), (1 << 22, 16), (1 << 22, 17))
    }
    assert [*names.values()] == ["diagonal_transposed", "top_k_clear"] * 2
    found = planned((1, 20_000, 16), 10_000, algorithm="sort")
    assert found.workspace_size > planned((16, 20_000, 1), 10_000, algorithm="sort").workspace_size


@pytest.mark.parametrize("is_sorted", [True, False])
def test_partitions_have_room_on_every_device(is_sorted):
    for arch, shared_bytes in SHARED_BYTES.items():
        for element_size in (1, 2, 4, 8):
            for axis_size, k in ((1000, 999), (4096, 4000), (8192, 4096), (16_384, 4096), (32_768, 100)):
                try:
                    found = planned((500, axis_size, 1), k, element_size, arch, "partition", None, is_sorted)
                except ValueError:
                    continue
                (launch,) = found.launches
                assert launch.shared_bytes + partition.PARTITION_STATIC_BYTES <= shared_bytes
                # The sort is in registers: 16 pairs of a thread leave room for as many places.
                assert k <= 16 * launch.block or not is_sorted


CLUSTERS = {"sm_89": (), "sm_90": (4, 8, 16), "sm_100": (4, 8, 16), "sm_120": (4, 8)}


@pytest.mark.parametrize("arch", CLUSTERS)
@pytest.mark.parametrize("element_size", [1, 2, 4, 8])
def test_clusters_of_few_long_rows(arch, element_size):
    """Clusters of few rows run at a time; all hold their rows, and are of sizes that the device has."""
    served = set()
    for n_rows, axis_size, k in itertools.product(
        (1, 3, 7, 8, 14, 15, 28, 29), (40_000, 131_072, 200_000, 700_000), (1, 2048)
    ):
        for is_sorted in (True, False):
            shape = (n_rows, axis_size, 1)
            try:
                (launch,) = planned(
                    shape, k, element_size, arch, algorithm="cluster", is_sorted=is_sorted
                ).launches
            except ValueError:
                continue
            assert launch.cluster in CLUSTERS[arch]
            assert launch.grid == n_rows * launch.cluster
            assert launch.cluster * launch.shared_bytes >= axis_size * element_size
            served.add((n_rows, axis_size, launch.cluster))
            if k > 1:
                # All have a vector for each thread, or half of them would have more than 128 to order.
                is_busy = axis_size * element_size >= launch.cluster * 1024 * 16
                orders_many = is_sorted and k > launch.cluster // 2 * 128
                assert launch.cluster == 4 or is_busy or orders_many
            if axis_size == 40_000 and CLUSTERS[arch] == (4, 8, 16):
                assert (launch.grid <= 132 * 7 / 8) == (n_rows < 29)
    # Wider elements need more shared memory than there is.
    holds_all = any(axis_size == 700_000 for _, axis_size, _ in served)
    assert holds_all == (arch in ("sm_90", "sm_100") and element_size <= 4)
    assert bool(served) == (arch != "sm_89")


def test_clusters_that_a_device_may_have_no_room_for():
    """Only of large devices it is certain that 16 multiprocessors belong together."""
    sizes = [
        planned((1, 131_072, 1), 2000, multiprocessors=multiprocessors).launches[0].cluster
        for multiprocessors in (128, 127)
    ]
    assert sizes == [16, 8]


def test_rows_that_a_device_has_no_room_to_sort():
    for arch, length in (("sm_75", 4096), ("sm_86", 8192), ("sm_80", 16_384)):
        assert planned((256, length, 1), length, arch=arch).algorithm == "partition"
        assert planned((256, 2 * length, 1), 2 * length, arch=arch).algorithm == "sort"
    with pytest.raises(ValueError, match="algorithm 'partition' does not take k 8193 of rows of 8193"):
        planned((256, 8193, 1), 8193, 8, algorithm="partition")


def all_launches(arch, element_size):
    """Yield the launches of many problems, solved by every algorithm that serves them."""
    for n_rows in (1, 100, 100_000):
        for axis_size in (100, 2000, 5000, 16_384, 70_000, 1 << 20, 1 << 25):
            for k in {1, 8, 32, 400, 1000, 2048, 4096, 5000, axis_size}:
                if k > axis_size or n_rows * axis_size > LARGEST_PROBLEM:
                    continue
                for algorithm in (None, *dispatch.ALGORITHMS):
                    try:
                        yield from planned((n_rows, axis_size, 1), k, element_size, arch, algorithm).launches
                    except ValueError:
                        continue


def shared_bytes(launch, element_size):
    """Return the shared memory of a block, with what the kernel has of its own."""
    own_bytes = {
        "top_k_block": block_launches.block_static_bytes(launch.block),
        # Digits are counted by each warp.
        "top_k_sort": launch.block // 32 * shapes.N_DIGITS * 4 + OWN_BYTES,
        "top_k_cluster": cluster.cluster_static_bytes(element_size),
        "top_k_columns": 0,
        "top_k_partition": partition.PARTITION_STATIC_BYTES,
        "top_k_list": 4 * sampled.LISTING_WORDS,
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
    assert {name for name, _ in seen} >= {
        "top_k_maxima",
        "top_k_partition",
        "top_k_columns",
        "top_k_shared_rounds",
    }
