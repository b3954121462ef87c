"""The table of arguments and places in docs/integrations/index.md: all that it says works, works."""

import pytest

from tests.argument_places import PLACES, listed, works

LIBRARIES = {"torch": "torch", "DTensor": "torch", "JAX": "jax", "jax": "jax", "Dask": "dask.array"}
CALLS = listed()

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*"),
]


@pytest.mark.libraries
@pytest.mark.parametrize("place", PLACES)
def test_the_table(place):
    for part, library in LIBRARIES.items():
        if part in place:
            pytest.importorskip(library)
    cases = [case for case, where in CALLS if where == place]
    assert cases
    broken = [f"{case.function}: {case.argument}" for case in cases if not works(case, place)]
    assert not broken
