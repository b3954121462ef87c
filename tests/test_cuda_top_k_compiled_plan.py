"""The plan of top-k on CUDA gives the same words as a plain Python function and as a compiled one."""

import random
from array import array

import pytest

from tests import inside
from tests.cuda_plans import compiled_plan
from tests.inside import Target, device_words, plan_words, top_k_dispatch, top_k_plan, top_k_policy
from tests.marks import nightly
from tests.plan_problems import random_problem
from tests.test_cuda_top_k_plans import SHARED_BYTES

# Room for the launches that most plans have.
ROOM = 4096
# Other values of the policy.
CHANGES = (
    {},
    {"transposed_rows": 1},
    {"launch_blocks": 7},
    {"launch_blocks": 1 << 20, "narrow_axis_elements": 0},
    {"part_elements": 1 << 15, "unit_groups_per_thread": 0, "fine_bytes": 0},
    {"only_block_threads": 256, "sorted_share": 0, "cluster_blocks": 8},
    {"narrow_elements": 0, "batch_bytes": 1 << 20},
    {"filtered_bytes": 0, "kept_share": 1},
)


def random_words(seed):
    """Return the words of a random problem, of a random device, and of what was measured on it."""
    rng = random.Random(seed)
    arch = rng.choice(("sm_90", *SHARED_BYTES))
    target = Target(0, arch, rng.choice((1, 20, 132, 264)), SHARED_BYTES[arch])
    room = ROOM if rng.random() < 0.9 else rng.randrange(200, 600)
    forced = rng.choice((0, rng.choice(list(top_k_dispatch.ALGORITHMS.values()))))
    device = top_k_policy.plan_device(target, forced, rng.choice(CHANGES), room)
    return (
        inside.cpu_kernels("top_k", "problem_words").problem_words(random_problem("top_k", seed)),
        device,
        top_k_dispatch.table_of(arch),
    )


@pytest.mark.parametrize("n_problems", [3000, nightly(100_000)])
def test_the_compiled_plan_gives_the_words_of_the_plain_one(n_problems):
    compiled, statuses, algorithms = compiled_plan("top_k", 3), set(), set()
    for seed in range(n_problems):
        given = random_words(seed)
        made, expected = array("q", [-7] * (ROOM + 1)), [-7] * (ROOM + 1)
        places = [array("q", words) for words in given]
        status = top_k_plan.plan(*given, expected)
        assert compiled(*[each.buffer_info()[0] for each in (*places, made)]) == status, seed
        end = expected[plan_words.END]
        assert list(made[:end]) == expected[:end], seed
        # Nothing is written behind the room that there is.
        assert set(made[given[1][device_words.ROOM] :]) <= {-7}, seed
        statuses.add(status)
        algorithms.add(expected[plan_words.ALGORITHM])
    assert statuses == {0, 1, 2}
    assert algorithms >= {*top_k_dispatch.ALGORITHMS.values()}
