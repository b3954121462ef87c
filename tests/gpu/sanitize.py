"""Small problems for compute-sanitizer, by every algorithm; docs/how_it_works.md has the commands.

Every operand is an allocation of its own that ends with the last element, and workspaces are used as the
driver gives them. Accesses outside of arrays, and reads of memory that was never written, are therefore
detected.
"""

import argparse
import time

import numpy as np

import dmlops
from tests.gpu.algorithms import ALGORITHMS, CannotServeError, forced
from tests.gpu.memory import Memory, execute
from tests.random_cases import SEED, random_case

# Enough for several granules, tiles and parts of a row; every other round makes do with less.
MOST_ELEMENTS = 70_000
SMALL_SHARE = 10


def rounds(seconds, most_elements, operators, prefix=""):
    """Take all algorithms again and again, each time with other problems; return how many were solved."""
    end, solved, number = time.monotonic() + seconds, 0, 0
    named = {name: [a for a in ALGORITHMS[name] if str(a).startswith(prefix)] for name in operators}
    unserved = {(operator, str(algorithm)) for operator in operators for algorithm in named[operator]}
    while True:
        for operator in operators:
            most = most_elements if number % 2 else most_elements // SMALL_SHARE
            case = random_case(operator, -1000 - number, most)
            for algorithm in (None, *named[operator]):
                try:
                    with forced(algorithm):
                        execute(case, np.random.default_rng(number), fence=0)
                except CannotServeError:
                    continue
                unserved.discard((operator, str(algorithm)))
                solved += 1
                # Each algorithm is seen at least once, however slow a tool is.
                if time.monotonic() > end and not unserved:
                    return solved
        number += 1


class OnDevice:
    """An array in an allocation of its own, known by its CUDA array interface."""

    def __init__(self, array):
        self.dtype, self.memory = array.dtype, Memory(array.reshape(-1).view(np.uint8), fence=0)
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (self.memory.address, False),
            "strides": None,
        }

    def to_numpy(self):
        """Return the elements, and give the memory back."""
        content = self.memory.content("an array").view(self.dtype)
        self.memory.free()
        return content


def sample_rounds(seconds, most_elements):
    """Draw tokens in each way that `sample` has, on the GPU and on the CPU; return how many calls agreed."""
    end, solved = time.monotonic() + seconds, 0
    ways = ({}, {"k": 50}, {"k": 20, "top_p": 0.9}, {"top_p": 0.9}, {"k": 700, "top_p": 0.95, "min_p": 0.001})
    while solved < 60 or time.monotonic() < end:
        rng = np.random.default_rng(solved)
        n = int(rng.integers(1, most_elements))
        rows = int(rng.integers(1, max(2, min(300, most_elements // n))))
        dtype = ("float16", "float32", "float64")[solved % 3]
        x, seeds = (rng.standard_normal((rows, n)) * 3).astype(dtype), rng.integers(0, 2**63, rows)
        tokens = np.zeros(rows, np.int64)
        arrays = [OnDevice(array) for array in (x, seeds, tokens)]
        way = ways[solved // 3 % len(ways)]
        dmlops.sample(*arrays[:2], out=arrays[2], **way)
        found = [array.to_numpy() for array in arrays]
        assert (found[2] == dmlops.sample(x, seeds, **way)).all(), (solved, x.shape, dtype, way)
        solved += 1
    return solved


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Solve small problems by every algorithm there is.")
    parser.add_argument(
        "operators", nargs="*", default=[*ALGORITHMS, "sample"], help="those to run; all if left out"
    )
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--elements", type=int, default=MOST_ELEMENTS, help="of the largest problems")
    parser.add_argument("--algorithm", default="", help="how the names of those to run begin")
    given = parser.parse_args()
    others = [operator for operator in given.operators if operator != "sample"]
    count = rounds(given.seconds, given.elements, others, given.algorithm) if others else 0
    if "sample" in given.operators:
        count += sample_rounds(given.seconds / 4, given.elements)
    print(f"{count} problems of seed {SEED} solved as NumPy, or `sample` on the CPU, solves them", flush=True)
