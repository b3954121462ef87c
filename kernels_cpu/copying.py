"""Bytes copied from one address to another."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels_cpu import moves
from kernels_cpu.addresses import Address
from kernels_cpu.jit import compiled, quick
from kernels_cpu.memory import BYTES, INTEGER
from kernels_cpu.unsigned import ZERO


@quick
def _copy(output: Any, x: Any, size: int) -> None:
    moves.copy(moves.pointer(x), ZERO, moves.pointer(output), ZERO, np.uint64(size))


def copier() -> Callable[[Address, Address, int], None]:
    """Return a function that copies: ``copy(to, start, size)``."""
    return compiled(_copy, BYTES, BYTES, INTEGER)
