"""`dmlops` on torch's DTensors: four processes with gloo give the answer of one."""

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from dmlops import InvalidDescriptorError  # noqa: E402
from tests import distributed_checks  # noqa: E402
from tests.marks import exhaustive, nightly  # noqa: E402
from tests.ranks import Ranks  # noqa: E402
from tests.scripts import run_script  # noqa: E402

CHECKS = (
    distributed_checks.top_k_sizes,
    distributed_checks.top_k_dtypes,
    distributed_checks.top_k_options,
    distributed_checks.top_k_layouts,
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


@pytest.mark.parametrize(
    ("name", "n_ranks", "delay_s", "timeout_s"),
    [
        ("top_k", 2, 0, 120),
        ("top_k of lengths", 2, 0, 120),
        nightly("gather_nd", 2, 0, 120),
        *(nightly(name, 2, 0.3, 120) for name in distributed_checks.EXCHANGES),
        # Ranks that exchange nothing with the one that was killed wait until the group's time is over.
        *(nightly(name, 4, 0, 20) for name in distributed_checks.EXCHANGES),
    ],
)
def test_rank_that_is_killed(name, n_ranks, delay_s, timeout_s, tmp_path):
    """The others raise torch's error at their next exchange."""
    mortal = Ranks(n_ranks, tmp_path, timeout_s=timeout_s)
    *others, last = mortal(distributed_checks.one_rank_is_killed, name, delay_s)
    mortal.end()
    assert isinstance(last, ProcessLookupError)
    for other in others:
        assert isinstance(other, type), other
        assert issubclass(other, RuntimeError)


@pytest.mark.nightly
def test_rank_that_raises_an_error_of_its_own(tmp_path):
    """The others wait until the process group's time is over, and raise torch's error."""
    waiting = Ranks(2, tmp_path, timeout_s=20)
    (kind, _), (kind_of_last, text_of_last) = waiting(distributed_checks.one_rank_raises)
    waiting.end()
    assert "got a shard of shape (3, 5)" in text_of_last
    assert kind_of_last is InvalidDescriptorError
    assert issubclass(kind, RuntimeError)


def test_page():
    """One process runs the page, as torchrun would start it."""
    run_script(
        'from tests.scripts import run_page; run_page("docs/integrations/torch_distributed.md")',
        RANK="0",
        WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
    )
