"""Makes calls of many different kinds, and reports how much memory they leave behind.

`test_memory_stays_flat` runs this program in separate processes.
"""

import os
import random
from pathlib import Path

import numpy as np

import dmlops
from dmlops import TensorDesc, TopK1
from dmlops.calls.call_cache import CALLS

MOST_CALLS = 2048  # that the cache keeps
FEWEST_ROWS = 300  # which several threads share
DTYPES = ("uint8", "int16", "float32", "int64")


def resident_bytes():
    """Return how much memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def kept_calls():
    """Return how many past calls are kept."""
    return len(CALLS)


class SmallCalls:
    """Random calls of all operators, on small arrays of any shape, type and layout."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.memory = {dtype: np.ones(4096, dtype) for dtype in DTYPES}

    def array(self):
        rng = self.rng
        shape = [rng.randint(1, 12) for _ in range(rng.randint(2, 3))]
        x = self.memory[rng.choice(DTYPES)][: int(np.prod(shape))].reshape(shape)
        return x[:, ::2] if rng.random() < 0.3 else x

    def top_k(self):
        x, rng = self.array(), self.rng
        axis = rng.randrange(x.ndim)
        options = {
            "axis": axis,
            "largest": rng.random() < 0.5,
            "index_dtype": rng.choice(("int64", "uint32")),
        }
        k = rng.randint(0, x.shape[axis])
        return lambda: dmlops.top_k(x, k, **options)

    def nonzero_coordinates(self):
        x, size = self.array(), self.rng.choice((None, self.rng.randint(0, 40)))
        return lambda: dmlops.nonzero_coordinates(x, size=size)

    def gather_nd(self):
        x, rng = self.array(), self.rng
        picks = np.zeros((rng.randint(1, 40), rng.randint(1, x.ndim)), rng.choice(("int64", "int32")))
        mode = rng.choice(("raise", "clip", "fill"))
        return lambda: dmlops.gather_nd(x, picks, mode=mode)

    def diagonal_matrix(self):
        x, rng = self.array(), self.rng
        options = {"value": rng.randint(0, 99), "begin": rng.randint(-9, 9), "end": rng.randint(-9, 9)}
        if rng.random() < 0.3:
            options["out"] = np.empty(x.shape, x.dtype)
        return lambda: dmlops.diagonal_matrix(x, **options)

    def made_matrix(self):
        rng = self.rng
        shape, dtype, value = (rng.randint(1, 40), rng.randint(1, 40)), rng.choice(DTYPES), rng.randint(0, 99)
        return lambda: dmlops.diagonal_matrix(shape=shape, dtype=dtype, value=value)

    def refused(self):
        x, k = self.array(), self.rng.randint(13, 10**6)

        def call():
            try:
                dmlops.top_k(x, k)
            except dmlops.InvalidDescriptorError:
                return
            raise AssertionError(k)

        return call

    def compiled(self):
        n = self.rng.randint(2, 60)
        x, k = self.memory["float32"][:n], self.rng.randint(1, n)
        desc = TopK1(input_tensor=TensorDesc("FLOAT32", (n,)), axis=0, k=k, axis_direction=1)
        operator = dmlops.compile(desc)
        outputs = np.empty(k, "float32"), np.empty(k, "uint32")
        tensors = {"input_tensor": x, "output_value_tensor": outputs[0], "output_index_tensor": outputs[1]}
        return lambda: operator.execute(tensors)

    def run(self, n_calls):
        """Make so many calls, some of them several times."""
        makers = (
            self.top_k,
            self.nonzero_coordinates,
            self.gather_nd,
            self.diagonal_matrix,
            self.made_matrix,
        )
        done = 0
        while done < n_calls:
            maker = self.rng.choice(makers)
            if self.rng.random() < 0.05:
                maker = self.rng.choice((self.compiled, self.refused))
            call = maker()
            for _ in range(self.rng.choice((1, 1, 1, 1, 3))):
                call()
                done += 1


def many_kinds(n_calls, n_before):
    """Print how much memory there is when all is kept that ever is, and after so many calls more."""
    calls = SmallCalls(0)
    calls.run(n_before)
    before = resident_bytes()
    assert kept_calls() == MOST_CALLS
    calls.run(n_calls)
    assert kept_calls() == MOST_CALLS
    print(before, resident_bytes())


def largest_entries(n_threads):
    """Print how much memory there is before and after calls of which as much is kept as can be.

    They have many dimensions, in no layout that could be seen as one with fewer, and work for many threads.
    """
    dmlops.set_num_threads(n_threads)
    memory = np.ones(1 << 23, "float32")

    def run(rows):
        # A gap after each dimension.
        x = memory[: rows * 3**7].reshape(rows, *(3,) * 7)[:, :2, :2, :2, :2, :2, :2, :2]
        picks = np.zeros((rows, 1), np.int64)
        for _ in range(2):  # the second time it is known how to run it again
            dmlops.top_k(
                x, 1, out=(np.empty((*x.shape[:-1], 1), "float32"), np.empty((*x.shape[:-1], 1), int))
            )
            dmlops.gather_nd(x, picks)
            dmlops.diagonal_matrix(x, value=0)
            dmlops.nonzero_coordinates(x, size=3)

    for rows in range(8, 12):
        run(rows)
    run(FEWEST_ROWS + 600)  # which needs the most memory of its own
    before = resident_bytes()
    for rows in range(FEWEST_ROWS, FEWEST_ROWS + 600):
        run(rows)
    print(before, resident_bytes(), kept_calls())
