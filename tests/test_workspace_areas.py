"""Every algorithm of the CPU on rows of every pattern, with canaries behind each area of its workspace."""

import itertools

import numpy as np
import pytest

import dmlops
from dmlops import AxisDirection, NonzeroCoordinates, TensorDesc, TopK1
from tests import inside, reference
from tests.data import assert_same, random, sample
from tests.inside import cpu, plan_words
from tests.marks import exhaustive, nightly
from tests.plans import CANARY, launch, planned
from tests.random_cases import PATTERNS, elements

pytestmark = pytest.mark.usefixtures("restore_num_threads")
FENCE = 512
NONZERO_PLAN = inside.cpu_kernels("nonzero_coordinates", "plan")
TOP_K_PLAN = inside.cpu_kernels("top_k", "plan")
BEHIND = 1 << 18  # bytes behind all areas, so that what goes far beyond them is seen, and does no harm


class Areas:
    """Takes areas with room behind each, and remembers where that is."""

    def take(self, out, n_bytes, alignment):
        """Do what `plan_words.take_workspace` does, for an area that is longer."""
        begin = plan_words.take_workspace(out, n_bytes + FENCE, alignment)
        if begin == 0:  # the first area of a plan
            self.sizes, self.fences = [], {}
        self.sizes.append(n_bytes)
        self.size = out[plan_words.WORKSPACE]
        self.fences[len(self.fences)] = slice(begin + n_bytes, self.size)
        return begin

    def check(self, memory):
        """Check the canaries of every task, each of which has all of the areas."""
        assert len(memory) % self.size == 0
        for task, part in enumerate(memory.reshape(-1, self.size)):
            for name, fence in self.fences.items():
                assert (part[fence] == CANARY).all(), f"task {task} wrote behind area {name}"


@pytest.fixture
def areas(monkeypatch):
    made = Areas()
    # Even short rows are worth several threads.
    monkeypatch.setattr(cpu, "compiles_plans", lambda: False)
    monkeypatch.setattr(TOP_K_PLAN, "TASK_TIME", 1000)
    for module in (TOP_K_PLAN, NONZERO_PLAN):
        monkeypatch.setattr(module, "take_workspace", made.take)
    return made


def check(areas, descriptor, arrays, options=None):
    """Launch a descriptor in a workspace of just the size that its plan wants, full of canaries."""
    made = []

    def aligned(size):
        memory = np.full(size + 64 + BEHIND, CANARY, np.uint8)
        start = -memory.ctypes.data % 64
        made.extend((memory[start : start + size], memory[start + size :]))
        return made[0]

    plan = launch(descriptor, arrays, options, workspace=aligned)
    areas.check(made[0])
    assert (made[1] == CANARY).all()
    return plan


# Algorithms, and the problems that each is for: threads, shape, axis, k.
SELECTIONS = {
    "short_rows": [(1, (40, 100), 1, 5), (1, (3, 1900), 1, 96), (1, (70, 9), 1, 1), (2, (2000, 65), 1, 8)],
    "rows": [
        *((1, (2, 70_001), 1, 20), (1, (2, 70_001), 1, 160), (1, (1, 100_000), 1, 1000)),
        *((3, (1, 100_000), 1, 30), (7, (1, 100_000), 1, 700)),
    ],
    "columns": [(1, (2000, 9), 0, 30), (1, (9000, 67), 0, 100), (2, (9000, 67), 0, 200)],
    "side_by_side": [(1, (2000, 67), 0, 9), (2, (900, 131), 0, 60)],
    "sort": [
        (1, (3, 301), 1, 150),
        (1, (3, 301), 1, 160),
        (1, (3, 1000), 1, 140),
        (1, (2, 5000), 1, 600),
        (1, (700, 3), 0, 700),
        (5, (1, 100_003), 1, 100_003),
    ],
}
DATA = [(pattern, "float32") for pattern in PATTERNS]
OTHERS = [
    *((pattern, "int64") for pattern in PATTERNS if pattern != "random"),
    ("random", "bool"),
    ("nan_rich", "float16"),
]


def lengths_of(rng, n_rows, n, k):
    """Return lengths of rows: any, around `k`, and out of range."""
    extremes = rng.choice([-(2**63), -1, 0, 1, n, n + 1, 2**63 - 1], n_rows)
    choices = [rng.integers(0, n + 1, n_rows), k + rng.integers(-2, 3, n_rows), extremes]
    return np.choose(rng.integers(3, size=n_rows), choices)


