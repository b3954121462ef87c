"""What works with tensors on the CPU works with tensors on a GPU, with the same answers."""

import pytest

torch = pytest.importorskip("torch")

from tests.argument_places import listed, works  # noqa: E402

PLACES = "torch", "torch's derivative", "`torch.compile`", "`torch.func.vmap`"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning:torch.*")
@pytest.mark.parametrize("place", PLACES)
def test_the_table(place):
    cases = [case for case, where in listed() if where == place]
    broken = [f"{case.function}: {case.argument}" for case in cases if not works(case, place, device="cuda")]
    assert not broken
