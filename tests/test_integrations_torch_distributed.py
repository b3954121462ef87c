"""`dmlops` on torch's DTensors: four processes with gloo give the answer of one."""

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from tests import distributed_checks  # noqa: E402
from tests.marks import exhaustive  # noqa: E402
from tests.ranks import Ranks  # noqa: E402
from tests.scripts import run_script  # noqa: E402

CHECKS = (
    distributed_checks.top_k_sizes,
    distributed_checks.top_k_dtypes,
    distributed_checks.top_k_options,
    distributed_checks.top_k_windows,
    distributed_checks.top_k_numbers,
    distributed_checks.top_k_segments,
    distributed_checks.top_k_layouts,
    distributed_checks.draws,
    distributed_checks.draws_from_all,
    distributed_checks.gather,
    distributed_checks.gather_errors,
    distributed_checks.lack_of_memory,
    distributed_checks.diagonal,
    distributed_checks.given_outputs,
    distributed_checks.bytes_sent,
    distributed_checks.gradients,
    distributed_checks.refusals,
    exhaustive(distributed_checks.compiled),
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    ranks = Ranks(4, tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.end()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_same_as_one_device(check, ranks):
    ranks.check(check)


@pytest.mark.exhaustive
def test_a_rank_that_is_killed(tmp_path):
    mortal = Ranks(2, tmp_path)
    other, last = mortal(distributed_checks.one_rank_is_killed)
    mortal.end()
    assert isinstance(last, ProcessLookupError)
    assert issubclass(other, RuntimeError)


def test_page():
    """One process runs the page, as torchrun would start it."""
    run_script(
        'from tests.scripts import run_page; run_page("docs/integrations/torch_distributed.md")',
        RANK="0",
        WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
    )
