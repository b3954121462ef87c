"""Each area of a CPU plan's workspace is large enough: canaries lie behind it."""

import numpy as np
import pytest

import dmlops
from dmlops import AxisDirection, NonzeroCoordinates, TensorDesc, TopK1
from dmlops.calls import dispatch as operators
from dmlops.devices.memory import CPU
from kernels_cpu import plan as plans
from kernels_cpu.nonzero_coordinates import planning as nonzero_planning
from kernels_cpu.top_k import dispatch, problem
from tests import reference
from tests.data import random
from tests.plans import CANARY, launch

FENCE = 512
BEHIND = 1 << 18  # bytes behind all areas, so that what goes far beyond them is seen, and does no harm


@pytest.fixture(autouse=True)
def restore_num_threads():
    yield
    dmlops.set_num_threads(None)


class Areas:
    """Lays out areas with room behind each, and remembers where that is."""

    def lay_out(self, areas):
        """Return what `plan.lay_out` does, for areas that are longer."""
        self.sizes = dict(areas)
        places, self.size = plans.lay_out({name: size + FENCE for name, size in areas.items()})
        ends = [*list(places.values())[1:], self.size]
        self.fences = {
            name: slice(place + areas[name], end)
            for (name, place), end in zip(places.items(), ends, strict=True)
        }
        return places, self.size

    def check(self, memory):
        """Check the canaries of every task, each of which has all of the areas."""
        assert len(memory) % self.size == 0
        for task, part in enumerate(memory.reshape(-1, self.size)):
            for name, fence in self.fences.items():
                assert (part[fence] == CANARY).all(), f"task {task} wrote behind its {name}"


@pytest.fixture
def areas(monkeypatch):
    made = Areas()
    # Even short rows are worth several threads.
    monkeypatch.setattr(dispatch, "TASK_TIME", 1000)
    for module in (problem, nonzero_planning):
        monkeypatch.setattr(module, "lay_out", made.lay_out)
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


PATTERNS = {
    "random": lambda rng, n: rng.standard_normal(n) * 1000,
    "constant": lambda rng, n: np.full(n, 7),
    "few_values": lambda rng, n: rng.integers(0, 3, n),
    "ascending": lambda rng, n: np.arange(n) - 1000,
    "noisy_ascending": lambda rng, n: 10 * np.arange(n) + rng.normal(0, 300, n),
    # A long row's pairs of elements are looked at in these tiles, or are too many for that.
    "first_seventh": lambda rng, n: rng.standard_normal(n) * 1000 - 1e5 * (np.arange(n) > n // 7),
    "first_third": lambda rng, n: rng.standard_normal(n) * 1000 - 1e5 * (np.arange(n) > n // 3),
    "descending": lambda rng, n: 1000 - np.arange(n),
}
# Algorithms, and the problems that each is for: threads, shape, axis, k.
SELECTIONS = {
    "short_rows": [(1, (40, 100), 1, 5), (1, (3, 1900), 1, 96), (1, (70, 9), 1, 1), (2, (2000, 65), 1, 8)],
    "rows": [
        *((1, (2, 70_001), 1, 20), (1, (2, 70_001), 1, 160), (1, (1, 100_000), 1, 1000)),
        *((3, (1, 100_000), 1, 30), (3, (1, 100_000), 1, 700)),
    ],
    "columns": [(1, (2000, 9), 0, 30), (1, (9000, 67), 0, 100), (2, (9000, 67), 0, 200)],
    "side_by_side": [(1, (2000, 67), 0, 9), (2, (900, 131), 0, 60)],
    "sort": [
        (1, (3, 301), 1, 150),
        (1, (3, 301), 1, 160),
        (1, (3, 1000), 1, 140),
        (1, (2, 5000), 1, 600),
        (1, (700, 3), 0, 700),
    ],
    "shared_sort": [(5, (1, 100_003), 1, 100_003), (3, (70_001, 1), 0, 60_000)],
}


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("algorithm", SELECTIONS)
def test_top_k(algorithm, pattern, dtype, areas):
    for n_threads, shape, axis, k in SELECTIONS[algorithm]:
        dmlops.set_num_threads(n_threads)
        n = shape[axis]
        lines = [PATTERNS[pattern](random((pattern, line)), n) for line in range(np.prod(shape) // n)]
        x = np.stack(lines, axis=1 - axis).astype(dtype)
        largest = pattern.startswith("first") or n % 2 == 0
        keys = -x if largest else x
        order = np.argsort(keys, axis=axis, kind="stable").take(range(k), axis=axis)
        descriptor = TopK1(
            input_tensor=TensorDesc(dtype.upper(), shape),
            axis=axis,
            k=k,
            axis_direction=AxisDirection.DECREASING if largest else AxisDirection.INCREASING,
        )
        values, indices = np.empty(order.shape, dtype), np.empty(order.shape, "uint32")
        arrays = {"input_tensor": x, "output_value_tensor": values, "output_index_tensor": indices}
        plan = check(areas, descriptor, arrays)
        assert plan.variant.startswith(algorithm)
        np.testing.assert_array_equal(indices, order)
        np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis=axis))


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5, 7])
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


def test_areas_have_what_they_ask_for():
    sizes = {"a": 1, "b": 64, "none": 0, "c": 65, "d": 8}
    places, size = plans.lay_out(sizes)
    assert list(places) == list(sizes)
    begins = [*places.values(), size]
    for begin, needed, end in zip(begins, sizes.values(), begins[1:], strict=False):
        assert begin % 64 == 0
        assert begin + needed <= end


@pytest.mark.parametrize("n", [2**31 + 5, 2**32, 2**32 + 1, 2**33 + 5])
def test_plans_of_more_elements_than_32_bits_count(n, areas):
    """Plans alone, which need no memory."""
    x = TensorDesc("UINT8", (n,))
    for k in (1, 100):
        descriptor = TopK1(
            input_tensor=x,
            axis=0,
            k=k,
            axis_direction=AxisDirection.DECREASING,
            output_index_tensor=TensorDesc("UINT64", (k,)),
        )
        operators.plan(descriptor, CPU)
        # Records have 32 bits for a position: of more elements it is kept beside them.
        assert areas.sizes["positions"] >= (8 * k if n > 2**32 else 0)
        assert (areas.sizes["positions"] > 0) == (n > 2**32)
    descriptor = NonzeroCoordinates(
        input_tensor=x,
        output_count_tensor=TensorDesc("UINT64", (1,)),
        output_coordinates_tensor=TensorDesc("UINT64", (n, 1)),
    )
    plan = operators.plan(descriptor, CPU).plan
    assert areas.sizes["words"] >= n // 8
    assert plan.workspace_size >= n // 8 + areas.sizes["counts"]
