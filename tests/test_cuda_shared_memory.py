"""The areas of shared memory in top-k plans are large enough and do not overlap."""

import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("cuda.core")
from dmlops import TensorDataType
from tests import inside
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
    # A warp writes the groups of whole chunks of 256 vectors.
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


# By the CUDA programming guide: KiB that a block may have, by architecture.
BLOCK_KIB = {64: ("75",), 99: ("86", "89", "120"), 163: ("80", "87"), 227: ("90", "100", "101", "103", "110")}


@pytest.mark.parametrize("kib", BLOCK_KIB)
def test_shared_memory_of_typical_devices(kib):
    target = inside.variant.typical_target
    assert {target(f"sm_{arch}").block_shared_bytes for arch in BLOCK_KIB[kib]} == {kib << 10}
