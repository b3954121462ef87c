"""Small numbers as unsigned words: Numba makes floats of what mixes these with signed ones."""

from typing import Any

import numpy as np

ZERO: Any = np.uint64(0)
ONE: Any = np.uint64(1)
TWO: Any = np.uint64(2)
THREE: Any = np.uint64(3)
FOUR: Any = np.uint64(4)
SIX: Any = np.uint64(6)
EIGHT: Any = np.uint64(8)
