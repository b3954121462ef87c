"""`dmlops` on torch's DTensors over several GPUs: the checks of the CPU's test, with NCCL."""

import pytest

torch = pytest.importorskip("torch")

from dmlops import InvalidDescriptorError  # noqa: E402
from tests import distributed_checks  # noqa: E402
from tests.ranks import Ranks  # noqa: E402
from tests.test_integrations_torch_distributed import CHECKS  # noqa: E402

pytestmark = pytest.mark.two_gpus

# Of the process group. torch takes some time longer to end a process.
TIMEOUT_S, END_S = 20, 120


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    n_ranks = 4 if torch.cuda.device_count() >= 4 else 2
    ranks = Ranks(n_ranks, tmp_path_factory.mktemp("ranks"), "cuda")
    yield ranks
    ranks.end()


@pytest.fixture
def mortal_ranks(tmp_path):
    """Make a process group of two that may end during the test."""
    made = []

    def make(**environment):
        made.append(Ranks(2, tmp_path, "cuda", TIMEOUT_S, **environment))
        return made[0]

    yield make
    made[0].end()


def assert_ended_by_torch(rank):
    """Check that a rank's process was ended, and said why; print what it said."""
    print(rank)
    assert isinstance(rank, ProcessLookupError), rank
    assert "NCCL" in str(rank)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_same_as_one_gpu(check, ranks):
    ranks.check(check)


@pytest.mark.parametrize(
    ("name", "delay_s"),
    [*((name, 0) for name in distributed_checks.EXCHANGES), ("top_k", 1), ("gather_nd", 1)],
)
def test_rank_that_is_killed(name, delay_s, mortal_ranks):
    """torch ends the process of the other rank, once that has waited for as long as it may."""
    survivor, killed = mortal_ranks()(distributed_checks.one_rank_is_killed, name, delay_s, timeout_s=END_S)
    assert isinstance(killed, ProcessLookupError)
    assert_ended_by_torch(survivor)


def test_rank_that_raises_an_error_of_its_own(mortal_ranks):
    """It goes on; torch ends the process of the other."""
    other, last = mortal_ranks()(distributed_checks.one_rank_raises, timeout_s=END_S)
    kind, text = last
    assert kind is InvalidDescriptorError
    assert "got a shard of shape (3, 5)" in text
    assert_ended_by_torch(other)
