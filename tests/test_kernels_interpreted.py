"""Kernels for GPUs without a GPU: `tests.interpreter` runs random problems, compared byte by byte.

Algorithms are forced. With ``DMLOPS_COMPILE_ALL=1``, these are all that plans can choose, which takes many
minutes; otherwise those that compile quickly, and those whose threads copy while they go on.
"""

import math

import numpy as np
import pytest
from ml_dtypes import bfloat16

from dmlops import AxisDirection, TensorDataType, TensorDesc, TopK1
from dmlops.operators import Options
from dmlops.operators.nonzero_coordinates import Problem as NonzeroProblem
from kernels_cuda.nonzero_coordinates import Policy as NonzeroPolicy
from kernels_cuda.nonzero_coordinates import plan as nonzero_plan
from kernels_cuda.runtime.variant import Target
from kernels_cuda.top_k.read_once.sampled_launches import ROW_STATE_BYTES, list_slots
from kernels_cuda.top_k.short_rows.rounds_launches import ROUNDS_SHAPES
from tests import reference
from tests.cuda_plans import SHARED_BYTES, STREAM
from tests.gpu.algorithms import ALGORITHMS
from tests.interpreter.device import interpreted
from tests.interpreter.memory import GlobalMemory
from tests.interpreter.problems import ALIGNMENT, aligned, run_case
from tests.kernel_sources import needs_compilations
from tests.marks import COMPILE_ALL, exhaustive
from tests.random_cases import RandomCase, random_case
from tests.sampled_rows import equal_elements, misleading_rows, rows_of_special_numbers

pytest.importorskip("cuda.core")
pytestmark = needs_compilations

# Longer problems take the interpreter seconds each.
MOST_ELEMENTS = 5000
# A cluster has thousands of threads, and every row takes one.
MOST_CLUSTERS = 16
# What elements that change meanwhile cannot lead outside of their memory; see docs/reliability.md.
READING_CHANGED = {"rounds", "one_pass", "cluster", "sampled", "block", "grid", "sort"}
QUICK = {"rounds", "one_pass", "one_pass-1024", "cluster", "masks", "elements"}
COPYING = {"sampled"}
CHOICES = [
    pytest.param(
        *(operator, choice),
        id=str(choice),
        marks=[pytest.mark.exhaustive] if choice.name in COPYING else [],
    )
    for operator, choices in ALGORITHMS.items()
    for choice in choices
    if COMPILE_ALL or choice.name in QUICK | COPYING
]


@pytest.mark.parametrize(("operator", "choice"), CHOICES)
def test_each_algorithm(operator, choice):
    n_served = 0
    for number in range(-1, -60, -1):
        case = random_case(operator, number, MOST_ELEMENTS)
        if choice.name.startswith("cluster") and _n_rows(case.descriptor) > MOST_CLUSTERS:
            continue
        try:
            run_case(case, choice)
        except ValueError as error:
            if "does not take" not in str(error):
                raise
            continue
        n_served += 1
        if n_served == 3:
            return
    assert n_served


def _n_rows(descriptor):
    sizes = descriptor.input_tensor.sizes
    return math.prod(sizes) // sizes[descriptor.axis]


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(("n_elements", "step"), [(20_000, 64), (20_000, 512), (60_000, 512)])
@pytest.mark.parametrize("data_type", [TensorDataType.FLOAT16, TensorDataType.FLOAT32])
def test_few_elements_of_crowded_groups(data_type, n_elements, step, is_sorted):
    """A cluster has no room for a group's candidates, or for those of all, or has room for them."""
    dtype = np.dtype(f"f{data_type.bytes}")
    rows = np.random.default_rng(9).standard_normal((1, n_elements))
    rows = np.where(np.arange(n_elements) % step == 5, rows + 10, rows).astype(dtype)
    run_top_k("cluster", data_type, rows, 50, is_sorted)


