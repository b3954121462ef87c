"""`dmlops` on torch's DTensors over several GPUs: the checks of the CPU's test, with NCCL."""

import pytest

torch = pytest.importorskip("torch")

from tests.ranks import Ranks  # noqa: E402
from tests.test_integrations_torch_distributed import CHECKS  # noqa: E402

pytestmark = pytest.mark.two_gpus


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    n_ranks = 4 if torch.cuda.device_count() >= 4 else 2
    ranks = Ranks(n_ranks, tmp_path_factory.mktemp("ranks"), "cuda")
    yield ranks
    ranks.end()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_same_as_one_gpu(check, ranks):
    ranks.check(check)
