"""The algorithm of top_k on CUDA that begins with samples: what these guarantee, and what fits a block.

No test needs a GPU.
"""

import numpy as np
import pytest

pytest.importorskip("cuda.core")
from tests import inside
from tests.hard_rows import sample_positions
from tests.test_cuda_top_k_plans import CAPABILITIES, planned

launches = inside.sampled_launches

SHAPES = {
    "selected_of_many": (131_072, 32),
    "usual": (131_072, 2048),
    "short": (32_768, 1000),
    "large_k": (65_536, 4096),
    "long": (1 << 20, 2048),
}


def parameters_of(launch):
    """Return the last parameters of a launch."""
    kind = launches.SampledParameters
    return kind(*launch.values[-len(kind._fields) :])


def sampled_shape(n_elements, k, element_size=4):
    """Return the parameters of the kernels, with which many rows are served."""
    found = planned((64, n_elements, 1), k, element_size, algorithm="sampled")
    return parameters_of(found.launches[-1])


@pytest.mark.parametrize("name", SHAPES)
def test_samples_of_random_rows_do_not_mislead(name):
    """At least k elements are at or above the threshold, and all of these have room."""
    n_elements, k = SHAPES[name]
    given = sampled_shape(n_elements, k)
    sample_size = 1 << given.sample_bits
    positions = sample_positions(sample_size, n_elements, 4)
    rank = launches.sample_rank(sample_size, k, n_elements)
    rng = np.random.default_rng(5)
    for _ in range(40):
        row = rng.standard_normal(n_elements, np.float32)
        sample = -np.sort(-row[positions])
        for used in (rank, launches.most_of_sample(rank)):
            assert k <= np.count_nonzero(row >= sample[used - 1]) <= given.n_slots


@pytest.mark.parametrize("element_size", [2, 4, 8])
@pytest.mark.parametrize("n_elements", [5000, 40_000, 131_072, 1 << 20])
def test_a_sample_is_spread_over_the_row(n_elements, element_size):
    """Each part of the row has its share, so that rows in order do not mislead either."""
    positions = sample_positions(4096, n_elements, element_size)
    assert 0 <= positions.min() < positions.max() < n_elements
    shares, _ = np.histogram(positions, 64, (0, n_elements))
    assert abs(shares - 64).max() <= 16


@pytest.mark.parametrize("element_size", [2, 4, 8])
def test_positions_of_samples_are_found_with_32_bits(element_size):
    """The kernels multiply the number of a part of the row by how many pieces the row has."""
    of_piece, served = 32 // element_size, 0
    for n_elements in (5000, 1 << 20, *(1 << bits for bits in range(21, 32))):
        for k in (1, 100, 4096):
            try:
                found = planned((1, n_elements, 1), k, element_size, algorithm="sampled", is_sorted=False)
            except ValueError:
                continue
            served += 1
            n_parts = (1 << parameters_of(found.launches[0]).sample_bits) // of_piece
            assert n_parts * (n_elements // of_piece) < 1 << 32
    assert served >= 3


@pytest.mark.parametrize("arch", [arch for arch in CAPABILITIES if CAPABILITIES[arch] < (9, 0)])
def test_devices_that_have_not_been_measured(arch):
    """They have no such kernels, and plans do without."""
    for n_elements, k, is_sorted in ((131_072, 2048, False), (131_072, 2048, True), (65_536, 1000, False)):
        found = planned((512, n_elements, 1), k, 4, arch, is_sorted=is_sorted)
        assert all(launch.variant.is_for(arch) for launch in found.launches)
    with pytest.raises(ValueError, match="'sampled' does not take"):
        planned((512, 131_072, 1), 2048, 4, arch, "sampled", is_sorted=False)
