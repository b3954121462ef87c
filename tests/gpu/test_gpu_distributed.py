"""`dmlops` on torch's DTensors over several GPUs: the checks of the CPU's test, with NCCL."""

import pytest

torch = pytest.importorskip("torch")

from tests import distributed_checks  # noqa: E402
from tests.ranks import Ranks  # noqa: E402
from tests.test_integrations_torch_distributed import CHECKS  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    n_ranks = 4 if torch.cuda.device_count() >= 4 else 2
    ranks = Ranks(n_ranks, tmp_path_factory.mktemp("ranks"), "cuda")
    yield ranks
    ranks.end()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_same_as_one_gpu(check, ranks):
    ranks.check(check)


def test_rank_that_ends(tmp_path):
    """NCCL ends the other ranks, or lets them raise an error; none of them hangs."""
    ranks = Ranks(2, tmp_path, "cuda", timeout_s=20)
    other, last = ranks(distributed_checks.one_rank_ends, timeout_s=120)
    ranks.end()
    assert isinstance(last, ProcessLookupError)
    assert not isinstance(other, TimeoutError), other