@pytest.mark.parametrize(
    ("pattern", "dtype"), [*DATA, exhaustive("random", "int64"), *(nightly(*each) for each in OTHERS)]
)
@pytest.mark.parametrize("algorithm", SELECTIONS)
def test_top_k(algorithm, pattern, dtype, areas):
    """Sorted, by index and with lengths, of the largest and the smallest in turn."""
    first = [*PATTERNS].index(pattern)
    for number, (n_threads, shape, axis, k) in enumerate(SELECTIONS[algorithm], first):
        dmlops.set_num_threads(n_threads)
        n, n_rows, rng = shape[axis], np.prod(shape) // shape[axis], random((algorithm, pattern, number))
        largest, is_whole, is_sorted = number % 2 == 0, number % 3 < 2, number % 5 < 3
        rows = np.stack([elements(pattern, rng, n, np.dtype(dtype)) for _ in range(n_rows)])
        if not largest and rows.dtype.kind in "if":
            rows = -rows  # most patterns make it hard to find the largest elements
        x = np.ascontiguousarray(rows if axis else rows.T)
        lengths = None if is_whole else lengths_of(rng, n_rows, n, k)
        expected = reference.top_k(x, k, axis=axis, largest=largest, sorted=is_sorted, lengths=lengths)
        descriptor = TopK1(
            input_tensor=TensorDesc(dtype.upper(), shape),
            axis=axis,
            k=k,
            axis_direction=AxisDirection.DECREASING if largest else AxisDirection.INCREASING,
        )
        values, indices = (np.empty(expected[0].shape, kind) for kind in (dtype, "uint32"))
        arrays = {"input_tensor": x, "output_value_tensor": values, "output_index_tensor": indices}
        options = {"is_sorted": is_sorted}
        if not is_whole:
            arrays["lengths"] = lengths
            options["lengths"] = TensorDesc("INT64", lengths.shape)
        plan = check(areas, descriptor, arrays, options)
        assert plan.variant.startswith(algorithm) or x.itemsize < 4 or not (is_whole and is_sorted)
        assert_same(indices, expected[1].astype("uint32"))
        assert_same(values, expected[0])


# Elements of a row and k on both sides of what separates algorithms: rows that are short, k that is small for
# the row or large, rows that threads share.
SIDES = [
    *((800, 96), (800, 97), (6400, 200), (6400, 201)),
    *(exhaustive(*each) for each in ((800, 100), (800, 101), (4095, 96), (4096, 96), (900, 60), (900, 61))),
    *(exhaustive(*each) for each in ((1000, 749), (1000, 750), (65_535, 65_535), (65_536, 65_536))),
    exhaustive(300_000, 30),
]


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(("n", "k"), SIDES)
def test_the_answer_of_a_row_depends_on_that_row_alone(n, k, is_sorted, monkeypatch):
    """In any batch, at any position, in rows and in columns, for any number of threads."""
    monkeypatch.setattr(cpu, "compiles_plans", lambda: False)
    monkeypatch.setattr(TOP_K_PLAN, "TASK_TIME", 1000)
    rng = random((n, k))
    batch = np.where(rng.random((70, n)) < 0.5, rng.integers(0, 40, (70, n)), sample("float32", (70, n), n))
    batch = batch.astype("float32")[: max(200_000 // n, 2)]
    alone = [dmlops.top_k(row.copy(), k, sorted=is_sorted) for row in batch]
    assert_same(alone[0].indices, reference.top_k(batch[0], k, sorted=is_sorted)[1])
    for n_threads, order in itertools.product((1, 2, 5), (slice(None), slice(None, None, -1), slice(1, 35))):
        dmlops.set_num_threads(n_threads)
        for axis in (0, 1):
            x = np.ascontiguousarray(batch[order] if axis else batch[order].T)
            for place, found in enumerate(dmlops.top_k(x, k, axis=axis, sorted=is_sorted)):
                assert_same(found if axis else found.T, np.stack([row[place] for row in alone[order]]))


@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("density", [0, 0.3, 1])
def test_nonzero(density, n_threads, areas):
    dmlops.set_num_threads(n_threads)
    for shape, strides in (((700, 1003), (1003, 1)), ((700, 1003), (1, 700)), ((64,), (2,)), ((65,), (2,))):
        x_desc = TensorDesc("FLOAT32", shape, strides)
        memory = (random((shape, density)).random(x_desc.extent) < density).astype("float32")
        x = np.lib.stride_tricks.as_strided(memory, shape, [4 * stride for stride in strides])
        expected, count = reference.nonzero_coordinates(x)
        coordinates, found = np.full((x.size, x.ndim), 77, "uint32"), np.zeros(1, "uint32")
        arrays = {
            "input_tensor": memory,
            "output_coordinates_tensor": coordinates,
            "output_count_tensor": found,
        }
        check(areas, NonzeroCoordinates(input_tensor=x_desc), arrays)
        assert found == count
        np.testing.assert_array_equal(coordinates[:count], expected)
        assert (coordinates[count:] == 77).all()


@pytest.mark.parametrize("n", [2**31 + 5, 2**32, 2**32 + 1, 2**33 + 5])
def test_plans_of_more_elements_than_32_bits_count(n, areas):
    """Plans alone, which need no memory."""
    x = TensorDesc("FLOAT32", (n,))
    for k in (1, 100):
        descriptor = TopK1(
            input_tensor=x,
            axis=0,
            k=k,
            axis_direction=AxisDirection.DECREASING,
            output_index_tensor=TensorDesc("UINT64", (k,)),
        )
        planned(descriptor)
        # Records have 32 bits for a position: of more elements it is kept beside them.
        _, positions, *_ = areas.sizes
        assert positions >= (8 * k if n > 2**32 else 0)
        assert (positions > 0) == (n > 2**32)
    descriptor = NonzeroCoordinates(
        input_tensor=x,
        output_count_tensor=TensorDesc("UINT64", (1,)),
        output_coordinates_tensor=TensorDesc("UINT64", (n, 1)),
    )
    plan, _ = planned(descriptor)
    words, counts = areas.sizes
    assert words >= n // 8
    assert plan.workspace_size >= n // 8 + counts