@pytest.mark.exhaustive
@pytest.mark.parametrize("data_type", [TensorDataType.FLOAT16, TensorDataType.FLOAT32])
def test_few_elements_of_rows_below_zero(data_type):
    """What a cluster reads in place of elements behind a row, zeros, is larger than all of these."""
    rows = -2 - np.random.default_rng(10).random((1, 20_003)).astype(f"f{data_type.bytes}")
    rows[0, -1] = -1
    run_top_k("cluster", data_type, rows, 50, True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(("data_type", "k"), [("FLOAT16", 100), ("FLOAT32", 100), ("FLOAT32", 300)])
def test_groups_of_many_and_of_few_candidates(data_type, k, is_sorted):
    """Of rows in order, all elements of the k first groups are candidates, and a higher threshold is found.

    Of others, some are in each group; a large k has more of these than threads read at a time.
    """
    data_type = TensorDataType[data_type]
    row = np.linspace(-5, 5, 60_000).astype(f"f{data_type.bytes}")
    for each in (row, row[::-1], np.random.default_rng(16).permutation(row)):
        run_top_k("grid", data_type, each[np.newaxis].copy(), k, is_sorted)


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("data_type", "n_elements"), [("FLOAT16", 70_001), ("FLOAT32", 35_001)])
def test_few_groups_have_many_elements(data_type, n_elements, largest, is_sorted):
    """A block that reads a row once has no room for all candidates, and looks for a higher threshold.

    The second row begins and ends between vectors.
    """
    data_type = TensorDataType[data_type]
    rows = np.random.default_rng(9).standard_normal((2, n_elements))
    of_step = np.arange(n_elements) % (512 * 16 // data_type.bytes)
    for n_groups, k in ((40, 50), (90, 128)):
        crowded = np.where(of_step < n_groups, rows + 10, rows)
        crowded[:, [0, -1]] = 20
        crowded = (crowded if largest else -crowded).astype(f"f{data_type.bytes}")
        run_top_k("one_pass", data_type, crowded, k, is_sorted, largest)


def run_top_k(name, data_type, rows, k, is_sorted, largest=True, lengths=None, memory=None):
    """Have a forced algorithm select from rows, and compare every byte with the oracle's.

    In `memory` that is given, only accesses are checked.
    """
    values, indices = reference.top_k(rows, k, sorted=is_sorted, largest=largest, lengths=lengths)
    descriptor = TopK1(
        input_tensor=TensorDesc(data_type, rows.shape),
        axis=1,
        k=k,
        axis_direction=AxisDirection.DECREASING if largest else AxisDirection.INCREASING,
        output_value_tensor=TensorDesc(data_type, values.shape),
        output_index_tensor=TensorDesc(TensorDataType.INT64, values.shape),
    )
    options, inputs = Options(is_sorted=is_sorted), {"input_tensor": rows}
    if lengths is not None:
        options = options._replace(lengths=TensorDesc(TensorDataType.INT64, lengths.shape))
        inputs["lengths"] = lengths
    after = inputs | {"output_value_tensor": values, "output_index_tensor": indices}
    after = {field: operand.ravel().view(np.uint8) for field, operand in after.items()}
    before = {
        field: operand if field in inputs else np.zeros_like(operand) for field, operand in after.items()
    }
    (choice,) = (choice for choice in ALGORITHMS["top_k"] if choice.name == name)
    run_case(RandomCase("top_k", name, descriptor, options, before, after), choice, memory=memory)


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 8])
@pytest.mark.parametrize("kind", ["zeros", "NaNs"])
@pytest.mark.parametrize(
    ("name", "data_type"),
    [
        exhaustive("cluster", "FLOAT32"),
        exhaustive("cluster", "FLOAT16"),
        ("one_pass", "FLOAT32"),
        exhaustive("rounds", "FLOAT16"),
    ],
)
def test_equal_elements_of_other_bits(name, data_type, kind, k, largest, is_sorted):
    """Zeros of both signs tie, and so do NaNs: the first ones are selected, whatever their bits."""
    n_elements = 300 if name == "rounds" else 3000
    rows = equal_elements(f"f{TensorDataType[data_type].bytes}", kind, (1, n_elements))
    run_top_k(name, TensorDataType[data_type], rows, k, is_sorted, largest)


