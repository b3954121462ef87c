"""The areas of shared memory in top-k plans are large enough and do not overlap."""

import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("cuda.core")
from dmlops import TensorDataType
from tests.cuda_plans import SHARED_BYTES, planned, top_k

T = TensorDataType


def check_block(launch, element_size):
    """Check that the areas of a block's shared memory lie side by side, and hold what they must."""
    key_bytes, k = max(4, element_size), launch.k
    n_vectors = (
        launch.part_size * element_size // 16,
        launch.n_coarse << launch.coarse_bits,
        launch.n_coarse * key_bytes // 16,
    )[launch.top_stage]
    n_groups = -(-n_vectors >> launch.lane_bits)
    # A warp writes those of whole chunks of 256 vectors.
    groups_end = -(-n_vectors // 256) * (256 >> launch.lane_bits) * key_bytes
    if launch.has_unit_groups:
        n_groups, groups_end = n_vectors * 16 // key_bytes, n_vectors * 16
    is_grouped = n_groups > k and (launch.part_size > launch.n_slots or 4 * k < launch.part_size)
    list_begin, bins_begin = 4 * launch.list_word, 4 * launch.bins_word
    assert launch.n_slots * key_bytes % 16 == 0
    assert launch.n_slots * (key_bytes + 4) <= list_begin
    assert not is_grouped or groups_end <= list_begin
    assert list_begin + max(4 * launch.n_candidate_groups, 2 * launch.n_slots) <= bins_begin
    assert bins_begin + 16 * launch.block <= launch.shared_bytes
    # Candidates are numbered in 16 bits; ties and listed groups have room.
    assert k <= launch.n_slots <= 1 << 16
    assert k <= launch.most_groups <= launch.n_candidate_groups


@pytest.mark.parametrize("arch", SHARED_BYTES)
@pytest.mark.parametrize("data_type", [T.UINT8, T.FLOAT16, T.FLOAT32, T.INT64], ids=str)
def test_areas_of_a_block_do_not_overlap(arch, data_type):
    n_checked = 0
    for n_rows, axis_size in (
        (1, 5000),
        (2000, 3000),
        (300, 16_384),
        (20, 100_000),
        (1, 1 << 22),
        (1, 1 << 26),
    ):
        for k in (1, 50, 511, 1500, 3000):
            (*_, launch) = planned(top_k((n_rows, axis_size), k, data_type=data_type), arch=arch).asked
            if launch.name == "top_k_block":
                check_block(launch, data_type.bytes)
                n_checked += 1
    assert n_checked
    for n_rows, axis_size, k in ((3, 1000, 100), (3, 1000, 600), (3, 4000, 300), (2000, 2048, 900)):
        descriptor = top_k((n_rows, axis_size), k, data_type=data_type)
        (launch,) = planned(descriptor, arch=arch, algorithm="block").asked
        check_block(launch, data_type.bytes)


@pytest.mark.parametrize("data_type", [T.UINT8, T.FLOAT16, T.FLOAT32, T.INT64], ids=str)
def test_areas_of_warps_do_not_overlap(data_type):
    size, k = data_type.bytes, 30
    (launch,) = planned(top_k((900, 250), k, data_type=data_type), algorithm="warp").asked
    # Keys and positions apart where they are more than 8 bytes.
    assert launch.shared_bytes == 8 * launch.n_slots * (12 if size == 8 else 8)
    assert launch.n_slots >= 64
    for height, width in ((400, 900), (20_000, 64)):
        (*_, launch) = planned(top_k((height, width), k, 0, data_type), algorithm="columns").asked
        n_warps = launch.block // 32
        assert launch.position_offset >= n_warps * launch.n_slots * 32 * max(2, size)
        assert launch.shared_bytes >= launch.position_offset + n_warps * launch.n_slots * 64
        assert launch.n_slots % 8 == 0
        # A lane has room for what a chunk adds; several warps merge two lists, and look beyond.
        assert launch.n_slots >= k + launch.n_spare + (8 if size == 8 else 16)
        assert launch.parts_per_block == 1 or launch.n_slots > 2 * k


def test_tiles_and_sorts_have_room_for_what_they_exchange():
    for data_type in (T.UINT8, T.FLOAT16, T.FLOAT32, T.INT64):
        for axis_size in (300, 2049, 6145, 8192, 16_384):
            (launch,) = planned(top_k((300, axis_size), axis_size, data_type=data_type)).asked[-1:]
            if launch.name == "top_k_tile":
                _, n_threads, n_items = launch.variant.parameters
                assert launch.axis_size <= n_threads * n_items
                assert launch.block == n_threads
                assert launch.shared_bytes >= n_threads * n_items * max(4, data_type.bytes)
        for launch in planned(top_k((2, 100_000), 100_000, data_type=data_type)).asked:
            if launch.name == "top_k_sort":
                size, position_size, n_threads, n_items, _ = launch.variant.parameters
                pair = 8 if max(size, position_size) <= 4 else 16
                assert launch.shared_bytes >= n_threads * n_items * pair
                assert launch.n_tiles * n_threads * n_items >= 100_000
