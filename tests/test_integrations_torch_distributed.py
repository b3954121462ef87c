"""`dmlops` on torch's DTensors: four processes with gloo give the answer of one."""

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from dmlops import InvalidDescriptorError  # noqa: E402
from tests import distributed_checks  # noqa: E402
from tests.marks import exhaustive  # noqa: E402
from tests.ranks import Ranks  # noqa: E402
from tests.scripts import run_script  # noqa: E402

CHECKS = (
    distributed_checks.top_k_sizes,
    distributed_checks.top_k_dtypes,
    distributed_checks.top_k_options,
    distributed_checks.top_k_layouts,
    distributed_checks.nonzero,
    distributed_checks.gather,
    distributed_checks.gather_errors,
    distributed_checks.lack_of_memory,
    distributed_checks.diagonal,
    distributed_checks.given_outputs,
    distributed_checks.bytes_sent,
    distributed_checks.gradients,
    distributed_checks.refusals,
    pytest.param(distributed_checks.compiled, marks=pytest.mark.exhaustive),
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
    ("name", "delay_s"),
    [
        ("top_k", 0),
        ("top_k of lengths", 0),
        *(exhaustive(name, delay_s) for name in distributed_checks.EXCHANGES for delay_s in (0, 0.3)),
    ],
)
def test_rank_that_is_killed(name, delay_s, ranks, tmp_path):
    """The others raise torch's error at their next exchange."""
    # These compile the kernels, for which the time of the others is too short.
    ranks.check(distributed_checks.bytes_sent)
    mortal = Ranks(4, tmp_path, timeout_s=5)
    *others, last = mortal(distributed_checks.one_rank_is_killed, name, delay_s)
    mortal.end()
    assert isinstance(last, ProcessLookupError)
    for kind, notes in others:
        assert issubclass(kind, RuntimeError)
        assert "could not exchange results" in notes[0]


@pytest.mark.exhaustive
def test_rank_that_raises_an_error_of_its_own(ranks, tmp_path):
    """The others wait until the process group's time is over, and raise torch's error."""
    ranks.check(distributed_checks.bytes_sent)
    waiting = Ranks(2, tmp_path, timeout_s=5)
    (kind, texts), (kind_of_last, texts_of_last) = waiting(distributed_checks.one_rank_raises)
    waiting.end()
    assert "got a shard of shape (3, 5)" in texts_of_last[0]
    assert kind_of_last is InvalidDescriptorError
    assert issubclass(kind, RuntimeError)
    assert "could not exchange results" in texts[1]


def test_page():
    """One process runs the page, as torchrun would start it."""
    run_script(
        'from tests.scripts import run_page; run_page("docs/integrations/torch_distributed.md")',
        RANK="0",
        WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
    )