TIES = {
    "constant": np.ones_like,
    "two": lambda rows: rows > 0,
    "few": lambda rows: np.floor(rows * 2),
    "mostly_zeros": lambda rows: rows * (rows > 1.9),
    "clamped": lambda rows: rows.clip(-1, 1),
    "close": lambda rows: 1 + np.floor(abs(rows) * 3) / (1 << 23),
    "lowest": lambda rows: np.full_like(rows, -np.inf),
    "last_of_vectors": lambda rows: np.where(np.arange(rows.shape[1]) % 4 == 3, 9, rows),
    # The first element, and one of each of many vectors that lie together, of a later step.
    "late": lambda rows: np.where(_is_late(np.arange(rows.shape[1])), 9, rows),
}


def _is_late(positions):
    return (positions == 0) | ((positions // 512 == 16) & (positions % 4 == 0))


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("kind", TIES)
@pytest.mark.parametrize("n_elements", [100, 256, 1000])
def test_ties_of_short_rows(n_elements, kind, is_sorted):
    """One warp per row finds more elements that equal its threshold than it has room for."""
    rows = np.random.default_rng(11).standard_normal((5, n_elements), np.float32)
    rows = TIES[kind](rows).astype(np.float32)
    for k in (1, 8, 32):
        run_top_k("warp", TensorDataType.FLOAT32, rows, k, is_sorted)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", TIES)
@pytest.mark.parametrize(("name", "k"), [("cluster", 600), ("one_pass", 103), ("one_pass-1024", 30)])
def test_ties_of_long_rows(name, k, kind):
    """Blocks find that all keys of a range are equal, or that they are not; or read few vectors again."""
    rows = np.random.default_rng(12).standard_normal((1, 20_003), np.float32)
    rows = TIES[kind](rows).astype(np.float32)
    run_top_k(name, TensorDataType.FLOAT32, rows, k, is_sorted=False)


# A lane of the rounds kernel keeps its keys of 4 and 8 bytes in groups of so many.
GROUP_KEYS = 8
# Numbers of a row's elements, 0 for the one that comes last: `lanes` and `groups` are those of the positions.
ROUNDS = {
    "distinct": lambda rng, lanes, groups: rng.permutation(lanes.size),
    "ties": lambda rng, lanes, groups: rng.integers(0, 3, lanes.size),
    "least": lambda rng, lanes, groups: np.zeros(lanes.size, int),
    "mostly_least": lambda rng, lanes, groups: 5 * (rng.permutation(lanes.size) < 3),
    "ascending_group": lambda rng, lanes, groups: _group(rng, groups, np.arange(GROUP_KEYS)),
    "descending_group": lambda rng, lanes, groups: _group(rng, groups, np.arange(GROUP_KEYS)[::-1]),
    "group_of_equals": lambda rng, lanes, groups: _group(rng, groups, 0),
    "ties_of_a_group": lambda rng, lanes, groups: _group(rng, groups, rng.integers(0, 3, GROUP_KEYS)),
    "lane_of_equals": lambda rng, lanes, groups: 9 * (lanes == rng.choice(lanes)),
    "ties_of_a_lane": lambda rng, lanes, groups: (
        (lanes == rng.choice(lanes)) * rng.integers(0, 3, lanes.size) + rng.integers(0, 2, lanes.size)
    ),
    "one_of_each_group": lambda rng, lanes, groups: np.where(_one_of_each(rng, groups), 9, 0),
}


def _group(rng, groups, numbers):
    """Return a row whose largest elements are all that a lane has in one group."""
    row = rng.integers(0, 3, groups.size)
    row[groups == rng.choice(np.flatnonzero(np.bincount(groups) == GROUP_KEYS))] = 9 + numbers
    return row


def _one_of_each(rng, groups):
    positions = rng.permutation(groups.size)
    first = np.unique(groups[positions], return_index=True)[1]
    return np.isin(np.arange(groups.size), positions[first])


def _lanes_and_groups(n_elements, element_size):
    """Return which lane of the rounds kernel has each position of a row, and in which of all groups."""
    n_lanes = next(lanes for lanes, keys in ROUNDS_SHAPES[element_size] if n_elements <= lanes * keys)
    per_vector = 16 // element_size
    vectors, elements = np.divmod(np.arange(n_elements), per_vector)
    lanes = vectors % n_lanes
    places = vectors // n_lanes * per_vector + elements
    return lanes, places // GROUP_KEYS * n_lanes + lanes


def _elements(numbers, dtype, largest):
    """Return elements in the order of numbers; those of number 0 have the least key of all, or are NaNs."""
    if np.dtype(dtype).kind == "f":
        rows = np.where(numbers == 0, -np.inf if largest else np.nan, numbers if largest else -numbers)
        return rows.astype(dtype)
    # Keys of 64 bits differ in the lower half, or in both.
    rows = numbers.astype(dtype) * dtype((1 << 32) // 3)
    return rows if largest else np.iinfo(dtype).max - rows


@pytest.mark.parametrize("kind", ROUNDS)
@pytest.mark.parametrize("n_elements", [61, 128, 250, 512])
@pytest.mark.parametrize("dtype", [np.float32, exhaustive(np.uint64)])
def test_rounds_of_groups(dtype, n_elements, kind):
    """A lane loses several elements of one group or of several, and equal ones lie in any of them."""
    rng = np.random.default_rng(13)
    lanes, groups = _lanes_and_groups(n_elements, np.dtype(dtype).itemsize)
    numbers = np.array([ROUNDS[kind](rng, lanes, groups) for _ in range(11)])
    for largest in (True, False):
        rows = _elements(numbers, dtype, largest)
        for k, is_sorted in ((5, False), (8, True)):
            run_top_k("rounds", TensorDataType[np.dtype(dtype).name.upper()], rows, k, is_sorted, largest)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["distinct", "ties", "least"])
@pytest.mark.parametrize("n_elements", [61, 128, 250, 512])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint64])
def test_rounds_of_lengths(dtype, n_elements, kind):
    """Rows end anywhere, also before their k-th element; those behind the end would all be selected."""
    rng = np.random.default_rng(14)
    lanes, groups = _lanes_and_groups(n_elements, np.dtype(dtype).itemsize)
    lengths = np.concatenate([np.arange(11), rng.integers(0, n_elements, 20), [n_elements - 1, n_elements]])
    numbers = np.array([ROUNDS[kind](rng, lanes, groups) for _ in lengths])
    numbers[np.arange(n_elements) >= lengths[:, None]] = n_elements
    for largest in (True, False):
        rows = _elements(numbers, dtype, largest)
        for k, is_sorted in ((5, False), (8, True)):
            data_type = TensorDataType[np.dtype(dtype).name.upper()]
            run_top_k("rounds", data_type, rows, k, is_sorted, largest, lengths)


