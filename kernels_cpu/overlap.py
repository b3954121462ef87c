"""Whether operands come too close to each other: all of them compared in one compiled call."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from kernels_cpu.jit import compiled, quick
from kernels_cpu.memory import BYTES, INTEGER, operand_of, place_of, words_at

MOST_OPERANDS = 4


@quick
def _any_close(table: Any, n: int, a: Any, b: Any, c: Any, d: Any) -> bool:
    places = place_of(a), place_of(b), place_of(c), place_of(d)
    bounds = words_at(place_of(table))
    for at in range(0, 4 * n, 4):
        distance = places[bounds[at + 1]] - places[bounds[at]]
        if bounds[at + 2] < distance < bounds[at + 3]:
            return True
    return False


def closeness_test(bounds: Sequence[tuple[int, int, int, int]]) -> Callable[..., bool]:
    """Return a function of `MOST_OPERANDS` operands that tells whether any two of them are too close.

    Parameters
    ----------
    bounds : sequence of (first, second, above, below)
        Operands `first` and `second` are, if the second begins more than `above` and less than `below` bytes
        after the first.
    """
    table = np.array(bounds, np.int64).reshape(-1)
    operands: tuple[Any, ...] = (BYTES,) * MOST_OPERANDS
    test: Callable[..., bool] = compiled(_any_close, operand_of(table), INTEGER, *operands)
    return partial(test, table, len(bounds))