# Whether the largest are selected, and whether these are sorted.
DIRECTIONS = {"largest_by_index": (True, False), "smallest": (False, True)}


def run_sampled(rows, k, largest, is_sorted):
    """Have `sampled` select from rows."""
    run_top_k("sampled", TensorDataType[rows.dtype.name.upper()], rows, k, is_sorted, largest)


@pytest.mark.exhaustive
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", [exhaustive(np.float16), np.float32, exhaustive(np.float64)])
def test_samples_that_mislead(dtype, direction):
    """A list has no room for what a sample lets through, or the sample has all the first elements."""
    largest, is_sorted = DIRECTIONS[direction]
    rows = np.random.default_rng(15).standard_normal((1, 20_000)).astype(dtype)
    rows = misleading_rows(rows, 4096)
    run_sampled(rows if largest else -rows, 300, largest, is_sorted)


@pytest.mark.exhaustive
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", [exhaustive(np.float16), exhaustive(bfloat16), np.float32])
def test_floats_that_are_the_threshold(dtype, direction):
    """Half a row equals one number, and few elements come before it: more than a list has room for."""
    largest, is_sorted = DIRECTIONS[direction]
    rows = rows_of_special_numbers(dtype, 10_003, largest, np.random.default_rng(20))
    run_sampled(rows, 300, largest, is_sorted)


class RecordedMemory(GlobalMemory):
    """Memory whose arrays can be looked at afterwards: operands, and last a workspace."""

    def __init__(self):
        super().__init__()
        self.arrays = []

    def add(self, array):
        self.arrays.append(array)
        return super().add(array)


@pytest.mark.exhaustive
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.int16, np.float32, np.uint32, np.float64])
def test_enough_is_listed_and_no_more_than_there_is_room_for(dtype, largest):
    """Otherwise the row would be read again, which gives the right answer, but late."""
    k, n_elements = 300, 40_003
    rows = (np.random.default_rng(21).standard_normal((3, n_elements)) * 9000).astype(np.int64).astype(dtype)
    memory = RecordedMemory()
    run_top_k("sampled", TensorDataType[np.dtype(dtype).name.upper()], rows, k, False, largest, memory=memory)
    states = memory.arrays[-1][: len(rows) * ROW_STATE_BYTES].view(np.uint32).reshape(len(rows), -1)
    # Behind a row's threshold of 8 bytes.
    n_listed = states[:, 2]
    n_slots = list_slots(4096, k, n_elements)
    assert n_slots < n_elements // 2
    assert k <= n_listed.min() <= n_listed.max() <= n_slots


class ChangingMemory(GlobalMemory):
    """Memory whose first array changes at any time: each load finds some elements of another array."""

    def __init__(self, other, rng):
        super().__init__()
        self._other, self._rng, self._first = other.reshape(-1).view(np.uint8), rng, None

    def add(self, array):
        address = super().add(array)
        if self._first is None:
            self._first = address
        return address

    def load(self, addresses, bits):
        found = super().load(addresses, bits)
        offsets = addresses.astype(np.int64) - self._first
        changed = (offsets >= 0) & (offsets < self._other.size) & (self._rng.random(offsets.size) < 0.5)
        at = offsets[changed, None] + np.arange(bits // 8)
        found[changed] = np.ascontiguousarray(self._other[at]).view(found.dtype).ravel()
        return found


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.exhaustive])
        for name in sorted(READING_CHANGED)
    ],
)
def test_elements_that_change_meanwhile(name, is_sorted):
    """The answer may be anything, but the kernels end, and access nothing else."""
    rng = np.random.default_rng(11)
    n_elements, ks = (200, (3, 8)) if name == "rounds" else (9001, (1, 100))
    rows = rng.standard_normal((2, n_elements)).astype(np.float32)
    for other in (np.sort(rows, axis=1), rows - 9):
        for k in ks:
            memory = ChangingMemory(np.ascontiguousarray(other), rng)
            run_top_k(name, TensorDataType.FLOAT32, rows, k, is_sorted, memory=memory)


def test_elements_that_change_after_they_were_counted():
    """No more rows are written than were counted."""
    sizes, n_rows = (10, 50), 100
    target = Target(0, "sm_90", 132, SHARED_BYTES["sm_90"])
    for policy in (NonzeroPolicy(), NonzeroPolicy(small_elements=0)):
        memory = GlobalMemory()
        x = aligned(4 * math.prod(sizes), ALIGNMENT)
        elements = x.view(np.uint32)
        elements[...] = 0
        elements[:: elements.size // n_rows] = 1
        count, coordinates = aligned(8, ALIGNMENT), aligned(n_rows * 16, ALIGNMENT)
        with interpreted(memory):
            problem = NonzeroProblem(
                element_size=4,
                magnitude=(1 << 32) - 1,
                sizes=sizes,
                dims=((elements.size, 1),),
                x_offset=0,
                capacity=elements.size,
                coordinate_strides=(2, 1),
                coordinate_size=8,
                count_size=8,
                fill=None,
            )
            plan = nonzero_plan(problem, target, policy)
            x_address, count_address, address = map(memory.add, (x, count, coordinates))
            workspace = memory.add(aligned(plan.workspace_size, ALIGNMENT))
            plan.count(STREAM, x_address, count_address, workspace)
            assert count.view(np.int64) == n_rows
            elements[...] = 1
            plan.expand(STREAM, x_address, address, n_rows, workspace)
        # One block reads the elements again; otherwise, a mask has kept them.
        step = 5 if policy.small_elements == 0 else 1
        expected = np.stack(np.unravel_index(step * np.arange(n_rows), sizes), axis=1)
        np.testing.assert_array_equal(coordinates.view(np.int64).reshape(-1, 2), expected)
